package task

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// errStale says that the Task has changed since it was read: nothing is done, the next pass decides anew.
var errStale = errors.New("the Task has changed since it was read")

// errNamespaceTerminating says that nothing can be created here any more; the Task itself is about to go.
var errNamespaceTerminating = errors.New("the namespace is terminating")

// apply carries a plan out: first the Job, so that the write which tells of it never names one that does not exist; then the
// status; then everything that destroys.
func (r *Reconciler) apply(ctx context.Context, s Snapshot, plan *Plan) error {
	if plan.Create {
		if err := r.create(ctx, s, plan); err != nil {
			return err
		}
	}
	r.sign(s.Task, plan.Task)
	if !equality.Semantic.DeepEqual(s.Task.Status, plan.Task.Status) && (r.actor != "" || !plan.nothingToTell(s)) {
		if err := r.Status().Update(ctx, plan.Task); err != nil {
			return fmt.Errorf("write status: %w", err)
		}
		r.announce(s.Task, plan.Task, s.nodeAhead())
		if !lifecycle.Accepted(s.Task) && !lifecycle.Terminal(plan.Task.Status.State) {
			plan.WakeAt = s.Now // what is recorded now can be asked about
		}
	}
	if err := r.mayDestroy(ctx, s, plan); err != nil {
		return err
	}
	for _, stop := range plan.Stop {
		if err := r.stop(ctx, s.Task.Namespace, stop); err != nil {
			r.tell(plan.Task, corev1.EventTypeWarning, v1alpha1.ReasonStopFailed, "stop", err.Error())
			return err
		}
	}
	for _, job := range plan.DeleteJobs {
		if err := r.deleteJob(ctx, s.Task.Namespace, job, metav1.DeletePropagationBackground); err != nil {
			return err
		}
	}
	if plan.DeleteTask {
		err := r.Delete(ctx, plan.Task, client.PropagationPolicy(metav1.DeletePropagationBackground),
			client.Preconditions{UID: &plan.Task.UID, ResourceVersion: &plan.Task.ResourceVersion})
		return client.IgnoreNotFound(err)
	}
	return nil
}

// create makes the Job of the current attempt, and puts the outcome into the plan: the Job's UID, or why there is none yet.
func (r *Reconciler) create(ctx context.Context, s Snapshot, plan *Plan) error {
	t := plan.Task
	if err := r.mayCreate(ctx, s.Task); err != nil {
		return err
	}
	job, err := r.newJob(ctx, t)
	if err == nil {
		err = r.Create(ctx, job)
	}
	if apierrors.IsAlreadyExists(err) {
		job, err = r.adopt(ctx, t, job.Name)
	}
	switch {
	case err == nil:
		t.Status.Worker.JobUID = job.UID
		t.Status.Reason, t.Status.Message = v1alpha1.ReasonWaitingForWorker, "The worker Job was created"
		plan.WakeAt = lifecycle.Earliest(plan.WakeAt, s.Now.Add(podWait), lifecycle.StartDeadline(t))
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return errNamespaceTerminating
	default:
		createFailed(s.Now, plan, err)
	}
	redecide := decision{Snapshot: Snapshot{Task: s.Task, Now: s.Now}, plan: plan, task: t, now: s.Now}
	redecide.setConditions()
	return nil
}

// newJob is the Job of the current attempt; an error says that the gateway is not there.
func (r *Reconciler) newJob(ctx context.Context, t *v1alpha1.Task) (*batchv1.Job, error) {
	if !hasSidecar(t) {
		return newJob(t, nil), nil
	}
	gateway, err := r.Gateways.Find(ctx)
	if err != nil {
		return nil, &noGatewayError{err}
	}
	return newJob(t, gateway), nil
}

// noGatewayError says that a sidecar would not know where to deliver.
type noGatewayError struct{ error }

func (e *noGatewayError) Unwrap() error { return e.error }

// strangerError says that the needed name is taken by a Job that is not ours.
type strangerError struct{ name string }

func (e *strangerError) Error() string {
	return fmt.Sprintf("a Job named %s exists that is not this attempt's own, or is being deleted; it is left alone", e.name)
}

// adopt takes the Job of that name if it is this attempt's own, made by a pass whose answer or write was lost.
func (r *Reconciler) adopt(ctx context.Context, t *v1alpha1.Task, name string) (*batchv1.Job, error) {
	var job batchv1.Job
	if err := r.Live.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: name}, &job); err != nil {
		return nil, fmt.Errorf("read Job %s: %w", name, err)
	}
	if !metav1.IsControlledBy(&job, t) || attemptOf(job.Labels) != t.Status.Attempt || job.DeletionTimestamp != nil {
		return nil, &strangerError{name: name}
	}
	return &job, nil
}

// createFailed sorts an error of the creation: refused for good, or to be tried again until the start timeout.
func createFailed(now time.Time, plan *Plan, err error) {
	t := plan.Task
	reason := v1alpha1.ReasonCreatePending
	var stranger *strangerError
	var gateway *noGatewayError
	switch {
	case invalidField(err):
		// Where this pass has moved the Task already, the next one meets the same refusal and ends it.
		t.Status.Reason, t.Status.Message = v1alpha1.ReasonInvalidTemplate, lifecycle.Truncate(err.Error())
		d := decision{plan: plan, task: t, now: now}
		d.end(lifecycle.Ending{Event: lifecycle.Fail, Reason: v1alpha1.ReasonInvalidTemplate, Message: err.Error()}, lifecycle.Facts{})
		return
	case errors.As(err, &stranger):
		reason = v1alpha1.ReasonNameConflict
	case errors.As(err, &gateway):
		reason = v1alpha1.ReasonGatewayMissing
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
		// Webhooks that name no code are answered for with 400, policies that name no reason with 422. The API server gives no
		// cause for a full quota but its text.
		reason = v1alpha1.ReasonAdmissionDenied
		if strings.Contains(err.Error(), "exceeded quota") {
			reason = v1alpha1.ReasonQuotaExceeded
		}
	}
	if t.Status.Reason != reason {
		t.Status.Reason, t.Status.Message = reason, lifecycle.Truncate(err.Error())
	}
	next := nextTry(t.Status.Worker.CreateTime.Time, now)
	if s, ok := apierrors.SuggestsClientDelay(err); ok {
		// A server in distress may well suggest 0.
		next = later(next, now.Add(time.Duration(s)*time.Second))
	}
	plan.WakeAt = lifecycle.Earliest(plan.WakeAt, next, lifecycle.StartDeadline(t))
}

// invalidField tells of a refusal that it names a field of the Job and is not a webhook's, so that it is the API server's own
// validation: that refusal is for good, a policy's may change. A webhook's differs from it only in its text.
func invalidField(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil ||
		strings.HasPrefix(status.Status().Message, "admission webhook ") {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field != "" })
}

// nextTry spaces tries of a creation: after the first wait, then each time half as old again, at most every 30 seconds.
func nextTry(since, now time.Time) time.Time {
	return now.Add(min(max(now.Sub(since)/2, time.Second), 30*time.Second))
}

// stop carries out one order. What is already gone, or has come to its end meanwhile, has stopped.
func (r *Reconciler) stop(ctx context.Context, namespace string, order Stop) error {
	switch order.By {
	case StopByDeadline:
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: order.Name}}
		patch := fmt.Sprintf(`{"metadata":{"uid":%q},"spec":{"activeDeadlineSeconds":%d}}`, order.UID, stopDeadlineSeconds)
		err := ignoreStopped(r.Patch(ctx, pod, client.RawPatch(types.MergePatchType, []byte(patch))))
		switch {
		case err == nil:
			return nil
		case apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
			// A policy, say. The other way to stop it leaves no evidence, but stops it.
			return r.deletePod(ctx, namespace, order.ObjectKey)
		}
		return fmt.Errorf("stop pod %s: %w", order.Name, err)
	case StopByDeletingPod:
		return r.deletePod(ctx, namespace, order.ObjectKey)
	case StopByDeletingJob:
		// In the foreground: the Job stays until its pods have gone, and its absence then proves theirs.
		return r.deleteJob(ctx, namespace, order.ObjectKey, metav1.DeletePropagationForeground)
	}
	return nil
}

// ignoreStopped drops the errors that say that the object is gone, or that another one has its name by now.
func ignoreStopped(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return client.IgnoreNotFound(err)
}

func (r *Reconciler) deletePod(ctx context.Context, namespace string, key ObjectKey) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: key.Name}}
	if err := ignoreStopped(r.Delete(ctx, pod, client.Preconditions{UID: &key.UID})); err != nil {
		return fmt.Errorf("delete pod %s: %w", key.Name, err)
	}
	return nil
}

func (r *Reconciler) deleteJob(ctx context.Context, namespace string, key ObjectKey, how metav1.DeletionPropagation) error {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: key.Name}}
	err := ignoreStopped(r.Delete(ctx, job, client.Preconditions{UID: &key.UID}, client.PropagationPolicy(how)))
	if err != nil {
		return fmt.Errorf("delete Job %s: %w", key.Name, err)
	}
	return nil
}
