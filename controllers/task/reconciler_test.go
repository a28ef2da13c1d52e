package task

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// TestReconcileAnew: who decided on an old copy decides again on what is stored, once; then the caches get their time.
func TestReconcileAnew(t *testing.T) {
	const waits, cancelled = "status demo: Pending, Suspended", "status demo: Cancelled, Cancelled"
	terminating := apierrors.NewForbidden(tasks, "demo", errors.New("the namespace is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	waiting, due, newer := accepted(suspend).Task, accepted().Task, versionOf(accepted(cancel).Task, "2")
	to := func(write string, answers ...error) map[string][]error { return map[string][]error{write: answers} }
	cases := map[string]struct {
		cached, stored *v1alpha1.Task
		live           error // no answer
		answers        map[string][]error
		wrote          []string
		again          time.Duration
		want           error
		gets           int
	}{
		"gone":               {},
		"nothing in the way": {cached: waiting, stored: newer, wrote: []string{waits}},
		"changed": {
			cached: waiting, stored: newer, answers: to("status demo", changed),
			wrote: []string{waits, cancelled}, again: time.Millisecond, gets: 2,
		},
		"changed twice": {
			cached: waiting, stored: newer, answers: to("status demo", changed, changed),
			wrote: []string{waits, cancelled}, again: afterConflict, gets: 2,
		},
		"changed, then no answer": {
			cached: waiting, stored: newer, live: overloaded, answers: to("status demo", changed),
			wrote: []string{waits}, want: overloaded, gets: 1,
		},
		"changed, then gone": {cached: waiting, answers: to("status demo", changed), wrote: []string{waits}, gets: 1},
		"changed before its Job": {
			cached: due, stored: newer,
			wrote: []string{cancelled}, again: time.Millisecond, gets: 3,
		},
		"gone meanwhile": {cached: waiting, answers: to("status demo", gone), wrote: []string{waits}, gets: 1},
		"a failure": {
			cached: waiting, stored: newer, answers: to("status demo", overloaded),
			wrote: []string{waits}, want: overloaded,
		},
		"its namespace goes": {
			cached: due, stored: due, answers: to("create demo-1", terminating),
			wrote: []string{"create demo-1"}, again: whileTerminating, gets: 1,
		},
	}
	for name, tc := range cases {
		w, live := &writes{answers: tc.answers}, newLiveReader(t, objects(tc.stored)...)
		live.fails = tc.live
		r := w.reconciler(t, created, live, objects(tc.cached)...)
		got, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(due)})
		if !errors.Is(err, tc.want) || tc.want == nil && err != nil || got.RequeueAfter != tc.again || live.gets != tc.gets {
			t.Errorf("%s: %v, again after %s, asked %d times", name, err, got.RequeueAfter, live.gets)
		}
		if diff := cmp.Diff(tc.wrote, w.done); diff != "" {
			t.Errorf("%s: writes (-want +got):\n%s", name, diff)
		}
	}
}

// objects are what a client holds: the Task, if there is one.
func objects(t *v1alpha1.Task) []client.Object {
	if t == nil {
		return nil
	}
	return []client.Object{t}
}

// TestSilentCache: a cache that never shows what was written must not hold up its Task for ever.
func TestSilentCache(t *testing.T) {
	silent := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, tc := range map[string]struct {
		cache    func(context.Context) error
		patience time.Duration // of the caller
		want     error
		gets     int
	}{
		"it answers":               {func(context.Context) error { return nil }, time.Minute, nil, 0},
		"it fails":                 {func(context.Context) error { return overloaded }, time.Minute, overloaded, 0},
		"it is silent":             {silent, time.Minute, nil, 1},
		"the caller goes first":    {silent, time.Second, context.DeadlineExceeded, 0},
		"a Task that is not there": {func(context.Context) error { return gone }, time.Minute, gone, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := accepted()
			live := newLiveReader(t, s.Task)
			r := &Reconciler{Live: live, Client: fakeOf(t).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, _ client.WithWatch, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
					s.Task.DeepCopyInto(obj.(*v1alpha1.Task))
					return tc.cache(ctx)
				},
			}).Build()}
			ctx, stop := context.WithTimeout(t.Context(), tc.patience)
			defer stop()
			got, err := r.read(ctx, client.ObjectKeyFromObject(s.Task))
			if !errors.Is(err, tc.want) || tc.want == nil && (err != nil || got.UID != s.Task.UID) || live.gets != tc.gets {
				t.Errorf("%s: %v, Task %q, asked %d times", name, err, got.UID, live.gets)
			}
		})
	}
}
