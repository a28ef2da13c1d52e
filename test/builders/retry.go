package builders

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

func (b *TaskBuilder) retry() *v1alpha1.RetryPolicy {
	if b.task.Spec.Retry == nil {
		b.task.Spec.Retry = &v1alpha1.RetryPolicy{}
	}
	return b.task.Spec.Retry
}

// Retry sets retry.limit.
func (b *TaskBuilder) Retry(limit int32) *TaskBuilder { b.retry().Limit = ptr.To(limit); return b }

// UnchargedLimit sets retry.unchargedLimit.
func (b *TaskBuilder) UnchargedLimit(limit int32) *TaskBuilder {
	b.retry().UnchargedLimit = ptr.To(limit)
	return b
}

// OnWorkerLost sets retry.onWorkerLost.
func (b *TaskBuilder) OnWorkerLost(policy v1alpha1.WorkerLostPolicy) *TaskBuilder {
	b.retry().OnWorkerLost = policy
	return b
}

// Backoff sets a wait that stays within the bounds given and has no jitter, so that a test can tell when it is over.
func (b *TaskBuilder) Backoff(initial, maximum time.Duration, factor string) *TaskBuilder {
	b.retry().Backoff = &v1alpha1.Backoff{
		InitialSeconds: seconds(initial),
		MaxSeconds:     seconds(maximum),
		Factor:         factor,
		JitterPercent:  ptr.To[int32](0),
	}
	return b
}

// FastBackoff sets the shortest wait that the API allows, one second each time.
func (b *TaskBuilder) FastBackoff() *TaskBuilder { return b.Backoff(time.Second, time.Second, "1") }

// OnExit adds a rule for exit codes.
func (b *TaskBuilder) OnExit(action v1alpha1.RetryAction, codes ...int32) *TaskBuilder {
	return b.Rule(v1alpha1.RetryRule{ExitCodes: codes, Action: action})
}

// OnReason adds a rule for reasons.
func (b *TaskBuilder) OnReason(action v1alpha1.RetryAction, reasons ...v1alpha1.RetryReason) *TaskBuilder {
	return b.Rule(v1alpha1.RetryRule{Reasons: reasons, Action: action})
}

// OnReasonWith adds a rule for a reason that gives the next attempts other resources.
func (b *TaskBuilder) OnReasonWith(reason v1alpha1.RetryReason, r corev1.ResourceRequirements) *TaskBuilder {
	return b.Rule(v1alpha1.RetryRule{
		Reasons: []v1alpha1.RetryReason{reason}, Action: v1alpha1.ActionRetry, Resources: &r,
	})
}

// Rule adds a rule.
func (b *TaskBuilder) Rule(r v1alpha1.RetryRule) *TaskBuilder {
	b.retry().Rules = append(b.retry().Rules, r)
	return b
}
