package task

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// Reconciler carries Tasks through their states.
type Reconciler struct {
	client.Client
	// Live reads past the caches.
	Live client.Reader
	// Recorder writes Kubernetes Events.
	Recorder events.EventRecorder
	// Clock is the only source of the current time: the API server's.
	Clock clock.PassiveClock
	// Gateways finds the gateway for Tasks with reporter Sidecar. Without it none of them gets a worker.
	Gateways *Gateways

	// actor stands in the history instead of who decided, where that is not the controller itself.
	actor string
	// again takes Tasks that are to be looked at, because somebody else has moved them.
	again        chan event.GenericEvent
	witness      *witness
	leadership   leadership
	maxClockSkew time.Duration
	// readsOwnWrites tells that reads from the caches show what this process has written.
	readsOwnWrites bool
}

// +kubebuilder:rbac:groups=taskwarden.dev,resources=tasks,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups=taskwarden.dev,resources=tasks/status,verbs=update
// +kubebuilder:rbac:groups=taskwarden.dev,resources=tasks/finalizers,verbs=update
// +kubebuilder:rbac:groups=batch,resources=jobs,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch;patch;delete
// +kubebuilder:rbac:groups="",resources=events,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=list;watch;create;patch

const (
	// afterConflict is how long a pass that lost a race twice waits for the caches to show what won.
	afterConflict = time.Second
	// cachePatience is how long a pass waits for the cache to show earlier writes.
	cachePatience = 5 * time.Second
	// whileTerminating is how long a Task in a namespace that is being deleted is left alone.
	whileTerminating = 30 * time.Second
)

// Reconcile is one pass over one Task: observe, decide, act. A pass that finds its Task outdated is made again.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	t, err := r.read(ctx, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	result, err := r.pass(ctx, t)
	if !outdated(err) {
		return result, err
	}
	// The cache is behind, and may stay so: what is stored now decides.
	logf.FromContext(ctx).V(1).Info("Decided on an old state, deciding again", "cause", err.Error())
	if err := r.Live.Get(ctx, req.NamespacedName, t); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if result, err = r.pass(ctx, t); outdated(err) {
		return ctrl.Result{RequeueAfter: afterConflict}, nil
	}
	return result, err
}

// outdated tells of an error that it is no failure: somebody was faster, and has changed or deleted the Task.
func outdated(err error) bool {
	return errors.Is(err, errStale) || apierrors.IsConflict(err) || apierrors.IsNotFound(err)
}

// pass is one pass over a Task as it was read.
func (r *Reconciler) pass(ctx context.Context, t *v1alpha1.Task) (ctrl.Result, error) {
	log := logf.FromContext(ctx).WithValues("attempt", t.Status.Attempt)
	snapshot, err := r.observe(ctx, t, false)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("observe: %w", err)
	}
	plan := decide(snapshot)
	if plan.Fixes {
		// A silent watch must not put a cancel or a deadline before what the worker has said long since.
		if snapshot, err = r.observe(ctx, t, true); err != nil {
			return ctrl.Result{}, fmt.Errorf("observe: %w", err)
		}
		plan = decide(snapshot)
	}
	err = r.apply(ctx, snapshot, &plan)
	if !outdated(err) {
		for _, refused := range plan.Refused {
			log.Info("Event refused", "cause", refused.Error())
			countRefused(refused)
		}
	}
	switch {
	case errors.Is(err, errNamespaceTerminating):
		return ctrl.Result{RequeueAfter: whileTerminating}, nil
	case err != nil:
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: r.until(plan.WakeAt)}, nil
}

// read reads a Task from the cache, which waits until it shows what earlier passes have written. Where a watch is silent it
// would wait for ever: then the API server is asked.
func (r *Reconciler) read(ctx context.Context, key client.ObjectKey) (*v1alpha1.Task, error) {
	var t v1alpha1.Task
	patience, cancel := context.WithTimeout(ctx, cachePatience)
	defer cancel()
	err := r.Get(patience, key, &t)
	if err != nil && patience.Err() != nil && ctx.Err() == nil {
		err = r.Live.Get(ctx, key, &t)
	}
	return &t, err
}

// until is the wait for a wake-up; zero, which means none, only where there is none.
func (r *Reconciler) until(at time.Time) time.Duration {
	if at.IsZero() {
		return 0
	}
	return max(at.Sub(r.Clock.Now()), time.Millisecond)
}
