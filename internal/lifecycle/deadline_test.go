package lifecycle_test

import (
	"math"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

var created = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func micro(t time.Time) *metav1.MicroTime { return ptr.To(metav1.NewMicroTime(t)) }

func newTask() *v1alpha1.Task {
	t := &v1alpha1.Task{}
	t.Name, t.Namespace, t.UID = "x", "default", "8e7c"
	t.CreationTimestamp = metav1.NewTime(created)
	return t
}

func TestC23DeadlinesWithNothingToCountFromAreZero(t *testing.T) {
	task := newTask()
	for name, f := range map[string]func(*v1alpha1.Task) time.Time{
		"start": lifecycle.StartDeadline, "active": lifecycle.ActiveDeadline, "overall": lifecycle.OverallDeadline,
		"retention": lifecycle.RetentionEnd, "ttl": lifecycle.TTLEnd,
	} {
		if got := f(task); !got.IsZero() {
			t.Errorf("%s deadline of a bare Task = %s, want none", name, got)
		}
	}
	task.Status.Worker = &v1alpha1.WorkerStatus{}
	if got := lifecycle.Earliest(lifecycle.StartDeadline(task), lifecycle.ActiveDeadline(task)); !got.IsZero() {
		t.Errorf("a worker without times has a deadline, %s", got)
	}
	if lifecycle.Passed(time.Time{}, created) {
		t.Error("no deadline has passed")
	}
}

func TestC23MissingTimeoutsAreTheDefaults(t *testing.T) {
	task := newTask()
	task.Status.Worker = &v1alpha1.WorkerStatus{CreateTime: micro(created), StartTime: micro(created)}
	task.Status.CompletionTime = micro(created)
	for name, c := range map[string]struct {
		got  time.Time
		want time.Duration
	}{
		"start":       {lifecycle.StartDeadline(task), 600 * time.Second},
		"active":      {lifecycle.ActiveDeadline(task), 1800 * time.Second},
		"retention":   {lifecycle.RetentionEnd(task), 300 * time.Second},
		"finishGrace": {lifecycle.FinishGraceEnd(task, created), 60 * time.Second},
		"workerLost":  {lifecycle.WorkerLostDeadline(task, created), 300 * time.Second},
	} {
		if got := c.got.Sub(created); got != c.want {
			t.Errorf("%s: %s after, want %s", name, got, c.want)
		}
	}
}

func TestC23DeadlinesNeverOverflow(t *testing.T) {
	task := newTask()
	huge := ptr.To[int32](math.MaxInt32)
	task.Spec = v1alpha1.TaskSpec{
		StartTimeoutSeconds: huge, ActiveDeadlineSeconds: huge, OverallDeadlineSeconds: huge, FinishGraceSeconds: huge,
		WorkerLostTimeoutSeconds: huge, WorkerRetentionSeconds: huge, TTLSecondsAfterFinished: huge,
	}
	task.Status.Worker = &v1alpha1.WorkerStatus{CreateTime: micro(created), StartTime: micro(created)}
	task.Status.CompletionTime = micro(created)
	for name, got := range map[string]time.Time{
		"start": lifecycle.StartDeadline(task), "active": lifecycle.ActiveDeadline(task), "overall": lifecycle.OverallDeadline(task),
		"finishGrace": lifecycle.FinishGraceEnd(task, created), "workerLost": lifecycle.WorkerLostDeadline(task, created),
		"retention": lifecycle.RetentionEnd(task), "ttl": lifecycle.TTLEnd(task),
	} {
		if want := created.Add(math.MaxInt32 * time.Second); !got.Equal(want) {
			t.Errorf("%s deadline = %s, want %s", name, got, want)
		}
	}
}

func TestC19DeadlineIsPassedAtItsMoment(t *testing.T) {
	for offset, want := range map[time.Duration]bool{-1: false, 0: true, 1: true} {
		if got := lifecycle.Passed(created, created.Add(offset)); got != want {
			t.Errorf("passed %s from the deadline: %v, want %v", offset, got, want)
		}
	}
}

func TestC22OverallDeadlineCountsFromCreationOrFromTheRetryByHand(t *testing.T) {
	task := newTask()
	task.Spec.OverallDeadlineSeconds = ptr.To[int32](60)
	if got := lifecycle.OverallDeadline(task); !got.Equal(created.Add(time.Minute)) {
		t.Errorf("before it was accepted: %s", got)
	}
	lifecycle.Accept(task, created.Add(time.Second))
	if got := lifecycle.OverallDeadline(task); !got.Equal(created.Add(time.Minute)) {
		t.Errorf("from the creation: %s", got)
	}
	task.Status.RunStartTime = micro(created.Add(time.Hour))
	if got := lifecycle.OverallDeadline(task); !got.Equal(created.Add(time.Hour + time.Minute)) {
		t.Errorf("from the retry by hand: %s", got)
	}
}

func TestEarliestIsTheFirstThatIsSet(t *testing.T) {
	if got := lifecycle.Earliest(); !got.IsZero() {
		t.Errorf("of none: %s", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		offsets := rapid.SliceOfN(rapid.Ptr(rapid.IntRange(-1000, 1000), true), 1, 8).Draw(t, "offsets")
		var moments []time.Time
		least := math.MaxInt
		for _, o := range offsets {
			m := time.Time{}
			if o != nil {
				m = created.Add(time.Duration(*o) * time.Second)
				least = min(least, *o)
			}
			moments = append(moments, m)
		}
		want := time.Time{}
		if least != math.MaxInt {
			want = created.Add(time.Duration(least) * time.Second)
		}
		if got := lifecycle.Earliest(moments...); !got.Equal(want) {
			t.Fatalf("Earliest = %s, want %s", got, want)
		}
	})
}
