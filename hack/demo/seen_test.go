package main

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// at is a Task at a point on its way.
func at(uid types.UID, stage string, percent int32) *v1alpha1.Task {
	t := &v1alpha1.Task{ObjectMeta: metav1.ObjectMeta{Name: string(uid), Namespace: demoNamespace, UID: uid}}
	t.Status.Progress = &v1alpha1.TaskProgress{Stage: stage, Percent: ptr.To(percent)}
	return t
}

func TestSightings(t *testing.T) {
	good := []*v1alpha1.Task{
		at("a", "", 0), at("a", "render", 0), at("b", "other", 1), at("a", "render", 40), at("a", "render", 40), at("a", "", 0),
		at("a", "render", 60), at("a", "upload", 75), at("a", "upload", 100),
	}
	whole := at("a", "upload", 100)
	for name, tt := range map[string]struct {
		stages, percents string
		seen             []*v1alpha1.Task
		ended            *v1alpha1.Task
		good             bool
	}{
		"as it should":        {"render,upload", "3", good, whole, true},
		"nothing expected":    {"", "", nil, whole, true},
		"nothing seen":        {"render,upload", "", nil, whole, false},
		"no progress seen":    {"", "1", []*v1alpha1.Task{at("a", "x", 0), at("a", "x", 100)}, whole, false},
		"a stage was missed":  {"render,bind,upload", "3", good, whole, false},
		"a stage too many":    {"render", "3", good, whole, false},
		"another order":       {"upload,render", "3", good, whole, false},
		"too little progress": {"render,upload", "4", good, whole, false},
		"not 100 at the end":  {"render,upload", "3", good, at("a", "upload", 99), false},
		"seen of another one": {"other", "", good[:2], at("b", "", 0), false},
		"not a number":        {"", "x", good, whole, false},
	} {
		s := newSightings()
		for _, seen := range tt.seen {
			s.note(seen)
		}
		sample := at("a", "", 0)
		sample.Annotations = map[string]string{expectStages: tt.stages, expectPercents: tt.percents}
		if err := s.check(sample, tt.ended); (err == nil) != tt.good {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestSightingsAreWatched: what is replaced at once is seen all the same.
func TestSightingsAreWatched(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	api := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.Task{}).Build()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, ended := newSightings(), make(chan struct{})
	go func() {
		defer close(ended)
		s.watch(ctx, api)
	}()
	show := func(task *v1alpha1.Task, stages ...string) {
		for _, stage := range stages {
			task.Status.Progress = &v1alpha1.TaskProgress{Stage: stage, Percent: ptr.To[int32](50)}
			if err := api.Status().Update(ctx, task); err != nil {
				t.Fatal(err)
			}
		}
	}
	seen := func(uid types.UID, stages, percents string) error {
		sample := at(uid, "", 0)
		sample.Annotations = map[string]string{expectStages: stages, expectPercents: percents}
		return s.check(sample, at(uid, "", 100))
	}
	first, task := at("first", "", 0), at("a", "", 0)
	for _, object := range []*v1alpha1.Task{first, task} {
		if err := api.Create(ctx, object); err != nil {
			t.Fatal(err)
		}
	}
	for seen("first", "any", "") != nil { // until the watch has begun
		show(first, "any")
		if ctx.Err() != nil {
			t.Fatal("the watch does not begin")
		}
	}
	show(task, "first", "second")
	for tick := time.Tick(time.Millisecond); ; <-tick {
		err := seen("a", "first,second", "1")
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	cancel()
	<-ended
}
