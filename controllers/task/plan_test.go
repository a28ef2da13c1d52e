package task

import (
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// checkPlan asserts what holds for every plan, whatever the snapshot.
func checkPlan(t testing.TB, s Snapshot, p Plan) {
	t.Helper()
	for _, violation := range violations(s, p) {
		t.Errorf("a plan from state %q: %s", s.Task.Status.State, violation)
	}
}

func violations(s Snapshot, p Plan) []string {
	var v []string
	v = append(v, moveViolations(s, p)...)
	v = append(v, createViolations(s, p)...)
	v = append(v, wakeViolations(s, p)...)
	v = append(v, orderViolations(s, p)...)
	return append(v, conditionViolations(p.Task)...)
}

// moveViolations: invariants 2 and 3.
func moveViolations(s Snapshot, p Plan) []string {
	var v []string
	before, after := &s.Task.Status, &p.Task.Status
	if before.State != after.State && !slices.Contains(lifecycle.AllowedNext()[before.State], after.State) {
		v = append(v, fmt.Sprintf("%q to %q is not in the table", before.State, after.State))
	}
	if final := before.State == v1alpha1.StateSucceeded || before.State == v1alpha1.StateCancelled; final {
		a, b := before.DeepCopy(), after.DeepCopy()
		// The answer to a retry request, and the conditions that follow from the spec, are no change of the outcome.
		a.LastHandledRetry, b.LastHandledRetry, a.Conditions, b.Conditions = nil, nil, nil, nil
		a.ObservedGeneration, b.ObservedGeneration = 0, 0
		for i := range a.Attempts { // of a worker that has reported it is seen later
			if was := &a.Attempts[i]; ptr.Deref(was.Reported, false) && was.ExitCode == nil && i < len(b.Attempts) {
				was.ExitCode = b.Attempts[i].ExitCode
			}
		}
		if diff := cmp.Diff(a, b); diff != "" {
			v = append(v, "a final state changed:\n"+diff)
		}
	}
	if before.State != "" && after.State == "" {
		v = append(v, "the state was removed")
	}
	if after.Attempt < before.Attempt || after.Attempt > before.Attempt+1 {
		v = append(v, fmt.Sprintf("attempt %d after %d", after.Attempt, before.Attempt))
	}
	if before.StartTime != nil && !before.StartTime.Equal(after.StartTime) {
		v = append(v, "the start time was set twice")
	}
	if (after.CompletionTime != nil) != lifecycle.Terminal(after.State) {
		v = append(v, fmt.Sprintf("completion time %v in state %s", after.CompletionTime, after.State))
	}
	if after.CompletionTime != nil && (after.CompletionTime.Time.Before(s.Task.CreationTimestamp.Time) ||
		after.StartTime != nil && after.CompletionTime.Before(after.StartTime)) {
		v = append(v, "it ended before it began")
	}
	return v
}

// createViolations: invariant 1, as far as a plan can break it, and the guard at Job creation.
func createViolations(s Snapshot, p Plan) []string {
	if !p.Create {
		return nil
	}
	var v []string
	t := p.Task
	switch {
	case t.Spec.Cancel != nil && *t.Spec.Cancel:
		v = append(v, "creates a Job for a cancelled Task")
	case t.Spec.Suspend != nil && *t.Spec.Suspend:
		v = append(v, "creates a Job for a suspended Task")
	case t.Status.State != v1alpha1.StatePending:
		v = append(v, "creates a Job in state "+string(t.Status.State))
	case isTrue(t, v1alpha1.ConditionTerminating):
		v = append(v, "creates a Job for a Task that is being stopped")
	case t.DeletionTimestamp != nil:
		v = append(v, "creates a Job for a Task that is being deleted")
	case lifecycle.Passed(lifecycle.OverallDeadline(t), s.Now):
		v = append(v, "creates a Job after the overall deadline")
	}
	for i := range s.Workers {
		w := &s.Workers[i]
		if w.MayRun() && !takenForLost(s, w) {
			v = append(v, fmt.Sprintf("creates a Job while the worker of attempt %d may run", w.Attempt))
		}
	}
	return v
}

// takenForLost says it in the words of the design: the wait for an earlier worker is over, and the Task does not want to
// wait for ever.
func takenForLost(s Snapshot, w *Worker) bool {
	t := s.Task
	if t.Spec.Retry != nil && t.Spec.Retry.OnWorkerLost == v1alpha1.WaitForLostWorker {
		return false
	}
	last := t.Status.Attempt // whose attempt has ended
	if t.Status.State == v1alpha1.StatePending {
		last--
	}
	if w.Attempt < last {
		return true // the attempt after it has had the same question
	}
	since := w.createTime()
	if a := attempt(t, w.Attempt); a != nil && a.FinishTime != nil {
		if workerLost(t) {
			return true
		}
		since = a.FinishTime.Time
	}
	return !s.Now.Before(lifecycle.WorkerLostDeadline(t, since))
}

// wakeViolations: invariants 7 and 10. A Task that goes on has a wake-up, or something that will send an event; and nobody
// is woken at once by a pass that changed nothing.
func wakeViolations(s Snapshot, p Plan) []string {
	var v []string
	changed := !equality.Semantic.DeepEqual(s.Task.Status, p.Task.Status)
	if !p.WakeAt.IsZero() && !p.WakeAt.After(s.Now) && !changed {
		v = append(v, "wakes at once though nothing has changed: a loop")
	}
	if s.Task.DeletionTimestamp != nil || lifecycle.Terminal(p.Task.Status.State) {
		return v
	}
	if p.WakeAt.IsZero() && !p.Create && !hasEventSource(p.Task, s.Workers) {
		v = append(v, "nothing will ever move it")
	}
	return v
}

// hasEventSource: the user will resume it, or an earlier worker whose pod is watched holds it up.
func hasEventSource(t *v1alpha1.Task, workers []Worker) bool {
	if t.Spec.Suspend != nil && *t.Spec.Suspend && (t.Status.Worker == nil || t.Status.State == v1alpha1.StateRetrying) {
		return true
	}
	return t.Status.State != v1alpha1.StateProcessing && slices.ContainsFunc(workers, func(w Worker) bool { return w.MayRun() })
}

// orderViolations: nothing is destroyed before its end is recorded, and each order is given once.
func orderViolations(s Snapshot, p Plan) []string {
	var v []string
	for i := range p.Stop {
		if slices.Contains(p.Stop[:i], p.Stop[i]) {
			v = append(v, fmt.Sprintf("order %v is given twice", p.Stop[i]))
		}
	}
	for _, stop := range p.Stop {
		w := ownerOf(s, stop.ObjectKey)
		if w == nil {
			v = append(v, fmt.Sprintf("order %v for an unknown object", stop))
			continue
		}
		a := attempt(p.Task, w.Attempt)
		open := a != nil && a.Outcome == ""
		if open && s.Task.DeletionTimestamp == nil && !isTrue(p.Task, v1alpha1.ConditionTerminating) {
			v = append(v, fmt.Sprintf("order %v before the outcome is fixed", stop))
		}
	}
	for _, key := range p.DeleteJobs {
		w := ownerOf(s, key)
		if w == nil || w.MayRun() {
			v = append(v, fmt.Sprintf("deletes Job %s while its worker may run", key.UID))
			continue
		}
		if a := attempt(p.Task, w.Attempt); a != nil && a.Outcome == "" {
			v = append(v, fmt.Sprintf("deletes Job %s before its outcome is recorded", key.UID))
		}
	}
	if p.DeleteTask && !equality.Semantic.DeepEqual(s.Task.Status, p.Task.Status) {
		v = append(v, "deletes the Task in the pass that writes its status")
	}
	if p.DeleteTask && !lifecycle.Terminal(s.Task.Status.State) {
		v = append(v, "deletes a Task that has not finished")
	}
	return v
}

func ownerOf(s Snapshot, key ObjectKey) *Worker {
	for i := range s.Workers {
		w := &s.Workers[i]
		if w.Job != nil && w.Job.UID == key.UID {
			return w
		}
		for j := range w.Pods {
			if w.Pods[j].UID == key.UID {
				return w
			}
		}
	}
	return nil
}

var conditionReason = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)

// conditionViolations: what the API server and the conventions ask of conditions, and what the state implies.
func conditionViolations(t *v1alpha1.Task) []string {
	var v []string
	if t.DeletionTimestamp != nil || t.Status.State == "" {
		return nil
	}
	for _, c := range t.Status.Conditions {
		switch {
		case !conditionReason.MatchString(c.Reason) || len(c.Reason) > 64:
			v = append(v, fmt.Sprintf("condition %s has reason %q", c.Type, c.Reason))
		case len(c.Message) > v1alpha1.MaxMessageBytes || !utf8.ValidString(c.Message):
			v = append(v, fmt.Sprintf("condition %s has an unbounded message", c.Type))
		case c.LastTransitionTime.IsZero():
			v = append(v, fmt.Sprintf("condition %s has no time", c.Type))
		}
	}
	if len(t.Status.Message) > v1alpha1.MaxMessageBytes {
		v = append(v, "the message is unbounded")
	}
	if t.Status.Reason == "" {
		v = append(v, "the status has no reason")
	}
	finished := lifecycle.Terminal(t.Status.State)
	if isTrue(t, v1alpha1.ConditionFinished) != finished {
		v = append(v, "condition Finished contradicts the state")
	}
	if isTrue(t, v1alpha1.ConditionSucceeded) != (t.Status.State == v1alpha1.StateSucceeded) {
		v = append(v, "condition Succeeded contradicts the state")
	}
	if isTrue(t, v1alpha1.ConditionReconciling) == finished {
		v = append(v, "condition Reconciling contradicts the state")
	}
	between := t.Status.State == v1alpha1.StateRetrying && !ptr.Deref(t.Spec.Cancel, false)
	if isTrue(t, v1alpha1.ConditionTerminating) && (finished || between) {
		v = append(v, "condition Terminating without a worker")
	}
	if isTrue(t, v1alpha1.ConditionStalled) != (t.Status.State == v1alpha1.StateFailed) {
		v = append(v, "condition Stalled contradicts the state")
	}
	for _, kind := range []string{v1alpha1.ConditionSucceeded, v1alpha1.ConditionFinished, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled} {
		c := findCondition(t, kind)
		abnormal := kind == v1alpha1.ConditionReconciling || kind == v1alpha1.ConditionStalled
		switch {
		case c == nil && !abnormal:
			v = append(v, fmt.Sprintf("condition %s is not there", kind))
		case c != nil && abnormal && c.Status != metav1.ConditionTrue:
			v = append(v, fmt.Sprintf("condition %s stays although it does not hold", kind))
		case c != nil && c.ObservedGeneration != t.Generation:
			v = append(v, fmt.Sprintf("condition %s does not speak of this generation", kind))
		}
	}
	if t.Status.ObservedGeneration != t.Generation {
		v = append(v, "status does not speak of this generation")
	}
	return v
}

// TestNothingToTell: the first write comes with the first news, and after podWait at the latest.
func TestNothingToTell(t *testing.T) {
	job := func(changes ...change) *scene { return fresh(changes...).job(1) }
	ago := func(s *scene, d time.Duration) *scene { s.worker(1).Job.CreateTime = s.Now.Add(-d); return s }
	for name, c := range map[string]struct {
		scene *scene
		want  bool
	}{
		"no Job yet":                      {fresh(suspend), false},
		"a Job":                           {job(), true},
		"a Job and a pod":                 {job().pod(1), true},
		"a Job for nearly 2 s":            {ago(job(), podWait-1), true},
		"a Job for 2 s":                   {ago(job(), podWait), false},
		"the API server's clock is ahead": {ago(job(), -time.Second), false},
		"the pod cannot be scheduled":     {job().pod(1, unbound, func(p *PodFacts) { p.Unschedulable = "0/1 nodes" }), false},
		"the worker runs":                 {job().pod(1, running), false},
		"cancelled":                       {job(cancel), false},
		"a request for a retry by hand":   {job(askRetry("x")), false},
		"told before":                     {accepted().job(1), false},
		"a Job that is not made yet":      {fresh(), false},
	} {
		plan := decide(c.scene.Snapshot)
		if got := plan.nothingToTell(c.scene.Snapshot); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
		if c.want && (!plan.WakeAt.After(c.scene.Now) || plan.WakeAt.After(plan.TellAt)) {
			t.Errorf("%s: nothing is told, and the next pass is at %v", name, plan.WakeAt)
		}
		setCondition(plan.Task, v1alpha1.ConditionTerminating, metav1.ConditionTrue, v1alpha1.ReasonCancelled, "", c.scene.Now)
		if plan.nothingToTell(c.scene.Snapshot) {
			t.Errorf("%s: an outcome that is fixed is not told", name)
		}
	}
}

// health is what kstatus makes of a resource of a kind that it does not know: its rules, in its order.
func health(t *v1alpha1.Task) string {
	if t.DeletionTimestamp != nil {
		return "Terminating"
	}
	if t.Status.ObservedGeneration != 0 && t.Status.ObservedGeneration != t.Generation {
		return "InProgress"
	}
	for _, c := range t.Status.Conditions {
		if c.Type == v1alpha1.ConditionReconciling && c.Status == metav1.ConditionTrue {
			return "InProgress"
		}
		if c.Type == v1alpha1.ConditionStalled && c.Status == metav1.ConditionTrue {
			return "Failed"
		}
	}
	return "Current"
}
