package task

import (
	"fmt"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// answerRetryRequest answers a request for a retry by hand, in whatever state it comes.
func (d *decision) answerRetryRequest() {
	status := &d.task.Status
	requested := retryRequest(d.task)
	if requested == "" || status.LastHandledRetry != nil && status.LastHandledRetry.RequestedAt == requested {
		return
	}
	answer := &v1alpha1.HandledRetry{RequestedAt: requested, Outcome: v1alpha1.RetryRefused}
	switch {
	case status.State != v1alpha1.StateFailed:
		answer.Message = fmt.Sprintf("Only a Failed Task can be retried by hand; this one is %s", status.State)
	case d.cancelled():
		answer.Message = "spec.cancel is set"
	default:
		if err := lifecycle.AgainByHand(d.task, lifecycle.Facts{AskedByHand: true}, d.now); err != nil {
			d.refuse(err)
			return
		}
		answer.Outcome = v1alpha1.RetryAccepted
		d.plan.Moved = true
		status.Reason, status.Message = v1alpha1.ReasonWaitingForWorker, "Retried by hand"
	}
	status.LastHandledRetry = answer
}

// retryRequest is the value of the retry annotation, as far as it is compared.
func retryRequest(t *v1alpha1.Task) string {
	v := lifecycle.Truncate(t.Annotations[v1alpha1.AnnotationRetryRequestedAt])
	if len(v) > v1alpha1.MaxRetryRequestBytes {
		v = lifecycle.Truncate(v[:v1alpha1.MaxRetryRequestBytes])
	}
	return v
}

// finished decides what a finished Task still owes: its Job for a while, then itself.
func (d *decision) finished() {
	if d.task.Status.State == v1alpha1.StateSucceeded {
		d.retireSuccess()
	}
	if d.task.Spec.TTLSecondsAfterFinished == nil {
		return
	}
	ttl := lifecycle.TTLEnd(d.task)
	if lifecycle.Passed(ttl, d.now) {
		d.plan.DeleteTask = true
		return
	}
	d.wake(ttl)
}

// retireSuccess deletes the Job of the successful attempt when its time is over, and no container of it runs any more.
func (d *decision) retireSuccess() {
	w := d.worker(d.task.Status.Attempt)
	if w == nil || w.Job == nil || w.Job.Deleting {
		return
	}
	end := lifecycle.RetentionEnd(d.task)
	switch {
	case !lifecycle.Passed(end, d.now):
		d.wake(end)
	case !w.Alive():
		d.plan.DeleteJobs = append(d.plan.DeleteJobs, ObjectKey{Name: w.Job.Name, UID: w.Job.UID})
	}
}

// pruneFailedJobs keeps the Jobs of the last few attempts that did not succeed.
func (d *decision) pruneFailedJobs() {
	kept := 0
	for i := len(d.Workers) - 1; i >= 0; i-- {
		w := &d.Workers[i]
		a := attempt(d.task, w.Attempt)
		if w.Job == nil || w.Attempt >= d.task.Status.Attempt && (a == nil || a.Outcome == "" || a.Outcome == string(lifecycle.Succeed)) {
			continue
		}
		kept++
		if kept > v1alpha1.MaxKeptFailedJobs && !w.Job.Deleting && !w.Alive() {
			d.plan.DeleteJobs = append(d.plan.DeleteJobs, ObjectKey{Name: w.Job.Name, UID: w.Job.UID})
		}
	}
}
