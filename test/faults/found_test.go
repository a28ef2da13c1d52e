package faults

import (
	"context"
	"errors"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/builders"
	"github.com/taskwarden/taskwarden/test/testenv"
)

// The tests of this file are the smallest cases of faults that the random runs have found.

// TestDeletedWhileTasksAreSilent: a new Task is deleted, and no news of that come. Its Job goes, since its owner is gone; the operator
// must not take that for a reason to make another one, and another.
func TestDeletedWhileTasksAreSilent(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	env.Kubelet.AutoAll(testenv.UntilStopped)
	env.StartController()
	before := env.Create(builders.Task("before").Obj()) // from now on it knows since when it leads
	env.WaitState(before, v1alpha1.StateProcessing)
	env.Quiet(300 * time.Millisecond)
	var thaw func()
	env.Faults.On("create jobs", testenv.Fault{Times: 1, Before: func(ctx context.Context, _ testenv.Call) error {
		thaw = env.Faults.FreezeWatch("tasks")
		one := builders.Task("gone").Namespace(env.Namespace).Obj()
		return env.Client.Delete(ctx, one)
	}})
	gone := env.Create(builders.Task("gone").Obj())
	env.WaitGone(gone)
	env.Quiet(2 * time.Second)
	thaw()
	if n := env.Faults.Calls("create jobs"); n != 2 {
		t.Errorf("%d Jobs were asked for, wanted is one for each Task", n)
	}
}

// TestJobCompleteBeforeItIsToldOf: the first write about an attempt fails, and meanwhile its worker ends and its Job is complete, which
// the operator hears of, while the watch of pods is silent. The pod is there, and what it has left must not be lost.
func TestJobCompleteBeforeItIsToldOf(t *testing.T) {
	t.Parallel()
	for name, loses := range map[string]bool{"the status is refused": false, "the answer to the Job is lost, too": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := newEnv(t)
			env.StartController()
			thaw := env.Faults.FreezeWatch("pods")
			complete := make(chan struct{})
			env.Faults.On("update tasks/status", testenv.Fault{Times: 1, Before: func(ctx context.Context, _ testenv.Call) error {
				select {
				case <-complete:
				case <-ctx.Done():
				}
				return apierrors.NewInternalError(errors.New("injected"))
			}})
			if loses {
				env.Faults.LoseAnswer("create jobs")
			}
			task := env.Create(builders.Task("early").Retry(0).Obj())
			env.Kubelet.Flash(env.Kubelet.WaitPod(task, 1), testenv.Exit{Message: `{"data": 7}`})
			testenv.Eventually(t, func(ctx context.Context) error {
				job := env.WaitJob(task, 1)
				if err := env.Client.Get(ctx, client.ObjectKeyFromObject(job), job); err != nil {
					return err
				}
				for _, c := range job.Status.Conditions {
					if c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue {
						return nil
					}
				}
				return errors.New("the Job is not complete")
			})
			env.Quiet(500 * time.Millisecond) // it has heard of that
			close(complete)
			done := env.WaitState(task, v1alpha1.StateSucceeded)
			thaw()
			if a := done.Status.Attempts[0]; a.ExitCode == nil || done.Status.Result == nil {
				t.Errorf("what the worker has left is lost: %+v, result %+v", a, done.Status.Result)
			}
		})
	}
}
