package gateway

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// FieldOwner is the gateway's name as the manager of the fields that it writes.
const FieldOwner = "taskwarden-gateway"

const (
	// maxTries is how often a write that somebody else was faster than is decided again.
	maxTries = 10
	// maxPause is the longest wait between two tries; the first is a tenth of it.
	maxPause = 100 * time.Millisecond
)

var errCrowded = errors.New("others have changed the Task at each try")

// takeFinal stores a final report: a decision on the Task as it is, and a write that fails if the Task has changed since. So the
// first report wins, whichever replica it comes to, and none is stored after an outcome that the controller has fixed.
func (g *Gateway) takeFinal(ctx context.Context, d *delivery) outcome {
	var faster error
	task := g.recall(d)
	for try := range maxTries {
		err := pause(ctx, g.options.Clock, try)
		if err != nil {
			return outcome{err: unavailable(err)}
		}
		if task == nil {
			if task, err = readTask(ctx, g.options.Client, d.worker); err != nil {
				return outcome{err: err}
			}
		}
		var o outcome
		if o, faster = g.storeFinal(ctx, d, task); faster == nil {
			return o
		}
		task = nil
	}
	return outcome{err: unavailable(errors.Join(errCrowded, faster))}
}

// recall gives what this gateway's last write has left of a Task, if the final report would be stored there. A write that fails
// when the Task has changed since is as safe with it as with a live read, and most workers have reported before, here. Nobody is
// refused or ignored without a look at the Task.
func (g *Gateway) recall(d *delivery) *v1alpha1.Task {
	task := g.news.recall(d.worker.TaskUID)
	if task == nil {
		return nil
	}
	if changed, err := decide(task.DeepCopy(), d, g.options.MaxClockSkew); !changed || err != nil {
		return nil
	}
	return task
}

// storeFinal decides about a final report and stores what that changes. Its error says that somebody was faster than the write,
// which is finalPatch.
func (g *Gateway) storeFinal(ctx context.Context, d *delivery, task *v1alpha1.Task) (o outcome, faster error) {
	before := task.DeepCopy()
	changed, refused := decide(task, d, g.options.MaxClockSkew)
	if !changed {
		return outcome{again: refused == nil, err: refused}, nil
	}
	patch, err := finalPatch(before, task)
	if err != nil {
		return outcome{err: unavailable(err)}, nil
	}
	err = g.options.Client.Status().Patch(ctx, task, patch, client.FieldOwner(FieldOwner))
	switch {
	case err == nil:
		return outcome{stored: refused == nil, err: refused}, nil // refused, and noted
	case apierrors.IsConflict(err), apierrors.IsInvalid(err):
		// A test of the patch has failed. An API server that calls the write itself invalid says the same, and goes on doing
		// so. That ends after some tries: the report was checked, and a refusal for good would lose it.
		return outcome{}, err
	case apierrors.IsNotFound(err):
		return outcome{err: errGone}, nil
	default:
		return outcome{err: unavailable(err)}, nil
	}
}

// readTask reads the Task of a worker live. Its errors are refusals.
func readTask(ctx context.Context, c client.Reader, w worker) (*v1alpha1.Task, error) {
	task := &v1alpha1.Task{}
	err := c.Get(ctx, client.ObjectKey{Namespace: w.Namespace, Name: w.TaskName}, task)
	switch {
	case apierrors.IsNotFound(err):
		return nil, errGone
	case err != nil:
		return nil, unavailable(err)
	case task.UID != w.TaskUID:
		return nil, errGone
	}
	return task, nil
}

// decide changes a Task for a report, as far as the sender is the worker that the Task names: a Job that is not the operator's own
// may have the labels and the owner of one.
func decide(task *v1alpha1.Task, d *delivery, maxSkew time.Duration) (changed bool, err error) {
	current := task.Status.Worker
	if lifecycle.CurrentAttempt(task) == d.worker.Attempt && current != nil && current.JobUID != "" && current.JobUID != d.worker.JobUID {
		return false, errForbidden
	}
	return lifecycle.Take(task, d.report, d.origin(), maxSkew, d.received)
}

// pause waits a little before every try but the first.
func pause(ctx context.Context, clk clock.Clock, try int) error {
	if try == 0 {
		return ctx.Err()
	}
	limit := min(maxPause, maxPause/10<<(try-1))
	return wait(ctx, clk, limit/2+rand.N(limit/2))
}

// wait waits by the clock.
func wait(ctx context.Context, clk clock.Clock, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := clk.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
