package faults

import (
	"context"
	"testing"
	"time"

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
