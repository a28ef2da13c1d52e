package main

import (
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
		if err := report([]v1alpha1.Task{a, b}, tt.ended); (err == nil) != tt.good {
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
