package task

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// liveReader holds one Task as the API server has it, and counts how often it is asked.
type liveReader struct {
	client.Reader
	gets, lists int
	fails       error
}

func newLiveReader(t *testing.T, stored ...client.Object) *liveReader {
	t.Helper()
	l := &liveReader{}
	l.Reader = fakeOf(t).WithObjects(stored...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			l.gets++
			if err := cmp.Or(l.fails, ctx.Err()); err != nil {
				return err
			}
			return c.Get(ctx, key, obj, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			l.lists++
			if l.fails != nil {
				return l.fails
			}
			if err := c.List(ctx, list, opts...); err != nil {
				return err
			}
			list.SetResourceVersion(strconv.Itoa(leaderSince)) // the fake has none for lists
			return nil
		},
	}).Build()
	return l
}

const leaderSince = 100

// TestC04MayCreateGuard: a copy that could hide what another leader has written is compared with what is stored.
func TestC04MayCreateGuard(t *testing.T) {
	version := func(s *scene, v int) *v1alpha1.Task { return versionOf(s.Task, strconv.Itoa(v)) }
	remade := version(retrying(), 7)
	remade.UID = "another"
	odd := versionOf(fresh().Task, "x1")
	cases := map[string]struct {
		cached, stored *v1alpha1.Task
		asks           bool
		stale          bool
		age            time.Duration
		noReads        bool // of own writes
	}{
		"new under this leader":            {cached: version(fresh(), leaderSince+1), asks: false},
		"as old as this leader":            {cached: version(fresh(), leaderSince), stored: version(fresh(), leaderSince), asks: true},
		"older than this leader, the same": {cached: version(fresh(), 7), stored: version(fresh(), 7), asks: true},
		"older than this leader, run since": {
			cached: version(fresh(), 7), stored: version(ended(lifecycle.Succeed), 90), asks: true, stale: true,
		},
		"it has a history": {cached: version(retrying(), leaderSince+5), stored: version(retrying(), leaderSince+5), asks: true},
		"it has a history, cancelled since": {
			cached: version(retrying(), leaderSince+5), stored: version(retrying(cancel), leaderSince+6), asks: true, stale: true,
		},
		"no longer new": {cached: version(fresh(), leaderSince+1), stored: version(fresh(), leaderSince+1), age: newFor, asks: true},
		"reads do not show own writes, run since": {
			cached: version(fresh(), leaderSince+1), stored: version(ended(lifecycle.Succeed), leaderSince+9), noReads: true, asks: true, stale: true,
		},
		"a version that cannot be compared": {cached: odd, stored: odd, asks: true},
		"made anew":                         {cached: version(retrying(), 7), stored: remade, asks: true, stale: true},
		"gone":                              {cached: version(retrying(), 7), asks: true, stale: true},
	}
	for name, tc := range cases {
		live := newLiveReader(t, objects(tc.stored)...)
		r := newGuard(live, tc.age)
		r.readsOwnWrites = !tc.noReads
		if err := r.mayCreate(t.Context(), tc.cached); errors.Is(err, errStale) != tc.stale || err != nil && !tc.stale {
			t.Errorf("%s: %v", name, err)
		}
		if got := live.gets > 0; got != tc.asks {
			t.Errorf("%s: asked for the Task is %v", name, got)
		}
	}
}

// newGuard is a reconciler at a moment when Tasks have that age.
func newGuard(live client.Reader, age time.Duration) *Reconciler {
	return &Reconciler{Live: live, Clock: clocktesting.NewFakePassiveClock(created.Add(age)), readsOwnWrites: true}
}

func TestLeadershipIsAskedForOnce(t *testing.T) {
	live := newLiveReader(t)
	live.fails = errors.New("no answer")
	r := newGuard(live, 0)
	task := versionOf(fresh().Task, strconv.Itoa(leaderSince+1))
	if err := r.mayCreate(t.Context(), task); !errors.Is(err, live.fails) || live.gets != 1 {
		t.Errorf("without an answer: %v; asked %d times for the Task", err, live.gets)
	}
	live.fails = nil
	for i := range 3 {
		task.UID = types.UID(fmt.Sprint("new-", i))
		if err := r.mayCreate(t.Context(), task); err != nil {
			t.Error(err)
		}
	}
	if live.lists != 2 || live.gets != 1 {
		t.Errorf("asked %d times for the version, %d times for the Task", live.lists, live.gets)
	}
}

// TestNewOnlyOnce: a Task that is still new when a Job was made for it may be gone.
func TestNewOnlyOnce(t *testing.T) {
	live := newLiveReader(t)
	r := newGuard(live, 0)
	task := versionOf(fresh().Task, strconv.Itoa(leaderSince+1))
	if err := r.mayCreate(t.Context(), task); err != nil || live.gets != 0 {
		t.Errorf("the first time: %v; asked %d times for the Task", err, live.gets)
	}
	if err := r.mayCreate(t.Context(), task); !errors.Is(err, errStale) || live.gets != 1 {
		t.Errorf("the second time, when it is gone: %v; asked %d times for the Task", err, live.gets)
	}
}
