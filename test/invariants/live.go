package invariants

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

const (
	// slack is what a stop may take beyond the graces, on a slow machine.
	slack = 10 * time.Second
	poll  = 200 * time.Millisecond
)

// world is what is stored in the namespace now.
type world struct {
	tasks []v1alpha1.Task
	jobs  []batchv1.Job
	pods  []corev1.Pod
}

func read(ctx context.Context, c client.Reader, namespace string) (*world, error) {
	var tasks v1alpha1.TaskList
	var jobs batchv1.JobList
	var pods corev1.PodList
	// Owners are read last: what they own cannot be newer than they are.
	for _, list := range []client.ObjectList{&pods, &jobs, &tasks} {
		if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return nil, err
		}
	}
	return &world{tasks: tasks.Items, jobs: jobs.Items, pods: pods.Items}, nil
}

// checkLive asks what can only be told from the objects as they are now.
func (s *Source) checkLive(ctx context.Context, h *history) ([]Violation, error) {
	if s.Client == nil {
		return nil, nil
	}
	all, err := s.settle(ctx, func(w *world) []Violation {
		return append(w.leaks(h, s.Now(), s.Running), s.sleepers(w)...)
	})
	if err != nil {
		return nil, err
	}
	columns, err := s.checkColumns(ctx)
	return append(all, columns...), err
}

// settle looks at the world until nothing is wrong or the time is up: what is due to be done may need a moment.
func (s *Source) settle(ctx context.Context, wrong func(*world) []Violation) ([]Violation, error) {
	deadline := time.Now().Add(s.Settle)
	for {
		w, err := read(ctx, s.Client, s.Namespace)
		if err != nil {
			return nil, err
		}
		found := wrong(w)
		if len(found) == 0 || time.Now().After(deadline) {
			return found, nil
		}
		select {
		case <-ctx.Done():
			return found, nil
		case <-time.After(poll):
		}
	}
}

// leaks is invariant 5.
func (w *world) leaks(h *history, now time.Time, running bool) []Violation {
	live := map[string]*v1alpha1.Task{}
	var all []Violation
	for i := range w.tasks {
		t := &w.tasks[i]
		live[string(t.UID)] = t
		if f := (&finding{task: taskName(t)}); stuck(f, t) {
			all = append(all, f.list...)
		}
	}
	for i := range w.jobs {
		j := &w.jobs[i]
		uid := ownerUID(j, "Task")
		if uid == "" {
			continue
		}
		f := &finding{task: describe(live[uid], h, uid)}
		if t := live[uid]; t == nil {
			w.checkOrphan(f, h.byUID(uid), j)
		} else if running && due(t, now) {
			w.checkQuiet(f, t, j)
		}
		all = append(all, f.list...)
	}
	for i := range w.pods {
		if p := &w.pods[i]; p.Labels[v1alpha1.LabelTaskUID] != "" {
			all = append(all, w.strays(p, live, h, now, running)...)
		}
	}
	return all
}

// strays asks about a pod whose Job is gone: the label says of which Task it is, and the log proves it.
func (w *world) strays(p *corev1.Pod, live map[string]*v1alpha1.Task, h *history, now time.Time, running bool) []Violation {
	uid := p.Labels[v1alpha1.LabelTaskUID]
	r := h.byUID(uid)
	if w.hasJob(p) || p.DeletionTimestamp != nil || r != nil && !r.made(p) {
		return nil
	}
	f := &finding{task: describe(live[uid], h, uid)}
	switch t := live[uid]; {
	case t != nil && running && due(t, now) && !ended(p) && !outOfReach(t):
		f.add(5, "active-pod", "%s since %v, and pod %s, whose Job is gone, is %s", t.Status.State, show(t.Status.CompletionTime), p.Name, p.Status.Phase)
	case t != nil || r != nil && r.deletion.orphaned:
	case metav1.GetControllerOf(p) != nil || !ended(p): // an ended one that somebody has orphaned is theirs
		f.add(5, "orphan", "Task and Job are gone, and the pod %s (%s) is still there and %s", p.Name, p.UID, p.Status.Phase)
	}
	return f.list
}

// hasJob tells whether a pod's Job is still there.
func (w *world) hasJob(p *corev1.Pod) bool {
	return slices.ContainsFunc(w.jobs, func(j batchv1.Job) bool { return metav1.IsControlledBy(p, &j) })
}

// made tells whether a pod came from a Job of this Task.
func (r *record) made(p *corev1.Pod) bool {
	return slices.ContainsFunc(r.pods, func(known *pod) bool { return known.uid == string(p.UID) })
}

// stuck tells whether a deleted Task stays for the operator's sake.
func stuck(f *finding, t *v1alpha1.Task) bool {
	if t.DeletionTimestamp == nil {
		return false
	}
	for _, name := range t.Finalizers {
		if strings.HasPrefix(name, v1alpha1.GroupVersion.Group+"/") {
			f.add(5, "finalizer", "deleted at %s, and its finalizer %s is still there", stamp(t.DeletionTimestamp.Time), name)
		}
	}
	return len(f.list) > 0
}

// checkOrphan: a deleted Task leaves nothing, unless that was asked for. A pod that is being deleted is the kubelet's.
func (w *world) checkOrphan(f *finding, r *record, j *batchv1.Job) {
	if r != nil && r.deletion.orphaned || j.DeletionTimestamp != nil && len(w.active(j)) == 0 {
		return
	}
	f.add(5, "orphan", "the Task is gone, and its Job %s (%s) is still there, with %d active pods", j.Name, j.UID, len(w.active(j)))
}

// checkQuiet: the Job of a Task that has ended has no pod that runs, and will not make one.
func (w *world) checkQuiet(f *finding, t *v1alpha1.Task, j *batchv1.Job) {
	if outOfReach(t) {
		return
	}
	for _, p := range w.active(j) {
		f.add(5, "active-pod", "%s since %v, and pod %s of Job %s is %s", t.Status.State, show(t.Status.CompletionTime), p.Name, j.Name, p.Status.Phase)
	}
	if !finished(j) && j.DeletionTimestamp == nil && !w.hasPod(j) {
		f.add(5, "active-job", "%s since %v, and Job %s may still make a pod", t.Status.State, show(t.Status.CompletionTime), j.Name)
	}
}

// outOfReach tells of a Task that says that its last worker may run on, which is no leak but a fact.
func outOfReach(t *v1alpha1.Task) bool {
	c := condition(t, v1alpha1.ConditionWorkerStopped)
	return c != nil && c.Status == metav1.ConditionUnknown
}

// active are the pods of a Job that run and were not told by a deletion to end.
func (w *world) active(j *batchv1.Job) []*corev1.Pod {
	var pods []*corev1.Pod
	for i := range w.pods {
		p := &w.pods[i]
		if metav1.IsControlledBy(p, j) && !ended(p) && p.DeletionTimestamp == nil {
			pods = append(pods, p)
		}
	}
	return pods
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// hasPod tells whether a Job has a pod of any kind: the Job controller, which may be slow, makes no other then.
func (w *world) hasPod(j *batchv1.Job) bool {
	for i := range w.pods {
		if metav1.IsControlledBy(&w.pods[i], j) {
			return true
		}
	}
	return false
}

func finished(j *batchv1.Job) bool {
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

// due tells whether everything of an ended Task must have stopped by now.
func due(t *v1alpha1.Task, now time.Time) bool {
	if !lifecycle.Terminal(t.Status.State) || t.Status.CompletionTime == nil {
		return false
	}
	grace := ptr.Deref(t.Spec.Template.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	end := lifecycle.FinishGraceEnd(t, t.Status.CompletionTime.Time).Add(time.Duration(grace)*time.Second + slack)
	return now.After(end)
}

func taskName(t *v1alpha1.Task) string {
	return fmt.Sprintf("%s/%s (%s)", t.Namespace, t.Name, t.UID)
}

func describe(t *v1alpha1.Task, h *history, uid string) string {
	if t != nil {
		return taskName(t)
	}
	if r := h.byUID(uid); r != nil {
		return r.String()
	}
	return uid
}
