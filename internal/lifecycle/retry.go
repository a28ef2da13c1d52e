package lifecycle

import (
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// Defaults of the API, for objects that were stored without them.
const (
	DefaultRetryLimit             = 2
	DefaultUnchargedLimit         = 10
	DefaultBackoffInitialSeconds  = 10
	DefaultBackoffFactor          = 2.0
	DefaultBackoffMaxSeconds      = 300
	DefaultBackoffJitterPercent   = 10
	DefaultStartTimeoutSeconds    = 600
	DefaultActiveDeadlineSeconds  = 1800
	DefaultFinishGraceSeconds     = 60
	DefaultWorkerLostSeconds      = 300
	DefaultWorkerRetentionSeconds = 300
	DefaultStageWeight            = 1
)

// Verdict is what follows an attempt that did not succeed.
type Verdict struct {
	// Charged tells whether spec.retry.limit pays for the attempt.
	Charged bool
	// Again tells whether another attempt is allowed.
	Again bool
	// Why is the reason of condition DeadLettered where no other attempt is allowed.
	Why string
	// Resources are what the rule that matched sets for further attempts.
	Resources *corev1.ResourceRequirements
}

// notRetryable are the causes that another attempt cannot mend.
var notRetryable = []string{
	v1alpha1.ReasonOverallDeadlineExceeded,
	v1alpha1.ReasonQueueTimeout,
	v1alpha1.ReasonInvalidTemplate,
	v1alpha1.ReasonInputTooLarge,
	v1alpha1.ReasonPermanentFailure,
}

// unchargedByDefault are the causes that are nobody's fault but the cluster's.
var unchargedByDefault = []string{v1alpha1.ReasonDisrupted, v1alpha1.ReasonWorkerLost}

// OwnExits are the causes whose exit code is the worker's own; with all others something else ended it, and the code only tells
// of the signal.
var OwnExits = []string{v1alpha1.ReasonNonZeroExitCode, v1alpha1.ReasonOOMKilled, v1alpha1.ReasonStartError}

// Judge says what follows an attempt with this reason and exit code, after charged and uncharged attempts of the same run
// that ended before it.
func Judge(policy *v1alpha1.RetryPolicy, reason string, exitCode *int32, charged, uncharged int32) Verdict {
	if policy == nil {
		policy = &v1alpha1.RetryPolicy{}
	}
	if slices.Contains(notRetryable, reason) {
		return Verdict{Charged: true, Why: v1alpha1.ReasonNotRetryable}
	}
	action, resources := chooseAction(policy.Rules, reason, exitCode)
	switch {
	case action == v1alpha1.ActionFail:
		return Verdict{Charged: true, Why: v1alpha1.ReasonRetryRuleFail}
	case action == v1alpha1.ActionRetryUncharged:
		if uncharged >= ptr.Deref(policy.UnchargedLimit, DefaultUnchargedLimit) {
			return Verdict{Why: v1alpha1.ReasonUnchargedLimitReached}
		}
		return Verdict{Again: true, Resources: resources}
	case charged >= ptr.Deref(policy.Limit, DefaultRetryLimit):
		return Verdict{Charged: true, Why: v1alpha1.ReasonRetryLimitReached}
	}
	return Verdict{Charged: true, Again: true, Resources: resources}
}

func chooseAction(rules []v1alpha1.RetryRule, reason string, exitCode *int32) (v1alpha1.RetryAction, *corev1.ResourceRequirements) {
	if reason == v1alpha1.ReasonSuspended {
		return v1alpha1.ActionRetryUncharged, nil
	}
	for _, r := range rules {
		if exitCode != nil && slices.Contains(OwnExits, reason) && slices.Contains(r.ExitCodes, *exitCode) ||
			slices.Contains(r.Reasons, v1alpha1.RetryReason(reason)) {
			return r.Action, r.Resources
		}
	}
	if slices.Contains(unchargedByDefault, reason) {
		return v1alpha1.ActionRetryUncharged, nil
	}
	return v1alpha1.ActionRetry, nil
}

// BackoffWait is the wait before the next attempt after n charged failures (n below 1 counts as 1). It is never below one
// second, never above maxSeconds, and a function of its arguments: seed spreads it by the jitter.
func BackoffWait(b *v1alpha1.Backoff, n int32, seed string) time.Duration {
	if b == nil {
		b = &v1alpha1.Backoff{}
	}
	initial := float64(max(1, ptr.Deref(b.InitialSeconds, DefaultBackoffInitialSeconds)))
	limit := float64(max(1, ptr.Deref(b.MaxSeconds, DefaultBackoffMaxSeconds)))
	factor, err := strconv.ParseFloat(b.Factor, 64)
	if err != nil || math.IsNaN(factor) || factor < 1 {
		factor = DefaultBackoffFactor
	}
	// Pow overflows to +Inf, which the cap takes care of.
	wait := min(limit, initial*math.Pow(factor, float64(max(n, 1)-1)))
	h := fnv.New64a()
	_, _ = h.Write([]byte(seed)) // never fails
	spread := float64(h.Sum64()%2001)/1000 - 1
	wait += wait * spread * float64(ptr.Deref(b.JitterPercent, DefaultBackoffJitterPercent)) / 100
	return time.Duration(max(1, min(limit, wait)) * float64(time.Second))
}
