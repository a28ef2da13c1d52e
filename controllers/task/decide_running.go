package task

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// podWait is how long a Job may be without a pod before its Events are asked why.
const podWait = 2 * time.Second

// running decides about the current attempt, whose Job has been created or may have been.
func (d *decision) running() {
	status := &d.task.Status
	w := d.worker(status.Attempt)
	if w != nil && status.Worker.JobUID == "" {
		status.Worker.JobUID = w.GoneJob
		if w.Job != nil {
			status.Worker.JobUID = w.Job.UID
		}
	}
	if d.terminating() {
		d.stopping(w)
		return
	}
	if d.suspended() && !d.cancelled() && w == nil && d.uncreated() {
		lifecycle.Unbegin(d.task) // a live read has proven that there is no Job: nothing to stop, nothing to count
		d.idle()
		return
	}
	d.takeNote(w)
	if status.State == v1alpha1.StatePending {
		d.start(w)
	}
	if d.awaitsReport(w) {
		return
	}
	if e := d.ending(w); e != nil {
		d.judge(w, e)
		return
	}
	if status.State == v1alpha1.StatePending {
		d.pending(w)
		return
	}
	stage, _ := lifecycle.StageDeadline(d.task)
	for _, deadline := range []time.Time{
		lifecycle.ActiveDeadline(d.task), lifecycle.OverallDeadline(d.task), stage,
		lifecycle.HeartbeatDeadline(d.task), lifecycle.ProgressDeadline(d.task),
	} {
		d.wake(deadline)
	}
}

// judge closes the attempt for a cause that ends it, or stores that and stops its worker first.
func (d *decision) judge(w *Worker, e *ending) {
	if e.workersOwn || !w.MayRun() && !d.vanished(w) {
		d.close(w, e)
		return
	}
	d.fix(w, e.Ending)
}

// uncreated tells that no Job is known of the attempt that waits.
func (d *decision) uncreated() bool {
	return d.task.Status.State == v1alpha1.StatePending && d.task.Status.Worker.JobUID == ""
}

// start fires START where the worker runs, or has run and ended so fast that nobody saw it running.
func (d *decision) start(w *Worker) {
	status := &d.task.Status
	switch pod := d.pod(w); {
	case pod != nil && pod.ran():
		d.refuse(lifecycle.Started(d.task, pod.reference(), d.now))
		status.Reason, status.Message = v1alpha1.ReasonWorkerRunning, "The worker runs on node "+pod.NodeName
	case pod == nil && w != nil && w.Job != nil && w.Job.Complete:
		// The Job's word alone: it ran, nobody knows when.
		d.refuse(lifecycle.Started(d.task, v1alpha1.WorkerStatus{StartTime: ptr.To(metav1.NewMicroTime(w.Job.CreateTime))}, d.now))
	case d.finalReport() != nil:
		d.refuse(lifecycle.Started(d.task, d.reporter(pod), d.now))
	}
}

// pending says what the attempt waits for, and asks for its Job again where it could not be created.
func (d *decision) pending(w *Worker) {
	status := &d.task.Status
	d.wake(lifecycle.StartDeadline(d.task))
	d.wake(lifecycle.OverallDeadline(d.task))
	if d.uncreated() {
		if busy, lost := d.earlierMayRun(); busy || lost && d.waitsForLost() {
			d.waitForEarlier()
			return
		}
		d.plan.Create = true // the outcome of the try sets reason and message
		return
	}
	reason, message := waitingFor(&d.Snapshot, w)
	if status.Reason != reason {
		// Of texts with the same reason the first stays: a quota's counters change at every try, and nobody learns from it.
		status.Reason, status.Message = reason, lifecycle.Truncate(message)
		if pod := d.pod(w); pod != nil {
			lifecycle.Seen(d.task, pod.reference())
		}
	}
	if look := status.Worker.CreateTime.Add(podWait); d.now.Before(look) {
		// What keeps a pod from being made or mounted shows in Events, which count only when it has had a while.
		d.wake(look)
	}
}

// close ends the attempt, now that no container of it may run or the worker has said its own word.
func (d *decision) close(w *Worker, e *ending) {
	if pod := d.pod(w); pod != nil && d.task.Status.Worker != nil {
		lifecycle.Seen(d.task, pod.reference())
	}
	if workerLost(d.task) && !e.lost {
		removeCondition(d.task, v1alpha1.ConditionWorkerStopped) // it spoke of an earlier worker
	}
	d.end(e.Ending, lifecycle.Facts{WorkerStopped: true, DeadlinePassed: e.Reason == v1alpha1.ReasonOverallDeadlineExceeded})
}

// fix stores the outcome before the worker is stopped for it: whatever the worker says from now on changes nothing.
func (d *decision) fix(w *Worker, e lifecycle.Ending) {
	d.plan.Fixes = true
	setCondition(d.task, v1alpha1.ConditionTerminating, metav1.ConditionTrue, e.Reason, e.Message, d.now)
	if pod := d.pod(w); pod != nil {
		lifecycle.Seen(d.task, pod.reference())
	}
	d.stopping(w)
}

// stopping stops a worker whose outcome is fixed, and fires the event when it has stopped, or is taken for lost.
func (d *decision) stopping(w *Worker) {
	status := &d.task.Status
	fixed := findCondition(d.task, v1alpha1.ConditionTerminating)
	if d.cancelled() && fixed.Reason != v1alpha1.ReasonCancelled {
		// The only way that a fixed outcome may change.
		setCondition(d.task, v1alpha1.ConditionTerminating, metav1.ConditionTrue, v1alpha1.ReasonCancelled, cancelledMessage, d.now)
	}
	fixed = findCondition(d.task, v1alpha1.ConditionTerminating)
	reason, message, since := fixed.Reason, fixed.Message, fixed.LastTransitionTime.Time
	e := &ending{Ending: lifecycle.Ending{Event: eventOf(reason), Reason: reason, Message: message}}
	pod := d.pod(w)
	if pod != nil && pod.Exit != nil {
		e.withExit(pod.Exit)
	}
	switch lostAt := d.lostDeadline(w, since); {
	case !w.MayRun() && !d.vanished(w):
		d.takeNote(w)
		d.noteMismatch(e)
		d.noteStopped(reason, fmt.Sprintf("The worker of attempt %d has stopped", status.Attempt))
		d.close(w, e)
	case lifecycle.Passed(lostAt, d.now) && d.vanished(w) && d.NodeReady && lifecycle.Passed(d.nodesWord(since), d.now):
		d.noteStopped(reason, fmt.Sprintf("The pod of attempt %d is gone, its node is ready, and its grace is over", status.Attempt))
		d.close(w, e)
	case lifecycle.Passed(lostAt, d.now):
		d.noteLost(status.Attempt, status.Worker.NodeName)
		e.lost = true
		d.close(w, e)
	default:
		if pod != nil {
			lifecycle.Seen(d.task, pod.reference()) // it may have come to a node since
		}
		status.Reason, status.Message = reason, lifecycle.Truncate("The worker is being stopped: "+message)
		d.wake(lostAt)
		d.stop(w, since)
	}
}

// noteMismatch keeps the word of a worker that says success after its outcome was stored.
func (d *decision) noteMismatch(e *ending) {
	if e.ExitCode != nil && *e.ExitCode == 0 {
		setCondition(d.task, v1alpha1.ConditionReportMismatch, metav1.ConditionTrue, "ExitedZero",
			fmt.Sprintf("The worker of attempt %d exited with code 0 after its outcome %s was stored", d.task.Status.Attempt, e.Reason), d.now)
	}
}

// noteStopped says that a worker is known to have stopped.
func (d *decision) noteStopped(reason, message string) {
	setCondition(d.task, v1alpha1.ConditionWorkerStopped, metav1.ConditionTrue, reason, message, d.now)
}

// noteLost says that a worker is no longer waited for.
func (d *decision) noteLost(attempt int32, node string) {
	setCondition(d.task, v1alpha1.ConditionWorkerStopped, metav1.ConditionUnknown, v1alpha1.ReasonWorkerLost,
		fmt.Sprintf("The worker of attempt %d on node %q did not confirm that it stopped; it may still run", attempt, node), d.now)
}

// nodeMonitorWait is longer than a dead node is still called ready (50 s, and 5 s until that is noticed).
const nodeMonitorWait = time.Minute

// lostDeadline is when a stop no longer waits for proof.
func (d *decision) lostDeadline(w *Worker, since time.Time) time.Time {
	lost := d.workerLostAt(since)
	if d.vanished(w) && d.NodeReady {
		return lifecycle.Earliest(lost, d.nodesWord(since))
	}
	return lost
}

// nodesWord is when the node of a pod that is gone is believed to have stopped it: its kubelet ends what the API server no
// longer knows, after the pod's grace, and counted from the moment at which it answers.
func (d *decision) nodesWord(since time.Time) time.Time {
	return later(since, d.NodeReadySince).Add(max(podGrace(d.task)+stopSlack, nodeMonitorWait))
}

// vanished tells of a worker that a node had that its pod is gone and nobody has seen it stop.
func (d *decision) vanished(w *Worker) bool {
	s := &d.task.Status
	onNode := s.State == v1alpha1.StateProcessing || s.Worker.NodeName != ""
	return onNode && d.pod(w) == nil && !d.StopWitnessed && (w == nil || w.Job == nil || !w.Job.Finished())
}

func (d *decision) terminating() bool { return isTrue(d.task, v1alpha1.ConditionTerminating) }

// pod is the pod of the current attempt.
func (d *decision) pod(w *Worker) *PodFacts { return w.Pod(d.task.Status.Worker.PodUID) }

// eventOf is the event that an outcome fires once its worker has stopped.
func eventOf(reason string) lifecycle.Event {
	switch reason {
	case v1alpha1.ReasonCancelled:
		return lifecycle.Cancel
	case v1alpha1.ReasonSuspended, v1alpha1.ReasonDisrupted, v1alpha1.ReasonWorkerLost,
		v1alpha1.ReasonJobDeleted, v1alpha1.ReasonPodDeleted:
		return lifecycle.Fail
	}
	return lifecycle.Timeout
}

// ran tells whether the worker container runs or has run.
func (p *PodFacts) ran() bool {
	if !p.RunningSince.IsZero() {
		return true
	}
	return p.Exit != nil && !p.neverRan() || p.Exit == nil && p.Phase == "Succeeded"
}

// neverRan tells of an exit that the runtime made up for a process that it could not start.
func (p *PodFacts) neverRan() bool {
	switch p.Exit.Reason {
	case "StartError", "ContainerCannotRun", "CreateContainerError":
		return true
	}
	return false
}

// reference names the pod for the status; the start is the worker container's own, as the kubelet says.
func (p *PodFacts) reference() v1alpha1.WorkerStatus {
	start := p.startedAt()
	if start.IsZero() {
		start = p.StartTime
	}
	if start.IsZero() {
		start = p.CreateTime
	}
	return v1alpha1.WorkerStatus{
		PodName: p.Name, PodUID: p.UID, NodeName: p.NodeName, StartTime: ptr.To(metav1.NewMicroTime(start)),
	}
}
