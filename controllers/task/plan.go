package task

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// Plan is what a decision wants done. Applied in this order: Create, then the status write, then the rest.
type Plan struct {
	// Task with the status to store.
	Task *v1alpha1.Task
	// Create asks for the Job of attempt Task.Status.Attempt.
	Create bool
	// Stop asks for workers to be stopped.
	Stop []Stop
	// StopUnknown tells that one of them is of an attempt that the Task does not know of yet.
	StopUnknown bool
	// DeleteJobs asks for Jobs to be deleted whose time is over.
	DeleteJobs []ObjectKey
	// DeleteTask asks for the Task to be deleted, its TTL is over.
	DeleteTask bool
	// TellAt is when the first attempt must be told of, even if there is no other news of it.
	TellAt time.Time
	// WakeAt is when to look again if nothing happens; zero where only an event can change anything.
	WakeAt time.Time
	// Moved tells that the state changes in this pass, which leaves further changes to the next.
	Moved bool
	// Fixes tells that the plan fixes the outcome of an attempt whose worker, as far as the snapshot shows, has not said its own word.
	Fixes bool
	// Refused are events that the table did not let pass.
	Refused []error
	// Verdict is the last judgement on an attempt, for the conditions.
	Verdict lifecycle.Verdict
}

// ObjectKey names one object beyond doubt.
type ObjectKey struct {
	Name string
	UID  types.UID
}

// StopBy is a way to stop a worker.
type StopBy int

const (
	// StopByDeadline lowers the pod's activeDeadlineSeconds: it stops with its grace and leaves its evidence.
	StopByDeadline StopBy = iota
	// StopByDeletingPod is the fallback where that has not worked.
	StopByDeletingPod
	// StopByDeletingJob is for a Job that has no pod on a node yet; the Job goes when its pods have gone.
	StopByDeletingJob
)

// Stop is an order to stop one worker.
type Stop struct {
	By StopBy
	ObjectKey
}

// nothingToTell: the Task waits for its first worker as its Job alone shows, and has done so for less than podWait. A worker that
// starts within that time saves a status write: most do.
func (p *Plan) nothingToTell(s Snapshot) bool {
	status := &p.Task.Status
	return !lifecycle.Accepted(s.Task) && status.State == v1alpha1.StatePending && status.Reason == v1alpha1.ReasonWaitingForWorker &&
		status.Worker != nil && status.Worker.JobUID != "" && s.Now.Before(p.TellAt) &&
		!isTrue(p.Task, v1alpha1.ConditionTerminating) && status.LastHandledRetry == nil
}

func (d *decision) order(by StopBy, name string, uid types.UID) {
	if s := (Stop{By: by, ObjectKey: ObjectKey{Name: name, UID: uid}}); !slices.Contains(d.plan.Stop, s) {
		d.plan.Stop = append(d.plan.Stop, s)
	}
}

// wake asks for a pass at the given moment if it is still ahead.
func (d *decision) wake(at time.Time) {
	if at.IsZero() {
		return
	}
	if at.Before(d.now) {
		at = d.now
	}
	d.plan.WakeAt = lifecycle.Earliest(d.plan.WakeAt, at)
}

// again asks for a pass right after this one.
func (d *decision) again() { d.wake(d.now) }

// refuse notes an event that the table did not let pass: it is logged and counted, and nothing else happens.
func (d *decision) refuse(err error) {
	if err != nil {
		d.plan.Refused = append(d.plan.Refused, err)
	}
}
