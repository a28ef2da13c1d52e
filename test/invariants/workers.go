package invariants

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// checkWorkers is invariant 1: at most one live worker per Task, by what the workers say of themselves.
func checkWorkers(f *finding, r *record, marks []Mark) {
	runs := runsOf(marks)
	for _, one := range runs {
		if one.end.IsZero() {
			one.end = r.endOf(one)
		}
	}
	for i, one := range runs {
		for _, later := range runs[i+1:] {
			if later.attempt == one.attempt {
				f.add(1, "run-twice", "one attempt ran twice: %s, and %s", one, later)
			}
			if !one.end.IsZero() && !one.end.After(later.start) {
				continue
			}
			if !r.writtenOff(later.start) {
				f.add(1, "one-worker", "%s was not over when another began: %s", one, later)
			}
		}
	}
}

// endOf is when a worker that left no stop mark, since it was killed, was over at the latest: its container's own end, or
// the deletion of its pod without grace, which a kubelet asks for when nothing runs and a user to give the pod up.
func (r *record) endOf(one *run) time.Time {
	i := slices.IndexFunc(r.pods, func(p *pod) bool { return p.uid == one.id || p.name == one.host })
	if i < 0 {
		return time.Time{}
	}
	if p := r.pods[i]; !p.ended.IsZero() {
		return p.ended
	}
	return r.pods[i].removed
}

// writtenOff tells whether, before a moment, a worker was stored as not known to have stopped, and the Task was told to go
// on without it.
func (r *record) writtenOff(before time.Time) bool {
	return slices.ContainsFunc(r.versions, func(v version) bool {
		retry := v.task.Spec.Retry
		waits := retry != nil && retry.OnWorkerLost == v1alpha1.WaitForLostWorker
		c := condition(v.task, v1alpha1.ConditionWorkerStopped)
		return !waits && c != nil && c.Status == metav1.ConditionUnknown && !v.at.After(before)
	})
}

func condition(t *v1alpha1.Task, kind string) *metav1.Condition {
	i := slices.IndexFunc(t.Status.Conditions, func(c metav1.Condition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &t.Status.Conditions[i]
}
