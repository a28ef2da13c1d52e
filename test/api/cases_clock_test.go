package api

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/apiclock"
	"github.com/taskwarden/taskwarden/test/builders"
	"github.com/taskwarden/taskwarden/test/testenv"
)

// farOff is how far clocks are apart in the tests of C26.
const farOff = 10 * time.Minute

// offMachine is a machine whose clock is off.
type offMachine struct {
	clock.RealClock
	since time.Time
	ahead atomic.Int64
}

func newOffMachine(ahead time.Duration) *offMachine {
	m := &offMachine{since: time.Now()}
	m.set(ahead)
	return m
}

func (m *offMachine) set(ahead time.Duration) { m.ahead.Store(int64(ahead)) }

// Now is what the clock shows: for the nodes, and without a monotonic reading.
func (m *offMachine) Now() time.Time { return time.Now().Round(0).Add(time.Duration(m.ahead.Load())) }

func (m *offMachine) Wall() time.Time { return m.Now() }

func (m *offMachine) Elapsed() time.Duration { return time.Since(m.since) }

// onMachine has the operator run on a machine, with the API server's clock as cmd/taskwarden gives it to it.
func onMachine(m apiclock.Machine) []testenv.Option {
	return operatorWith(1, func(ctx context.Context, mgr ctrl.Manager, env *testenv.Env) (clock.PassiveClock, error) {
		meter, err := apiclock.New(apiclock.Options{Config: env.Config, Machine: m, Log: mgr.GetLogger()})
		if err != nil {
			return nil, err
		}
		if err := meter.Synchronize(ctx); err != nil {
			return nil, err
		}
		return meter.Clock, mgr.Add(meter)
	})
}

// rough is how far a clock may be off that is corrected, whole seconds included.
const rough = 3 * time.Second

// wantTimes checks that all times of a Task's status are in order, and on the API server's clock.
func wantTimes(t *testing.T, done *v1alpha1.Task) {
	t.Helper()
	s := &done.Status
	first, last := done.CreationTimestamp.Add(-rough), time.Now().Add(rough)
	in := func(what string, at time.Time) {
		t.Helper()
		if at.Before(first) || at.After(last) {
			t.Errorf("Task %s: %s is %s, which is not between %s and %s", done.Name, what, at, first, last)
		}
	}
	before := done.CreationTimestamp.Time
	for _, h := range s.History {
		in("the time of "+string(h.To), h.Time.Time)
		if h.Time.Time.Before(before) {
			t.Errorf("Task %s: %s at %s, after what was at %s", done.Name, h.To, h.Time.Time, before)
		}
		before = h.Time.Time
	}
	in("completionTime", s.CompletionTime.Time)
	if s.StartTime != nil {
		in("startTime", s.StartTime.Time)
		if s.CompletionTime.Before(s.StartTime) {
			t.Errorf("Task %s ended before it started", done.Name)
		}
	}
	for _, a := range s.Attempts {
		in("an attempt's startTime", a.StartTime.Time)
		in("an attempt's finishTime", a.FinishTime.Time)
		if a.FinishTime.Before(a.StartTime) {
			t.Errorf("Task %s: attempt %d ended before it started", done.Name, a.Number)
		}
	}
	for _, c := range s.Conditions {
		in("the time of condition "+c.Type, c.LastTransitionTime.Time)
	}
}

// wantRan checks that a deadline came neither before its time nor long after it.
func wantRan(t *testing.T, done *v1alpha1.Task, limit time.Duration) {
	t.Helper()
	const tolerance = 30 * time.Second
	if ran := done.Status.CompletionTime.Sub(done.Status.StartTime.Time); ran < limit-rough || ran > limit+tolerance {
		t.Errorf("Task %s ended after %s, its limit is %s", done.Name, ran, limit)
	}
}

// TestC26ControllerClockOff has the operator's machine be 10 minutes off, and be set to and fro while Tasks run: all is as if its
// clock were right.
func TestC26ControllerClockOff(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"ahead": farOff, "behind": -farOff} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			machine := newOffMachine(ahead)
			env := testenv.New(t, onMachine(machine)...)
			env.Kubelet.Auto(byTask(map[string]testenv.Behaviour{
				"works": {RunFor: 8 * time.Second}, "overdue": testenv.UntilStopped, "overall": testenv.UntilStopped,
				"retried": failing("boom"), "kept": {}, "stuck": {Waiting: "ImagePullBackOff"},
			}))
			const limit = 5 * time.Second
			works := env.Create(builders.Task("works").Retry(0).ActiveDeadline(time.Minute).StartTimeout(time.Minute).Obj())
			overdue := env.Create(builders.Task("overdue").Retry(0).ActiveDeadline(limit).Obj())
			overall := env.Create(builders.Task("overall").Retry(0).ActiveDeadline(limit).OverallDeadline(limit).Obj())
			retried := env.Create(builders.Task("retried").Retry(1).Backoff(limit, limit, "1").Obj())
			kept := env.Create(builders.Task("kept").TTL(5 * time.Minute).Obj())
			stuck := env.Create(builders.Task("stuck").Retry(0).StartTimeout(limit).Obj())
			env.WaitState(works, v1alpha1.StateProcessing)
			machine.set(-ahead)
			env.TouchAll()
			env.WaitState(retried, v1alpha1.StateRetrying, v1alpha1.StateFailed)
			machine.set(ahead)
			env.TouchAll()

			done := env.WaitState(works, v1alpha1.StateSucceeded, v1alpha1.StateFailed)
			wantAttempts(t, done, v1alpha1.ReasonCompleted)
			wantTimes(t, done)
			for task, reason := range map[*v1alpha1.Task]string{
				overdue: v1alpha1.ReasonActiveDeadlineExceeded, overall: v1alpha1.ReasonOverallDeadlineExceeded,
			} {
				done := env.WaitState(task, v1alpha1.StateFailed)
				wantReason(t, done, reason)
				wantTimes(t, done)
				wantRan(t, done, limit)
			}
			done = env.WaitState(retried, v1alpha1.StateFailed)
			wantTimes(t, done)
			if a := done.Status.Attempts; len(a) != 2 || a[1].StartTime.Sub(a[0].FinishTime.Time) < limit-rough {
				t.Errorf("the backoff of %s was not kept: %+v", limit, a)
			}
			if done = env.WaitState(stuck, v1alpha1.StateFailed); done.Status.CompletionTime.Sub(done.CreationTimestamp.Time) < limit-rough {
				t.Errorf("the start timeout of %s has passed after %s", limit, done.Status.CompletionTime.Sub(done.CreationTimestamp.Time))
			}
			machine.set(-ahead)
			env.RestartController()
			env.TouchAll()
			env.Quiet(300 * time.Millisecond)
			wantTimes(t, env.Get(kept)) // which is there: its TTL has not passed
		})
	}
}

// TestC20C26NodeClockOff has the kubelets be 10 minutes off: workers get the time that is theirs, and one Event says so.
func TestC20C26NodeClockOff(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"ahead": farOff, "behind": -farOff} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The kubelets have the test's clock, the operator has that of a machine that is right.
			env := testenv.New(t, append(onMachine(newOffMachine(0)), testenv.WithClock(newOffMachine(ahead)))...)
			const limit = 6 * time.Second
			env.Kubelet.Auto(byTask(map[string]testenv.Behaviour{
				"flash": {}, "works": {RunFor: 4 * time.Second}, "overdue": testenv.UntilStopped,
			}))
			flash := env.Create(builders.Task("flash").Retry(0).ActiveDeadline(time.Minute).Obj())
			works := env.Create(builders.Task("works").Retry(0).ActiveDeadline(time.Minute).Obj())
			overdue := env.Create(builders.Task("overdue").Retry(0).ActiveDeadline(limit).Obj())
			for _, task := range []*v1alpha1.Task{flash, works} {
				done := env.WaitState(task, v1alpha1.StateSucceeded, v1alpha1.StateFailed)
				wantAttempts(t, done, v1alpha1.ReasonCompleted)
				wantTimes(t, done)
				wantClockSkew(t, env, done)
			}
			done := env.WaitState(overdue, v1alpha1.StateFailed)
			wantReason(t, done, v1alpha1.ReasonActiveDeadlineExceeded)
			wantTimes(t, done)
			wantRan(t, done, limit)
			wantClockSkew(t, env, done)
		})
	}
}

// wantClockSkew waits for the one Event that tells of a worker's clock.
func wantClockSkew(t *testing.T, env *testenv.Env, task *v1alpha1.Task) {
	t.Helper()
	var found []eventsv1.Event
	testenv.Eventually(t, func(ctx context.Context) error {
		var events eventsv1.EventList
		if err := env.Client.List(ctx, &events, client.InNamespace(env.Namespace)); err != nil {
			return err
		}
		found = nil
		for _, e := range events.Items {
			if e.Regarding.UID == task.UID && e.Reason == v1alpha1.ReasonClockSkew {
				found = append(found, e)
			}
		}
		if len(found) == 0 {
			return errors.New("no Event tells of the clock")
		}
		return nil
	})
	if len(found) != 1 || found[0].Type != "Warning" || found[0].Series != nil || found[0].EventTime == (metav1.MicroTime{}) {
		t.Errorf("Task %s: %d Events: %+v", task.Name, len(found), found)
	}
}
