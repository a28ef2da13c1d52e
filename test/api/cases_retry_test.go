package api

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/builders"
	"github.com/taskwarden/taskwarden/test/invariants"
	"github.com/taskwarden/taskwarden/test/testenv"
)

// TestC28RunsAreLimitPlusOne touches Tasks that always fail about thirty times a second: none runs more often for that.
func TestC28RunsAreLimitPlusOne(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	env.Kubelet.AutoAll(failing("boom"))
	tasks := map[int]*v1alpha1.Task{}
	for _, limit := range []int{0, 1, 3} {
		tasks[limit] = env.Create(builders.Task(fmt.Sprintf("limit-%d", limit)).Retry(int32(limit)).FastBackoff().Obj())
	}
	testenv.Eventually(t, func(context.Context) error {
		env.TouchAll()
		for _, task := range tasks {
			if state := env.Get(task).Status.State; state != v1alpha1.StateFailed {
				return fmt.Errorf("Task %s is %s", task.Name, state)
			}
		}
		return nil
	})
	env.Quiet(300 * time.Millisecond)
	for limit, task := range tasks {
		done := env.Get(task)
		if n := len(runs(t, env, task, invariants.Start)); n != limit+1 || int(done.Status.Attempt) != limit+1 {
			t.Errorf("limit %d: %d runs, %d attempts", limit, n, done.Status.Attempt)
		}
		if want := fmt.Sprintf("Attempt %d of %d", limit+1, limit+1); !strings.Contains(done.Status.Message, want) || !strings.Contains(done.Status.Message, "boom") {
			t.Errorf("limit %d: message is %q, wanted is %q and the last error", limit, done.Status.Message, want)
		}
		if c := condition(done, v1alpha1.ConditionDeadLettered); c.Reason != v1alpha1.ReasonRetryLimitReached {
			t.Errorf("limit %d: condition DeadLettered is %+v", limit, c)
		}
	}
}

// TestC29NoBackoffAfterTheLastAttempt gives the wait that must not happen a minute.
func TestC29NoBackoffAfterTheLastAttempt(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	env.Kubelet.AutoAll(failing("boom"))
	task := env.Create(builders.Task("last").Retry(1).Backoff(time.Second, time.Hour, "100").Obj())
	done := env.WaitState(task, v1alpha1.StateFailed)
	retries := 0
	for _, h := range done.Status.History {
		if h.To == v1alpha1.StateRetrying {
			retries++
		}
	}
	if retries != 1 || done.Status.NextRetryTime != nil {
		t.Errorf("Retrying %d times, next retry %v", retries, done.Status.NextRetryTime)
	}
	wantAttempts(t, done, v1alpha1.ReasonNonZeroExitCode, v1alpha1.ReasonNonZeroExitCode)
}

// TestC30EvictionIsNotCharged evicts through the API, as a drain does, a worker that exits with 0 or 143 on SIGTERM.
func TestC30EvictionIsNotCharged(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	for name, code := range map[string]int32{"exits-0": 0, "exits-143": 143} {
		task := env.Create(builders.Task(name).Retry(0).FastBackoff().Obj())
		pod := env.Kubelet.Run(env.Kubelet.WaitPod(task, 1))
		env.WaitState(task, v1alpha1.StateProcessing)
		pod = env.Kubelet.Disrupt(pod, "EvictionByEvictionAPI")
		env.Touch(task)
		env.Quiet(200 * time.Millisecond)
		if now := env.Get(task); now.Status.State != v1alpha1.StateProcessing {
			t.Errorf("%s: %s as soon as the eviction was announced", name, now.Status.State)
		}
		mustDelete(t, env, pod)
		// Times of a pod have whole seconds; it is the order of these two that tells.
		env.Kubelet.Exit(pod, testenv.Exit{Code: code, At: time.Now().Add(2 * time.Second)})
		env.Kubelet.Vanish(pod)
		env.Kubelet.Flash(env.Kubelet.WaitPod(task, 2), testenv.Exit{})
		done := env.WaitState(task, v1alpha1.StateSucceeded)
		wantAttempts(t, done, v1alpha1.ReasonDisrupted, v1alpha1.ReasonCompleted)
		if done.Status.Charged != 0 || done.Status.Uncharged != 1 || !strings.Contains(done.Status.Attempts[0].Message, "EvictionByEvictionAPI") {
			t.Errorf("%s: charged %d, uncharged %d, message %q", name, done.Status.Charged, done.Status.Uncharged, done.Status.Attempts[0].Message)
		}
	}
}

// TestC30DrainedWhileDown has all evidence of the eviction but the Job's gone when the operator comes back.
func TestC30DrainedWhileDown(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	task := env.Create(builders.Task("drained").Retry(0).FastBackoff().Obj())
	pod := env.Kubelet.Run(env.Kubelet.WaitPod(task, 1))
	env.WaitState(task, v1alpha1.StateProcessing)
	env.KillController()
	pod = env.Kubelet.Disrupt(pod, "PreemptionByScheduler")
	mustDelete(t, env, pod)
	env.Kubelet.Exit(pod, testenv.Exit{Code: 143})
	env.Kubelet.Vanish(pod)
	waitPodsGone(t, env, task)
	env.StartController()
	env.Kubelet.Flash(env.Kubelet.WaitPod(task, 2), testenv.Exit{})
	wantAttempts(t, env.WaitState(task, v1alpha1.StateSucceeded), v1alpha1.ReasonDisrupted, v1alpha1.ReasonCompleted)
}

// TestC30DisruptionsHaveACap keeps what is never charged from going on for ever.
func TestC30DisruptionsHaveACap(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	task := env.Create(builders.Task("undrainable").Retry(0).UnchargedLimit(1).FastBackoff().Obj())
	for attempt := 1; attempt <= 2; attempt++ {
		pod := env.Kubelet.Run(env.Kubelet.WaitPod(task, attempt))
		env.Kubelet.Disrupt(pod, "DeletionByTaintManager")
		env.Kubelet.Exit(pod, testenv.Exit{Code: 143})
	}
	done := env.WaitState(task, v1alpha1.StateFailed)
	wantAttempts(t, done, v1alpha1.ReasonDisrupted, v1alpha1.ReasonDisrupted)
	if c := condition(done, v1alpha1.ConditionDeadLettered); c.Reason != v1alpha1.ReasonUnchargedLimitReached {
		t.Errorf("condition DeadLettered is %+v", c)
	}
}

// TestC32ClockSteppedInBackoff steps the operator's clock back, and then far ahead, while a Task waits: the moment of the retry
// stays what the status has said, and is neither early nor missed.
func TestC32ClockSteppedInBackoff(t *testing.T) {
	t.Parallel()
	fake := clocktesting.NewFakeClock(time.Now())
	env := newEnv(t, testenv.WithClock(fake))
	env.Kubelet.Auto(firstThen(failing("boom"), testenv.UntilStopped))
	task := env.Create(builders.Task("stepped").Retry(1).Backoff(time.Hour, time.Hour, "1").Obj())
	retry := env.WaitState(task, v1alpha1.StateRetrying).Status.NextRetryTime
	env.Quiet(300 * time.Millisecond)
	for _, ahead := range []time.Duration{10 * time.Hour, time.Second} {
		writes := env.Faults.Calls("update tasks/status")
		fake.SetTime(retry.Add(-ahead))
		env.TouchAll()
		env.Quiet(300 * time.Millisecond)
		if s := env.Get(task).Status; s.State != v1alpha1.StateRetrying || !s.NextRetryTime.Equal(retry) {
			t.Errorf("%s before its time: %s, next retry at %s, which was at %s", ahead, s.State, s.NextRetryTime, retry)
		}
		if n := env.Faults.Calls("update tasks/status") - writes; n > 0 {
			t.Errorf("%s before its time: %d writes", ahead, n)
		}
	}
	fake.SetTime(retry.Add(100 * time.Hour))
	env.TouchAll()
	now := env.WaitState(task, v1alpha1.StateProcessing)
	if n := len(runs(t, env, task, invariants.Start)); n != 2 || now.Status.Attempt != 2 {
		t.Errorf("%d runs, attempt %d", n, now.Status.Attempt)
	}
}

// TestC33BackoffSurvivesRestarts kills the operator in the middle of each backoff: the wait neither shrinks nor begins again.
func TestC33BackoffSurvivesRestarts(t *testing.T) {
	t.Parallel()
	env := newEnv(t, testenv.WithClock(clocktesting.NewFakeClock(time.Now())))
	env.Kubelet.AutoAll(failing("boom"))
	const limit = 2
	task := env.Create(builders.Task("restarted").Retry(limit).Backoff(time.Hour, time.Hour, "1").Obj())
	for attempt := int32(1); attempt <= limit; attempt++ {
		retry := env.WaitTask(task, func(t *v1alpha1.Task) error {
			if t.Status.State != v1alpha1.StateRetrying || t.Status.Attempt != attempt {
				return fmt.Errorf("%s, attempt %d", t.Status.State, t.Status.Attempt)
			}
			return nil
		}).Status.NextRetryTime
		env.Step(30 * time.Minute)
		env.RestartController()
		env.Step(retry.Sub(env.Clock.Now()) - time.Second)
		env.Quiet(300 * time.Millisecond)
		if s := env.Get(task).Status; s.State != v1alpha1.StateRetrying || !s.NextRetryTime.Equal(retry) {
			t.Errorf("a second before its time: %s, next retry at %s, which was at %s", s.State, s.NextRetryTime, retry)
		}
		env.Step(time.Second)
		env.WaitJob(task, int(attempt)+1)
	}
	done := env.WaitState(task, v1alpha1.StateFailed)
	if n := len(runs(t, env, task, invariants.Start)); n != limit+1 || done.Status.Charged != limit+1 {
		t.Errorf("%d runs, %d charged", n, done.Status.Charged)
	}
}

func TestRetryByHand(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	env.Kubelet.Auto(byTask(map[string]testenv.Behaviour{"failed": failing("boom"), "running": testenv.UntilStopped}))
	failed := env.Create(builders.Task("failed").Retry(0).Obj())
	good := env.Create(builders.Task("good").Obj())
	running := env.Create(builders.Task("running").Obj())
	answered := func(task *v1alpha1.Task, request string, outcome v1alpha1.RetryOutcome) *v1alpha1.Task {
		t.Helper()
		return env.WaitTask(task, func(t *v1alpha1.Task) error {
			if a := t.Status.LastHandledRetry; a == nil || a.RequestedAt != request || a.Outcome != outcome || (outcome == v1alpha1.RetryRefused) != (a.Message != "") {
				return fmt.Errorf("the answer is %+v, wanted is %s", a, outcome)
			}
			return nil
		})
	}
	// Refused where there is nothing to retry.
	env.WaitState(running, v1alpha1.StateProcessing)
	env.RetryByHand(running, "r1")
	answered(running, "r1", v1alpha1.RetryRefused)
	env.WaitState(good, v1alpha1.StateSucceeded)
	env.RetryByHand(good, "g1")
	if now := answered(good, "g1", v1alpha1.RetryRefused); now.Status.State != v1alpha1.StateSucceeded {
		t.Errorf("state %s", now.Status.State)
	}
	// Accepted where the Task has failed; the numbers of attempts go on, and the last three Jobs stay as evidence.
	const again = 4
	for i := range again {
		env.WaitTask(failed, func(t *v1alpha1.Task) error {
			if t.Status.State != v1alpha1.StateFailed || int(t.Status.Attempt) != i+1 {
				return fmt.Errorf("%s, attempt %d", t.Status.State, t.Status.Attempt)
			}
			return nil
		})
		env.RetryByHand(failed, fmt.Sprint("f", i))
		answered(failed, fmt.Sprint("f", i), v1alpha1.RetryAccepted)
	}
	done := env.WaitTask(failed, func(t *v1alpha1.Task) error {
		if t.Status.State != v1alpha1.StateFailed || t.Status.Attempt != again+1 {
			return fmt.Errorf("%s, attempt %d", t.Status.State, t.Status.Attempt)
		}
		return nil
	})
	if done.Status.Charged != 1 {
		t.Errorf("charged %d: the budget should be new", done.Status.Charged)
	}
	testenv.Eventually(t, func(context.Context) error {
		jobs := env.Jobs(failed)
		if len(jobs) != v1alpha1.MaxKeptFailedJobs || jobs[0].Labels[v1alpha1.LabelAttempt] != fmt.Sprint(again+2-v1alpha1.MaxKeptFailedJobs) {
			return fmt.Errorf("%d Jobs are left", len(jobs))
		}
		return nil
	})
	// A request that was answered is not another one, also for an operator that has just started; a cancelled Task is over.
	env.RestartController()
	env.Touch(failed)
	env.Quiet(300 * time.Millisecond)
	if now := env.Get(failed); now.Status.Attempt != again+1 {
		t.Errorf("attempt %d after a restart", now.Status.Attempt)
	}
	env.Change(failed, func(t *v1alpha1.Task) {
		t.Spec.Cancel = ptr.To(true)
		t.Annotations[v1alpha1.AnnotationRetryRequestedAt] = "cancelled"
	})
	answered(failed, "cancelled", v1alpha1.RetryRefused)
}
