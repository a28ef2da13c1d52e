package task

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// newFor is how long a Task is new. It is shorter than the 15 seconds for which a lease is held, by what the clock may be off that is
// not corrected (apiclock.Ignored) or not measured better (2 s): as long as a Task is new nobody can have taken over from a process
// that had seen it as the leader.
const newFor = 8 * time.Second

// leadership remembers one resourceVersion from its own time. A copy of a Task that is newer hides nothing that an earlier
// leader has written.
type leadership struct {
	asking atomic.Bool
	since  atomic.Pointer[string]

	mu     sync.Mutex
	firsts *lru.Cache // the UIDs of Tasks that were not read again before a Job was made
}

// rememberedFirsts is how many of them are remembered. What is forgotten is no longer new.
const rememberedFirsts = 4096

// first tells whether this is the first time that a Task is asked about. A Task that is still new when a Job for it was made is
// one that is gone, or whose news do not come: whoever made Jobs for that would make one after the other.
func (l *leadership) first(uid types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.firsts == nil {
		l.firsts = lru.New(rememberedFirsts)
	}
	_, again := l.firsts.Get(uid)
	l.firsts.Add(uid, struct{}{})
	return !again
}

// covers tells whether a copy with this resourceVersion is from this leadership. The first call asks for the version to compare
// with, in a namespace where Tasks may be read; without an answer no copy is covered.
func (l *leadership) covers(ctx context.Context, version string, live client.Reader, namespace string) bool {
	since := l.since.Load()
	if since == nil {
		if !l.asking.CompareAndSwap(false, true) {
			return false // another pass asks
		}
		defer l.asking.Store(false)
		var now metav1.PartialObjectMetadataList
		now.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("TaskList"))
		if live.List(ctx, &now, client.InNamespace(namespace), client.Limit(1)) != nil {
			return false
		}
		since = &now.ResourceVersion
		l.since.Store(since)
	}
	order, err := resourceversion.CompareResourceVersion(version, *since)
	return err == nil && order > 0
}

// mayCreate is the one guard at Job creation, for every path into an attempt: the Task is still what was decided on. Only a
// Task that no leader can have written is not asked about (ADR 7).
func (r *Reconciler) mayCreate(ctx context.Context, t *v1alpha1.Task) error {
	isNew := !lifecycle.Accepted(t) && r.Clock.Now().Before(t.CreationTimestamp.Add(newFor))
	if isNew && r.readsOwnWrites && r.leadership.first(t.UID) && r.leadership.covers(ctx, t.ResourceVersion, r.Live, t.Namespace) {
		return nil
	}
	return r.unchanged(ctx, t)
}

// mayDestroy is the guard of a pass that destroys without having written: no conflict would tell it that its Task is an old
// one, in which the attempt that it stops has not begun yet.
func (r *Reconciler) mayDestroy(ctx context.Context, s Snapshot, plan *Plan) error {
	if !plan.StopUnknown || plan.Task.ResourceVersion != s.Task.ResourceVersion {
		return nil
	}
	return r.unchanged(ctx, s.Task)
}

// unchanged reads live that a Task is still as it was read.
func (r *Reconciler) unchanged(ctx context.Context, t *v1alpha1.Task) error {
	var live metav1.PartialObjectMetadata
	live.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Task"))
	if err := client.IgnoreNotFound(r.Live.Get(ctx, client.ObjectKeyFromObject(t), &live)); err != nil {
		return fmt.Errorf("read Task again: %w", err)
	}
	if live.UID != t.UID || live.ResourceVersion != t.ResourceVersion {
		return errStale
	}
	return nil
}
