package task

import (
	"context"
	"encoding/json"
	"errors"
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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/invariants"
)

// The API server of the model, as far as the controller talks to it. It is much faster than the fake client: stored objects are
// never changed in place, so that reading and copying a cluster costs little.

// fate is what becomes of one call of a pass.
type fate int

const (
	served   fate = iota
	conflict      // refused: somebody was faster
	broken        // not carried out
	lost          // carried out, and the answer does not arrive
	killed        // carried out, and the controller dies
	raced         // somebody does something right before it
)

// disturbance is what goes wrong in one pass.
type disturbance struct {
	write int // of which write, counted from 1; 0: none
	read  int // which live read fails
	fate  fate
	race  func(*cluster)
}

var (
	errDead = errors.New("the controller is dead")
	errLost = errors.New("connection reset by peer")
	jobsGR  = schema.GroupResource{Group: "batch", Resource: "jobs"}
	podsGR  = schema.GroupResource{Resource: "pods"}
)

// api is the API server during one pass. The embedded client is nil: a call that the model does not know panics.
type api struct {
	client.Client
	c             *cluster
	writes, reads int
	disturbance   disturbance
	dead          bool
}

// write carries a write out, or what the disturbance makes of it.
func (a *api) write(gr schema.GroupResource, do func() error) error {
	if a.dead {
		return errDead
	}
	a.writes++
	if a.disturbance.write != a.writes {
		return do()
	}
	switch a.disturbance.fate {
	case conflict:
		return apierrors.NewConflict(gr, "demo", errors.New("the model says so"))
	case broken:
		return apierrors.NewInternalError(errors.New("the model says so"))
	case raced:
		a.disturbance.race(a.c)
		return do()
	case lost:
		if err := do(); err != nil {
			return err
		}
		return errLost
	case killed:
		_ = do()
		a.dead = true
		return errDead
	default:
	}
	return do()
}

// read tells whether a live read gets an answer.
func (a *api) read() error {
	if a.dead {
		return errDead
	}
	a.reads++
	if a.disturbance.read == a.reads {
		return apierrors.NewInternalError(errors.New("the model says so"))
	}
	return nil
}

func (a *api) Create(_ context.Context, obj client.Object, _ ...client.CreateOption) error {
	return a.write(jobsGR, func() error {
		job := obj.(*batchv1.Job)
		if a.c.job(job.Name) != nil {
			return apierrors.NewAlreadyExists(jobsGR, job.Name)
		}
		a.c.made++
		job.UID = types.UID(fmt.Sprintf("%s.%d", job.Name, a.c.made))
		job.CreationTimestamp = metav1.NewTime(a.c.now)
		a.c.jobs = append(slices.Clone(a.c.jobs), job.DeepCopy())
		return nil
	})
}

func (a *api) Patch(_ context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
	return a.write(podsGR, func() error {
		data, err := patch.Data(obj)
		if err != nil {
			return err
		}
		var p corev1.Pod
		if err := json.Unmarshal(data, &p); err != nil {
			return err
		}
		pod := a.c.podNamed(obj.GetName())
		switch {
		case pod == nil:
			return apierrors.NewNotFound(podsGR, obj.GetName())
		case pod.UID != p.UID:
			return apierrors.NewConflict(podsGR, obj.GetName(), errors.New("uid"))
		}
		a.c.changePod(pod, func(pod *corev1.Pod) { pod.Spec.ActiveDeadlineSeconds = p.Spec.ActiveDeadlineSeconds })
		a.c.told(pod.UID)
		return nil
	})
}

func (a *api) Delete(_ context.Context, obj client.Object, opts ...client.DeleteOption) error {
	o := (&client.DeleteOptions{}).ApplyOptions(opts)
	return a.write(podsGR, func() error {
		switch obj := obj.(type) {
		case *batchv1.Job:
			job := a.c.job(obj.Name)
			if job == nil {
				return apierrors.NewNotFound(jobsGR, obj.Name)
			}
			if *o.Preconditions.UID != job.UID {
				return apierrors.NewConflict(jobsGR, obj.Name, errors.New("uid"))
			}
			a.c.deleteJob(job, *o.PropagationPolicy)
		case *corev1.Pod:
			pod := a.c.podNamed(obj.Name)
			if pod == nil {
				return apierrors.NewNotFound(podsGR, obj.Name)
			}
			if *o.Preconditions.UID != pod.UID {
				return apierrors.NewConflict(podsGR, obj.Name, errors.New("uid"))
			}
			a.c.deletePod(pod)
		default:
			panic(fmt.Sprintf("the model deletes no %T", obj))
		}
		return nil
	})
}

func (a *api) Status() client.SubResourceWriter { return &statusAPI{a: a} }

type statusAPI struct {
	client.SubResourceWriter
	a *api
}

func (s *statusAPI) Update(_ context.Context, obj client.Object, _ ...client.SubResourceUpdateOption) error {
	return s.a.write(tasks, func() error {
		t, c := obj.(*v1alpha1.Task), s.a.c
		switch {
		case c.task == nil:
			return apierrors.NewNotFound(tasks, t.Name)
		case t.UID != c.task.UID || t.ResourceVersion != c.task.ResourceVersion:
			return apierrors.NewConflict(tasks, t.Name, errors.New("resourceVersion"))
		}
		c.storeStatus(t.Status.DeepCopy())
		t.ResourceVersion = c.task.ResourceVersion
		if s.a.disturbance.fate != lost || s.a.disturbance.write != s.a.writes {
			c.ownWrite = c.version // what it got no answer for it does not know
		}
		return nil
	})
}

// storeStatus stores a status, and asks whether it may follow on what was stored.
func (c *cluster) storeStatus(status *v1alpha1.TaskStatus) {
	old := c.task
	c.changeTask(func(t *v1alpha1.Task) { t.Status = *status })
	for _, v := range invariants.Change(old, c.task) {
		if v.Rule != "attempt-exit" || slices.ContainsFunc(c.pods, func(p *corev1.Pod) bool { return attemptOf(p.Labels) == c.task.Status.Attempt }) { // a pod that is gone has taken its exit code along
			c.wrong("%s", v)
		}
	}
	c.changedStatus(old)
}

// cached is the controller's client: it reads what the watches have shown, and its own writes.
type cached struct{ *api }

func (r cached) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if r.dead {
		return errDead
	}
	shown := r.c.shown.task
	if r.c.ownWrite > versionOfTask(shown) {
		shown = r.c.task // a read waits for the own write, then asks the API server
	}
	return copyTask(key, shown, obj)
}

func (r cached) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if r.dead {
		return errDead
	}
	switch list := list.(type) {
	case *batchv1.JobList:
		for _, job := range r.c.shown.jobs {
			stripped := *job
			_, _ = stripJob(&stripped)
			list.Items = append(list.Items, stripped)
		}
	case *corev1.PodList:
		for _, pod := range r.c.shown.pods {
			list.Items = append(list.Items, *pod)
		}
	case *v1alpha1.TaskList:
		if r.c.shown.task != nil {
			list.Items = append(list.Items, *r.c.shown.task)
		}
	case *corev1.EventList, *eventsv1.EventList:
	default:
		panic(fmt.Sprintf("the model caches no %T", list))
	}
	return nil
}

// direct reads past the caches.
type direct struct{ *api }

func (r direct) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if err := r.read(); err != nil {
		return err
	}
	switch obj := obj.(type) {
	case *batchv1.Job:
		job := r.c.job(key.Name)
		if job == nil {
			return apierrors.NewNotFound(jobsGR, key.Name)
		}
		*obj = *job
	case *corev1.Node:
		status := corev1.ConditionFalse
		if r.c.node.ready {
			status = corev1.ConditionTrue
		}
		obj.Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.NewTime(r.c.node.since),
		}}
	case *metav1.PartialObjectMetadata:
		if r.c.task == nil {
			return apierrors.NewNotFound(tasks, key.Name)
		}
		obj.ObjectMeta = r.c.task.ObjectMeta
	default:
		return copyTask(key, r.c.task, obj)
	}
	return nil
}

func (r direct) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if err := r.read(); err != nil {
		return err
	}
	switch list := list.(type) {
	case *corev1.PodList:
		for _, pod := range r.c.pods {
			list.Items = append(list.Items, *pod)
		}
	case *metav1.PartialObjectMetadataList:
		list.ResourceVersion = strconv.Itoa(r.c.version)
	default:
		panic(fmt.Sprintf("the model lists no %T", list))
	}
	return nil
}

func copyTask(key client.ObjectKey, t *v1alpha1.Task, obj client.Object) error {
	if t == nil {
		return apierrors.NewNotFound(tasks, key.Name)
	}
	t.DeepCopyInto(obj.(*v1alpha1.Task))
	return nil
}

func versionOfTask(t *v1alpha1.Task) int {
	if t == nil {
		return 0
	}
	n, err := strconv.Atoi(t.ResourceVersion)
	must(err)
	return n
}

// The writes of everybody.

// changeTask stores a new version of the Task.
func (c *cluster) changeTask(change func(*v1alpha1.Task)) {
	c.version++
	t := *c.task
	change(&t)
	t.ResourceVersion = strconv.Itoa(c.version)
	c.task = &t
}

// changeSpec stores what a user has changed.
func (c *cluster) changeSpec(change func(*v1alpha1.Task)) {
	c.changeTask(func(t *v1alpha1.Task) {
		change(t)
		t.Generation++
	})
}

func (c *cluster) job(name string) *batchv1.Job {
	return find(c.jobs, func(j *batchv1.Job) bool { return j.Name == name })
}

func (c *cluster) jobByUID(uid types.UID) *batchv1.Job {
	return find(c.jobs, func(j *batchv1.Job) bool { return j.UID == uid })
}

func (c *cluster) podNamed(name string) *corev1.Pod {
	return find(c.pods, func(p *corev1.Pod) bool { return p.Name == name })
}

func find[T any](all []*T, is func(*T) bool) *T {
	if i := slices.IndexFunc(all, is); i >= 0 {
		return all[i]
	}
	return nil
}

func replaced[T any](all []*T, old, by *T) []*T {
	all = slices.Clone(all)
	i := slices.Index(all, old)
	if by == nil {
		return slices.Delete(all, i, i+1)
	}
	all[i] = by
	return all
}

func (c *cluster) changePod(pod *corev1.Pod, change func(*corev1.Pod)) *corev1.Pod {
	changed := pod.DeepCopy()
	change(changed)
	c.pods = replaced(c.pods, pod, changed)
	return changed
}

func (c *cluster) changeJob(job *batchv1.Job, change func(*batchv1.Job)) {
	changed := job.DeepCopy()
	change(changed)
	c.jobs = replaced(c.jobs, job, changed)
}

// deleteJob deletes a Job; in the foreground it stays until its pods have gone.
func (c *cluster) deleteJob(job *batchv1.Job, how metav1.DeletionPropagation) {
	switch {
	case job.DeletionTimestamp != nil:
	case how == metav1.DeletePropagationForeground:
		c.changeJob(job, func(j *batchv1.Job) { j.DeletionTimestamp = ptr.To(metav1.NewTime(c.now)) })
	default:
		c.jobs = replaced(c.jobs, job, nil)
	}
}

// deletePod begins the deletion of a pod. The Job controller's finalizer keeps the object until it has been counted.
func (c *cluster) deletePod(pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil {
		return
	}
	grace := *pod.Spec.TerminationGracePeriodSeconds
	if pod.Spec.NodeName == "" || ended1(pod) {
		grace = 0
	}
	c.changePod(pod, func(p *corev1.Pod) {
		p.DeletionTimestamp = ptr.To(metav1.NewTime(c.now.Add(time.Duration(grace) * time.Second)))
		p.DeletionGracePeriodSeconds = &grace
	})
	c.told(pod.UID)
}

// ended1 tells whether a pod is over.
func ended1(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func (c *cluster) wrong(format string, args ...any) {
	c.faults = append(c.faults, strings.TrimSpace(fmt.Sprintf(format, args...)))
}
