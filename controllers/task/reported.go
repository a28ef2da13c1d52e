package task

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/internal/report"
)

// Decisions about what the worker itself reports, with reporter Sidecar.

// tellAwaiting is how long a report may be on its way before the status says that it is waited for: most come before that.
const tellAwaiting = 2 * time.Second

func hasSidecar(t *v1alpha1.Task) bool { return t.Spec.Reporter == v1alpha1.ReporterSidecar }

// finalReport is the final report of the current attempt, nil where none is stored.
func (d *decision) finalReport() *v1alpha1.FinalReport {
	if d.hasReported(d.task.Status.Attempt) {
		return d.task.Status.Report
	}
	return nil
}

// hasReported tells whether the final report of an attempt is stored: then it has a pod, even if that is not seen yet.
func (d *decision) hasReported(attempt int32) bool {
	r := d.task.Status.Report
	return r != nil && r.Attempt == attempt
}

// reporter names the pod of a worker that has reported although nobody has seen it run.
func (d *decision) reporter(pod *PodFacts) v1alpha1.WorkerStatus {
	if pod != nil {
		return pod.reference()
	}
	return v1alpha1.WorkerStatus{PodUID: d.finalReport().PodUID, StartTime: d.task.Status.Worker.CreateTime}
}

// takeNote stores the final report that a sidecar has left in its termination message because it could not deliver it. While the
// worker runs its sidecar is started again, and will deliver more than had room in the note.
func (d *decision) takeNote(w *Worker) {
	pod := d.pod(w)
	if d.finalReport() != nil || !hasSidecar(d.task) || pod == nil || pod.Sidecar == nil || !pod.Sidecar.Ended ||
		pod.Exit == nil && !pod.finished() {
		return
	}
	note := report.ParseNote(pod.Sidecar.Message)
	switch {
	case note == nil || note.Delivered:
	case note.Final == nil && note.SpoolError != "":
		d.noteUndelivered("SpoolFailed", fmt.Sprintf("Reports of attempt %d may be lost, they could not be kept on disk: %s",
			d.task.Status.Attempt, note.SpoolError))
	case note.Final != nil:
		from := lifecycle.Origin{PodUID: pod.UID, Source: v1alpha1.FromTerminationMessage}
		// Refused, it comes too late, which a mismatch says where it matters.
		if changed, _ := lifecycle.Take(d.task, note.Final, from, d.MaxClockSkew, d.now); changed && len(note.Omitted) > 0 {
			d.noteUndelivered("TerminationMessageTooSmall", fmt.Sprintf("The final report of attempt %d could not be delivered, and the "+
				"sidecar's termination message had no room for its %s", note.Final.Attempt, strings.Join(note.Omitted, ", ")))
		}
	}
}

func (d *decision) noteUndelivered(reason, message string) {
	setCondition(d.task, v1alpha1.ConditionResultUndelivered, metav1.ConditionTrue, reason, message, d.now)
}

// awaitsReport tells that the worker has exited and its sidecar may still deliver what it has reported: the exit must not overtake
// that. It waits until a report is stored, the sidecar has ended, or the pod's grace is over, by the operator's clock alone.
func (d *decision) awaitsReport(w *Worker) bool {
	pod, recorded := d.pod(w), d.task.Status.Worker
	if !hasSidecar(d.task) || pod == nil || pod.Exit == nil || pod.neverRan() || d.finalReport() != nil ||
		pod.finished() || pod.Sidecar == nil || pod.Sidecar.Ended {
		return false
	}
	if recorded.ExitSeenTime == nil {
		tell := pod.Exit.FinishTime.Add(tellAwaiting)
		if !d.now.Before(pod.Exit.FinishTime) && d.now.Before(tell) {
			d.wake(tell)
			return true
		}
		recorded.ExitSeenTime = ptr.To(metav1.NewMicroTime(d.now)) // or the node's clock is another
	}
	// The sidecar drains until shortly before the grace is over, and what it leaves then has to be seen.
	until := recorded.ExitSeenTime.Add(pod.Grace + stopSlack)
	if lifecycle.Passed(until, d.now) {
		d.noteUndelivered("SidecarSilent", fmt.Sprintf("The sidecar of attempt %d has neither delivered a final report nor ended within the "+
			"pod's grace after the worker's exit; if there was one it is lost", d.task.Status.Attempt))
		return false
	}
	d.wake(until)
	d.task.Status.Reason = v1alpha1.ReasonAwaitingReport
	d.task.Status.Message = fmt.Sprintf("The worker exited with code %d; its sidecar may still deliver a report", pod.Exit.Code)
	return true
}

// reported: the worker's own word, stored before anything else was.
func (d *decision) reported(w *Worker) *ending {
	r := d.finalReport()
	if r == nil {
		return nil
	}
	e := &ending{workersOwn: true, Ending: lifecycle.Ending{Event: lifecycle.Succeed, Reason: v1alpha1.ReasonCompleted, Message: r.Message}}
	if r.Outcome == v1alpha1.ReportFailed {
		e.Event, e.Reason = lifecycle.Fail, v1alpha1.ReasonWorkerFailed
		if ptr.Deref(r.Permanent, false) {
			e.Reason = v1alpha1.ReasonPermanentFailure
		}
		e.Message = "The worker reported that it has failed"
		if r.Message != "" {
			e.Message += ": " + r.Message
		}
	}
	if pod := d.pod(w); pod != nil && pod.Exit != nil {
		e.ExitCode = ptr.To(pod.Exit.Code)
	}
	e.Result, e.Reported, e.FinishTime = r.Result, true, r.ReceivedTime.Time
	return e
}

// noteExit keeps the exit of a worker whose report has ended its attempt, and says so where the two contradict each other. The exit of
// a worker that was stopped because it did not end by itself contradicts nothing.
func (d *decision) noteExit() {
	r := d.task.Status.Report
	if r == nil {
		return
	}
	pod, a := d.worker(r.Attempt).Pod(r.PodUID), attempt(d.task, r.Attempt)
	if pod == nil || pod.Exit == nil || a == nil || !ptr.Deref(a.Reported, false) {
		return
	}
	if a.ExitCode == nil {
		a.ExitCode = ptr.To(pod.Exit.Code)
	}
	said, did := r.Outcome == v1alpha1.ReportSucceeded, pod.Exit.Code == 0
	if said != did && !pod.StopAsked && !late(pod.DeleteTime, pod.Exit.FinishTime) {
		lifecycle.NoteMismatch(d.task, "ExitContradictsReport", fmt.Sprintf("The worker of attempt %d reported that it has %s, and exited with code %d",
			r.Attempt, strings.ToLower(string(r.Outcome)), pod.Exit.Code), d.now)
	}
}

// overdue is the ending for a timeout that has passed while the worker ran; nil where it has not.
func (d *decision) overdue(w *Worker, deadline time.Time, reason, format string, args ...any) *ending {
	if d.task.Status.State != v1alpha1.StateProcessing || !lifecycle.Passed(deadline, d.now) {
		return nil
	}
	e := &ending{Ending: lifecycle.Ending{Event: lifecycle.Timeout, Reason: reason, Message: fmt.Sprintf(format, args...)}}
	e.lateExit(d.pod(w))
	return e
}

func (d *decision) stageTimeoutPassed(w *Worker) *ending {
	deadline, timeout := lifecycle.StageDeadline(d.task)
	if deadline.IsZero() {
		return nil
	}
	return d.overdue(w, deadline, v1alpha1.ReasonStageTimeout, "timeoutSeconds %d of stage %s passed", timeout, d.task.Status.Progress.Stage)
}

func (d *decision) heartbeatTimeoutPassed(w *Worker) *ending {
	return d.overdue(w, lifecycle.HeartbeatDeadline(d.task), v1alpha1.ReasonHeartbeatTimeout,
		"heartbeatTimeoutSeconds %d passed without a report", ptr.Deref(d.task.Spec.HeartbeatTimeoutSeconds, 0))
}

func (d *decision) progressTimeoutPassed(w *Worker) *ending {
	return d.overdue(w, lifecycle.ProgressDeadline(d.task), v1alpha1.ReasonNoProgress,
		"progressTimeoutSeconds %d passed and the worker did not advance", ptr.Deref(d.task.Spec.ProgressTimeoutSeconds, 0))
}
