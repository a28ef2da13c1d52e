package task

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/internal/workertext"
)

// podDeadlineExceeded is the reason of a pod that the kubelet ended for its activeDeadlineSeconds.
const podDeadlineExceeded = "DeadlineExceeded"

// ending is a cause to end the current attempt.
type ending struct {
	lifecycle.Ending
	// workersOwn: it is the worker's own word, which ends the attempt at once, whatever else of its pod goes on.
	workersOwn bool
	// lost: nobody knows whether the worker has stopped.
	lost bool
}

// ending finds the cause to end the current attempt, if there is one. When several are seen together the first of this list
// counts; it is the precedence of the design, and the reason why it is written as one list.
func (d *decision) ending(w *Worker) *ending {
	for _, cause := range []func(*Worker) *ending{
		d.reported,        // the first final report that is stored, whatever else is seen
		d.disrupted,       // nobody's fault, whatever the exit code says
		d.exited,          // finished before its deadline, even if that has passed since
		d.cancelRequested, //
		d.overallDeadlinePassed,
		d.lost, // nothing is left that could still say a word
		d.startTimeoutPassed,
		d.activeDeadlinePassed,
		d.stageTimeoutPassed,
		d.heartbeatTimeoutPassed,
		d.progressTimeoutPassed,
		d.suspendRequested,
	} {
		if e := cause(w); e != nil {
			return e
		}
	}
	return nil
}

// disrupted: the pod was evicted, preempted or drained. A worker that had exited with 0 before did its work.
func (d *decision) disrupted(w *Worker) *ending {
	pod := d.pod(w)
	switch {
	case pod == nil:
		return disruptedByJob(w)
	case pod.Disruption == nil && pod.ExitUnknown != "" && pod.Reason == "":
		// A pod with a reason of its own (rejected, evicted for its own usage, out of time) has that in place of an exit.
		return fail(v1alpha1.ReasonWorkerLost, pod.ExitUnknown)
	case pod.Disruption == nil:
		return nil
	}
	if pod.Exit != nil && pod.Exit.Code == 0 && !pod.Exit.FinishTime.After(pod.Disruption.Time) {
		return nil
	}
	if pod.Exit == nil && pod.MayRun && !pod.Deleting && pod.Reason == "" {
		return nil // announced, not done: the condition is taken back when the disruption does not happen
	}
	e := fail(v1alpha1.ReasonDisrupted, fmt.Sprintf("%s: %s", pod.Disruption.Reason, pod.Disruption.Message))
	if pod.Exit != nil {
		e.withExit(pod.Exit)
		e.workersOwn = true
	}
	return e
}

// disruptedByJob: the Job has kept the evidence of a pod that is gone.
func disruptedByJob(w *Worker) *ending {
	if w != nil && w.Job != nil && w.Job.Failed && w.Job.Disrupted {
		return fail(v1alpha1.ReasonDisrupted, w.Job.Message)
	}
	return nil
}

// exited: the worker's own word, spoken before the deadlines.
func (d *decision) exited(w *Worker) *ending {
	pod := d.pod(w)
	if pod == nil {
		return d.jobCompleted(w)
	}
	if pod.Exit == nil {
		return d.endedWithoutWorker(pod)
	}
	if late(lifecycle.ActiveDeadline(d.task), pod.Exit.FinishTime) || late(lifecycle.OverallDeadline(d.task), pod.Exit.FinishTime) {
		return nil
	}
	if late(pod.DeleteTime, pod.Exit.FinishTime) {
		return deletedUnderway(w, pod)
	}
	return ownWord(pod.Exit, pod)
}

// deletedUnderway: what the worker made of the SIGTERM of a deletion, an exit with 0 say, is not its word on its work. Kubelet
// times have whole seconds, so an exit in the second of the deletion counts as one before it.
func deletedUnderway(w *Worker, pod *PodFacts) *ending {
	e := fail(v1alpha1.ReasonPodDeleted, fmt.Sprintf("Pod %s was deleted while its worker ran", pod.Name))
	if w.Job == nil || w.Job.Deleting {
		e = fail(v1alpha1.ReasonJobDeleted, "The Job was deleted while its worker ran")
	}
	e.withExit(pod.Exit)
	e.workersOwn = true
	return e
}

// jobCompleted: the Job saw its pod succeed, the pod is gone. When it exited nobody knows; one that overran its deadline
// would have been stopped.
func (d *decision) jobCompleted(w *Worker) *ending {
	if w == nil || w.Job == nil || !w.Job.Complete || w.Job.UID != d.task.Status.Worker.JobUID {
		return nil
	}
	return &ending{workersOwn: true, Ending: lifecycle.Ending{
		Event: lifecycle.Succeed, Reason: v1alpha1.ReasonCompleted, Message: "The Job is complete; its pod is gone, and with it what it left",
	}}
}

// ownWord reads a worker's exit: its code says whether, its termination message says what.
func ownWord(exit *Exit, pod *PodFacts) *ending {
	result, text := workertext.Parse(exit.Message)
	e := &ending{workersOwn: true}
	if pod.Reason == podDeadlineExceeded && !exit.FinishTime.Before(pod.Deadline) {
		// The kubelet ended it for the pod's own deadline, whatever the worker made of its SIGTERM.
		e.Ending = lifecycle.Ending{Event: lifecycle.Timeout, Reason: v1alpha1.ReasonActiveDeadlineExceeded, Message: pod.Message}
		e.withExit(exit)
		return e
	}
	if exit.Code == 0 && pod.Reason != v1alpha1.ReasonEvicted {
		e.Ending = lifecycle.Ending{Event: lifecycle.Succeed, Reason: v1alpha1.ReasonCompleted, Message: text, Result: result}
		e.withExit(exit)
		return e
	}
	e.Ending = lifecycle.Ending{Event: lifecycle.Fail, Reason: v1alpha1.ReasonNonZeroExitCode, Result: result}
	switch {
	case exit.Reason == v1alpha1.ReasonOOMKilled:
		e.Reason = v1alpha1.ReasonOOMKilled
	case pod.neverRan():
		e.Reason = v1alpha1.ReasonStartError
	case pod.Reason == v1alpha1.ReasonEvicted:
		e.Reason = v1alpha1.ReasonEvicted
		text = pod.Message
	}
	e.Message = fmt.Sprintf("The worker exited with code %d", exit.Code)
	if exit.Reason != "" && exit.Reason != "Error" {
		e.Message += " (" + exit.Reason + ")"
	}
	if text != "" {
		e.Message += ": " + text
	}
	e.withExit(exit)
	return e
}

// endedWithoutWorker: the pod is over and its worker container has no exit.
func (d *decision) endedWithoutWorker(pod *PodFacts) *ending {
	switch {
	case pod.Phase == corev1.PodSucceeded:
		return &ending{workersOwn: true, Ending: lifecycle.Ending{
			Event: lifecycle.Succeed, Reason: v1alpha1.ReasonCompleted, Message: "The pod succeeded; its worker's exit is not known",
		}}
	case pod.Phase != corev1.PodFailed || pod.MayRun:
		return nil
	case pod.Reason == v1alpha1.ReasonEvicted:
		return fail(v1alpha1.ReasonEvicted, pod.Message)
	case pod.Reason == podDeadlineExceeded:
		return nil // the backstop in the pod fired for a timeout that is judged below
	}
	text := pod.Message
	if pod.Reason != "" {
		text = pod.Reason + ": " + text
	}
	if pod.OtherFailure != "" {
		text = pod.OtherFailure
	}
	return fail(v1alpha1.ReasonPodRejected, text)
}

func (d *decision) cancelRequested(*Worker) *ending {
	if !d.cancelled() {
		return nil
	}
	return &ending{Ending: lifecycle.Ending{Event: lifecycle.Cancel, Reason: v1alpha1.ReasonCancelled, Message: cancelledMessage}}
}

func (d *decision) overallDeadlinePassed(w *Worker) *ending {
	if !lifecycle.Passed(lifecycle.OverallDeadline(d.task), d.now) {
		return nil
	}
	e := &ending{Ending: d.overallDeadlineEnding()}
	e.lateExit(d.pod(w))
	return e
}

// lost: Job or pod are gone, or the Job says that its pod failed and the pod cannot be asked any more.
func (d *decision) lost(w *Worker) *ending {
	recorded := d.task.Status.Worker
	if recorded.JobUID == "" && (w == nil || len(w.Pods) == 0) {
		return nil // not made yet, as far as anybody knows
	}
	pod := d.pod(w)
	switch {
	case w == nil || w.Job == nil || w.Job.UID != recorded.JobUID:
		return fail(v1alpha1.ReasonJobDeleted, fmt.Sprintf("Job %s was deleted", recorded.JobName))
	case pod != nil && pod.MayRun && pod.Deleting:
		return fail(v1alpha1.ReasonPodDeleted, fmt.Sprintf("Pod %s was deleted", pod.Name))
	case pod != nil:
		return nil
	}
	return podGone(w.Job, recorded)
}

// podGone: the Job is there, its pod is not, or not yet.
func podGone(job *JobFacts, recorded *v1alpha1.WorkerStatus) *ending {
	switch {
	case job.Failed && recorded.PodUID == "":
		return fail(v1alpha1.ReasonOutcomeUnknown, "The Job failed and its pod is gone: "+job.Message)
	case job.Deleting:
		return fail(v1alpha1.ReasonJobDeleted, fmt.Sprintf("Job %s is being deleted", recorded.JobName))
	case recorded.PodUID != "" && job.Failed:
		return fail(v1alpha1.ReasonPodDeleted, fmt.Sprintf("Pod %s is gone; its Job says: %s", recorded.PodName, job.Message))
	case recorded.PodUID != "":
		return fail(v1alpha1.ReasonPodDeleted, fmt.Sprintf("Pod %s is gone", recorded.PodName))
	}
	return nil
}

// startTimeoutPassed ends with the reason for which the worker does not run, where that is known.
func (d *decision) startTimeoutPassed(w *Worker) *ending {
	status := &d.task.Status
	pod := d.pod(w)
	backstop := pod != nil && pod.Phase == corev1.PodFailed && pod.Reason == podDeadlineExceeded
	if status.State != v1alpha1.StatePending || !lifecycle.Passed(lifecycle.StartDeadline(d.task), d.now) && !backstop {
		return nil
	}
	reason, message := status.Reason, status.Message
	if status.Worker.JobUID != "" {
		if r, m := waitingFor(&d.Snapshot, w); r != reason {
			reason, message = r, m
		}
	}
	switch reason {
	case v1alpha1.ReasonWaitingForWorker, v1alpha1.ReasonContainerWaiting, v1alpha1.ReasonCreatePending, v1alpha1.ReasonNameConflict,
		v1alpha1.ReasonGatewayMissing,
		v1alpha1.ReasonWaitingForPodTermination:
		reason = v1alpha1.ReasonStartTimeout
	}
	return &ending{Ending: lifecycle.Ending{
		Event: lifecycle.Timeout, Reason: reason,
		Message: fmt.Sprintf("No running worker within startTimeoutSeconds %d: %s",
			ptr.Deref(d.task.Spec.StartTimeoutSeconds, lifecycle.DefaultStartTimeoutSeconds), message),
	}}
}

func (d *decision) activeDeadlinePassed(w *Worker) *ending {
	deadline := lifecycle.ActiveDeadline(d.task)
	pod := d.pod(w)
	// An exit after the deadline counts as the deadline even where the operator's clock is behind the node's.
	overran := pod != nil && pod.Exit != nil && late(deadline, pod.Exit.FinishTime)
	if pod != nil && pod.Exit == nil && !pod.MayRun && pod.Reason == podDeadlineExceeded {
		overran = true // a shorter deadline in the template ended it, and left no exit
	}
	if d.task.Status.State != v1alpha1.StateProcessing || !lifecycle.Passed(deadline, d.now) && !overran {
		return nil
	}
	start := d.task.Status.Worker.StartTime.Time
	e := &ending{Ending: lifecycle.Ending{
		Event: lifecycle.Timeout, Reason: v1alpha1.ReasonActiveDeadlineExceeded,
		Message: fmt.Sprintf("activeDeadlineSeconds %d passed: %s since %s", lifecycle.ActiveSeconds(d.task),
			d.now.Sub(start).Round(time.Second), start.UTC().Format(time.RFC3339)),
	}}
	e.lateExit(pod)
	return e
}

func (d *decision) suspendRequested(*Worker) *ending {
	if !d.suspended() {
		return nil
	}
	return fail(v1alpha1.ReasonSuspended, "spec.suspend is set; the attempt is stopped and not charged")
}

func fail(reason, message string) *ending {
	return &ending{Ending: lifecycle.Ending{Event: lifecycle.Fail, Reason: reason, Message: message}}
}

func (e *ending) withExit(exit *Exit) {
	e.ExitCode = ptr.To(exit.Code)
	e.FinishTime = exit.FinishTime
}

// lateExit keeps the evidence of a worker that ended by itself after the deadline; there is nothing left to stop.
func (e *ending) lateExit(pod *PodFacts) {
	if pod != nil && pod.Exit != nil {
		e.withExit(pod.Exit)
		e.workersOwn = true
	}
}

// late tells whether the worker finished after the deadline. Kubelet times have whole seconds, so a finish within the
// deadline's own second counts as in time.
func late(deadline, finish time.Time) bool {
	return !deadline.IsZero() && finish.After(deadline)
}
