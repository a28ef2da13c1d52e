package lifecycle_test

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// failOnce takes a Pending Task through one attempt that fails at the given time.
func failOnce(t *testing.T, task *v1alpha1.Task, now time.Time) lifecycle.Verdict {
	t.Helper()
	lifecycle.Begin(task, "job", now)
	if err := lifecycle.Started(task, v1alpha1.WorkerStatus{PodName: "pod", StartTime: micro(now)}, now); err != nil {
		t.Fatal(err)
	}
	v, err := lifecycle.End(task, lifecycle.Ending{
		Event: lifecycle.Fail, Reason: v1alpha1.ReasonNonZeroExitCode, ExitCode: ptr.To[int32](1), FinishTime: now,
	}, lifecycle.Facts{}, now)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestC28RunsAreLimitPlusOne(t *testing.T) {
	for name, c := range map[string]struct {
		policy *v1alpha1.RetryPolicy
		want   int
	}{
		"limit 0":         {&v1alpha1.RetryPolicy{Limit: ptr.To[int32](0)}, 1},
		"limit 1":         {&v1alpha1.RetryPolicy{Limit: ptr.To[int32](1)}, 2},
		"limit 3":         {&v1alpha1.RetryPolicy{Limit: ptr.To[int32](3)}, 4},
		"limit left out":  {&v1alpha1.RetryPolicy{}, 3},
		"policy left out": {nil, 3},
	} {
		t.Run(name, func(t *testing.T) {
			task := newTask()
			task.Spec.Retry = c.policy
			lifecycle.Accept(task, created)
			now := created
			for runs := 1; ; runs++ {
				now = now.Add(time.Hour)
				failOnce(t, task, now)
				if task.Status.State == failed {
					if runs != c.want || task.Status.Attempt != int32(c.want) || task.Status.Charged != int32(c.want) {
						t.Errorf("%d runs, attempt %d, charged %d; want %d of each", runs, task.Status.Attempt, task.Status.Charged, c.want)
					}
					return
				}
				if runs > 10 {
					t.Fatal("runs without end")
				}
				if err := lifecycle.Again(task, lifecycle.Facts{BackoffOver: true}, now); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestC28WhatFailsBeforeItsJobIsPaidForToo(t *testing.T) {
	task := newTask()
	task.Spec.Retry = &v1alpha1.RetryPolicy{Limit: ptr.To[int32](2)}
	lifecycle.Accept(task, created)
	for tries := 1; task.Status.State != failed; tries++ {
		if tries > 3 {
			t.Fatal("tries without end")
		}
		if _, err := lifecycle.End(task, lifecycle.Ending{Event: lifecycle.Fail, Reason: v1alpha1.ReasonAdmissionDenied},
			lifecycle.Facts{}, created); err != nil {
			t.Fatal(err)
		}
		if task.Status.State == retrying {
			if err := lifecycle.Again(task, lifecycle.Facts{BackoffOver: true}, created); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestC29NoBackoffAfterTheLastAttempt(t *testing.T) {
	task := newTask()
	task.Spec.Retry = &v1alpha1.RetryPolicy{Limit: ptr.To[int32](0)}
	lifecycle.Accept(task, created)
	v := failOnce(t, task, created.Add(time.Minute))
	if v.Again || v.Why != v1alpha1.ReasonRetryLimitReached {
		t.Errorf("verdict %+v, want the end for want of retries", v)
	}
	if s := task.Status; s.State != failed || s.NextRetryTime != nil || s.CompletionTime == nil {
		t.Errorf("state %s, next retry %v, completion %v; want Failed at once", s.State, s.NextRetryTime, s.CompletionTime)
	}
}

func TestC22NoNextRetryPastTheOverallDeadline(t *testing.T) {
	for name, c := range map[string]struct {
		overall int32
		shown   bool
	}{
		"the retry comes before the deadline": {overall: 80, shown: true},
		"the retry would come at it":          {overall: 70},
		"the retry would come after it":       {overall: 65},
	} {
		t.Run(name, func(t *testing.T) {
			task := newTask()
			task.Spec.OverallDeadlineSeconds = &c.overall
			task.Spec.Retry = &v1alpha1.RetryPolicy{Backoff: &v1alpha1.Backoff{JitterPercent: ptr.To[int32](0)}}
			lifecycle.Accept(task, created)
			failOnce(t, task, created.Add(time.Minute))
			if task.Status.State != retrying {
				t.Fatalf("state %s, want Retrying", task.Status.State)
			}
			if got := task.Status.NextRetryTime; (got != nil) != c.shown {
				t.Errorf("next retry %v, shown should be %v", got, c.shown)
			}
		})
	}
}

func TestC22OverallDeadlineEndsABackoffAndClosesNoAttemptTwice(t *testing.T) {
	task := newTask()
	lifecycle.Accept(task, created)
	failOnce(t, task, created.Add(time.Minute))
	before := task.Status.Attempts[0]
	timeout := lifecycle.Ending{Event: lifecycle.Timeout, Reason: v1alpha1.ReasonOverallDeadlineExceeded}
	if _, err := lifecycle.End(task, timeout, lifecycle.Facts{}, created.Add(2*time.Minute)); err == nil {
		t.Fatal("a backoff ended before the deadline")
	}
	if _, err := lifecycle.End(task, timeout, lifecycle.Facts{DeadlinePassed: true}, created.Add(2*time.Minute)); err != nil {
		t.Fatal(err)
	}
	s := task.Status
	if s.State != failed || s.Charged != 1 || !equality.Semantic.DeepEqual(s.Attempts[0], before) {
		t.Errorf("state %s, charged %d, attempt %+v; want Failed and the attempt as it was, %+v", s.State, s.Charged, s.Attempts[0], before)
	}
}

func TestC30DisruptionsDoNotGrowTheBackoff(t *testing.T) {
	task := newTask()
	task.Spec.Retry = &v1alpha1.RetryPolicy{Backoff: &v1alpha1.Backoff{JitterPercent: ptr.To[int32](0)}}
	lifecycle.Accept(task, created)
	for range 5 {
		lifecycle.Begin(task, "job", created)
		if _, err := lifecycle.End(task, lifecycle.Ending{Event: lifecycle.Fail, Reason: v1alpha1.ReasonDisrupted},
			lifecycle.Facts{}, created); err != nil {
			t.Fatal(err)
		}
		if wait := task.Status.NextRetryTime.Sub(created); wait != 10*time.Second {
			t.Fatalf("waits %s after a disruption, want the initial 10s each time", wait)
		}
		if err := lifecycle.Again(task, lifecycle.Facts{BackoffOver: true}, created); err != nil {
			t.Fatal(err)
		}
	}
	if s := task.Status; s.Charged != 0 || s.Uncharged != 5 {
		t.Errorf("charged %d, uncharged %d, want 0 and 5", s.Charged, s.Uncharged)
	}
}

func TestSuspendedAttemptWaitsForNothingButResume(t *testing.T) {
	task := newTask()
	lifecycle.Accept(task, created)
	lifecycle.Begin(task, "job", created)
	if _, err := lifecycle.End(task, lifecycle.Ending{Event: lifecycle.Fail, Reason: v1alpha1.ReasonSuspended},
		lifecycle.Facts{}, created); err != nil {
		t.Fatal(err)
	}
	if s := task.Status; s.State != retrying || s.Uncharged != 1 || !s.NextRetryTime.Time.Equal(created) {
		t.Errorf("state %s, uncharged %d, next retry %v", s.State, s.Uncharged, s.NextRetryTime)
	}
	if err := lifecycle.Again(task, lifecycle.Facts{BackoffOver: true, Suspended: true}, created); err == nil {
		t.Error("a suspended Task went on")
	}
}

func TestRetryByHandStartsAFreshRun(t *testing.T) {
	task := newTask()
	task.Spec.Retry = &v1alpha1.RetryPolicy{Limit: ptr.To[int32](0)}
	task.Spec.OverallDeadlineSeconds = ptr.To[int32](3600)
	lifecycle.Accept(task, created)
	failOnce(t, task, created.Add(time.Minute))
	start := task.Status.StartTime
	later := created.Add(2 * time.Hour)
	if err := lifecycle.AgainByHand(task, lifecycle.Facts{AskedByHand: true}, later); err != nil {
		t.Fatal(err)
	}
	s := task.Status
	if s.State != pending || s.Attempt != 2 || s.Charged != 0 || s.Uncharged != 0 || s.CompletionTime != nil || s.Worker != nil {
		t.Errorf("after a retry by hand: %+v", s)
	}
	if !s.StartTime.Equal(start) {
		t.Error("startTime is set once, and was set again")
	}
	if got := lifecycle.OverallDeadline(task); !got.Equal(later.Add(time.Hour)) {
		t.Errorf("the overall clock was not restarted: %s", got)
	}
	if h := s.History[len(s.History)-1]; h.Actor != lifecycle.ActorUser || h.Event != string(lifecycle.Retry) {
		t.Errorf("history says %+v", h)
	}
	failOnce(t, task, later)
	if task.Status.State != failed || task.Status.Attempt != 2 {
		t.Errorf("the second run ended as %s, attempt %d", task.Status.State, task.Status.Attempt)
	}
}

func TestReplayingAnEventChangesNothing(t *testing.T) {
	now := created.Add(time.Minute)
	pod := v1alpha1.WorkerStatus{PodName: "pod", PodUID: "u", NodeName: "n", StartTime: micro(now)}
	end := lifecycle.Ending{Event: lifecycle.Fail, Reason: v1alpha1.ReasonNonZeroExitCode, FinishTime: now}
	task := newTask()
	steps := []struct {
		name string
		do   func(*v1alpha1.Task, time.Time) error
	}{
		{"accept", func(t *v1alpha1.Task, now time.Time) error { lifecycle.Accept(t, now); return nil }},
		{"begin", func(t *v1alpha1.Task, now time.Time) error { lifecycle.Begin(t, "job", now); return nil }},
		{"start", func(t *v1alpha1.Task, now time.Time) error { return lifecycle.Started(t, pod, now) }},
		{"fail", func(t *v1alpha1.Task, now time.Time) error {
			_, err := lifecycle.End(t, end, lifecycle.Facts{}, now)
			return err
		}},
		{"again", func(t *v1alpha1.Task, now time.Time) error {
			return lifecycle.Again(t, lifecycle.Facts{BackoffOver: true}, now)
		}},
	}
	for _, step := range steps {
		if err := step.do(task, now); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		before := task.DeepCopy()
		err := step.do(task, now.Add(time.Second))
		var refused *lifecycle.RefusedError
		if err != nil && !errors.As(err, &refused) {
			t.Errorf("%s again: %v", step.name, err)
		}
		if !equality.Semantic.DeepEqual(task, before) {
			t.Errorf("%s again has changed the Task", step.name)
		}
		now = now.Add(time.Minute)
	}
}

func TestClockSkewNeverTurnsTimesAround(t *testing.T) {
	task := newTask()
	lifecycle.Accept(task, created.Add(-3*time.Second))
	lifecycle.Begin(task, "job", created.Add(-3*time.Second))
	if err := lifecycle.Started(task, v1alpha1.WorkerStatus{StartTime: micro(created.Add(-2 * time.Second))}, created); err != nil {
		t.Fatal(err)
	}
	if _, err := lifecycle.End(task, lifecycle.Ending{Event: lifecycle.Succeed, FinishTime: created.Add(-5 * time.Second)},
		lifecycle.Facts{}, created.Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	s := task.Status
	if s.StartTime.Time.Before(created) || s.CompletionTime.Before(s.StartTime) {
		t.Errorf("created %s, started %s, completed %s", created, s.StartTime, s.CompletionTime)
	}
	if a := s.Attempts[0]; a.FinishTime.Before(a.StartTime) {
		t.Errorf("attempt started %s, finished %s", a.StartTime, a.FinishTime)
	}
}

func TestCompletionIsNeverBeforeCreation(t *testing.T) {
	task := newTask()
	lifecycle.Accept(task, created.Add(-3*time.Second))
	if _, err := lifecycle.End(task, lifecycle.Ending{Event: lifecycle.Cancel, Reason: v1alpha1.ReasonCancelled},
		lifecycle.Facts{WorkerStopped: true}, created.Add(-2*time.Second)); err != nil {
		t.Fatal(err)
	}
	if got := task.Status.CompletionTime; got.Time.Before(created) {
		t.Errorf("created %s, completed %s", created, got)
	}
}

func TestResourcesOfRulesAddUp(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		l := corev1.ResourceList{}
		if cpu != "" {
			l[corev1.ResourceCPU] = resource.MustParse(cpu)
		}
		if memory != "" {
			l[corev1.ResourceMemory] = resource.MustParse(memory)
		}
		return l
	}
	override := &corev1.ResourceRequirements{Limits: list("", "1Gi")}
	task := newTask()
	task.Spec.Retry = &v1alpha1.RetryPolicy{Limit: ptr.To[int32](9), Rules: []v1alpha1.RetryRule{
		{Reasons: []v1alpha1.RetryReason{"OOMKilled"}, Action: v1alpha1.ActionRetry, Resources: override},
		{Reasons: []v1alpha1.RetryReason{"Evicted"}, Action: v1alpha1.ActionRetry,
			Resources: &corev1.ResourceRequirements{Requests: list("2", ""), Limits: list("4", "")}},
	}}
	lifecycle.Accept(task, created)
	var stored []*corev1.ResourceRequirements // as other holders of an earlier status see them
	for _, reason := range []string{"OOMKilled", "Evicted", "NonZeroExitCode"} {
		lifecycle.Begin(task, "job", created)
		if _, err := lifecycle.End(task, lifecycle.Ending{Event: lifecycle.Fail, Reason: reason}, lifecycle.Facts{}, created); err != nil {
			t.Fatal(err)
		}
		if err := lifecycle.Again(task, lifecycle.Facts{BackoffOver: true}, created); err != nil {
			t.Fatal(err)
		}
		stored = append(stored, task.Status.Resources)
	}
	if !equality.Semantic.DeepEqual(stored[0], override) {
		t.Errorf("what was stored after the first attempt has become %+v", stored[0])
	}
	want := &corev1.ResourceRequirements{Requests: list("2", ""), Limits: list("4", "1Gi")}
	if !equality.Semantic.DeepEqual(task.Status.Resources, want) {
		t.Errorf("resources %+v, want %+v", task.Status.Resources, want)
	}
	if !equality.Semantic.DeepEqual(override.Limits, list("", "1Gi")) || override.Requests != nil {
		t.Errorf("the rule itself was changed: %+v", override)
	}
}

func TestListsAreBounded(t *testing.T) {
	task := newTask()
	task.Spec.Retry = &v1alpha1.RetryPolicy{Limit: ptr.To[int32](100)}
	lifecycle.Accept(task, created)
	for i := range 50 {
		failOnce(t, task, created.Add(time.Duration(i)*time.Hour))
		if err := lifecycle.Again(task, lifecycle.Facts{BackoffOver: true}, created); err != nil {
			t.Fatal(err)
		}
	}
	s := task.Status
	if len(s.Attempts) != v1alpha1.MaxAttempts || s.Attempts[len(s.Attempts)-1].Number != 50 {
		t.Errorf("%d attempts, the last is %d", len(s.Attempts), s.Attempts[len(s.Attempts)-1].Number)
	}
	if len(s.History) != v1alpha1.MaxHistory {
		t.Errorf("%d entries of history", len(s.History))
	}
}

func FuzzTruncate(f *testing.F) {
	for _, seed := range []string{
		"", "plain", "line\nand\ttab", "\x00\x1b[31mred\x7f", "\u009b31m", "\xff\xfe", strings.Repeat("ä", 600),
		strings.Repeat("x", 1023) + "é", strings.Repeat("\U0001F600", 300),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := lifecycle.Truncate(text)
		if len(got) > v1alpha1.MaxMessageBytes {
			t.Errorf("%d bytes are left", len(got))
		}
		if !utf8.ValidString(got) {
			t.Errorf("%q is not valid UTF-8", got)
		}
		if strings.ContainsFunc(got, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }) {
			t.Errorf("%q has a control character", got)
		}
		if lifecycle.Truncate(got) != got {
			t.Error("a message changes when it is stored again")
		}
	})
}
