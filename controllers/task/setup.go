package task

import (
	"context"
	"reflect"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// indexTaskUID finds Jobs by the UID of the Task that controls them, pods by the label with it, and a Task by its own.
const indexTaskUID = "taskUID"

// indexRegarding finds Events by the UID of the object that they are about.
const indexRegarding = "regardingUID"

// DefaultConcurrency is how many Tasks are reconciled at once. Fewer make less of a busy API server; more see what has happened in
// more and smaller steps, and so write more (ADR 7 has the figures).
const DefaultConcurrency = 10

// firstRetry and lastRetry bound the wait after a pass that failed. A deadline may fall into it, so the last one is short.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 15 * time.Second
)

// endingPriority puts a worker's end before all that begins: a slot is freed and a result shown before new work starts.
const endingPriority = 10

// startPatience is how long the news of a start waits while more Tasks than there are passes at once wait for theirs: a worker that
// ends meanwhile, as short ones do in a flood, saves a status write and an Event, and all that come after it wait less.
const startPatience = podWait

// Options of the controller.
type Options struct {
	// Concurrency is how many Tasks are reconciled at once. Default DefaultConcurrency.
	Concurrency int
	// ReadsOwnWrites says that the manager's client was made by NewClient for one namespace or all. Default: it was not, and
	// every Task is read live before its Job is made.
	ReadsOwnWrites bool
	// Clock is the source of the current time: the API server's. Default: the machine's.
	Clock clock.PassiveClock
	// MaxClockSkew is how far a worker's clock may be from it, for what it reports. Default lifecycle.DefaultMaxClockSkew.
	MaxClockSkew time.Duration
	// Wrap puts another reconciler around this one, for tests. Default: none.
	Wrap func(reconcile.Reconciler) reconcile.Reconciler
	// SkipNameValidation allows several controllers in one process, for tests.
	SkipNameValidation bool
}

// The Events that decisions read.
var (
	failedCreates = bothFields("involvedObject.kind", "Job", "reason", "FailedCreate")
	failedMounts  = bothFields("regarding.kind", "Pod", "reason", "FailedMount")
)

// bothFields selects by two fields, which stay in this order.
func bothFields(first, is, second, alsoIs string) fields.Selector {
	return fields.AndSelectors(fields.OneTermEqualSelector(first, is), fields.OneTermEqualSelector(second, alsoIs))
}

// CacheByObject says what the caches hold: of Jobs and pods only our own, and of these only what decisions need.
func CacheByObject() map[client.Object]cache.ByObject {
	exists, err := labels.NewRequirement(v1alpha1.LabelTaskUID, selection.Exists, nil)
	if err != nil {
		panic(err) // a constant
	}
	ours := labels.NewSelector().Add(*exists)
	return map[client.Object]cache.ByObject{
		&v1alpha1.Task{}: {Transform: cache.TransformStripManagedFields()},
		&batchv1.Job{}:   {Label: ours, Transform: stripJob, UnsafeDisableDeepCopy: ptr.To(true)},
		&corev1.Pod{}:    {Label: ours, Transform: stripPod, UnsafeDisableDeepCopy: ptr.To(true)},
		// The same Events have two kinds in the API, which makes room for two filters on the server.
		&corev1.Event{}: {
			Field:     failedCreates,
			Transform: cache.TransformStripManagedFields(), UnsafeDisableDeepCopy: ptr.To(true),
		},
		&eventsv1.Event{}: {
			Field:     failedMounts,
			Transform: cache.TransformStripManagedFields(), UnsafeDisableDeepCopy: ptr.To(true),
		},
	}
}

func stripJob(obj any) (any, error) {
	if job, ok := obj.(*batchv1.Job); ok {
		job.ManagedFields, job.Annotations = nil, nil
		job.Spec = batchv1.JobSpec{Suspend: job.Spec.Suspend}
	}
	return obj, nil
}

// stripPod keeps of a pod what factsOfPod reads.
func stripPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	pod.ManagedFields, pod.Annotations = nil, nil
	spec := corev1.PodSpec{
		NodeName:                      pod.Spec.NodeName,
		ActiveDeadlineSeconds:         pod.Spec.ActiveDeadlineSeconds,
		TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds,
	}
	for i := range pod.Spec.Containers {
		spec.Containers = append(spec.Containers, corev1.Container{Name: pod.Spec.Containers[i].Name})
	}
	pod.Spec = spec
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for i := range statuses {
			statuses[i] = corev1.ContainerStatus{Name: statuses[i].Name, State: statuses[i].State}
		}
	}
	return pod, nil
}

// SetupWithManager registers the controller with the manager, whose cache must be built with CacheByObject.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, o Options) error {
	if r.Client == nil {
		r.Client = mgr.GetClient()
	}
	if r.Live == nil {
		r.Live = mgr.GetAPIReader()
	}
	if r.Recorder == nil {
		r.Recorder = mgr.GetEventRecorder("taskwarden")
	}
	if r.Clock = o.Clock; r.Clock == nil {
		r.Clock = clock.RealClock{}
	}
	if r.maxClockSkew = o.MaxClockSkew; r.maxClockSkew <= 0 {
		r.maxClockSkew = lifecycle.DefaultMaxClockSkew
	}
	if o.Concurrency <= 0 {
		o.Concurrency = DefaultConcurrency
	}
	var pass reconcile.Reconciler = r
	if o.Wrap != nil {
		pass = o.Wrap(r)
	}
	r.readsOwnWrites = o.ReadsOwnWrites
	r.witness = newWitness()
	r.again = make(chan event.GenericEvent)
	if err := addIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("task").
		For(&v1alpha1.Task{}, builder.WithPredicates(taskChanged)).
		Watches(&v1alpha1.Task{}, reportHandler).
		Owns(&batchv1.Job{}, builder.WithPredicates(jobChanged)).
		Watches(&corev1.Pod{}, r.podHandler(o.Concurrency)).
		Watches(&corev1.Event{}, handler.EnqueueRequestsFromMapFunc(r.taskOfJobEvent), builder.WithPredicates(notDeleted)).
		Watches(&eventsv1.Event{}, handler.EnqueueRequestsFromMapFunc(r.taskOfPodEvent), builder.WithPredicates(notDeleted)).
		WatchesRawSource(source.Channel(r.again, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: o.Concurrency,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
			SkipNameValidation:      ptr.To(o.SkipNameValidation),
		}).
		Complete(pass)
}

func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	byOwner := func(obj client.Object) []string {
		if ref := metav1.GetControllerOf(obj); ref != nil && ref.Kind == "Task" && ref.APIVersion == v1alpha1.GroupVersion.String() {
			return []string{string(ref.UID)}
		}
		return nil
	}
	byLabel := func(obj client.Object) []string { return []string{obj.GetLabels()[v1alpha1.LabelTaskUID]} }
	byUID := func(obj client.Object) []string { return []string{string(obj.GetUID())} }
	if err := indexer.IndexField(ctx, &batchv1.Job{}, indexTaskUID, byOwner); err != nil {
		return err
	}
	if err := indexer.IndexField(ctx, &corev1.Pod{}, indexTaskUID, byLabel); err != nil {
		return err
	}
	if err := indexer.IndexField(ctx, &v1alpha1.Task{}, indexTaskUID, byUID); err != nil {
		return err
	}
	if err := indexer.IndexField(ctx, &corev1.Event{}, indexRegarding, func(obj client.Object) []string {
		return []string{string(obj.(*corev1.Event).InvolvedObject.UID)}
	}); err != nil {
		return err
	}
	return indexer.IndexField(ctx, &eventsv1.Event{}, indexRegarding, func(obj client.Object) []string {
		return []string{string(obj.(*eventsv1.Event).Regarding.UID)}
	})
}

// notDeleted drops the end of an Event: nothing has happened, only its time is over.
var notDeleted = predicate.Funcs{DeleteFunc: func(event.DeleteEvent) bool { return false }}

// taskOfJobEvent wakes the Task whose Job an Event is about.
func (r *Reconciler) taskOfJobEvent(ctx context.Context, obj client.Object) []reconcile.Request {
	e, ok := obj.(*corev1.Event)
	if !ok {
		return nil
	}
	var job batchv1.Job
	if err := r.Get(ctx, client.ObjectKey{Namespace: e.Namespace, Name: e.InvolvedObject.Name}, &job, notWaiting); err != nil {
		return nil // not ours, or gone
	}
	ref := metav1.GetControllerOf(&job)
	if ref == nil || job.UID != e.InvolvedObject.UID {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: e.Namespace, Name: ref.Name}}}
}

// taskOfPodEvent wakes the Task whose pod an Event is about.
func (r *Reconciler) taskOfPodEvent(ctx context.Context, obj client.Object) []reconcile.Request {
	e, ok := obj.(*eventsv1.Event)
	if !ok {
		return nil
	}
	var pod corev1.Pod
	if err := r.Get(ctx, client.ObjectKey{Namespace: e.Namespace, Name: e.Regarding.Name}, &pod, notWaiting); err != nil {
		return nil // not ours, or gone
	}
	return r.tasksOfPod(ctx, &pod)
}

// tasksOfPod finds the Task of a pod by the UID in its label.
func (r *Reconciler) tasksOfPod(ctx context.Context, pod *corev1.Pod) []reconcile.Request {
	var found v1alpha1.TaskList
	if err := r.List(ctx, &found, client.InNamespace(pod.Namespace),
		client.MatchingFields{indexTaskUID: pod.Labels[v1alpha1.LabelTaskUID]}, client.UnsafeDisableDeepCopy, notWaiting); err != nil {
		return nil // the cache has stopped, and the process with it
	}
	var requests []reconcile.Request
	for i := range found.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&found.Items[i])})
	}
	return requests
}

// taskChanged lets pass what a user has changed; the status is ours, but for reports.
var taskChanged = predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{})

// jobChanged lets pass what a decision could see.
var jobChanged = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return true },
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*batchv1.Job)
		after, ok2 := e.ObjectNew.(*batchv1.Job)
		return !ok || !ok2 || *factsOfJob(before) != *factsOfJob(after)
	},
	DeleteFunc:  func(event.DeleteEvent) bool { return true },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// reportHandler wakes a Task whose worker's final report has been stored, before all that begins, and one whose worker has entered
// another stage, which may have a timeout. Other reports only put off what a wake-up is set for.
var reportHandler = handler.Funcs{
	UpdateFunc: func(_ context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		before, ok := e.ObjectOld.(*v1alpha1.Task)
		after, ok2 := e.ObjectNew.(*v1alpha1.Task)
		if !ok || !ok2 {
			return
		}
		req := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(after)}
		switch {
		case after.Status.Report != nil && !equality.Semantic.DeepEqual(before.Status.Report, after.Status.Report):
			enqueueEnding(q, req)
		case !stageTime(before).Equal(stageTime(after)):
			q.Add(req)
		}
	},
}

// stageTime is when the worker entered its stage.
func stageTime(t *v1alpha1.Task) *metav1.MicroTime {
	if t.Status.Progress == nil {
		return nil
	}
	return t.Status.Progress.StageTime
}

// enqueueEnding puts what frees a slot and shows a result before new work.
func enqueueEnding(q workqueue.TypedRateLimitingInterface[reconcile.Request], req reconcile.Request) {
	if pq, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		pq.AddWithOpts(priorityqueue.AddOpts{Priority: ptr.To(endingPriority)}, req)
		return
	}
	q.Add(req)
}

// podChanged tells whether a decision could see the difference. Which container is the worker only its Task knows, so all of
// them count.
func podChanged(before, after *corev1.Pod) bool {
	return !reflect.DeepEqual(factsOfPod(before, ""), factsOfPod(after, "")) ||
		!equality.Semantic.DeepEqual(before.Status.ContainerStatuses, after.Status.ContainerStatuses)
}

// podHandler wakes the Task of a pod: endings first, and where many wait, starts a little later. concurrency is how many passes
// there are at once.
func (r *Reconciler) podHandler(concurrency int) handler.EventHandler {
	enqueue := func(ctx context.Context, obj client.Object, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return
		}
		facts := factsOfPod(pod, "")
		ended := facts.Exit != nil || !facts.MayRun
		for _, req := range r.tasksOfPod(ctx, pod) {
			switch {
			case ended:
				enqueueEnding(q, req)
			case !facts.RunningSince.IsZero() && q.Len() > concurrency:
				q.AddAfter(req, startPatience)
			default:
				q.Add(req)
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.Object, q)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			before, ok := e.ObjectOld.(*corev1.Pod)
			after, ok2 := e.ObjectNew.(*corev1.Pod)
			if ok && ok2 && !podChanged(before, after) {
				return
			}
			enqueue(ctx, e.ObjectNew, q)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			if pod, ok := e.Object.(*corev1.Pod); ok && !e.DeleteStateUnknown {
				r.witness.deleted(pod)
			}
			enqueue(ctx, e.Object, q)
		},
	}
}

// NewClient makes the manager's client: its reads from the caches show its own writes, so that a pass does not decide on a
// state that an earlier pass has left. For several named namespaces controller-runtime cannot do that; there a conflict tells.
func NewClient(namespaces int) client.NewClientFunc {
	return func(cfg *rest.Config, o client.Options) (client.Client, error) {
		if o.Cache != nil {
			o.Cache.EnableReadYourWritesConsistency = ptr.To(ReadsOwnWrites(namespaces))
		}
		return client.New(cfg, o)
	}
}

// ReadsOwnWrites tells whether NewClient's client for so many named namespaces, none for all, shows its own writes.
func ReadsOwnWrites(namespaces int) bool { return namespaces <= 1 }
