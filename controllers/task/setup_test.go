package task

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// TestJobsByOwner: the owner's UID finds a Job only where a Task of ours is its controller.
func TestJobsByOwner(t *testing.T) {
	ours := func(*metav1.OwnerReference) {}
	for name, tc := range map[string]struct {
		alter func(*metav1.OwnerReference)
		want  int
	}{
		"a Task's":                       {ours, 1},
		"another kind's":                 {func(o *metav1.OwnerReference) { o.Kind = "CronTask" }, 0},
		"a Task's of another group":      {func(o *metav1.OwnerReference) { o.APIVersion = "example.com/v1alpha1" }, 0},
		"a Task's that is no controller": {func(o *metav1.OwnerReference) { o.Controller = ptr.To(false) }, 0},
		"another Task's":                 {func(o *metav1.OwnerReference) { o.UID = "another" }, 0},
	} {
		task := pending().Task
		job := newJob(task, nil)
		tc.alter(&job.OwnerReferences[0])
		var found batchv1.JobList
		err := fakeOf(t).WithObjects(job).Build().List(t.Context(), &found, client.MatchingFields{indexTaskUID: string(task.UID)})
		if err != nil || len(found.Items) != tc.want {
			t.Errorf("%s: found %d Jobs, error %v", name, len(found.Items), err)
		}
	}
}

// afterPatience stands for what is added only to wait.
const afterPatience = -2

// noted is a queue that keeps what is added to it, with its priority.
type noted struct {
	priorityqueue.PriorityQueue[reconcile.Request]
	added map[string]int
	long  int
}

func (n noted) Len() int { return n.long }

func (n noted) Add(req reconcile.Request) { n.added[req.Name] = 0 }

func (n noted) AddWithOpts(o priorityqueue.AddOpts, reqs ...reconcile.Request) {
	for _, req := range reqs {
		n.added[req.Name] = ptr.Deref(o.Priority, 0)
		if o.After == startPatience {
			n.added[req.Name] = afterPatience
		}
	}
}

// TestPodHandler: what a pod's event does. A worker's end is seen before all that begins; of the last state of a pod only what was
// seen is believed.
func TestPodHandler(t *testing.T) {
	starting := podOf(corev1.PodPending, containerWaits("worker", containerCreating, ""))
	runs, ends := podOf(corev1.PodRunning, containerRuns("worker")), podOf(corev1.PodSucceeded, containerEnded("worker", 0, "Completed", ""))
	half := podOf(corev1.PodRunning, containerEnded("worker", 0, "Completed", ""), containerRuns("other"))
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	const none, concurrency = -1, 10
	for name, tc := range map[string]struct {
		before, after *corev1.Pod // before is nil where it is new, after where it is deleted
		unknown       bool        // its last state
		waiting       int
		priority      int
		witnessed     bool
	}{
		"made":                          {after: starting, priority: 0},
		"found running":                 {after: runs, priority: 0},
		"found ended":                   {after: ends, priority: endingPriority},
		"starts":                        {before: starting, after: runs, priority: 0},
		"starts while some wait":        {before: starting, after: runs, waiting: concurrency, priority: 0},
		"starts while many wait":        {before: starting, after: runs, waiting: concurrency + 1, priority: afterPatience},
		"ends while many wait":          {before: runs, after: ends, waiting: concurrency + 1, priority: endingPriority},
		"made while many wait":          {after: starting, waiting: concurrency + 1, priority: 0},
		"ends":                          {before: runs, after: ends, priority: endingPriority},
		"its worker ends":               {before: runs, after: half, priority: endingPriority},
		"nothing new":                   {before: runs, after: runs, priority: none},
		"goes, having ended":            {before: ends, priority: endingPriority, witnessed: true},
		"goes while it runs":            {before: runs, priority: 0},
		"went while nobody looked":      {before: ends, unknown: true, priority: endingPriority},
		"went while nobody looked, ran": {before: runs, unknown: true, priority: 0},
	} {
		task := processing().Task
		r := &Reconciler{Client: fakeOf(t).WithObjects(task).Build(), witness: newWitness()}
		q := noted{added: map[string]int{}, long: tc.waiting}
		h := r.podHandler(concurrency)
		switch {
		case tc.before == nil:
			h.Create(t.Context(), event.CreateEvent{Object: podOfTask(tc.after, task)}, queue(q))
		case tc.after == nil:
			h.Delete(t.Context(), event.DeleteEvent{Object: podOfTask(tc.before, task), DeleteStateUnknown: tc.unknown}, queue(q))
		default:
			after := podOfTask(tc.after, task)
			after.ResourceVersion = "2" // else it is taken for a resync
			h.Update(t.Context(), event.UpdateEvent{ObjectOld: podOfTask(tc.before, task), ObjectNew: after}, queue(q))
		}
		got, ok := q.added[task.Name]
		if !ok {
			got = none
		}
		if got != tc.priority || r.witness.stopped(runs.UID) != tc.witnessed {
			t.Errorf("%s: priority %d, witnessed is %v", name, got, !tc.witnessed)
		}
	}
}

// podOfTask is the pod with the labels and in the namespace of its Task.
func podOfTask(pod *corev1.Pod, t *v1alpha1.Task) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Namespace, pod.Labels = t.Namespace, map[string]string{v1alpha1.LabelTaskUID: string(t.UID)}
	return pod
}
