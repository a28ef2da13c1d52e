package invariants

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// sleepers is invariant 10: something will move every Task that goes on, in time for what is due next.
func (s *Source) sleepers(w *world) []Violation {
	if s.Wake == nil || !s.Running {
		return nil
	}
	var all []Violation
	for i := range w.tasks {
		t := &w.tasks[i]
		if t.DeletionTimestamp != nil || lifecycle.Terminal(t.Status.State) {
			continue
		}
		f := &finding{task: taskName(t)}
		at, err := s.Wake(t)
		due := next(t, s.Now())
		switch {
		case err != nil:
			f.add(10, "wake", "state %q: %v", t.Status.State, err)
		case at.IsZero() && !due.IsZero():
			f.add(10, "wake", "state %q: no wake-up, although something is due at %s", t.Status.State, stamp(due))
		case at.IsZero() && !w.eventful(t):
			f.add(10, "wake", "state %q: no wake-up, and no event to come", t.Status.State)
		case !due.IsZero() && at.After(due.Add(slack)):
			f.add(10, "wake-late", "state %q: the wake-up is at %s, and something is due at %s", t.Status.State, stamp(at), stamp(due))
		}
		all = append(all, f.list...)
	}
	return all
}

// next is the next moment at which a Task is due to move, as far as its spec and status tell; zero where they do not.
func next(t *v1alpha1.Task, now time.Time) time.Time {
	if c := condition(t, v1alpha1.ConditionTerminating); c != nil && c.Status == metav1.ConditionTrue {
		return time.Time{} // it waits for the worker to stop
	}
	moments := []time.Time{lifecycle.OverallDeadline(t)}
	switch t.Status.State {
	case v1alpha1.StatePending:
		moments = append(moments, lifecycle.StartDeadline(t))
	case v1alpha1.StateProcessing:
		moments = append(moments, lifecycle.ActiveDeadline(t))
	case v1alpha1.StateRetrying:
		if t.Status.NextRetryTime != nil && !suspended(t) {
			moments = append(moments, t.Status.NextRetryTime.Time)
		}
	default:
	}
	first := time.Time{}
	for _, m := range moments {
		if m.After(now) {
			first = lifecycle.Earliest(first, m)
		}
	}
	return first
}

// eventful tells of a Task that somebody else will move: a user who resumes it, or a worker that runs on although it was
// given up, whose pod is watched.
func (w *world) eventful(t *v1alpha1.Task) bool {
	if t.Status.State == v1alpha1.StateProcessing {
		return false
	}
	if suspended(t) && (t.Status.Worker == nil || t.Status.State == v1alpha1.StateRetrying) {
		return true
	}
	return outOfReach(t) && slices.ContainsFunc(w.pods, func(p corev1.Pod) bool {
		return p.Labels[v1alpha1.LabelTaskUID] == string(t.UID) && !ended(&p)
	})
}

func suspended(t *v1alpha1.Task) bool { return ptr.Deref(t.Spec.Suspend, false) }
