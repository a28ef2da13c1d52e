package task

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// idle decides about a Task that has no open attempt: Pending before its Job, or Retrying.
func (d *decision) idle() {
	status := &d.task.Status
	next := status.Attempt
	if status.State == v1alpha1.StateRetrying {
		next++
	}
	switch w := d.worker(next); {
	case w == nil:
	case w.Job != nil && !w.Job.Deleting:
		d.open(lifecycle.Facts{AlreadyReplaced: true}, w.Job)
		return
	case w.GoneJob != "":
		d.open(lifecycle.Facts{AlreadyReplaced: true}, &JobFacts{UID: w.GoneJob, CreateTime: w.createTime()})
		return
	}
	deadline := lifecycle.OverallDeadline(d.task)
	if !lifecycle.Passed(deadline, d.now) {
		d.wake(deadline)
	}
	switch {
	case d.cancelled():
		if slices.ContainsFunc(d.Workers, func(w Worker) bool { return w.MayRun() }) {
			setCondition(d.task, v1alpha1.ConditionTerminating, metav1.ConditionTrue, v1alpha1.ReasonCancelled, cancelledMessage, d.now)
		}
		if busy, _ := d.earlierMayRun(); busy {
			d.wait(v1alpha1.ReasonWaitingForPodTermination, "An earlier worker is being stopped: cancelled")
			return
		}
		d.end(lifecycle.Ending{Event: lifecycle.Cancel, Reason: v1alpha1.ReasonCancelled, Message: cancelledMessage},
			lifecycle.Facts{WorkerStopped: true})
	case lifecycle.Passed(deadline, d.now):
		d.end(d.overallDeadlineEnding(), lifecycle.Facts{DeadlinePassed: true})
	case inputTooLarge(d.task):
		d.end(lifecycle.Ending{
			Event: lifecycle.Fail, Reason: v1alpha1.ReasonInputTooLarge,
			Message: fmt.Sprintf("spec.input.value has %d bytes, the limit is %d", len(compactInput(d.task)), v1alpha1.MaxInputBytes),
		}, lifecycle.Facts{})
	default:
		d.nextAttempt()
	}
}

// nextAttempt begins the next attempt, or says what it waits for.
func (d *decision) nextAttempt() {
	status := &d.task.Status
	retrying := status.State == v1alpha1.StateRetrying
	busy, lost := d.earlierMayRun()
	switch {
	case d.suspended():
		d.wait(v1alpha1.ReasonSuspended, "spec.suspend is set; no attempt starts")
	case retrying && status.NextRetryTime == nil:
		d.wait(status.Reason, "The next attempt would start after the overall deadline; the Task fails when that passes")
	case retrying && d.now.Before(status.NextRetryTime.Time):
		d.wake(status.NextRetryTime.Time)
	case busy || lost && d.waitsForLost():
		d.waitForEarlier()
	default:
		d.open(lifecycle.Facts{BackoffOver: true, Suspended: d.suspended()}, nil)
	}
}

// open begins the next attempt: with the Job that exists for it already, the status write that told of it was lost; else it
// asks for one.
func (d *decision) open(f lifecycle.Facts, job *JobFacts) {
	status := &d.task.Status
	if status.State == v1alpha1.StateRetrying {
		if err := lifecycle.Again(d.task, f, d.now); err != nil {
			d.refuse(err)
			return
		}
		d.plan.Moved = true
	}
	removeCondition(d.task, v1alpha1.ConditionReportMismatch) // it spoke of an earlier attempt
	removeCondition(d.task, v1alpha1.ConditionResultUndelivered)
	lifecycle.Begin(d.task, JobName(d.task.Name, status.Attempt), d.now)
	status.Reason, status.Message = v1alpha1.ReasonWaitingForWorker, "The worker Job is being created"
	if job == nil {
		d.plan.Create, d.plan.TellAt = true, d.now.Add(podWait)
		return
	}
	status.Worker.JobUID = job.UID
	if d.plan.Moved {
		d.again()
	}
	if !job.CreateTime.After(d.now) { // else the clocks differ
		d.plan.TellAt = job.CreateTime.Add(podWait)
		d.wake(d.plan.TellAt)
	}
}

// wait says why a Task between two attempts does not advance. A Retrying one keeps the cause of its last attempt as its
// reason; the condition tells what it waits for.
func (d *decision) wait(reason, message string) {
	d.waits = &waits{reason, message}
	if status := &d.task.Status; status.State == v1alpha1.StatePending {
		status.Reason, status.Message = reason, lifecycle.Truncate(message)
	}
}

// lostNodeWait spaces looks at the node of a lost worker, for a Task that waits until it is known to have stopped.
const lostNodeWait = 30 * time.Second

// earlierMayRun tells whether a container of an earlier attempt may still run: busy, where that is waited for; lost, where
// workerLostTimeoutSeconds are over, which holds up only a Task that wants to wait.
func (d *decision) earlierMayRun() (busy, lost bool) {
	last := d.task.Status.Attempt
	if d.task.Status.State == v1alpha1.StatePending {
		last--
	}
	if workerLost(d.task) {
		lost = !d.lostHasStopped(d.worker(last))
	}
	for i := range d.Workers {
		w := &d.Workers[i]
		if current := d.hasWorker() && w.Attempt == d.task.Status.Attempt; current || !w.MayRun() {
			continue
		}
		if w.Attempt > 0 && w.Attempt < last || w.Attempt == last && workerLost(d.task) {
			lost = true // before the last attempt began, or when it was closed
			continue
		}
		lostAt := d.workerLostAt(d.leftoverDeadline(w))
		if !lifecycle.Passed(lostAt, d.now) {
			busy = true
			d.wake(lostAt)
			continue
		}
		lost = true
		d.noteLost(w.Attempt, w.node())
	}
	return busy, lost
}

// lastNode is the node of the last attempt that has ended.
func (d *decision) lastNode() string {
	for i := len(d.task.Status.Attempts) - 1; i >= 0; i-- {
		if a := &d.task.Status.Attempts[i]; a.Outcome != "" {
			return a.NodeName
		}
	}
	return ""
}

// lostHasStopped notes when a worker that was taken for lost is heard of again. A pod object that is gone proves nothing
// until its node answers: then its kubelet has ended what the API server no longer knows.
func (d *decision) lostHasStopped(w *Worker) bool {
	switch {
	case w.MayRun():
		if a := attempt(d.task, w.Attempt); a != nil && a.NodeName == "" {
			a.NodeName = w.node() // it has come to one since: should its pod go, that node's word counts
		}
		return false
	case (w == nil || len(w.Pods) == 0) && d.lastNode() != "":
		word := d.now.Add(lostNodeWait)
		if d.NodeReady {
			word = d.nodesWord(findCondition(d.task, v1alpha1.ConditionWorkerStopped).LastTransitionTime.Time)
		}
		if !lifecycle.Passed(word, d.now) {
			if d.waitsForLost() {
				d.wake(word)
			}
			return false
		}
	}
	setCondition(d.task, v1alpha1.ConditionWorkerStopped, metav1.ConditionTrue, v1alpha1.ReasonWorkerLost,
		"The worker that was taken for lost has stopped", d.now)
	return true
}

// waitForEarlier waits for the worker of an earlier attempt; its pod is watched, and stopped when its time is over.
func (d *decision) waitForEarlier() {
	d.wait(v1alpha1.ReasonWaitingForPodTermination, "An earlier worker may still run; the next attempt waits for it")
}

func (d *decision) waitsForLost() bool {
	r := d.task.Spec.Retry
	return r != nil && r.OnWorkerLost == v1alpha1.WaitForLostWorker
}

func inputTooLarge(t *v1alpha1.Task) bool {
	return t.Spec.Input != nil && len(compactInput(t)) > v1alpha1.MaxInputBytes
}

// compactInput is spec.input.value in its shortest form.
func compactInput(t *v1alpha1.Task) []byte { return compact(t.Spec.Input.Value.Raw) }

// compact is a JSON value in its shortest form: what the API server answers has <, > and & written as six bytes.
func compact(raw []byte) []byte {
	var value any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber() // digits stay as they are
	var short bytes.Buffer
	e := json.NewEncoder(&short)
	e.SetEscapeHTML(false)
	if d.Decode(&value) != nil || e.Encode(value) != nil {
		return raw // the API server has checked that it is JSON
	}
	return bytes.TrimSuffix(short.Bytes(), []byte("\n"))
}

const cancelledMessage = "spec.cancel is set"

func (d *decision) overallDeadlineEnding() lifecycle.Ending {
	from := d.task.CreationTimestamp.Time
	if d.task.Status.RunStartTime != nil {
		from = d.task.Status.RunStartTime.Time
	}
	message := fmt.Sprintf("overallDeadlineSeconds %d passed: %s since %s", *d.task.Spec.OverallDeadlineSeconds,
		d.now.Sub(from).Round(time.Second), from.UTC().Format(time.RFC3339))
	if d.suspended() {
		message += "; spec.suspend is set"
	}
	switch status := &d.task.Status; status.Reason {
	case v1alpha1.ReasonSuspended, v1alpha1.ReasonAccepted, v1alpha1.ReasonWaitingForWorker, v1alpha1.ReasonWorkerRunning:
	default: // what it waited for, or why the last attempt ended
		message += "; " + status.Reason + ": " + status.Message
	}
	return lifecycle.Ending{Event: lifecycle.Timeout, Reason: v1alpha1.ReasonOverallDeadlineExceeded, Message: message}
}
