package task

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// observe gathers the Snapshot of a Task: from the caches, and by live reads where the caches show nothing of what the status
// has recorded. With live the pods are read live in any case.
func (r *Reconciler) observe(ctx context.Context, t *v1alpha1.Task, live bool) (Snapshot, error) {
	s := Snapshot{Task: t, Now: r.Clock.Now(), MaxClockSkew: r.maxClockSkew}
	gathered, err := r.gather(ctx, t)
	if err == nil && live {
		err = r.listPods(ctx, t, gathered)
	}
	if err != nil {
		return s, err
	}
	if next := unstarted(t); next > 0 {
		// Where no Job will be made, one may have been made and not told of yet.
		wanted := !ptr.Deref(t.Spec.Cancel, false) && !lifecycle.Passed(lifecycle.OverallDeadline(t), s.Now)
		err = r.findUntold(ctx, t, gathered, next, !wanted)
	} else {
		err = r.proveAbsence(ctx, t, gathered)
	}
	if err != nil {
		return s, err
	}
	s.Workers = gathered.workers(t)
	align(t, s.Workers, s.Now)
	err = r.askWhy(ctx, &s)
	return s, err
}

// unstarted is the number of the attempt that comes next, as far as the status tells; 0 where one is open, or none comes.
func unstarted(t *v1alpha1.Task) int32 {
	switch s := &t.Status; {
	case !lifecycle.Accepted(t):
		return 1
	case s.State == v1alpha1.StatePending && s.Worker == nil:
		return s.Attempt
	case s.State == v1alpha1.StateRetrying:
		return s.Attempt + 1
	}
	return 0
}

// belongings are the Jobs and pods that belong to one Task.
type belongings struct {
	jobs map[types.UID]*batchv1.Job
	pods map[types.UID]*corev1.Pod
	// strays are pods of a Job that is not seen, and that the status does not tell of.
	strays []*corev1.Pod
	// gone is the Job that has made them, once it is known to be gone.
	gone types.UID
}

// notWaiting: these reads need not show the last writes, and must not wait for those of all other Tasks. What is missing is
// read live.
const notWaiting = client.DisableReadYourWritesConsistency

// gather reads them from the caches, by owner UID.
func (r *Reconciler) gather(ctx context.Context, t *v1alpha1.Task) (*belongings, error) {
	b := &belongings{jobs: map[types.UID]*batchv1.Job{}, pods: map[types.UID]*corev1.Pod{}}
	var jobs batchv1.JobList
	if err := r.List(ctx, &jobs, client.InNamespace(t.Namespace), client.MatchingFields{indexTaskUID: string(t.UID)}, notWaiting); err != nil {
		return nil, fmt.Errorf("list Jobs: %w", err)
	}
	for i := range jobs.Items {
		b.addJob(t, &jobs.Items[i])
	}
	var pods corev1.PodList
	if err := r.List(ctx, &pods, client.InNamespace(t.Namespace), client.MatchingFields{indexTaskUID: string(t.UID)}, notWaiting); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	for i := range pods.Items {
		b.addPod(t, &pods.Items[i])
	}
	return b, nil
}

func (b *belongings) addJob(t *v1alpha1.Task, job *batchv1.Job) {
	if metav1.IsControlledBy(job, t) {
		b.jobs[job.UID] = job
	}
}

// addPod takes a pod in that a Job of ours controls. One whose Job is gone, orphaned or on its way out, is told by what is
// recorded: the pod's UID, or the UID of the Job that made it.
func (b *belongings) addPod(t *v1alpha1.Task, pod *corev1.Pod) {
	recorded := t.Status.Worker
	if recorded == nil {
		recorded = &v1alpha1.WorkerStatus{}
	}
	owner := types.UID(pod.Labels[batchv1.ControllerUidLabel])
	if ref := metav1.GetControllerOf(pod); ref != nil {
		owner = ref.UID
	}
	_, ours := b.jobs[owner]
	switch {
	case ours || pod.UID == recorded.PodUID || owner != "" && owner == recorded.JobUID:
		b.pods[pod.UID] = pod
	case isStray(t, pod):
		b.strays = append(b.strays, pod)
	}
}

// isStray tells of a pod that it was made for an attempt whose Job is not recorded yet: by the name of that Job, which is no other's.
func isStray(t *v1alpha1.Task, pod *corev1.Pod) bool {
	next := unrecorded(t)
	job := pod.Labels[batchv1.JobNameLabel]
	if ref := metav1.GetControllerOf(pod); ref != nil {
		job = ref.Name
	}
	return next > 0 && attemptOf(pod.Labels) == next && job == JobName(t.Name, next)
}

// unrecorded is the number of the attempt whose Job may exist although the status does not name it; 0 where there is none.
func unrecorded(t *v1alpha1.Task) int32 {
	switch s := &t.Status; {
	case s.State == v1alpha1.StateFailed:
		return s.Attempt + 1 // it may have been retried by hand
	case s.State == v1alpha1.StatePending && s.Worker != nil && s.Worker.JobUID == "":
		return s.Attempt
	}
	return unstarted(t)
}

// findUntold looks for what an earlier pass has made for the next attempt and the status does not tell of: the write was lost, or
// waits for news. A Job that is not seen is looked for where there is a reason to.
func (r *Reconciler) findUntold(ctx context.Context, t *v1alpha1.Task, b *belongings, next int32, look bool) error {
	job := b.jobOf(next)
	if job == nil && (look || len(b.strays) > 0) {
		var err error
		if job, err = r.findJob(ctx, t, b, next, JobName(t.Name, next)); err != nil {
			return err
		}
	}
	strays := b.strays
	b.strays = nil
	for _, pod := range strays {
		if job == nil {
			// Somebody has deleted the Job before it was told of. Its worker is this attempt's all the same.
			b.pods[pod.UID], b.gone = pod, types.UID(pod.Labels[batchv1.ControllerUidLabel])
			if ref := metav1.GetControllerOf(pod); ref != nil {
				b.gone = ref.UID
			}
			continue
		}
		b.addPod(t, pod)
	}
	if job != nil && overJob(job) && !b.hasPodOf(next) {
		return r.listPods(ctx, t, b)
	}
	return nil
}

// overJob tells of a Job that it will make no more pods.
func overJob(job *batchv1.Job) bool {
	return factsOfJob(job).Finished() || job.DeletionTimestamp != nil
}

// proveAbsence reads live what the status says must exist and the caches do not show.
func (r *Reconciler) proveAbsence(ctx context.Context, t *v1alpha1.Task, b *belongings) error {
	w := t.Status.Worker
	if w == nil || lifecycle.Terminal(t.Status.State) || t.Status.State == v1alpha1.StateRetrying {
		return nil
	}
	job, err := r.findJob(ctx, t, b, t.Status.Attempt, w.JobName)
	if err != nil {
		return err
	}
	if w.JobUID == "" {
		return r.findUntold(ctx, t, b, t.Status.Attempt, false)
	}
	_, seen := b.pods[w.PodUID]
	if seen || w.PodUID == "" && (job != nil && !overJob(job) || b.hasPodOf(t.Status.Attempt)) {
		return nil
	}
	return r.listPods(ctx, t, b)
}

// listPods reads the pods of a Task live.
func (r *Reconciler) listPods(ctx context.Context, t *v1alpha1.Task, b *belongings) error {
	var pods corev1.PodList
	if err := r.Live.List(ctx, &pods, client.InNamespace(t.Namespace),
		client.MatchingLabels{v1alpha1.LabelTaskUID: string(t.UID)}); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	for i := range pods.Items {
		b.addPod(t, &pods.Items[i])
	}
	return nil
}

// findJob is the Job of an attempt, nil where there is none in the cluster.
func (r *Reconciler) findJob(ctx context.Context, t *v1alpha1.Task, b *belongings, attempt int32, name string) (*batchv1.Job, error) {
	if job := b.jobOf(attempt); job != nil {
		return job, nil
	}
	var live batchv1.Job
	switch err := r.Live.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: name}, &live); {
	case err == nil:
		b.addJob(t, &live)
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("read Job %s: %w", name, err)
	}
	return b.jobOf(attempt), nil
}

func (b *belongings) jobOf(attempt int32) *batchv1.Job {
	for _, job := range b.jobs {
		if attemptOf(job.Labels) == attempt {
			return job
		}
	}
	return nil
}

func (b *belongings) hasPodOf(attempt int32) bool {
	for _, pod := range b.pods {
		if attemptOf(pod.Labels) == attempt {
			return true
		}
	}
	return false
}

// workers sorts the belongings into attempts, pods oldest first.
func (b *belongings) workers(t *v1alpha1.Task) []Worker {
	byAttempt := map[int32]*Worker{}
	get := func(labels map[string]string) *Worker {
		n := attemptOf(labels)
		if byAttempt[n] == nil {
			byAttempt[n] = &Worker{Attempt: n}
		}
		return byAttempt[n]
	}
	for _, job := range b.jobs {
		get(job.Labels).Job = factsOfJob(job)
	}
	if b.gone != "" {
		get(map[string]string{v1alpha1.LabelAttempt: strconv.Itoa(int(unrecorded(t)))}).GoneJob = b.gone
	}
	container := workerContainer(&t.Spec.Template.Spec, t.Spec.WorkerContainer).Name
	for _, pod := range b.pods {
		w := get(pod.Labels)
		w.Pods = append(w.Pods, factsOfPod(pod, container))
	}
	workers := make([]Worker, 0, len(byAttempt))
	for _, w := range byAttempt {
		// Creation times have whole seconds: the name makes the order the same in every pass.
		slices.SortFunc(w.Pods, func(a, b PodFacts) int {
			return cmp.Or(a.CreateTime.Compare(b.CreateTime), strings.Compare(a.Name, b.Name))
		})
		workers = append(workers, *w)
	}
	slices.SortFunc(workers, func(a, b Worker) int { return int(a.Attempt) - int(b.Attempt) })
	return workers
}

// askWhy reads what the objects do not tell: the Events that say why a pod is not created or its volumes not mounted, and
// whether the node of a vanished worker answers.
func (r *Reconciler) askWhy(ctx context.Context, s *Snapshot) error {
	status := &s.Task.Status
	if lifecycle.Terminal(status.State) {
		return nil
	}
	if err := r.askNode(ctx, s); err != nil {
		return err
	}
	if d := (decision{Snapshot: *s, task: s.Task}); d.hasWorker() {
		return r.askAboutPod(ctx, s, &d)
	}
	return nil
}

// askNode asks the node of a vanished worker, where its word counts.
func (r *Reconciler) askNode(ctx context.Context, s *Snapshot) error {
	d := decision{Snapshot: *s, task: s.Task}
	node := d.nodeToAsk()
	if node == "" {
		return nil
	}
	var err error
	s.NodeReady, s.NodeReadySince, err = r.nodeReady(ctx, node)
	return err
}

// askAboutPod asks what has become of the current attempt's pod.
func (r *Reconciler) askAboutPod(ctx context.Context, s *Snapshot, d *decision) error {
	status := &s.Task.Status
	w := d.worker(status.Attempt)
	pod := d.pod(w)
	var err error
	old := status.Worker.CreateTime != nil && s.Now.Sub(status.Worker.CreateTime.Time) >= podWait
	switch {
	case d.lostSight(w):
		s.StopWitnessed = r.witness.stopped(status.Worker.PodUID)
	case status.State != v1alpha1.StatePending || !old || w == nil || w.Job == nil:
	case pod == nil:
		s.PodCreateError, err = r.failedCreate(ctx, s.Task.Namespace, w.Job.UID)
	case pod.Waiting.Reason == containerCreating && !pod.Prepared:
		s.MountError, err = r.failedMount(ctx, s.Task.Namespace, pod.UID)
	}
	return err
}

// nodeToAsk is the node whose word about a vanished worker counts; empty where none does.
func (d *decision) nodeToAsk() string {
	status := &d.task.Status
	switch {
	case !d.hasWorker() || d.uncreated():
		if d.waitsForLost() && workerLost(d.task) {
			return d.lastNode()
		}
	case d.lostSight(d.worker(status.Attempt)):
		return status.Worker.NodeName
	}
	return ""
}

// lostSight tells of the current attempt that it had a pod which is not there any more.
func (d *decision) lostSight(w *Worker) bool {
	status := &d.task.Status
	return d.pod(w) == nil && (status.State == v1alpha1.StateProcessing || status.Worker.PodUID != "")
}

// failedCreate is the newest text of the Job controller's FailedCreate Events about a Job; empty where there is none.
func (r *Reconciler) failedCreate(ctx context.Context, namespace string, job types.UID) (string, error) {
	var events corev1.EventList
	if err := r.List(ctx, &events, client.InNamespace(namespace), client.MatchingFields{indexRegarding: string(job)}, notWaiting); err != nil {
		return "", fmt.Errorf("list Events: %w", err)
	}
	var newest corev1.Event
	for _, e := range events.Items {
		if newest.Message == "" || newest.LastTimestamp.Before(&e.LastTimestamp) {
			newest = e
		}
	}
	return newest.Message, nil
}

// failedMount is the same for the kubelet's FailedMount Events about a pod.
func (r *Reconciler) failedMount(ctx context.Context, namespace string, pod types.UID) (string, error) {
	var events eventsv1.EventList
	if err := r.List(ctx, &events, client.InNamespace(namespace), client.MatchingFields{indexRegarding: string(pod)}, notWaiting); err != nil {
		return "", fmt.Errorf("list Events: %w", err)
	}
	var newest eventsv1.Event
	for _, e := range events.Items {
		if newest.Note == "" || newest.DeprecatedLastTimestamp.Before(&e.DeprecatedLastTimestamp) {
			newest = e
		}
	}
	return newest.Note, nil
}

// nodeReady tells whether the node's kubelet answers, and since when.
func (r *Reconciler) nodeReady(ctx context.Context, name string) (bool, time.Time, error) {
	var node corev1.Node
	switch err := r.Live.Get(ctx, client.ObjectKey{Name: name}, &node); {
	case apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
		return false, time.Time{}, nil // an operator that may not read nodes has no word of theirs
	case err != nil:
		return false, time.Time{}, fmt.Errorf("read node %s: %w", name, err)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, c.LastTransitionTime.Time, nil
		}
	}
	return false, time.Time{}, nil
}
