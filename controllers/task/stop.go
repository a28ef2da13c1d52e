package task

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// stopSlack is added to a pod's grace before a stop by deadline is believed not to have worked: the kubelet's own
// housekeeping runs every 10 seconds.
const stopSlack = 15 * time.Second

// workerLostAt is when a stop that began at the given time no longer waits for a worker that is unheard of. One that uses its
// grace is not lost: the stop by deadline, and the deletion after it, have had their time before.
func (d *decision) workerLostAt(since time.Time) time.Time {
	return later(lifecycle.WorkerLostDeadline(d.task, since), since.Add(2*(podGrace(d.task)+stopSlack)))
}

// stop asks for a worker to be stopped, in the way that keeps most evidence; since is when the first such order was given.
func (d *decision) stop(w *Worker, since time.Time) {
	if w == nil {
		return
	}
	onNode := false
	for i := range w.Pods {
		if pod := &w.Pods[i]; pod.Alive() && pod.NodeName != "" {
			onNode = true
			d.stopPod(pod, since)
		}
	}
	if !onNode {
		d.stopByDeletion(w)
	}
}

// stopByDeletion deletes a worker's Job with its pods, or pods that have no Job any more.
func (d *decision) stopByDeletion(w *Worker) {
	if w.Job != nil {
		if !w.Job.Deleting {
			d.order(StopByDeletingJob, w.Job.Name, w.Job.UID)
		}
		return
	}
	for i := range w.Pods {
		if pod := &w.Pods[i]; pod.Alive() && !pod.Deleting {
			d.order(StopByDeletingPod, pod.Name, pod.UID)
		}
	}
}

// stopAll ends what a Task leaves that is being deleted and that somebody's finalizer still holds: the garbage collector takes
// Jobs and pods along only when the Task has gone. Nothing is recorded any more, and what has ended stays for whom it may
// concern. Who deletes with --cascade=orphan wants to keep all of it.
func (d *decision) stopAll() {
	if slices.Contains(d.task.Finalizers, metav1.FinalizerOrphanDependents) {
		return
	}
	for i := range d.Workers {
		if w := &d.Workers[i]; w.Alive() {
			d.stopByDeletion(w)
		}
	}
}

// stopPod stops a pod that a node has.
func (d *decision) stopPod(pod *PodFacts, since time.Time) {
	overdue := since.Add(pod.Grace + stopSlack)
	switch {
	case !pod.StopAsked && !pod.Deleting:
		d.order(StopByDeadline, pod.Name, pod.UID)
		d.wake(later(overdue, d.now.Add(stopSlack)))
	case pod.Deleting:
		// nothing stronger is left, short of force, which would prove nothing
	case lifecycle.Passed(overdue, d.now):
		d.order(StopByDeletingPod, pod.Name, pod.UID)
	default:
		d.wake(overdue)
	}
}

// stopLeftovers stops the workers of ended attempts that outstay their grace, and of attempts that nobody knows.
func (d *decision) stopLeftovers() {
	for i := range d.Workers {
		w := &d.Workers[i]
		if !w.Alive() || d.hasWorker() && w.Attempt == d.task.Status.Attempt || d.plan.Create && w.Attempt == d.task.Status.Attempt {
			continue
		}
		due := d.leftoverDeadline(w)
		if lifecycle.Passed(due, d.now) {
			d.stop(w, due)
			d.plan.StopUnknown = d.plan.StopUnknown || w.Attempt > d.task.Status.Attempt
			continue
		}
		d.wake(due)
	}
}

// leftoverDeadline is when the pod of an ended attempt must be gone by itself: after its grace, or when the Task is cancelled
// before that.
func (d *decision) leftoverDeadline(w *Worker) time.Time {
	if fixed := findCondition(d.task, v1alpha1.ConditionTerminating); d.terminating() && !d.hasWorker() {
		return lifecycle.Earliest(d.graceEnd(w), fixed.LastTransitionTime.Time)
	}
	return d.graceEnd(w)
}

// graceEnd is when the pod of an ended attempt must be gone by itself. A Job without a pod has no such grace: it could only
// make another one.
func (d *decision) graceEnd(w *Worker) time.Time {
	if a := attempt(d.task, w.Attempt); a != nil && a.FinishTime != nil {
		if endedByItself(a) && (len(w.Pods) > 0 || d.hasReported(w.Attempt)) {
			return lifecycle.FinishGraceEnd(d.task, a.FinishTime.Time)
		}
		return a.FinishTime.Time
	}
	return w.createTime()
}

// endedByItself tells whether the worker's own word has ended an attempt.
func endedByItself(a *v1alpha1.AttemptStatus) bool {
	return a.Outcome == string(lifecycle.Succeed) || a.ExitCode != nil || ptr.Deref(a.Reported, false)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func attempt(t *v1alpha1.Task, number int32) *v1alpha1.AttemptStatus {
	for i := range t.Status.Attempts {
		if t.Status.Attempts[i].Number == number {
			return &t.Status.Attempts[i]
		}
	}
	return nil
}
