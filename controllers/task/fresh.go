package task

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// newFor is how long a Task is new. It is shorter than the 15 seconds for which a lease is held: as long as a Task is new nobody
// can have taken over from a process that had seen it as the leader.
const newFor = 10 * time.Second

// leadership remembers one resourceVersion from its own time. A copy of a Task that is newer hides nothing that an earlier
// leader has written.
type leadership struct {
	mu    sync.Mutex
	since string
}

// began answers that version, which the first call asks for, in a namespace where Tasks may be read.
func (l *leadership) began(ctx context.Context, live client.Reader, namespace string) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since == "" {
		ctx, cancel := context.WithTimeout(ctx, cachePatience) // the others wait
		defer cancel()
		var now metav1.PartialObjectMetadataList
		now.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("TaskList"))
		if err := live.List(ctx, &now, client.InNamespace(namespace), client.Limit(1)); err != nil {
			return "", err
		}
		l.since = now.ResourceVersion
	}
	return l.since, nil
}

// mayCreate is the one guard at Job creation, for every path into an attempt: the Task is still what was decided on. Only a
// Task that no leader can have written is not asked about (ADR 7).
func (r *Reconciler) mayCreate(ctx context.Context, t *v1alpha1.Task) error {
	if r.readsOwnWrites && !lifecycle.Accepted(t) && r.Clock.Now().Before(t.CreationTimestamp.Add(newFor)) {
		since, err := r.leadership.began(ctx, r.Live, t.Namespace)
		if err != nil {
			return fmt.Errorf("ask for the current resourceVersion: %w", err)
		}
		if order, err := resourceversion.CompareResourceVersion(t.ResourceVersion, since); err == nil && order > 0 {
			return nil
		}
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
