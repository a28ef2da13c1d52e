package benchkit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

const (
	// Look is how often the state of a run is asked for; the figures come from the audit log and do not depend on it.
	Look = 2 * time.Second
	// RunLimit bounds the wait for one run. 500 Jobs take two and a half minutes with the controller manager's defaults.
	RunLimit = 20 * time.Minute
	// cleanLimit bounds the wait for deletions.
	cleanLimit = 10 * time.Minute
)

// InParallel calls do for 0 to n-1, some at once, until one fails.
func InParallel(ctx context.Context, n, workers int, what string, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next, done atomic.Int64
	var group sync.WaitGroup
	for range min(workers, n) {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := do(ctx, i); err != nil {
					cancel(err)
					return
				}
				Doing("%s: %d of %d", what, done.Add(1), n)
			}
		})
	}
	group.Wait()
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// WaitTasks waits until all Tasks are terminal.
func (c *Cluster) WaitTasks(ctx context.Context, namespace string, total int, limit time.Duration) error {
	var going []fields.Selector
	for _, s := range []v1alpha1.State{v1alpha1.StateSucceeded, v1alpha1.StateFailed, v1alpha1.StateCancelled} {
		going = append(going, fields.OneTermNotEqualSelector("status.state", string(s)))
	}
	return c.WaitNone(ctx, "Tasks going", TaskList(), limit, total,
		client.InNamespace(namespace), client.MatchingFieldsSelector{Selector: fields.AndSelectors(going...)})
}

// WaitNone waits until a list is empty.
func (c *Cluster) WaitNone(ctx context.Context, what string, list *metav1.PartialObjectMetadataList,
	limit time.Duration, total int, o ...client.ListOption) error {
	left := -1
	err := wait.PollUntilContextTimeout(ctx, Look, limit, true, func(ctx context.Context) (bool, error) {
		if err := c.List(ctx, list, o...); err != nil {
			return false, err
		}
		left = len(list.Items)
		Doing("%s: %d of %d", what, left, total)
		return left == 0, nil
	})
	if err != nil {
		return fmt.Errorf("%s: %d of %d: %w", what, left, total, err)
	}
	return nil
}

// TaskList takes the names of Tasks.
func TaskList() *metav1.PartialObjectMetadataList {
	l := &metav1.PartialObjectMetadataList{}
	l.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("TaskList"))
	return l
}

// JobList takes the names of Jobs.
func JobList() *metav1.PartialObjectMetadataList {
	l := &metav1.PartialObjectMetadataList{}
	l.SetGroupVersionKind(batchv1.SchemeGroupVersion.WithKind("JobList"))
	return l
}

// PodList takes the names of pods.
func PodList() *metav1.PartialObjectMetadataList {
	l := &metav1.PartialObjectMetadataList{}
	l.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	return l
}

// Clear deletes everything of a run. Owners and owned are deleted alike, since the garbage collector of a controller
// manager with its default limits would take minutes.
func (c *Cluster) Clear(ctx context.Context, namespace string) error {
	Doing("deleting what is in %s", namespace)
	background := client.PropagationPolicy(metav1.DeletePropagationBackground)
	err := errors.Join(
		c.DeleteAllOf(ctx, &v1alpha1.Task{}, client.InNamespace(namespace), background),
		c.DeleteAllOf(ctx, &batchv1.Job{}, client.InNamespace(namespace), background),
		c.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(namespace), client.GracePeriodSeconds(0)),
	)
	if err != nil {
		return fmt.Errorf("clear %s: %w", namespace, err)
	}
	for what, list := range map[string]*metav1.PartialObjectMetadataList{
		"Tasks": TaskList(), "Jobs": JobList(), "pods": PodList(),
	} {
		err := c.WaitNone(ctx, what+" to be deleted", list, cleanLimit, len(list.Items), client.InNamespace(namespace))
		if err != nil {
			return err
		}
	}
	return c.Quiet(ctx)
}

// Quiet waits until the control plane has written nothing for a while.
func (c *Cluster) Quiet(ctx context.Context) error {
	const while = 5 * time.Second
	var size int64
	since := time.Now()
	err := wait.PollUntilContextTimeout(ctx, 250*time.Millisecond, cleanLimit, true, func(context.Context) (bool, error) {
		now, err := c.Log.Size()
		if err != nil {
			return false, err
		}
		if now != size {
			size, since = now, time.Now()
		}
		Doing("waiting until the control plane is quiet")
		return time.Since(since) >= while, nil
	})
	if err != nil {
		return fmt.Errorf("wait until the control plane is quiet: %w", err)
	}
	return nil
}

// Pause waits for a fixed time.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
