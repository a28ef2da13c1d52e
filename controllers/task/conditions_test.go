package task

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// everyState is a scene in each state, and in each way of being there that the conditions tell apart.
func everyState() map[string]*scene {
	return map[string]*scene{
		"new":                  fresh(),
		"new, suspended":       fresh(suspend),
		"accepted":             accepted(),
		"uncreated":            uncreated(),
		"pending":              pending().job(1).pod(1),
		"pending, suspended":   accepted(suspend),
		"pending, stopping":    pending().job(1).pod(1).with(cancel),
		"processing":           processing().runs(1),
		"processing, stopping": processing().runs(1).with(suspend),
		"retrying":             retrying(),
		"retrying, suspended":  retrying(suspend),
		"retrying, waiting":    retrying().at(after(40)).runs(1, exits(1, after(20))),
		"succeeded":            ended(lifecycle.Succeed),
		"failed":               ended(lifecycle.Fail),
		"cancelled":            ended(lifecycle.Cancel, cancel),
		"deleting":             ended(lifecycle.Fail).with(goes),
	}
}

func goes(t *v1alpha1.Task) {
	now := metav1.NewTime(created)
	t.DeletionTimestamp, t.Finalizers = &now, []string{"example.com/other"}
}

// TestC59Health: tools that read status by the rules of kstatus see each Task right, from the first write on.
func TestC59Health(t *testing.T) {
	want := map[string]string{
		"succeeded": "Current", "cancelled": "Current", "failed": "Failed", "deleting": "Terminating",
	}
	for name, s := range everyState() {
		plan := decide(s.Snapshot)
		w := want[name]
		if w == "" {
			w = "InProgress"
		}
		if got := health(plan.Task); got != w {
			t.Errorf("%s: kstatus says %s, want %s", name, got, w)
		}
		checkPlan(t, s.Snapshot, plan)
	}
}

// TestC63Finished: one condition is True in each terminal state, and in no other.
func TestC63Finished(t *testing.T) {
	for name, s := range everyState() {
		if name == "deleting" {
			continue
		}
		task := decide(s.Snapshot).Task
		if got, want := isTrue(task, v1alpha1.ConditionFinished), lifecycle.Terminal(task.Status.State); got != want {
			t.Errorf("%s: Finished is %v", name, got)
		}
	}
}

// TestC59SpecEdit: an edit of what may be edited is seen, and does not make a finished Task look unfinished.
func TestC59SpecEdit(t *testing.T) {
	s := ended(lifecycle.Fail).with(ttl(100000), func(t *v1alpha1.Task) { t.Generation++ })
	if got := health(s.Task); got != "InProgress" {
		t.Fatalf("before the controller saw the edit: %s", got)
	}
	plan := decide(s.Snapshot)
	checkPlan(t, s.Snapshot, plan)
	if got := health(plan.Task); got != "Failed" {
		t.Errorf("after it: %s", got)
	}
}

// TestWhyItDoesNotAdvance: whenever a Task does not advance, condition Reconciling says why.
func TestWhyItDoesNotAdvance(t *testing.T) {
	want := map[string]string{
		"new, suspended": "Suspended", "pending, suspended": "Suspended", "retrying, suspended": "Suspended",
		"retrying, waiting": "WaitingForPodTermination", "retrying": "NonZeroExitCode", "uncreated": "CreatePending",
		"pending": "WaitingForWorker", "pending, stopping": "Cancelled", "processing, stopping": "Suspended",
	}
	for name, reason := range want {
		c := findCondition(decide(everyState()[name].Snapshot).Task, v1alpha1.ConditionReconciling)
		if c == nil || c.Reason != reason || c.Message == "" || c.Status != metav1.ConditionTrue {
			t.Errorf("%s: condition Reconciling is %+v, want reason %s", name, c, reason)
		}
	}
}

func TestSuspendedCondition(t *testing.T) {
	s := pending().job(1).pod(1).with(suspend)
	task := decide(s.Snapshot).Task
	if !isTrue(task, v1alpha1.ConditionSuspended) {
		t.Error("a suspended Task does not say so")
	}
	task.Spec.Suspend = nil
	s.Task = task
	if isTrue(decide(s.Snapshot).Task, v1alpha1.ConditionSuspended) {
		t.Error("a resumed Task says that it is suspended")
	}
	if isTrue(decide(ended(lifecycle.Succeed).with(suspend).Snapshot).Task, v1alpha1.ConditionSuspended) {
		t.Error("a finished Task says that it is suspended")
	}
}

// TestConditionsDoNotFlap: time alone changes nothing of a Task that waits, until its next wake-up.
func TestConditionsDoNotFlap(t *testing.T) {
	for name, s := range everyState() {
		if name == "deleting" {
			continue
		}
		s.Task = settle(t, s)
		before := s.Task.DeepCopy()
		until := s.Now.Add(time.Hour)
		if wake := decide(s.Snapshot).WakeAt; !wake.IsZero() {
			until = wake.Add(-time.Millisecond)
		}
		s.at(until)
		after := decide(s.Snapshot).Task
		if diff := cmp.Diff(before.Status, after.Status); diff != "" {
			t.Errorf("%s: the status changes by itself:\n%s", name, diff)
		}
	}
}
