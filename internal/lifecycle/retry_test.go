package lifecycle_test

import (
	"math"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

func TestJudge(t *testing.T) {
	more := &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}}
	rules := &v1alpha1.RetryPolicy{
		Limit: ptr.To[int32](3), UnchargedLimit: ptr.To[int32](2),
		Rules: []v1alpha1.RetryRule{
			{ExitCodes: []int32{2}, Action: v1alpha1.ActionFail},
			{ExitCodes: []int32{2, 3}, Action: v1alpha1.ActionRetryUncharged},
			{Reasons: []v1alpha1.RetryReason{"OOMKilled"}, Action: v1alpha1.ActionRetry, Resources: more},
			{Reasons: []v1alpha1.RetryReason{"PodDeleted"}, Action: v1alpha1.ActionRetryUncharged, Resources: more},
			{Reasons: []v1alpha1.RetryReason{"WorkerLost"}, Action: v1alpha1.ActionRetry},
		},
	}
	again := lifecycle.Verdict{Charged: true, Again: true}
	free := lifecycle.Verdict{Again: true}
	for name, c := range map[string]struct {
		policy             *v1alpha1.RetryPolicy
		reason             string
		code               *int32
		charged, uncharged int32
		want               lifecycle.Verdict
	}{
		"no policy is the default policy": {reason: "NonZeroExitCode", charged: 1, want: again},
		"the default limit is 2": {
			reason: "NonZeroExitCode", charged: 2,
			want: lifecycle.Verdict{Charged: true, Why: v1alpha1.ReasonRetryLimitReached},
		},
		"limit 0 never retries": {
			policy: &v1alpha1.RetryPolicy{Limit: ptr.To[int32](0)}, reason: "OOMKilled",
			want: lifecycle.Verdict{Charged: true, Why: v1alpha1.ReasonRetryLimitReached},
		},
		"C30 a disruption is free, even with limit 0": {
			policy: &v1alpha1.RetryPolicy{Limit: ptr.To[int32](0)}, reason: "Disrupted", code: ptr.To[int32](143), want: free,
		},
		"C30 a disruption has its own cap": {
			reason: "Disrupted", uncharged: 10, want: lifecycle.Verdict{Why: v1alpha1.ReasonUnchargedLimitReached},
		},
		"a lost worker is free":                    {reason: "WorkerLost", charged: 99, want: free},
		"an eviction for own overuse is charged":   {reason: "Evicted", want: again},
		"a rule may charge what is free otherwise": {policy: rules, reason: "WorkerLost", want: again},
		"the first rule that matches decides": {
			policy: rules, reason: "NonZeroExitCode", code: ptr.To[int32](2),
			want: lifecycle.Verdict{Charged: true, Why: v1alpha1.ReasonRetryRuleFail},
		},
		"a later rule sees what is left": {policy: rules, reason: "NonZeroExitCode", code: ptr.To[int32](3), charged: 3, want: free},
		"uncharged by rule shares the cap": {
			policy: rules, reason: "NonZeroExitCode", code: ptr.To[int32](3), uncharged: 2,
			want: lifecycle.Verdict{Why: v1alpha1.ReasonUnchargedLimitReached},
		},
		"a rule brings resources": {
			policy: rules, reason: "OOMKilled", code: ptr.To[int32](137),
			want: lifecycle.Verdict{Charged: true, Again: true, Resources: more},
		},
		"no resources where no attempt follows": {
			policy: rules, reason: "OOMKilled", charged: 3,
			want: lifecycle.Verdict{Charged: true, Why: v1alpha1.ReasonRetryLimitReached},
		},
		"an uncharged rule brings resources too": {
			policy: rules, reason: "PodDeleted", want: lifecycle.Verdict{Again: true, Resources: more},
		},
		"no rule is asked about a suspend": {policy: rules, reason: "Suspended", code: ptr.To[int32](2), want: free},
		"a suspend shares the cap": {
			policy: rules, reason: "Suspended", uncharged: 2, want: lifecycle.Verdict{Why: v1alpha1.ReasonUnchargedLimitReached},
		},
		"no match without an exit code": {policy: rules, reason: "ImagePullFailed", want: again},
	} {
		t.Run(name, func(t *testing.T) {
			got := lifecycle.Judge(c.policy, c.reason, c.code, c.charged, c.uncharged)
			if got != c.want {
				t.Errorf("Judge = %+v, want %+v", got, c.want)
			}
		})
	}
}

// TestC30ExitCodeRulesAreForTheWorkersOwnExit: a worker that something else ends exits with 137 or 143, too.
func TestC30ExitCodeRulesAreForTheWorkersOwnExit(t *testing.T) {
	policy := &v1alpha1.RetryPolicy{Rules: []v1alpha1.RetryRule{{ExitCodes: []int32{137, 143}, Action: v1alpha1.ActionFail}}}
	for reason, again := range map[string]bool{
		v1alpha1.ReasonNonZeroExitCode: false, v1alpha1.ReasonOOMKilled: false,
		v1alpha1.ReasonDisrupted: true, v1alpha1.ReasonPodDeleted: true, v1alpha1.ReasonJobDeleted: true,
		v1alpha1.ReasonSuspended: true, v1alpha1.ReasonActiveDeadlineExceeded: true, v1alpha1.ReasonEvicted: true,
	} {
		if v := lifecycle.Judge(policy, reason, ptr.To[int32](143), 0, 0); v.Again != again {
			t.Errorf("%s with exit code 143: another attempt %t, want %t", reason, v.Again, again)
		}
	}
}

func TestC22WhatAnotherAttemptCannotMendEndsTheTask(t *testing.T) {
	policy := &v1alpha1.RetryPolicy{Limit: ptr.To[int32](100), Rules: []v1alpha1.RetryRule{
		{ExitCodes: []int32{1}, Action: v1alpha1.ActionRetryUncharged},
	}}
	for _, reason := range []string{"OverallDeadlineExceeded", "QueueTimeout", "InvalidTemplate", "InputTooLarge"} {
		got := lifecycle.Judge(policy, reason, ptr.To[int32](1), 0, 0)
		if got.Again || got.Why != v1alpha1.ReasonNotRetryable {
			t.Errorf("after %s: %+v, want the end", reason, got)
		}
	}
}

func TestC32Backoff(t *testing.T) {
	exact := func(initial, limit int32, factor string) *v1alpha1.Backoff {
		return &v1alpha1.Backoff{InitialSeconds: &initial, MaxSeconds: &limit, Factor: factor, JitterPercent: ptr.To[int32](0)}
	}
	for name, c := range map[string]struct {
		backoff *v1alpha1.Backoff
		n       int32
		want    time.Duration
	}{
		"the first wait is the initial one":   {exact(10, 300, "2"), 1, 10 * time.Second},
		"the third is two factors later":      {exact(10, 300, "2"), 3, 40 * time.Second},
		"the cap holds":                       {exact(10, 300, "2"), 6, 300 * time.Second},
		"factor 10, retry 40 overflows":       {exact(10, 300, "10"), 40, 300 * time.Second},
		"no number of failures is too many":   {exact(1, 86400, "100"), math.MaxInt32, 86400 * time.Second},
		"factor 1 stays":                      {exact(7, 300, "1"), 50, 7 * time.Second},
		"a fraction":                          {exact(10, 300, "1.5"), 2, 15 * time.Second},
		"max below initial":                   {exact(100, 20, "2"), 1, 20 * time.Second},
		"no failure counts as the first":      {exact(10, 300, "2"), 0, 10 * time.Second},
		"a negative number counts as first":   {exact(10, 300, "2"), -5, 10 * time.Second},
		"stored factor 0 is the default":      {exact(10, 300, "0"), 2, 20 * time.Second},
		"stored factor 0.5 is the default":    {exact(10, 300, "0.5"), 2, 20 * time.Second},
		"stored factor -1 is the default":     {exact(10, 300, "-1"), 2, 20 * time.Second},
		"stored factor NaN is the default":    {exact(10, 300, "NaN"), 2, 20 * time.Second},
		"stored factor Inf is capped":         {exact(10, 300, "Inf"), 2, 300 * time.Second},
		"an empty factor is the default":      {exact(10, 300, ""), 2, 20 * time.Second},
		"a factor that is no number":          {exact(10, 300, "two"), 2, 20 * time.Second},
		"stored zeros never make a busy loop": {exact(0, 0, "2"), 1, time.Second},
		"nor with an endless factor":          {exact(0, 0, "Inf"), 9, time.Second},
		"nor do negative ones":                {exact(-9, -9, "2"), 4, time.Second},
		"only a limit given": {
			&v1alpha1.Backoff{MaxSeconds: ptr.To[int32](15), JitterPercent: ptr.To[int32](0)}, 5, 15 * time.Second,
		},
		"only an initial given": {
			&v1alpha1.Backoff{InitialSeconds: ptr.To[int32](3), JitterPercent: ptr.To[int32](0)}, 2, 6 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := lifecycle.BackoffWait(c.backoff, c.n, "seed"); got != c.want {
				t.Errorf("wait %s, want %s", got, c.want)
			}
		})
	}
}

func TestC32MissingBackoffIsTheDefaultOne(t *testing.T) {
	for n, base := range map[int32]time.Duration{1: 10 * time.Second, 2: 20 * time.Second, 3: 40 * time.Second} {
		got := lifecycle.BackoffWait(nil, n, "seed")
		if got != lifecycle.BackoffWait(&v1alpha1.Backoff{}, n, "seed") {
			t.Errorf("no backoff and an empty one differ for retry %d", n)
		}
		if got < base*9/10 || got > base*11/10 {
			t.Errorf("wait %s before retry %d, want %s give or take a tenth", got, n, base)
		}
	}
}

func TestC32BackoffIsCappedAndNeverBelowASecond(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := anyBackoff(t)
		n := rapid.Int32().Draw(t, "n")
		seed := rapid.String().Draw(t, "seed")
		got := lifecycle.BackoffWait(b, n, seed)
		limit := time.Duration(max(1, ptr.Deref(b.MaxSeconds, lifecycle.DefaultBackoffMaxSeconds))) * time.Second
		if got < time.Second || got > limit {
			t.Fatalf("wait %s, want 1s to %s", got, limit)
		}
		if got != lifecycle.BackoffWait(b, n, seed) {
			t.Fatal("the wait differs from one call to the next")
		}
	})
}

func TestC32JitterStaysInItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		initial := rapid.Int32Range(1, 1000).Draw(t, "initial")
		factor := rapid.IntRange(100, 10_000).Draw(t, "factor in hundredths")
		percent := rapid.Int32Range(0, 100).Draw(t, "percent")
		n := rapid.Int32Range(1, 200).Draw(t, "n")
		b := &v1alpha1.Backoff{
			InitialSeconds: &initial, Factor: strconv.FormatFloat(float64(factor)/100, 'f', 2, 64), MaxSeconds: ptr.To[int32](86400),
		}
		b.JitterPercent = ptr.To[int32](0)
		base := lifecycle.BackoffWait(b, n, "")
		b.JitterPercent = &percent
		got := lifecycle.BackoffWait(b, n, rapid.String().Draw(t, "seed"))
		spread := time.Duration(float64(base)*float64(percent)/100) + time.Microsecond
		if got < base-spread || got > base+spread {
			t.Fatalf("wait %s, want %s give or take %d%%", got, base, percent)
		}
	})
}

func TestC32BackoffGrowsWithoutJitter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := anyBackoff(t)
		b.JitterPercent = ptr.To[int32](0)
		n := rapid.Int32Range(1, math.MaxInt32-1).Draw(t, "n")
		if a, b := lifecycle.BackoffWait(b, n, ""), lifecycle.BackoffWait(b, n+1, ""); b < a {
			t.Fatalf("wait %s, then %s", a, b)
		}
	})
}

func TestC32JitterSpreads(t *testing.T) {
	waits := map[time.Duration]bool{}
	less, more := 0, 0
	for i := range 100 {
		wait := lifecycle.BackoffWait(nil, 1, strconv.Itoa(i))
		waits[wait] = true
		if wait < lifecycle.DefaultBackoffInitialSeconds*time.Second {
			less++
		} else if wait > lifecycle.DefaultBackoffInitialSeconds*time.Second {
			more++
		}
	}
	if less < 25 || more < 25 {
		t.Errorf("of 100 Tasks %d come back before the nominal wait is over and %d after it", less, more)
	}
	if len(waits) < 50 {
		t.Errorf("100 Tasks share %d waits: they would all come back at once", len(waits))
	}
}

func anyBackoff(t *rapid.T) *v1alpha1.Backoff {
	number := rapid.Ptr(rapid.Int32(), true)
	return &v1alpha1.Backoff{
		InitialSeconds: number.Draw(t, "initial"),
		MaxSeconds:     number.Draw(t, "max"),
		JitterPercent:  number.Draw(t, "jitter"),
		Factor:         rapid.SampledFrom([]string{"", "1", "2", "10", "100", "1.01", "0", "-3", "Inf", "NaN", "1e300"}).Draw(t, "factor"),
	}
}
