package patrol

import (
	"context"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/controllers/task"
)

// workersPerPage bounds what is held at a time.
const workersPerPage = 250

// What may still run: the API server selects Jobs by no other field of their status, so those that have failed come along.
var (
	notSucceeded = client.MatchingFields{"status.successful": "0"}
	notOver      = client.MatchingFieldsSelector{Selector: fields.AndSelectors(
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
	)}
)

// suspects are workers by the UID of their Task, which has ended or is gone: one that has not ended is judged with its workers.
type suspects map[types.UID]*suspect

type suspect struct {
	task client.ObjectKey
	jobs []*metav1.PartialObjectMetadata
}

// add notes a Job that a Task of ours controls.
func (s suspects) add(job *metav1.ObjectMeta) {
	owner := metav1.GetControllerOf(job)
	if owner == nil || owner.Kind != "Task" || owner.APIVersion != v1alpha1.GroupVersion.String() {
		return // kept on purpose, by --cascade=orphan, or never ours
	}
	if s[owner.UID] == nil {
		s[owner.UID] = &suspect{task: client.ObjectKey{Namespace: job.Namespace, Name: owner.Name}}
	}
	s[owner.UID].jobs = append(s[owner.UID].jobs, partial("batch/v1", "Job", job))
}

// partial is as much of an object as names it beyond doubt.
func partial(version, kind string, o *metav1.ObjectMeta) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: version, Kind: kind},
		ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, UID: o.UID},
	}
}

// workers looks at all workers that may run and do not belong to a Task that has not ended.
func (r *round) workers(ctx context.Context, ns string) error {
	found := suspects{}
	if err := r.jobs(ctx, ns, found); err != nil {
		return err
	}
	if err := r.pods(ctx, ns, found); err != nil {
		return err
	}
	for uid, s := range found {
		if r.repair(ctx, s.task, uid) {
			continue
		}
		for _, job := range s.jobs {
			r.remove(ctx, job, "its Task "+s.task.Name+" is gone")
		}
	}
	return nil
}

// stray tells of a worker that is to be looked at: nobody deletes it, and it is as old as the threshold, since no mismatch of its is
// older than itself.
func (r *round) stray(worker *metav1.ObjectMeta) bool {
	return worker.DeletionTimestamp == nil && !r.open[types.UID(worker.Labels[v1alpha1.LabelTaskUID])] &&
		r.Clock.Since(worker.CreationTimestamp.Time) >= r.Options.Threshold
}

func (r *round) jobs(ctx context.Context, ns string, found suspects) error {
	for next := ""; ; {
		var page batchv1.JobList
		if err := r.Live.List(ctx, &page, client.InNamespace(ns), client.HasLabels{v1alpha1.LabelTaskUID}, notSucceeded,
			client.Limit(workersPerPage), client.Continue(next)); err != nil {
			return err
		}
		for i := range page.Items {
			if job := &page.Items[i]; !over(job) && r.stray(&job.ObjectMeta) {
				found.add(&job.ObjectMeta)
			}
		}
		if next = page.Continue; next == "" {
			return nil
		}
	}
}

func over(job *batchv1.Job) bool {
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
	})
}

// pods finds the workers whose Job says that it is over, or is gone.
func (r *round) pods(ctx context.Context, ns string, found suspects) error {
	for next := ""; ; {
		page := metav1.PartialObjectMetadataList{}
		page.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
		if err := r.Live.List(ctx, &page, client.InNamespace(ns), client.HasLabels{v1alpha1.LabelTaskUID}, notOver,
			client.Limit(workersPerPage), client.Continue(next)); err != nil {
			return err
		}
		for i := range page.Items {
			if err := r.pod(ctx, &page.Items[i].ObjectMeta, found); err != nil {
				return err
			}
		}
		if next = page.Continue; next == "" {
			return nil
		}
	}
}

func (r *round) pod(ctx context.Context, pod *metav1.ObjectMeta, found suspects) error {
	owner := metav1.GetControllerOf(pod)
	if found[types.UID(pod.Labels[v1alpha1.LabelTaskUID])] != nil || !r.stray(pod) || owner == nil || owner.Kind != "Job" {
		return nil
	}
	job := metav1.PartialObjectMetadata{}
	job.SetGroupVersionKind(batchv1.SchemeGroupVersion.WithKind("Job"))
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: owner.Name}, &job)
	switch {
	case apierrors.IsNotFound(err) || err == nil && job.UID != owner.UID:
		r.remove(ctx, partial("v1", "Pod", pod), "its Job "+owner.Name+" is gone")
	case err != nil:
		return err
	case job.DeletionTimestamp == nil:
		found.add(&job.ObjectMeta)
	}
	return nil
}

// remove deletes a worker whose owner is gone, as the garbage collector should have done. Nothing is left that could tell more of it.
func (r *round) remove(ctx context.Context, worker *metav1.PartialObjectMetadata, why string) {
	if !r.due(worker.UID, &task.Mismatch{Kind: task.OrphanWorker}) {
		return
	}
	log := r.Log.WithValues("namespace", worker.Namespace, worker.Kind, worker.Name)
	err := r.Client.Delete(ctx, worker, client.Preconditions{UID: ptr.To(worker.UID)}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return // somebody was faster
	}
	delete(r.seen, worker.UID)
	r.count(task.OrphanWorker)
	if err != nil {
		log.Error(err, "Could not delete an orphan worker")
		return
	}
	log.Info("Deleted an orphan worker", "cause", why)
	r.Recorder.Eventf(worker, nil, corev1.EventTypeWarning, v1alpha1.ReasonRepaired, "repair", "The patrol has deleted this %s: %s", worker.Kind, why)
}
