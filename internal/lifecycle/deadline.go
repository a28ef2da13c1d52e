package lifecycle

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// Each of these is the moment at which something is due, the zero time where it never is. All come from what is stored, so
// that a restart neither shortens nor lengthens any of them.

// StartDeadline is when the current attempt's worker must run.
func StartDeadline(t *v1alpha1.Task) time.Time {
	if t.Status.Worker == nil {
		return time.Time{}
	}
	return after(t.Status.Worker.CreateTime, ptr.Deref(t.Spec.StartTimeoutSeconds, DefaultStartTimeoutSeconds))
}

// ActiveDeadline is when the current attempt must have ended.
func ActiveDeadline(t *v1alpha1.Task) time.Time {
	if t.Status.Worker == nil {
		return time.Time{}
	}
	return after(t.Status.Worker.StartTime, ActiveSeconds(t))
}

// HeartbeatDeadline is when the current worker must have reported again.
func HeartbeatDeadline(t *v1alpha1.Task) time.Time {
	w := t.Status.Worker
	if w == nil || w.StartTime == nil || t.Spec.HeartbeatTimeoutSeconds == nil {
		return time.Time{}
	}
	return after(latest(w.StartTime, w.HeartbeatTime), *t.Spec.HeartbeatTimeoutSeconds)
}

// ProgressDeadline is when the current worker must have advanced again.
func ProgressDeadline(t *v1alpha1.Task) time.Time {
	w := t.Status.Worker
	if w == nil || w.StartTime == nil || t.Spec.ProgressTimeoutSeconds == nil {
		return time.Time{}
	}
	from := w.StartTime
	if p := t.Status.Progress; p != nil {
		from = latest(from, p.AdvanceTime)
	}
	return after(from, *t.Spec.ProgressTimeoutSeconds)
}

// StageDeadline is when the current worker must have left its stage, and how many seconds that stage may take.
func StageDeadline(t *v1alpha1.Task) (deadline time.Time, timeout int32) {
	p := t.Status.Progress
	if p == nil || t.Status.Worker == nil {
		return time.Time{}, 0
	}
	i := stageIndex(t.Spec.Stages, p.Stage)
	if i < 0 || t.Spec.Stages[i].TimeoutSeconds == nil {
		return time.Time{}, 0
	}
	timeout = *t.Spec.Stages[i].TimeoutSeconds
	return after(latest(t.Status.Worker.StartTime, p.StageTime), timeout), timeout
}

func latest(a, b *metav1.MicroTime) *metav1.MicroTime {
	if a == nil || b != nil && b.After(a.Time) {
		return b
	}
	return a
}

// ActiveSeconds is spec.activeDeadlineSeconds with its default.
func ActiveSeconds(t *v1alpha1.Task) int32 {
	return ptr.Deref(t.Spec.ActiveDeadlineSeconds, DefaultActiveDeadlineSeconds)
}

// OverallDeadline is when all attempts together must have ended.
func OverallDeadline(t *v1alpha1.Task) time.Time {
	if t.Spec.OverallDeadlineSeconds == nil {
		return time.Time{}
	}
	from := t.Status.RunStartTime
	if from == nil {
		from = ptr.To(metav1.NewMicroTime(t.CreationTimestamp.Time))
	}
	return after(from, *t.Spec.OverallDeadlineSeconds)
}

// FinishGraceEnd is when the pod of a worker that ended at the given time is stopped.
func FinishGraceEnd(t *v1alpha1.Task, finished time.Time) time.Time {
	return finished.Add(seconds(ptr.Deref(t.Spec.FinishGraceSeconds, DefaultFinishGraceSeconds)))
}

// WorkerLostDeadline is when a stop that began at the given time no longer waits for a worker that is unheard of.
func WorkerLostDeadline(t *v1alpha1.Task, since time.Time) time.Time {
	return since.Add(seconds(ptr.Deref(t.Spec.WorkerLostTimeoutSeconds, DefaultWorkerLostSeconds)))
}

// RetentionEnd is when the Job of a successful attempt is deleted.
func RetentionEnd(t *v1alpha1.Task) time.Time {
	return after(t.Status.CompletionTime, ptr.Deref(t.Spec.WorkerRetentionSeconds, DefaultWorkerRetentionSeconds))
}

// TTLEnd is when a finished Task is deleted.
func TTLEnd(t *v1alpha1.Task) time.Time {
	if t.Spec.TTLSecondsAfterFinished == nil {
		return time.Time{}
	}
	return after(t.Status.CompletionTime, *t.Spec.TTLSecondsAfterFinished)
}

// Passed tells whether a deadline has come. A zero deadline never does.
func Passed(deadline, now time.Time) bool {
	return !deadline.IsZero() && !now.Before(deadline)
}

// Earliest is the first of the moments that are not zero; zero where there is none.
func Earliest(moments ...time.Time) time.Time {
	var first time.Time
	for _, m := range moments {
		if !m.IsZero() && (first.IsZero() || m.Before(first)) {
			first = m
		}
	}
	return first
}

func after(t *metav1.MicroTime, s int32) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.Add(seconds(s))
}

func seconds(s int32) time.Duration { return time.Duration(s) * time.Second }
