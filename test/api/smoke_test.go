package api

import (
	"testing"
	"time"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/builders"
	"github.com/taskwarden/taskwarden/test/testenv"
)

func TestSucceeds(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	task := env.Create(builders.Task("hello").Obj())
	pod := env.Kubelet.WaitPod(task, 1)
	env.Kubelet.Run(pod)
	env.WaitState(task, v1alpha1.StateProcessing)
	env.Kubelet.Exit(pod, testenv.Exit{Message: "done"})
	done := env.WaitState(task, v1alpha1.StateSucceeded)
	if got := done.Status.Attempts[0].Message; got != "done" {
		t.Errorf("message of the attempt is %q", got)
	}
}

func TestFailsAfterRetries(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	env.Kubelet.AutoAll(testenv.Behaviour{Exit: testenv.Exit{Code: 1, Message: "boom"}})
	task := env.Create(builders.Task("boom").Retry(1).FastBackoff().Obj())
	done := env.WaitState(task, v1alpha1.StateFailed)
	if got := len(env.Jobs(task)); got != 2 {
		t.Fatalf("%d Jobs, wanted limit + 1: %+v", got, done.Status.Attempts)
	}
}

func TestCancelStopsTheWorker(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	env.Kubelet.AutoAll(testenv.UntilStopped)
	task := env.Create(builders.Task("cancelled").Obj())
	env.WaitState(task, v1alpha1.StateProcessing)
	env.Cancel(task)
	env.WaitState(task, v1alpha1.StateCancelled)
	env.Quiet(time.Second)
}
