package task

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// setConditions derives from the state the conditions that summarise it.
func (d *decision) setConditions() {
	t, status := d.task, &d.task.Status
	status.ObservedGeneration = t.Generation
	set := func(kind string, is metav1.ConditionStatus, reason, message string) {
		setCondition(t, kind, is, reason, message, d.now)
	}
	reason, message := status.Reason, status.Message
	switch status.State {
	case v1alpha1.StateSucceeded:
		set(v1alpha1.ConditionSucceeded, metav1.ConditionTrue, reason, message)
		removeCondition(t, v1alpha1.ConditionDeadLettered)
	case v1alpha1.StateFailed, v1alpha1.StateCancelled:
		set(v1alpha1.ConditionSucceeded, metav1.ConditionFalse, reason, message)
	default:
		set(v1alpha1.ConditionSucceeded, metav1.ConditionUnknown, reason, message)
		removeCondition(t, v1alpha1.ConditionDeadLettered)
	}
	finished := lifecycle.Terminal(status.State)
	set(v1alpha1.ConditionFinished, is(finished), reason, "")
	// Abnormal-true, as kstatus wants it: where they do not hold they are absent.
	if status.State == v1alpha1.StateFailed {
		set(v1alpha1.ConditionStalled, metav1.ConditionTrue, reason, message)
	} else {
		removeCondition(t, v1alpha1.ConditionStalled)
	}
	switch {
	case finished:
		removeCondition(t, v1alpha1.ConditionReconciling)
	case d.waits != nil:
		set(v1alpha1.ConditionReconciling, metav1.ConditionTrue, d.waits.reason, d.waits.message)
	case d.terminating():
		fixed := findCondition(t, v1alpha1.ConditionTerminating)
		set(v1alpha1.ConditionReconciling, metav1.ConditionTrue, fixed.Reason, status.Message)
	default:
		set(v1alpha1.ConditionReconciling, metav1.ConditionTrue, reason, message)
	}
	if d.suspended() && !finished {
		set(v1alpha1.ConditionSuspended, metav1.ConditionTrue, v1alpha1.ReasonSuspended, "spec.suspend is set")
	} else if findCondition(t, v1alpha1.ConditionSuspended) != nil {
		set(v1alpha1.ConditionSuspended, metav1.ConditionFalse, "NotSuspended", "")
	}
	if why := d.plan.Verdict.Why; status.State == v1alpha1.StateFailed && why != "" {
		set(v1alpha1.ConditionDeadLettered, metav1.ConditionTrue, why, message)
	}
}

func is(b bool) metav1.ConditionStatus {
	if b {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

func setCondition(t *v1alpha1.Task, kind string, status metav1.ConditionStatus, reason, message string, now time.Time) {
	meta.SetStatusCondition(&t.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: lifecycle.Truncate(message),
		ObservedGeneration: t.Generation, LastTransitionTime: metav1.NewTime(now),
	})
}

func findCondition(t *v1alpha1.Task, kind string) *metav1.Condition {
	return meta.FindStatusCondition(t.Status.Conditions, kind)
}

func removeCondition(t *v1alpha1.Task, kind string) {
	meta.RemoveStatusCondition(&t.Status.Conditions, kind)
}

func isTrue(t *v1alpha1.Task, kind string) bool {
	return meta.IsStatusConditionTrue(t.Status.Conditions, kind)
}

// workerLost tells that the last worker is not known to have stopped.
func workerLost(t *v1alpha1.Task) bool {
	c := findCondition(t, v1alpha1.ConditionWorkerStopped)
	return c != nil && c.Status == metav1.ConditionUnknown
}
