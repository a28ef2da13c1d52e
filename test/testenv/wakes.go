package testenv

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// wakes notes, beside each pass of a controller, when it will look at the same Task again by itself.
type wakes struct {
	pass  reconcile.Reconciler
	clock clock.PassiveClock

	mu    sync.Mutex
	known map[reconcile.Request]wakeUp
}

// wakeUp is what the last pass over a Task asked for.
type wakeUp struct {
	underway bool
	at       time.Time // zero: nothing
}

// Reconcile implements reconcile.Reconciler.
func (w *wakes) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	w.note(req, wakeUp{underway: true})
	result, err := w.pass.Reconcile(ctx, req)
	var next wakeUp
	switch {
	case errors.Is(err, reconcile.TerminalError(nil)): // not tried again
	case err != nil || result.RequeueAfter > 0:
		next.at = w.clock.Now().Add(result.RequeueAfter)
	}
	w.note(req, next)
	return result, err
}

func (w *wakes) note(req reconcile.Request, next wakeUp) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known[req] = next
}

// of is when a Task will be looked at again, zero where it will not, and an error where that is not known at the moment.
func (w *wakes) of(t *v1alpha1.Task) (time.Time, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	next, ok := w.known[reconcile.Request{NamespacedName: client.ObjectKeyFromObject(t)}]
	switch {
	case !ok:
		return time.Time{}, errors.New("the operator has never looked at it")
	case next.underway:
		return time.Time{}, errors.New("the operator does not come to an end with it")
	}
	return next.at, nil
}

// around stands between a controller and its reconciler.
func (w *wakes) around(pass reconcile.Reconciler) reconcile.Reconciler {
	w.pass = pass
	return w
}
