package api

import (
	"fmt"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/builders"
	"github.com/taskwarden/taskwarden/test/invariants"
	"github.com/taskwarden/taskwarden/test/testenv"
)

// TestC19DeadlineWithoutEvents lets deadlines pass while nothing else happens, one of them over a restart.
func TestC19DeadlineWithoutEvents(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	env.Kubelet.AutoAll(testenv.UntilStopped)
	const limit = 3 * time.Second
	alone := env.Create(builders.Task("alone").Retry(0).ActiveDeadline(limit).Obj())
	restarted := env.Create(builders.Task("restarted").Retry(0).ActiveDeadline(limit).Obj())
	env.WaitState(alone, v1alpha1.StateProcessing)
	env.WaitState(restarted, v1alpha1.StateProcessing)
	env.RestartController()
	for _, task := range []*v1alpha1.Task{alone, restarted} {
		done := env.WaitState(task, v1alpha1.StateFailed)
		wantAttempts(t, done, v1alpha1.ReasonActiveDeadlineExceeded)
		if ran := done.Status.CompletionTime.Sub(done.Status.StartTime.Time); ran < limit {
			t.Errorf("Task %s ended after %s", task.Name, ran)
		}
		if !strings.Contains(done.Status.Message, "activeDeadlineSeconds 3 passed: ") {
			t.Errorf("the message lacks the limit: %s", done.Status.Message)
		}
		if len(runs(t, env, task, invariants.Stop)) != 1 {
			t.Error("the worker runs on")
		}
	}
}

// TestC19ManyDeadlinesAtOnce has fifty workers whose time is over together: none is forgotten, none ends early, and the last is
// not far behind.
func TestC19ManyDeadlinesAtOnce(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	env.Kubelet.AutoAll(testenv.UntilStopped)
	const many, limit, tolerance = 50, 25 * time.Second, 30 * time.Second
	var tasks []*v1alpha1.Task
	for i := range many {
		tasks = append(tasks, env.Create(builders.Task(fmt.Sprint("many-", i)).Retry(0).ActiveDeadline(limit).Obj()))
	}
	for _, task := range tasks {
		done := env.WaitState(task, v1alpha1.StateFailed)
		wantAttempts(t, done, v1alpha1.ReasonActiveDeadlineExceeded)
		if ran := done.Status.CompletionTime.Sub(done.Status.StartTime.Time); ran < limit || ran > limit+tolerance {
			t.Errorf("Task %s ended after %s", task.Name, ran)
		}
		if started, stopped := len(runs(t, env, task, invariants.Start)), len(runs(t, env, task, invariants.Stop)); started != 1 || stopped != 1 {
			t.Errorf("Task %s: %d workers started and %d stopped", task.Name, started, stopped)
		}
	}
}

func TestC19DeadlinePassesWhileDown(t *testing.T) {
	t.Parallel()
	fake := clocktesting.NewFakeClock(time.Now())
	env := newEnv(t, testenv.WithClock(fake))
	env.Kubelet.AutoAll(testenv.UntilStopped)
	active := env.Create(builders.Task("active").Retry(0).ActiveDeadline(time.Hour).Obj())
	overall := env.Create(builders.Task("overall").Retry(5).OverallDeadline(time.Hour).ActiveDeadline(time.Hour).Obj())
	env.WaitState(active, v1alpha1.StateProcessing)
	env.WaitState(overall, v1alpha1.StateProcessing)
	env.KillController()
	fake.Step(3 * time.Hour)
	env.StartController()
	wantAttempts(t, env.WaitState(active, v1alpha1.StateFailed), v1alpha1.ReasonActiveDeadlineExceeded)
	wantAttempts(t, env.WaitState(overall, v1alpha1.StateFailed), v1alpha1.ReasonOverallDeadlineExceeded)
}

// TestC20FinishedAtTheEdge has the operator see, long after the deadline, a worker that ended around it.
func TestC20FinishedAtTheEdge(t *testing.T) {
	t.Parallel()
	fake := clocktesting.NewFakeClock(time.Now())
	env := newEnv(t, testenv.WithClock(fake))
	tasks := map[time.Duration]*v1alpha1.Task{}
	for _, offset := range []time.Duration{-time.Second, 0, time.Second} {
		task := env.Create(builders.Task(fmt.Sprintf("edge-%d", offset/time.Second+1)).Retry(0).ActiveDeadline(time.Hour).Obj())
		tasks[offset] = task
		env.Kubelet.Run(env.Kubelet.WaitPod(task, 1))
		env.WaitState(task, v1alpha1.StateProcessing)
	}
	env.KillController()
	fake.Step(time.Hour + 5*time.Second)
	for offset, task := range tasks {
		deadline := env.Get(task).Status.Worker.StartTime.Add(time.Hour)
		env.Kubelet.Exit(env.Kubelet.WaitPod(task, 1), testenv.Exit{At: deadline.Add(offset)})
	}
	env.StartController()
	for offset, task := range tasks {
		state, reason := v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted
		if offset > 0 {
			state, reason = v1alpha1.StateFailed, v1alpha1.ReasonActiveDeadlineExceeded
		}
		done := env.WaitState(task, v1alpha1.StateSucceeded, v1alpha1.StateFailed)
		if done.Status.State != state {
			t.Errorf("finished %s after the deadline: %s", offset, done.Status.State)
		}
		wantAttempts(t, done, reason)
	}
}

// TestC21WaitingIsNotWorking lets one worker wait longer than it may work, and another one wait for good.
func TestC21WaitingIsNotWorking(t *testing.T) {
	t.Parallel()
	env := newEnv(t, testenv.WithClock(clocktesting.NewFakeClock(time.Now())))
	patient := env.Create(builders.Task("patient").Retry(0).StartTimeout(3 * time.Hour).ActiveDeadline(30 * time.Minute).Obj())
	homeless := env.Create(builders.Task("homeless").Retry(0).StartTimeout(90 * time.Minute).Obj())
	pod := env.Kubelet.WaitPod(patient, 1)
	env.Kubelet.Unschedulable(env.Kubelet.WaitPod(homeless, 1), "0/3 nodes are available: 3 node(s) didn't match")
	env.WaitTask(homeless, hasReason(v1alpha1.ReasonUnschedulable))
	env.Step(time.Hour)
	env.Kubelet.Run(pod)
	env.WaitState(patient, v1alpha1.StateProcessing)
	if now := env.Get(homeless); now.Status.State != v1alpha1.StatePending {
		t.Errorf("%s (%s) within its time", now.Status.State, now.Status.Message)
	}
	env.Step(29 * time.Minute)
	env.Quiet(200 * time.Millisecond)
	env.Kubelet.Exit(pod, testenv.Exit{})
	wantAttempts(t, env.WaitState(patient, v1alpha1.StateSucceeded), v1alpha1.ReasonCompleted)
	env.Step(2 * time.Minute)
	done := env.WaitState(homeless, v1alpha1.StateFailed)
	wantNever(t, done, v1alpha1.StateProcessing)
	wantAttempts(t, done, v1alpha1.ReasonUnschedulable)
	for _, text := range []string{"startTimeoutSeconds 5400", "0/3 nodes are available"} {
		if !strings.Contains(done.Status.Message, text) {
			t.Errorf("the message lacks %q: %s", text, done.Status.Message)
		}
	}
}

// TestC22OverallDeadlineOverRetries ends Tasks an hour after their creation, wherever they are then.
func TestC22OverallDeadlineOverRetries(t *testing.T) {
	t.Parallel()
	env := newEnv(t, testenv.WithClock(clocktesting.NewFakeClock(time.Now())))
	env.Kubelet.Auto(byTask(map[string]testenv.Behaviour{
		"retried": failing("boom"),
		"waiting": failing("boom"),
		"working": testenv.UntilStopped,
	}))
	overall := func(name string, backoff time.Duration) *v1alpha1.Task {
		return env.Create(builders.Task(name).Retry(50).Backoff(backoff, backoff, "1").OverallDeadline(time.Hour).ActiveDeadline(time.Hour).Obj())
	}
	retried, waiting, working := overall("retried", 25*time.Minute), overall("waiting", 2*time.Hour), overall("working", time.Hour)
	env.WaitState(working, v1alpha1.StateProcessing)
	backingOff := func(task *v1alpha1.Task, attempt int32, announced bool) {
		t.Helper()
		now := env.WaitTask(task, func(t *v1alpha1.Task) error {
			if t.Status.State != v1alpha1.StateRetrying || t.Status.Attempt != attempt {
				return fmt.Errorf("%s, attempt %d", t.Status.State, t.Status.Attempt)
			}
			return nil
		})
		if next := now.Status.NextRetryTime; (next != nil) != announced {
			t.Errorf("Task %s, after attempt %d: the next retry is at %v", task.Name, attempt, next)
		}
	}
	backingOff(waiting, 1, false) // it would be after the deadline
	backingOff(retried, 1, true)
	env.Step(25 * time.Minute)
	backingOff(retried, 2, true)
	env.Step(25 * time.Minute)
	backingOff(retried, 3, false)
	env.Step(9 * time.Minute)
	env.Quiet(300 * time.Millisecond)
	if now := env.Get(working); now.Status.State != v1alpha1.StateProcessing {
		t.Errorf("%s (%s) within its time", now.Status.State, now.Status.Message)
	}
	env.Step(5 * time.Minute)
	boom := v1alpha1.ReasonNonZeroExitCode
	for task, attempts := range map[*v1alpha1.Task][]string{
		retried: {boom, boom, boom}, waiting: {boom}, working: {v1alpha1.ReasonOverallDeadlineExceeded},
	} {
		done := env.WaitState(task, v1alpha1.StateFailed)
		wantReason(t, done, v1alpha1.ReasonOverallDeadlineExceeded)
		wantAttempts(t, done, attempts...)
	}
}
