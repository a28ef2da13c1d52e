package task

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// decision is one run of decide: the snapshot, and the plan as far as it has come.
type decision struct {
	Snapshot
	plan *Plan
	task *v1alpha1.Task // plan.Task: what decide changes
	now  time.Time
	// waits says what a Task between two attempts waits for, where that is not status.reason.
	waits *waits
}

type waits struct{ reason, message string }

// decide says what to do about a Task. It is pure: the same snapshot gives the same plan, and a snapshot of what the plan
// has brought about gives a plan that does nothing.
func decide(s Snapshot) Plan {
	plan := Plan{Task: s.Task.DeepCopy()}
	d := &decision{Snapshot: s, plan: &plan, task: plan.Task, now: s.Now}
	if s.Task.DeletionTimestamp != nil {
		d.stopAll()
		return plan
	}
	status := &d.task.Status
	if !lifecycle.Accepted(d.task) {
		lifecycle.Accept(d.task, d.now)
		status.Reason, status.Message = v1alpha1.ReasonWaitingForWorker, "Accepted"
	}
	d.answerRetryRequest()
	switch {
	case lifecycle.Terminal(status.State):
		d.finished()
	case d.hasWorker():
		d.running()
	default:
		d.idle()
		if d.hasWorker() && !plan.Create && !plan.Moved {
			d.running() // its Job was there already
		}
	}
	d.noteExit()
	d.stopLeftovers()
	d.pruneFailedJobs()
	d.setConditions()
	if plan.DeleteTask && !equality.Semantic.DeepEqual(s.Task.Status, plan.Task.Status) {
		// What the status has to say, the answer to a retry request say, is stored before the Task goes.
		plan.DeleteTask = false
		d.again()
	}
	return plan
}

// hasWorker tells whether an attempt is open: its Job has been created, or may have been.
func (d *decision) hasWorker() bool {
	s := &d.task.Status
	return s.State == v1alpha1.StateProcessing || s.State == v1alpha1.StatePending && s.Worker != nil
}

// worker is what exists of the given attempt; nil where nothing does.
func (d *decision) worker(attempt int32) *Worker {
	for i := range d.Workers {
		if d.Workers[i].Attempt == attempt {
			return &d.Workers[i]
		}
	}
	return nil
}

func (d *decision) cancelled() bool { return ptr.Deref(d.task.Spec.Cancel, false) }

func (d *decision) suspended() bool { return ptr.Deref(d.task.Spec.Suspend, false) }

// end fires the event that closes an attempt or the Task, unless this pass has already moved the Task.
func (d *decision) end(e lifecycle.Ending, f lifecycle.Facts) {
	if d.plan.Moved {
		d.again()
		return
	}
	verdict, err := lifecycle.End(d.task, e, f, d.now)
	if err != nil {
		d.refuse(err)
		return
	}
	d.plan.Moved = true
	d.plan.Verdict = verdict
	removeCondition(d.task, v1alpha1.ConditionTerminating)
	if verdict.Why == v1alpha1.ReasonRetryLimitReached {
		// The limit is used up, so what was charged is all that may run; attempts that were not charged, or that ran before a
		// retry by hand, have numbers too.
		number, charged := d.task.Status.Attempt, d.task.Status.Charged
		count := fmt.Sprintf("Attempt %d of %d", number, charged)
		if number != charged {
			count = fmt.Sprintf("Attempt %d, %d of %d charged", number, charged, charged)
		}
		d.task.Status.Message = lifecycle.Truncate(count + ": " + d.task.Status.Message)
	}
	// What follows (a retention, a TTL, a retry) is the next pass's to see.
	d.again()
}
