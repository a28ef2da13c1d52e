package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/test/builders"
	"github.com/taskwarden/taskwarden/test/invariants"
	"github.com/taskwarden/taskwarden/test/testenv"
)

// TestC35CancelPending cancels Tasks whose worker does not run yet: each is over within moments, and nothing of it starts.
func TestC35CancelPending(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	homeless := env.Create(builders.Task("homeless").Obj())
	pulling := env.Create(builders.Task("pulling").Obj())
	env.Kubelet.Auto(byTask(map[string]testenv.Behaviour{
		"homeless": {Unschedulable: "0/3 nodes are available"},
		"pulling":  {Waiting: "ImagePullBackOff", WaitingMessage: "Back-off pulling image"},
	}))
	env.WaitTask(homeless, hasReason(v1alpha1.ReasonUnschedulable))
	env.WaitTask(pulling, hasReason(v1alpha1.ReasonImagePullFailed))
	for _, task := range []*v1alpha1.Task{homeless, pulling} {
		env.Cancel(task)
		done := env.WaitState(task, v1alpha1.StateCancelled)
		wantNever(t, done, v1alpha1.StateProcessing)
		wantAttempts(t, done, v1alpha1.ReasonCancelled)
	}
}

func hasReason(reason string) func(*v1alpha1.Task) error {
	return func(t *v1alpha1.Task) error {
		if t.Status.Reason != reason {
			return fmt.Errorf("reason is %q (%s), wanted is %q", t.Status.Reason, t.Status.Message, reason)
		}
		return nil
	}
}

// TestC36CancelledOnlyWhenStopped has the stop itself fail three times, and the worker take its time.
func TestC36CancelledOnlyWhenStopped(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	env.Kubelet.AutoAll(testenv.Behaviour{RunFor: -1, StopAfter: 700 * time.Millisecond, StopCode: -1})
	task := env.Create(builders.Task("stubborn").Obj())
	env.WaitState(task, v1alpha1.StateProcessing)
	var tries atomic.Int32
	var early atomic.Value
	env.Faults.On("patch pods", testenv.Fault{Times: 4, Before: func(ctx context.Context, _ testenv.Call) error {
		var now v1alpha1.Task
		if err := env.Client.Get(ctx, client.ObjectKeyFromObject(task), &now); err != nil {
			return err
		}
		if c := condition(&now, v1alpha1.ConditionTerminating); now.Status.State != v1alpha1.StateProcessing || c.Reason != v1alpha1.ReasonCancelled {
			early.Store(fmt.Sprintf("%s with condition %+v", now.Status.State, c))
		}
		if tries.Add(1) <= 3 {
			return internalError()
		}
		return nil
	}})
	env.Cancel(task)
	done := env.WaitState(task, v1alpha1.StateCancelled)
	if n, why := tries.Load(), early.Load(); n < 4 || why != nil {
		t.Errorf("%d tries to stop the worker; before it had stopped the Task was %v", n, why)
	}
	stops := runs(t, env, task, invariants.Stop)
	if len(stops) != 1 || done.Status.CompletionTime.Time.Before(stops[0].Time) {
		t.Fatalf("Cancelled at %s, and the worker stopped at %+v", done.Status.CompletionTime, stops)
	}
	wantAttempts(t, done, v1alpha1.ReasonCancelled)
	if c := condition(done, v1alpha1.ConditionReportMismatch); c.Status != "True" {
		t.Errorf("the worker's exit 0 came too late, which should be said: %+v", c)
	}
}

// TestC36FailedDeletionsAreRetriedAndShown has the deletion fail that is to stop a worker: of a Job whose pod has no node yet,
// and of a pod whose deadline a policy will not have lowered.
func TestC36FailedDeletionsAreRetriedAndShown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		behaviour testenv.Behaviour
		deletion  string
		state     v1alpha1.State
	}{
		"job": {testenv.Behaviour{Unschedulable: "0/3 nodes are available"}, "delete jobs", v1alpha1.StatePending},
		"pod": {testenv.UntilStopped, "delete pods", v1alpha1.StateProcessing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := newEnv(t)
			env.Kubelet.AutoAll(c.behaviour)
			task := env.Create(builders.Task("stubborn").Obj())
			env.WaitState(task, c.state)
			env.Kubelet.WaitPod(task, 1)
			env.Faults.Refuse("patch pods", 0, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("injected")))
			var tries atomic.Int32
			var early atomic.Value
			env.Faults.On(c.deletion, testenv.Fault{Times: 4, Before: func(ctx context.Context, _ testenv.Call) error {
				var now v1alpha1.Task
				if err := env.Client.Get(ctx, client.ObjectKeyFromObject(task), &now); err != nil {
					return err
				}
				if c := condition(&now, v1alpha1.ConditionTerminating); now.Status.State == v1alpha1.StateCancelled || c.Reason != v1alpha1.ReasonCancelled {
					early.Store(fmt.Sprintf("%s with condition %+v", now.Status.State, c))
				}
				if tries.Add(1) <= 3 {
					return internalError()
				}
				return nil
			}})
			env.Cancel(task)
			wantAttempts(t, env.WaitState(task, v1alpha1.StateCancelled), v1alpha1.ReasonCancelled)
			if n, why := tries.Load(), early.Load(); n < 4 || why != nil {
				t.Errorf("%d tries to stop the worker; before it had stopped the Task was %v", n, why)
			}
			if started, stopped := len(runs(t, env, task, invariants.Start)), len(runs(t, env, task, invariants.Stop)); started != stopped {
				t.Errorf("%d workers started and %d stopped", started, stopped)
			}
			testenv.Eventually(t, func(ctx context.Context) error {
				var events eventsv1.EventList
				if err := env.Client.List(ctx, &events, client.InNamespace(env.Namespace)); err != nil {
					return err
				}
				for i := range events.Items {
					if e := &events.Items[i]; e.Regarding.UID == task.UID && e.Reason == v1alpha1.ReasonStopFailed && strings.Contains(e.Note, "injected") {
						return nil
					}
				}
				return fmt.Errorf("none of %d Events tells of the failure", len(events.Items))
			})
		})
	}
}

// TestC36CancelWithoutAWorker cancels when there is nothing left to stop.
func TestC36CancelWithoutAWorker(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	// The worker had succeeded first: so did the Task.
	finished := env.Create(builders.Task("finished").Obj())
	pod := env.Kubelet.Run(env.Kubelet.WaitPod(finished, 1))
	env.WaitState(finished, v1alpha1.StateProcessing)
	// The Job is gone before its pod has ever run.
	missing := env.Create(builders.Task("missing").Obj())
	job := env.WaitJob(missing, 1)
	env.WaitTask(missing, func(t *v1alpha1.Task) error {
		if t.Status.Worker == nil || t.Status.Worker.JobUID == "" {
			return errors.New("the Job is not recorded yet")
		}
		return nil
	})
	env.StopController()
	env.Kubelet.Exit(pod, testenv.Exit{})
	env.Cancel(finished)
	mustDelete(t, env, job, client.PropagationPolicy("Background"))
	env.WaitGone(job)
	waitPodsGone(t, env, missing)
	env.Cancel(missing)
	env.StartController()
	env.WaitState(finished, v1alpha1.StateSucceeded)
	wantNever(t, env.WaitState(missing, v1alpha1.StateCancelled), v1alpha1.StateProcessing)
}

func TestC37CancelBeatsSuspend(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	env.Kubelet.AutoAll(testenv.UntilStopped)
	born := env.Create(builders.Task("born").Suspend().Obj())
	both := env.Create(builders.Task("both").Suspend().Obj())
	env.WaitCondition(born, v1alpha1.ConditionSuspended, "True", "")
	env.WaitCondition(both, v1alpha1.ConditionSuspended, "True", "")
	env.Cancel(born)
	yes, no := true, false
	env.Change(both, func(t *v1alpha1.Task) { t.Spec.Cancel, t.Spec.Suspend = &yes, &no })
	for _, task := range []*v1alpha1.Task{born, both} {
		if done := env.WaitState(task, v1alpha1.StateCancelled); len(done.Status.Attempts) > 0 {
			t.Errorf("Task %s has attempts: %+v", task.Name, done.Status.Attempts)
		}
	}
	if n := env.Faults.Calls("create jobs"); n > 0 {
		t.Errorf("%d Jobs were asked for", n)
	}

	ran := env.Create(builders.Task("ran").Obj())
	after := env.Create(builders.Task("after").Obj())
	env.WaitState(ran, v1alpha1.StateProcessing)
	env.WaitState(after, v1alpha1.StateProcessing)
	env.Suspend(ran, true)
	env.Cancel(after)
	env.Suspend(after, true)
	wantAttempts(t, env.WaitState(ran, v1alpha1.StateRetrying), v1alpha1.ReasonSuspended)
	env.Cancel(ran)
	wantAttempts(t, env.WaitState(ran, v1alpha1.StateCancelled), v1alpha1.ReasonSuspended)
	wantAttempts(t, env.WaitState(after, v1alpha1.StateCancelled), v1alpha1.ReasonCancelled)
	env.Suspend(ran, false) // it is over
	env.Quiet(300 * time.Millisecond)
	if n := env.Faults.Calls("create jobs"); n != 2 {
		t.Errorf("%d Jobs were asked for", n)
	}
}

func TestC39CancelInBackoff(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	env.Kubelet.AutoAll(failing("boom"))
	early := env.Create(builders.Task("early").Retry(10).Backoff(time.Minute, time.Minute, "1").Obj())
	done := env.WaitState(early, v1alpha1.StateRetrying)
	env.Cancel(early)
	cancelled := env.WaitState(early, v1alpha1.StateCancelled)
	if cancelled.Status.NextRetryTime != nil || len(env.Jobs(early)) != 1 {
		t.Errorf("next retry %v, %d Jobs", cancelled.Status.NextRetryTime, len(env.Jobs(early)))
	}
	if was, is := done.Status.Attempts, cancelled.Status.Attempts; !equality.Semantic.DeepEqual(was, is) {
		t.Errorf("attempts were %s and are %s", asJSON(t, was), asJSON(t, is))
	}
	was, is := done.Status.History, cancelled.Status.History
	if n := len(was); len(is) != n+1 || !equality.Semantic.DeepEqual(was, is[:n]) || is[n].Event != string(lifecycle.Cancel) {
		t.Errorf("the history was %s and is %s", asJSON(t, was), asJSON(t, is))
	}
	// At the very moment of the retry either may be first; it ends cancelled, with nothing left over.
	for i := range 3 {
		task := env.Create(builders.Task(fmt.Sprintf("edge-%d", i)).Retry(10).FastBackoff().Obj())
		at := env.WaitState(task, v1alpha1.StateRetrying).Status.NextRetryTime
		at.Time = at.Add(-time.Duration(i*40) * time.Millisecond)
		waitClock(t, env, *at)
		env.Cancel(task)
		env.WaitState(task, v1alpha1.StateCancelled)
	}
}

func TestC40BornCancelledOrSuspended(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	env.Kubelet.AutoAll(testenv.Behaviour{})
	cancelled := env.Create(builders.Task("cancelled").Cancel().Obj())
	suspended := env.Create(builders.Task("suspended").Suspend().Obj())
	env.WaitState(cancelled, v1alpha1.StateCancelled)
	env.WaitCondition(suspended, v1alpha1.ConditionReconciling, "True", v1alpha1.ReasonSuspended)
	env.Quiet(300 * time.Millisecond)
	if n := env.Faults.Calls("create jobs"); n > 0 {
		t.Errorf("%d Jobs were asked for", n)
	}
	env.Suspend(suspended, false)
	wantAttempts(t, env.WaitState(suspended, v1alpha1.StateSucceeded), v1alpha1.ReasonCompleted)
}

// TestC40CancelBetweenReadAndCreate changes the Task in the operator's back: before its last look at it, where no Job may
// come of it, and between that look and the creation, where the Job must go again.
func TestC40CancelBetweenReadAndCreate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		at   string
		spec string
		jobs int
	}{
		"cancel before the last look":  {"get tasks", `{"cancel":true}`, 0},
		"suspend before the last look": {"get tasks", `{"suspend":true}`, 0},
		"cancel after the last look":   {"create jobs", `{"cancel":true}`, 1},
		"suspend after the last look":  {"create jobs", `{"suspend":true}`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := newEnv(t, testenv.Stopped())
			task := env.Create(builders.Task("raced").Obj())
			env.Faults.On(c.at, testenv.Fault{Times: 1, Before: func(ctx context.Context, _ testenv.Call) error {
				return env.Client.Patch(ctx, task.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"spec":`+c.spec+`}`)))
			}})
			env.StartController()
			want := v1alpha1.StateCancelled
			if c.spec == `{"suspend":true}` {
				want = v1alpha1.StatePending
				if c.jobs > 0 {
					want = v1alpha1.StateRetrying
				}
			}
			wantNever(t, env.WaitState(task, want), v1alpha1.StateProcessing)
			env.Quiet(300 * time.Millisecond)
			if n := env.Faults.Calls("create jobs"); n != c.jobs {
				t.Errorf("%d Jobs were asked for, wanted %d", n, c.jobs)
			}
			testenv.Eventually(t, func(context.Context) error {
				if n := len(env.Jobs(task)); n > 0 {
					return fmt.Errorf("%d Jobs are left", n)
				}
				return nil
			})
		})
	}
}
