package lifecycle_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// machine drives one Task with random events and remembers what must hold whatever comes.
type machine struct {
	task   *v1alpha1.Task
	now    time.Time
	before v1alpha1.TaskStatus // as it was after the last event
	runs   int32               // attempts since the Task was accepted or retried by hand
	byHand bool                // the last event was a retry by hand
	ended  *lifecycle.Verdict  // of the last event
}

func TestPropertiesOfEveryWalk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{task: anyTask(t)}
		m.now = created.Add(time.Duration(rapid.IntRange(-5, 5).Draw(t, "clock skew")) * time.Second)
		t.Repeat(map[string]func(*rapid.T){
			"":        m.check,
			"accept":  m.step(func(*rapid.T) error { lifecycle.Accept(m.task, m.now); m.runs = max(m.runs, 1); return nil }),
			"begin":   m.step(m.begin),
			"start":   m.step(m.start),
			"end":     m.step(m.end),
			"again":   m.step(m.again),
			"by hand": m.step(m.againByHand),
		})
	})
}

func (m *machine) begin(t *rapid.T) error {
	if m.task.Status.State != pending {
		t.Skip("only a Pending Task gets a Job")
	}
	lifecycle.Begin(m.task, "job", m.now)
	return nil
}

func (m *machine) start(t *rapid.T) error {
	if m.task.Status.Worker == nil {
		t.Skip("no worker")
	}
	at := m.now.Add(time.Duration(rapid.IntRange(-10, 10).Draw(t, "node's clock")) * time.Second)
	return lifecycle.Started(m.task, v1alpha1.WorkerStatus{PodName: "pod", StartTime: micro(at)}, m.now)
}

func (m *machine) end(t *rapid.T) error {
	e := lifecycle.Ending{
		Event: rapid.SampledFrom([]lifecycle.Event{
			lifecycle.Succeed, lifecycle.Fail, lifecycle.Fail, lifecycle.Fail, lifecycle.Timeout, lifecycle.Cancel,
		}).Draw(t, "event"),
		Reason: rapid.SampledFrom([]string{
			v1alpha1.ReasonNonZeroExitCode, v1alpha1.ReasonOOMKilled, v1alpha1.ReasonDisrupted, v1alpha1.ReasonSuspended,
			v1alpha1.ReasonOverallDeadlineExceeded, v1alpha1.ReasonWorkerLost, v1alpha1.ReasonActiveDeadlineExceeded,
		}).Draw(t, "reason"),
		ExitCode:   rapid.Ptr(rapid.Int32Range(0, 5), true).Draw(t, "exit code"),
		FinishTime: m.now.Add(time.Duration(rapid.IntRange(-20, 10).Draw(t, "finished")) * time.Second),
		Message:    rapid.String().Draw(t, "message"),
	}
	verdict, err := lifecycle.End(m.task, e, anyFacts(t), m.now)
	m.ended = &verdict
	return err
}

func (m *machine) again(t *rapid.T) error {
	err := lifecycle.Again(m.task, anyFacts(t), m.now)
	if err == nil {
		m.runs++
	}
	return err
}

func (m *machine) againByHand(t *rapid.T) error {
	err := lifecycle.AgainByHand(m.task, anyFacts(t), m.now)
	if err == nil {
		if m.before.State != failed {
			t.Fatalf("%q was retried by hand", m.before.State)
		}
		m.byHand, m.runs = true, 1
	}
	return err
}

// step moves the clock, takes the event, and sees to it that a refused one changes nothing.
func (m *machine) step(event func(*rapid.T) error) func(*rapid.T) {
	return func(t *rapid.T) {
		m.before, m.byHand, m.ended = *m.task.Status.DeepCopy(), false, nil
		m.now = m.now.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "seconds later")) * time.Second)
		err := event(t)
		if err == nil {
			return
		}
		var refused *lifecycle.RefusedError
		if !errors.As(err, &refused) {
			t.Fatalf("error %v, want a refusal", err)
		}
		if !equality.Semantic.DeepEqual(m.task.Status, m.before) {
			t.Fatalf("a refused event has changed the Task: %+v", m.task.Status)
		}
	}
}

func (m *machine) check(t *rapid.T) {
	m.checkState(t)
	m.checkBudget(t)
	m.checkTimes(t)
	m.checkLists(t)
	m.checkWakeUp(t)
}

func (m *machine) checkState(t *rapid.T) {
	was, s := m.before, m.task.Status
	if s.State != was.State && !slices.Contains(lifecycle.AllowedNext()[was.State], s.State) {
		t.Fatalf("%q became %q", was.State, s.State)
	}
	if lifecycle.Terminal(was.State) && s.State != was.State && !(was.State == failed && m.byHand) {
		t.Fatalf("%s, a final state, became %s", was.State, s.State)
	}
	if lifecycle.Terminal(s.State) != (s.CompletionTime != nil) {
		t.Fatalf("state %s, completionTime %v", s.State, s.CompletionTime)
	}
	if s.NextRetryTime != nil && s.State != retrying {
		t.Fatalf("state %s has a next retry", s.State)
	}
}

func (m *machine) checkBudget(t *rapid.T) {
	was, s := m.before, m.task.Status
	limit, free := ptr.Deref(m.task.Spec.Retry.Limit, 2), ptr.Deref(m.task.Spec.Retry.UnchargedLimit, 10)
	if s.Attempt < was.Attempt || s.Attempt > was.Attempt+1 {
		t.Fatalf("attempt went from %d to %d", was.Attempt, s.Attempt)
	}
	if s.Charged > limit+1 || s.Uncharged > free+1 {
		t.Fatalf("charged %d of %d, uncharged %d of %d", s.Charged, limit, s.Uncharged, free)
	}
	if s.State == retrying && (s.Charged > limit || s.Uncharged > free) {
		t.Fatalf("retries although charged %d of %d, uncharged %d of %d", s.Charged, limit, s.Uncharged, free)
	}
	if m.runs > limit+free+1 {
		t.Fatalf("%d attempts in one run, with limits %d and %d", m.runs, limit, free)
	}
	if !m.byHand && (s.Charged < was.Charged || s.Uncharged < was.Uncharged) {
		t.Fatalf("charged went from %d to %d, uncharged from %d to %d", was.Charged, s.Charged, was.Uncharged, s.Uncharged)
	}
}

func (m *machine) checkTimes(t *rapid.T) {
	was, s := m.before, m.task.Status
	if s.StartTime != nil && s.StartTime.Time.Before(created) {
		t.Fatalf("started %s, before its creation", s.StartTime)
	}
	if was.StartTime != nil && !s.StartTime.Equal(was.StartTime) {
		t.Fatalf("startTime went from %s to %s", was.StartTime, s.StartTime)
	}
	if was.CompletionTime != nil && !m.byHand && !s.CompletionTime.Equal(was.CompletionTime) {
		t.Fatalf("completionTime went from %s to %s", was.CompletionTime, s.CompletionTime)
	}
	if s.CompletionTime != nil && (s.CompletionTime.Time.Before(created) || s.CompletionTime.Before(s.StartTime)) {
		t.Fatalf("created %s, started %s, completed %s", created, s.StartTime, s.CompletionTime)
	}
}

func (m *machine) checkLists(t *rapid.T) {
	s := m.task.Status
	if len(s.Attempts) > v1alpha1.MaxAttempts || len(s.History) > v1alpha1.MaxHistory {
		t.Fatalf("%d attempts, %d entries of history", len(s.Attempts), len(s.History))
	}
	for i, a := range s.Attempts {
		if i > 0 && a.Number <= s.Attempts[i-1].Number {
			t.Fatalf("attempt %d stands after %d", a.Number, s.Attempts[i-1].Number)
		}
		open := a.Outcome == ""
		if open && (a.Number != s.Attempt || s.State != pending && s.State != processing) {
			t.Fatalf("attempt %d is open in state %s, attempt %d", a.Number, s.State, s.Attempt)
		}
		if !open && (a.FinishTime == nil || a.FinishTime.Before(a.StartTime) || a.Reason == "") {
			t.Fatalf("attempt %d is closed as %+v", a.Number, a)
		}
	}
	for i, h := range s.History {
		if !slices.Contains(lifecycle.AllowedNext()[h.From], h.To) {
			t.Fatalf("history has %q to %q", h.From, h.To)
		}
		if i > 0 && (h.From != s.History[i-1].To || h.Attempt < s.History[i-1].Attempt) {
			t.Fatalf("history has %+v after %+v", h, s.History[i-1])
		}
		inTable := slices.ContainsFunc(lifecycle.Table, func(r lifecycle.Row) bool {
			return r.From == h.From && r.To == h.To && string(r.Event) == h.Event
		})
		if h.From != none && !inTable {
			t.Fatalf("history has %+v, which is no row of the table", h)
		}
	}
	if n := len(s.History); n > 0 && s.History[n-1].To != s.State {
		t.Fatalf("state %s, history ends in %s", s.State, s.History[n-1].To)
	}
}

// checkWakeUp sees to it that a Task between two attempts has a time at which something happens.
func (m *machine) checkWakeUp(t *rapid.T) {
	s := m.task.Status
	if s.State != retrying || m.before.State == retrying {
		return
	}
	deadline := lifecycle.OverallDeadline(m.task)
	if s.NextRetryTime == nil {
		if deadline.IsZero() {
			t.Fatal("retries at no time, and no deadline ends it")
		}
		return
	}
	if lifecycle.Passed(deadline, s.NextRetryTime.Time) {
		t.Fatalf("next retry %s, past the overall deadline %s", s.NextRetryTime, deadline)
	}
	wait := s.NextRetryTime.Sub(m.now)
	free := m.ended != nil && s.Reason == v1alpha1.ReasonSuspended
	limit := time.Duration(ptr.Deref(m.task.Spec.Retry.Backoff.MaxSeconds, 300)) * time.Second
	if wait < 0 || wait > limit || wait < time.Second && !free {
		t.Fatalf("waits %s after %s, want 1s to %s", wait, s.Reason, limit)
	}
}

func anyTask(t *rapid.T) *v1alpha1.Task {
	task := newTask()
	task.Spec.OverallDeadlineSeconds = rapid.Ptr(rapid.Int32Range(1, 2000), true).Draw(t, "overall")
	task.Spec.Retry = &v1alpha1.RetryPolicy{
		Limit:          rapid.Ptr(rapid.Int32Range(0, 4), true).Draw(t, "limit"),
		UnchargedLimit: rapid.Ptr(rapid.Int32Range(0, 4), true).Draw(t, "uncharged limit"),
		Backoff:        &v1alpha1.Backoff{MaxSeconds: rapid.Ptr(rapid.Int32Range(1, 400), true).Draw(t, "max")},
		Rules:          rapid.SliceOfN(rapid.Custom(anyRule), 0, 3).Draw(t, "rules"),
	}
	return task
}

func anyRule(t *rapid.T) v1alpha1.RetryRule {
	r := v1alpha1.RetryRule{
		Action: rapid.SampledFrom([]v1alpha1.RetryAction{
			v1alpha1.ActionRetry, v1alpha1.ActionFail, v1alpha1.ActionRetryUncharged,
		}).Draw(t, "action"),
	}
	if rapid.Bool().Draw(t, "by code") {
		r.ExitCodes = []int32{rapid.Int32Range(1, 5).Draw(t, "code")}
	} else {
		r.Reasons = []v1alpha1.RetryReason{rapid.SampledFrom([]v1alpha1.RetryReason{
			"OOMKilled", "Disrupted", "NonZeroExitCode", "ActiveDeadlineExceeded",
		}).Draw(t, "reason")}
	}
	if rapid.Bool().Draw(t, "more") {
		r.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}}
	}
	return r
}

func anyFacts(t *rapid.T) lifecycle.Facts {
	facts := allFacts()
	return facts[rapid.IntRange(0, len(facts)-1).Draw(t, "facts")]
}
