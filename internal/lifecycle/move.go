package lifecycle

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// The functions of this file are the only ones that change status.state. Each takes an event through the table and keeps
// the books that go with it: history, attempts, counters, times. They change the Task they are given and nothing else.

// Actors of a transition.
const (
	ActorController = "controller"
	ActorUser       = "user"
	// ActorPatrol mends what the controller has missed.
	ActorPatrol = "patrol"
)

// Accepted tells whether the operator has written the status of a Task: until then it has what the API server gives it.
func Accepted(t *v1alpha1.Task) bool { return len(t.Status.History) > 0 }

// Accept opens the books of a Task that nobody has looked at yet: it is Pending since its creation, its first attempt ahead.
func Accept(t *v1alpha1.Task, now time.Time) {
	s := &t.Status
	if Accepted(t) {
		return
	}
	s.Attempt = 1
	s.RunStartTime = ptr.To(metav1.NewMicroTime(t.CreationTimestamp.Time))
	s.State, s.Conditions = "", nil // the API server's default has no times
	// The operator's clock may be behind the API server's.
	record(t, "", First, "", ActorController, Earliest(t.CreationTimestamp.Time, now))
}

// Again brings a Retrying Task to Pending, its next attempt ahead.
func Again(t *v1alpha1.Task, f Facts, now time.Time) error {
	if t.Status.State != v1alpha1.StateRetrying {
		return &RefusedError{State: t.Status.State, Event: Retry}
	}
	return again(t, f, t.Status.Reason, ActorController, now)
}

// AgainByHand brings a Failed Task to Pending with a new budget and a new overall clock. Attempt numbers go on.
func AgainByHand(t *v1alpha1.Task, f Facts, now time.Time) error {
	if t.Status.State != v1alpha1.StateFailed {
		return &RefusedError{State: t.Status.State, Event: Retry}
	}
	if err := again(t, f, v1alpha1.ReasonRetryRequested, ActorUser, now); err != nil {
		return err
	}
	s := &t.Status
	s.CompletionTime = nil
	s.Charged, s.Uncharged = 0, 0
	s.RunStartTime = ptr.To(metav1.NewMicroTime(now))
	return nil
}

func again(t *v1alpha1.Task, f Facts, reason, actor string, now time.Time) error {
	s := &t.Status
	to, err := Next(s.State, Retry, f)
	if err != nil {
		return err
	}
	s.Attempt++
	record(t, Retry, to, reason, actor, now)
	s.Worker = nil
	s.NextRetryTime = nil
	s.Result, s.Report, s.Progress = nil, nil, nil
	return nil
}

// Begin opens the current attempt: its Job is about to be, or has been, created. One that is open already it leaves alone,
// so that the start timeout counts from the first try.
func Begin(t *v1alpha1.Task, jobName string, now time.Time) {
	s := &t.Status
	if currentAttempt(t) != nil {
		return
	}
	s.Worker = &v1alpha1.WorkerStatus{JobName: jobName, CreateTime: ptr.To(metav1.NewMicroTime(now))}
	s.Attempts = append(s.Attempts, v1alpha1.AttemptStatus{Number: s.Attempt, JobName: jobName})
	if extra := len(s.Attempts) - v1alpha1.MaxAttempts; extra > 0 {
		s.Attempts = append([]v1alpha1.AttemptStatus(nil), s.Attempts[extra:]...)
	}
}

// Unbegin takes back an attempt of which nothing exists yet: it will begin anew, with its whole start timeout.
func Unbegin(t *v1alpha1.Task) {
	s := &t.Status
	if a := currentAttempt(t); a != nil && a.Outcome == "" && s.Worker != nil && s.Worker.JobUID == "" {
		s.Attempts = s.Attempts[:len(s.Attempts)-1]
		s.Worker = nil
	}
}

// Started binds the Task to its running worker.
func Started(t *v1alpha1.Task, pod v1alpha1.WorkerStatus, now time.Time) error {
	s := &t.Status
	to, err := Next(s.State, Start, Facts{WorkerRunning: true})
	if err != nil {
		return err
	}
	Seen(t, pod)
	s.Worker.StartTime = pod.StartTime
	if s.StartTime == nil {
		// The kubelet's clock may be behind the API server's: a Task never starts before it was created.
		s.StartTime = pod.StartTime
		if s.StartTime.Time.Before(t.CreationTimestamp.Time) {
			s.StartTime = ptr.To(metav1.NewMicroTime(t.CreationTimestamp.Time))
		}
	}
	if a := currentAttempt(t); a != nil {
		a.StartTime = pod.StartTime
	}
	record(t, Start, to, v1alpha1.ReasonWorkerRunning, ActorController, now)
	return nil
}

// Seen records which pod on which node the current attempt's worker is.
func Seen(t *v1alpha1.Task, pod v1alpha1.WorkerStatus) {
	w := t.Status.Worker
	w.PodName, w.PodUID, w.NodeName = pod.PodName, pod.PodUID, pod.NodeName
	if a := currentAttempt(t); a != nil {
		a.PodName, a.NodeName = pod.PodName, pod.NodeName
	}
}

// Ending is how an attempt, or a Task between two attempts, ends.
type Ending struct {
	// Event is Succeed, Fail, Timeout or Cancel.
	Event Event
	// Reason is one of the documented reasons for the end of an attempt.
	Reason string
	// Message is for people; it is cut to MaxMessageBytes.
	Message string
	// ExitCode of the worker, where it is known.
	ExitCode *int32
	// FinishTime is when the worker ended; zero means now.
	FinishTime time.Time
	// Result is what the worker left.
	Result *v1alpha1.TaskResult
	// Reported tells that it is the worker's final report.
	Reported bool
}

// End closes the current attempt, if one is open, and moves the Task on: to its end, or to Retrying. The verdict is about
// an attempt that failed or timed out.
func End(t *v1alpha1.Task, e Ending, f Facts, now time.Time) (Verdict, error) {
	s := &t.Status
	var verdict Verdict
	if e.Event == Fail || e.Event == Timeout {
		verdict = Judge(t.Spec.Retry, e.Reason, e.ExitCode, s.Charged, s.Uncharged)
		f.AnotherAllowed = verdict.Again
	}
	to, err := Next(s.State, e.Event, f)
	if err != nil {
		return verdict, err
	}
	attempt := s.Attempt
	if a := currentAttempt(t); a != nil && a.Outcome == "" {
		closeAttempt(a, e, verdict, now)
		if s.Progress != nil {
			a.Percent = s.Progress.Percent
		}
		charge(t, e.Event, verdict)
	} else if a == nil && to == v1alpha1.StateRetrying {
		// Without a Job there is nothing to close, but what is tried again is paid for: else it would go on for ever.
		charge(t, e.Event, verdict)
	}
	record(t, e.Event, to, e.Reason, actorOf(e.Event), now)
	s.Reason, s.Message = e.Reason, Truncate(e.Message)
	s.NextRetryTime = nil
	switch {
	case Terminal(to):
		finish(t, e, to, now)
	case to == v1alpha1.StateRetrying:
		s.Resources = mergeResources(s.Resources, verdict.Resources)
		s.NextRetryTime = nextRetry(t, e.Reason, attempt, now)
	}
	return verdict, nil
}

// finish writes what only a Task that has ended has.
func finish(t *v1alpha1.Task, e Ending, to v1alpha1.State, now time.Time) {
	s := &t.Status
	// The operator's clock may be behind those that set the other times.
	finished := notBefore(notBefore(now, ptr.To(metav1.NewMicroTime(t.CreationTimestamp.Time))), s.StartTime)
	s.CompletionTime = ptr.To(metav1.NewMicroTime(finished))
	s.Result = e.Result
	worked := e.FinishTime
	if s.Report != nil {
		s.Report.Result = nil // it is in status.result, or belongs to an outcome that does not count
		if e.Reported && s.Report.FinishTime != nil {
			worked = s.Report.FinishTime.Time // the worker's own clock, brought into bounds: it is measured, and decides nothing
		}
	}
	s.SyncLagMilliseconds = nil
	if !worked.IsZero() {
		s.SyncLagMilliseconds = ptr.To(max(0, now.Sub(worked).Milliseconds()))
	}
	if p := s.Progress; to == v1alpha1.StateSucceeded && (p != nil || t.Spec.Reporter == v1alpha1.ReporterSidecar) {
		if p == nil {
			p = &v1alpha1.TaskProgress{}
			s.Progress = p
		}
		p.Percent, p.EstimatedRemainingSeconds = ptr.To[int32](100), nil
	}
}

// nextRetry is when the next attempt may start; nil where the overall deadline comes first, so that no time is shown at
// which nothing will happen.
func nextRetry(t *v1alpha1.Task, reason string, attempt int32, now time.Time) *metav1.MicroTime {
	at := now
	if reason != v1alpha1.ReasonSuspended {
		var backoff *v1alpha1.Backoff
		if t.Spec.Retry != nil {
			backoff = t.Spec.Retry.Backoff
		}
		at = now.Add(BackoffWait(backoff, t.Status.Charged, fmt.Sprintf("%s/%d", t.UID, attempt)))
	}
	if Passed(OverallDeadline(t), at) {
		return nil
	}
	return ptr.To(metav1.NewMicroTime(at))
}

func closeAttempt(a *v1alpha1.AttemptStatus, e Ending, v Verdict, now time.Time) {
	finish := e.FinishTime
	if finish.IsZero() {
		finish = now
	}
	a.FinishTime = ptr.To(metav1.NewMicroTime(notBefore(finish, a.StartTime)))
	a.Outcome, a.Reason, a.Message = string(e.Event), e.Reason, Truncate(e.Message)
	a.ExitCode = e.ExitCode
	if e.Reported {
		a.Reported = ptr.To(true)
	}
	if e.Result != nil && len(e.Result.LogURL) <= v1alpha1.MaxAttemptLogURLBytes {
		a.LogURL = e.Result.LogURL
	}
	if e.Event == Fail || e.Event == Timeout {
		a.Charged = ptr.To(v.Charged)
	}
}

// charge counts an attempt that failed or timed out.
func charge(t *v1alpha1.Task, e Event, v Verdict) {
	switch {
	case e != Fail && e != Timeout:
	case v.Charged:
		t.Status.Charged++
	default:
		t.Status.Uncharged++
	}
}

// currentAttempt is the entry of the current attempt; nil where its Job was never tried.
func currentAttempt(t *v1alpha1.Task) *v1alpha1.AttemptStatus {
	if n := len(t.Status.Attempts); n > 0 && t.Status.Attempts[n-1].Number == t.Status.Attempt {
		return &t.Status.Attempts[n-1]
	}
	return nil
}

func record(t *v1alpha1.Task, event Event, to v1alpha1.State, reason, actor string, now time.Time) {
	s := &t.Status
	s.History = append(s.History, v1alpha1.Transition{
		Time: metav1.NewMicroTime(now), From: s.State, Event: string(event), To: to,
		Attempt: s.Attempt, Reason: reason, Actor: actor,
	})
	if extra := len(s.History) - v1alpha1.MaxHistory; extra > 0 {
		s.History = append([]v1alpha1.Transition(nil), s.History[extra:]...)
	}
	s.State = to
}

func actorOf(e Event) string {
	if e == Cancel {
		return ActorUser
	}
	return ActorController
}

func notBefore(at time.Time, floor *metav1.MicroTime) time.Time {
	if floor != nil && at.Before(floor.Time) {
		return floor.Time
	}
	return at
}

// mergeResources lays override over base, name by name.
func mergeResources(base, override *corev1.ResourceRequirements) *corev1.ResourceRequirements {
	if override == nil {
		return base
	}
	if base == nil {
		base = &corev1.ResourceRequirements{}
	}
	merged := base.DeepCopy()
	MergeResources(merged, override)
	return merged
}

// MergeResources lays override over into, name by name.
func MergeResources(into, override *corev1.ResourceRequirements) {
	if override == nil {
		return
	}
	if into.Requests == nil && len(override.Requests) > 0 {
		into.Requests = corev1.ResourceList{}
	}
	for name, q := range override.Requests {
		into.Requests[name] = q
	}
	if into.Limits == nil && len(override.Limits) > 0 {
		into.Limits = corev1.ResourceList{}
	}
	for name, q := range override.Limits {
		into.Limits[name] = q
	}
}

// Truncate makes any bytes a message that can be stored: valid UTF-8, no control characters but tab and newline, at most
// MaxMessageBytes, cut at a rune.
func Truncate(message string) string {
	message = strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(message, "\uFFFD"))
	if len(message) <= v1alpha1.MaxMessageBytes {
		return message
	}
	const mark = "..."
	cut := v1alpha1.MaxMessageBytes - len(mark)
	for !utf8.RuneStart(message[cut]) {
		cut--
	}
	return message[:cut] + mark
}
