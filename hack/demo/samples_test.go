package main

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

func TestReport(t *testing.T) {
	a, b := succeeded("a", goodResult), succeeded("b", goodResult)
	other := succeeded("b", goodResult)
	other.UID = "c"
	failed := *b.DeepCopy()
	failed.Status.State = v1alpha1.StateFailed
	noResult := succeeded("b", "")
	for name, tt := range map[string]struct {
		ended []v1alpha1.Task
		good  bool
	}{
		"as they should":                 {[]v1alpha1.Task{b, a}, true},
		"one was deleted":                {[]v1alpha1.Task{a}, false},
		"all were deleted":               {nil, false},
		"one was deleted and made again": {[]v1alpha1.Task{a, other}, false},
		"one failed":                     {[]v1alpha1.Task{a, failed}, false},
		"one has no result":              {[]v1alpha1.Task{a, noResult}, false},
	} {
		w := &watched{samples: []v1alpha1.Task{a, b}, ended: tt.ended, seen: newSightings()}
		if err := report(w); (err == nil) != tt.good {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestSamplesTakeTheImageThatIsNamed(t *testing.T) {
	t.Chdir("../..")
	t.Setenv("IMAGING_IMG", "registry.example.com:5000/imaging@sha256:"+digest("a"))
	samples, err := readSamples()
	if err != nil {
		t.Fatal(err)
	}
	for i := range samples {
		image := samples[i].Spec.Template.Spec.Containers[0].Image
		if image != "taskwarden.invalid/no-such-image:1" && !strings.HasPrefix(image, "registry.example.com:5000/imaging@sha256:") {
			t.Errorf("%s: image %s", samples[i].Name, image)
		}
	}
}

// TestSamplesSayWhatTheyShow: an annotation that the demo does not know would be an expectation that nobody checks.
func TestSamplesSayWhatTheyShow(t *testing.T) {
	t.Chdir("../..")
	samples, err := readSamples()
	if err != nil {
		t.Fatal(err)
	}
	known := []string{expectState, expectReason, expectAttempts, expectStages, expectPercents, expectResult, cancelWhen}
	reporting := 0
	for i := range samples {
		s := &samples[i]
		for name := range s.Annotations {
			if strings.HasPrefix(name, annotations) && !slices.Contains(known, name) {
				t.Errorf("%s: annotation %s", s.Name, name)
			}
		}
		for _, name := range []string{expectState, expectReason, expectAttempts} {
			if s.Annotations[name] == "" {
				t.Errorf("%s: no annotation %s", s.Name, name)
			}
		}
		var stages []string
		for _, stage := range s.Spec.Stages {
			stages = append(stages, stage.Name)
		}
		if want := strings.Join(stages, ","); s.Annotations[expectStages] != want {
			t.Errorf("%s: %s is %q, spec.stages are %q", s.Name, expectStages, s.Annotations[expectStages], want)
		}
		if text := s.Annotations[expectResult]; text != "" {
			if err := checkExpected(text, &v1alpha1.TaskResult{}); err == nil || !strings.Contains(err.Error(), "want") {
				t.Errorf("%s: %s: %v", s.Name, expectResult, err)
			}
		}
		if s.Spec.Reporter != v1alpha1.ReporterSidecar {
			continue
		}
		reporting++
		if n, err := strconv.Atoi(s.Annotations[expectPercents]); err != nil || n < 1 {
			t.Errorf("%s: %s is %q", s.Name, expectPercents, s.Annotations[expectPercents])
		}
		if s.Annotations[expectResult] == "" || s.Spec.HeartbeatTimeoutSeconds == nil {
			t.Errorf("%s: no annotation %s, or no heartbeatTimeoutSeconds", s.Name, expectResult)
		}
	}
	if reporting < 2 {
		t.Errorf("%d samples report", reporting)
	}
}
