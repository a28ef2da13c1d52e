package task

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// MismatchKind is a kind of mismatch between the status of a Task and what is. docs/patrol.md says what each means.
type MismatchKind string

const (
	// FinishedWorker: the worker has ended, and its attempt is open.
	FinishedWorker MismatchKind = "FinishedWorker"
	// MissingWorker: the Job or pod of an open attempt is gone.
	MissingWorker MismatchKind = "MissingWorker"
	// OrphanWorker: a worker whose Task is gone, or of an attempt that is closed or that nobody knows, goes on.
	OrphanWorker MismatchKind = "OrphanWorker"
	// WorkerOfFinishedTask: a worker goes on after the end of its Task, and its finishGraceSeconds are over.
	WorkerOfFinishedTask MismatchKind = "WorkerOfFinishedTask"
	// SilentHeartbeat: heartbeatTimeoutSeconds have passed, and the worker is not being stopped.
	SilentHeartbeat MismatchKind = "SilentHeartbeat"
	// OverdueWakeUp: something was due at a time, a deadline, a backoff's end or a TTL, and has not been done.
	OverdueWakeUp MismatchKind = "OverdueWakeUp"
	// UnseenStart: the worker runs, and the Task is Pending.
	UnseenStart MismatchKind = "UnseenStart"
	// UnseenRequest: a cancel, a suspend or a retry by hand was asked for, and not acted on.
	UnseenRequest MismatchKind = "UnseenRequest"
)

// MismatchKinds are all of them.
var MismatchKinds = []MismatchKind{
	FinishedWorker, MissingWorker, OrphanWorker, WorkerOfFinishedTask, SilentHeartbeat, OverdueWakeUp, UnseenStart, UnseenRequest,
}

// Mismatch is something that a pass would mend.
type Mismatch struct {
	Kind MismatchKind
	// Since is when it was due; zero where nothing tells: what is gone, and a wish in the spec, have no time.
	Since time.Time
	// Generation, State and Attempt are the Task's. While all of these stay it is the same mismatch.
	Generation int64
	State      v1alpha1.State
	Attempt    int32
}

// mismatchOf is what a plan mends, nil where it would change nothing but words. A decision acts on what there is at a moment; that
// it has to is a mismatch only when it should have acted long before, so what can be dated is dated exactly, and all else not at all.
func mismatchOf(s Snapshot, plan *Plan) *Mismatch {
	d := &decision{Snapshot: s, plan: plan, task: s.Task, now: s.Now}
	kind, since := d.mismatch()
	if kind == "" {
		return nil
	}
	status := &s.Task.Status
	return &Mismatch{Kind: kind, Since: since, Generation: s.Task.Generation, State: status.State, Attempt: status.Attempt}
}

// undated is the time of what has none.
var undated time.Time

// mismatch tells the kind by the difference between d.task, which is as it was read, and the plan.
func (d *decision) mismatch() (MismatchKind, time.Time) {
	before, after := &d.task.Status, &d.plan.Task.Status
	switch {
	case d.task.DeletionTimestamp != nil:
		if len(d.plan.Stop) > 0 {
			return OrphanWorker, d.task.DeletionTimestamp.Time
		}
	case d.plan.nothingToTell(d.Snapshot):
	case !equality.Semantic.DeepEqual(before.LastHandledRetry, after.LastHandledRetry):
		return UnseenRequest, undated
	case lifecycle.Terminal(before.State):
		return d.mismatchAfterTheEnd()
	case d.hasWorker():
		return d.mismatchOfAttempt()
	default:
		return d.mismatchBetweenAttempts()
	}
	return "", undated
}

// mismatchAfterTheEnd is about what a finished Task owes.
func (d *decision) mismatchAfterTheEnd() (MismatchKind, time.Time) {
	switch {
	case len(d.plan.Stop) > 0:
		return WorkerOfFinishedTask, d.overstayedSince()
	case lifecycle.Passed(lifecycle.TTLEnd(d.task), d.now):
		return OverdueWakeUp, lifecycle.TTLEnd(d.task)
	case len(d.plan.DeleteJobs) > 0:
		return OverdueWakeUp, undated // its pod may have ended a moment ago
	}
	return "", undated
}

// mismatchOfAttempt is about the current attempt, whose Job has been created or may have been. Tries to create it are left to the
// controller, which spaces them: when its start timeout is over that is overdue.
func (d *decision) mismatchOfAttempt() (MismatchKind, time.Time) {
	before, after := &d.task.Status, &d.plan.Task.Status
	fixedBefore, fixed := fixedReason(d.task), fixedReason(d.plan.Task)
	closed := attempt(d.plan.Task, before.Attempt)
	switch {
	case d.plan.Moved && fixedBefore != "":
		if ended := d.endTime(); !ended.IsZero() {
			return FinishedWorker, ended
		}
		return OverdueWakeUp, undated
	case d.plan.Moved && closed != nil:
		return d.causeOf(closed.Reason, lifecycle.Event(closed.Outcome))
	case d.plan.Moved:
		return OverdueWakeUp, undated
	case fixed != fixedBefore && fixedBefore != "":
		return UnseenRequest, undated // raised to cancel
	case fixed != fixedBefore:
		return d.causeOf(fixed, eventOf(fixed))
	case before.State != after.State:
		return UnseenStart, after.Worker.StartTime.Time
	case len(d.plan.Stop) > 0 && fixed != "":
		return OverdueWakeUp, undated
	case len(d.plan.Stop) > 0:
		return OrphanWorker, d.overstayedSince()
	case len(d.plan.DeleteJobs) > 0:
		return OverdueWakeUp, undated
	}
	return "", undated
}

// causeOf tells by the cause that ends an attempt why nobody has ended it before.
func (d *decision) causeOf(reason string, event lifecycle.Event) (MismatchKind, time.Time) {
	t := d.plan.Task
	switch reason {
	case v1alpha1.ReasonHeartbeatTimeout:
		return SilentHeartbeat, lifecycle.HeartbeatDeadline(t)
	case v1alpha1.ReasonOverallDeadlineExceeded:
		return OverdueWakeUp, lifecycle.OverallDeadline(t)
	case v1alpha1.ReasonActiveDeadlineExceeded:
		return OverdueWakeUp, lifecycle.ActiveDeadline(t)
	case v1alpha1.ReasonNoProgress:
		return OverdueWakeUp, lifecycle.ProgressDeadline(t)
	case v1alpha1.ReasonStageTimeout:
		deadline, _ := lifecycle.StageDeadline(t)
		return OverdueWakeUp, deadline
	case v1alpha1.ReasonCancelled, v1alpha1.ReasonSuspended:
		return UnseenRequest, undated
	case v1alpha1.ReasonJobDeleted, v1alpha1.ReasonPodDeleted, v1alpha1.ReasonOutcomeUnknown, v1alpha1.ReasonWorkerLost:
		return MissingWorker, undated
	}
	if event == lifecycle.Timeout {
		return OverdueWakeUp, lifecycle.StartDeadline(t)
	}
	return FinishedWorker, d.endTime()
}

// endTime is when the current worker ended, as far as that is known and was to be acted on at once.
func (d *decision) endTime() time.Time {
	if r := d.finalReport(); r != nil {
		return r.ReceivedTime.Time
	}
	pod := d.pod(d.worker(d.task.Status.Attempt))
	if pod == nil || pod.Exit == nil || d.task.Status.Worker.ExitSeenTime != nil {
		return undated
	}
	return pod.Exit.FinishTime
}

// mismatchBetweenAttempts is about a Task without an open attempt.
func (d *decision) mismatchBetweenAttempts() (MismatchKind, time.Time) {
	before, after := &d.task.Status, &d.plan.Task.Status
	switch {
	case after.State == v1alpha1.StateCancelled || fixedReason(d.plan.Task) != fixedReason(d.task):
		return UnseenRequest, undated
	case lifecycle.Terminal(after.State):
		return OverdueWakeUp, lifecycle.OverallDeadline(d.task)
	case before.State != after.State || before.Worker == nil && after.Worker != nil:
		return OverdueWakeUp, d.dueToBegin()
	case len(d.plan.Stop) > 0:
		return OrphanWorker, d.overstayedSince()
	case len(d.plan.DeleteJobs) > 0:
		return OverdueWakeUp, undated
	}
	return "", undated
}

// dueToBegin is when the next attempt could begin, zero where it has waited for something whose end has no time.
func (d *decision) dueToBegin() time.Time {
	status := &d.task.Status
	waitedFor := ""
	if c := findCondition(d.task, v1alpha1.ConditionReconciling); c != nil {
		waitedFor = c.Reason
	}
	switch {
	case !lifecycle.Accepted(d.task):
		return d.task.CreationTimestamp.Time
	case waitedFor == v1alpha1.ReasonSuspended || waitedFor == v1alpha1.ReasonWaitingForPodTermination || status.NextRetryTime == nil:
		return undated
	}
	return status.NextRetryTime.Time
}

// overstayedSince is when the first worker of a closed attempt should have been stopped, zero where one has been asked to and goes on.
func (d *decision) overstayedSince() time.Time {
	if slices.ContainsFunc(d.plan.Stop, func(s Stop) bool { return s.By == StopByDeletingPod }) {
		return undated
	}
	var since time.Time
	for i := range d.Workers {
		w := &d.Workers[i]
		if current := d.hasWorker() && w.Attempt == d.task.Status.Attempt; w.Alive() && !current {
			since = lifecycle.Earliest(since, d.leftoverDeadline(w))
		}
	}
	return since
}

// fixedReason is the outcome that is fixed for the current attempt, empty where none is.
func fixedReason(t *v1alpha1.Task) string {
	if c := findCondition(t, v1alpha1.ConditionTerminating); c != nil && isTrue(t, v1alpha1.ConditionTerminating) {
		return c.Reason
	}
	return ""
}
