package invariants

import (
	"fmt"
	"slices"
	"strings"
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
			if !r.writtenOff(one, later.start) {
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

// writtenOff tells whether this worker, and no other, was stored as not known to have stopped before another began, and the
// Task was told to go on without it. A word on its stop, later on, takes that back.
func (r *record) writtenOff(one *run, before time.Time) bool {
	off, meant := false, false
	for i := range r.versions {
		v := &r.versions[i]
		retry, c := v.task.Spec.Retry, condition(v.task, v1alpha1.ConditionWorkerStopped)
		if v.at.After(before) || retry != nil && retry.OnWorkerLost == v1alpha1.WaitForLostWorker {
			break
		}
		switch {
		case c == nil:
			meant = false
		case c.Status == metav1.ConditionUnknown:
			meant = strings.Contains(c.Message, fmt.Sprintf("attempt %d ", one.attempt)) // the condition has no field for it
			off = off || meant
		default:
			off = off && !meant
		}
	}
	return off
}

func condition(t *v1alpha1.Task, kind string) *metav1.Condition {
	i := slices.IndexFunc(t.Status.Conditions, func(c metav1.Condition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &t.Status.Conditions[i]
}
