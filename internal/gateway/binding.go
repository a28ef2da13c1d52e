package gateway

import (
	"context"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

const (
	// boundFor is how long the binding of a pod is not read again. Owners do not change; this only lets go of pods that are
	// gone.
	boundFor = 10 * time.Minute
	// unboundFor is the same for a pod that is not a worker's, so that a stranger costs two reads in so many seconds.
	unboundFor = 5 * time.Second
	// maxBindings bounds the memory for both.
	maxBindings = 4096
)

// worker is the pod of one attempt.
type worker struct {
	Namespace, TaskName string
	TaskUID, JobUID     types.UID
	PodUID              types.UID
	Attempt             int32
}

// binder finds out which attempt of which Task a pod belongs to: from its controller, the Job, and that one's controller, the
// Task, each by UID. Labels alone, which a user may set, prove nothing.
type binder struct {
	client client.Client
	known  *cache.LRUExpireCache // of binding, by UID of the pod
}

type binding struct {
	worker worker
	err    error
}

func newBinder(c client.Client, clk clock.Clock) *binder {
	return &binder{client: c, known: cache.NewLRUExpireCacheWithClock(maxBindings, clk)}
}

// bind gives the attempt that a pod belongs to. Its errors are refusals.
func (b *binder) bind(ctx context.Context, s sender) (worker, error) {
	if known, ok := b.known.Get(s.PodUID); ok {
		if v, ok := known.(binding); ok {
			return v.worker, v.err
		}
	}
	w, found, err := b.read(ctx, s)
	switch {
	case err != nil:
		return worker{}, unavailable(err)
	case !found:
		b.known.Add(s.PodUID, binding{err: errForbidden}, unboundFor)
		return worker{}, errForbidden
	}
	b.known.Add(s.PodUID, binding{worker: w}, boundFor)
	return w, nil
}

func (b *binder) read(ctx context.Context, s sender) (w worker, found bool, err error) {
	w = worker{Namespace: s.Namespace, PodUID: s.PodUID}
	job, err := b.controllerOf(ctx, corev1.SchemeGroupVersion.WithKind("Pod"), s.Namespace, s.PodName, s.PodUID)
	if err != nil || job.owner == nil || !isOf(job.owner, batchv1.SchemeGroupVersion.WithKind("Job")) {
		return w, false, err
	}
	task, err := b.controllerOf(ctx, batchv1.SchemeGroupVersion.WithKind("Job"), s.Namespace, job.owner.Name, job.owner.UID)
	if err != nil || task.owner == nil || !isOf(task.owner, v1alpha1.GroupVersion.WithKind("Task")) {
		return w, false, err
	}
	w.JobUID, w.TaskName, w.TaskUID, w.Attempt = job.owner.UID, task.owner.Name, task.owner.UID, attemptOf(task.labels)
	return w, w.Attempt > 0, nil
}

// attemptOf is the attempt that a Job is for; 0 where its label is not one of the operator's.
func attemptOf(labels map[string]string) int32 {
	n, err := strconv.ParseInt(labels[v1alpha1.LabelAttempt], 10, 32)
	if err != nil || n < 0 {
		return 0
	}
	return int32(n)
}

type owned struct {
	owner  *metav1.OwnerReference
	labels map[string]string
}

// controllerOf reads the controller of an object that has the given UID; none where there is no such object.
func (b *binder) controllerOf(
	ctx context.Context, kind schema.GroupVersionKind, namespace, name string, uid types.UID,
) (owned, error) {
	var object metav1.PartialObjectMetadata
	object.SetGroupVersionKind(kind)
	err := b.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &object)
	switch {
	case apierrors.IsNotFound(err):
		return owned{}, nil
	case err != nil:
		return owned{}, err
	case object.UID != uid:
		return owned{}, nil
	}
	return owned{owner: metav1.GetControllerOf(&object), labels: object.Labels}, nil
}

func isOf(owner *metav1.OwnerReference, kind schema.GroupVersionKind) bool {
	group, err := schema.ParseGroupVersion(owner.APIVersion)
	return err == nil && group.Group == kind.Group && owner.Kind == kind.Kind
}
