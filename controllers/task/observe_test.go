package task

import (
	"errors"
	"strconv"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// podOwnedBy is a pod of the first attempt whose controller is the Job of the given UID, none where that is empty.
func podOwnedBy(name string, job types.UID) *corev1.Pod {
	p := podOf(corev1.PodRunning, containerRuns("worker"))
	p.Name, p.UID, p.Labels = name, types.UID(name), map[string]string{v1alpha1.LabelAttempt: "1"}
	if job != "" {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "demo-1", UID: job, Controller: ptr.To(true)}}
	}
	return p
}

// TestWorkersAreInOrder: two pods of one second stand in the same order in every pass, whatever a map makes of them.
func TestWorkersAreInOrder(t *testing.T) {
	b := &belongings{jobs: map[types.UID]*batchv1.Job{}, pods: map[types.UID]*corev1.Pod{}}
	for _, name := range []string{"pod-c", "pod-a", "pod-b"} {
		b.pods[types.UID(name)] = podOwnedBy(name, "job-1")
	}
	for range 50 {
		if got := b.workers(fresh().Task)[0].Pods[0].Name; got != "pod-a" {
			t.Fatalf("the first pod is %s", got)
		}
	}
}

// TestBelongings: pods and Jobs belong by controller owner UID, never by label alone; an orphan by what is recorded.
func TestBelongings(t *testing.T) {
	task := processing().Task
	b := &belongings{jobs: map[types.UID]*batchv1.Job{}, pods: map[types.UID]*corev1.Pod{}}
	ours, stranger := newJob(task, nil), newJob(task, nil)
	ours.UID, stranger.UID, stranger.OwnerReferences = "job-1", "other", nil
	b.addJob(task, ours)
	b.addJob(task, stranger)
	if len(b.jobs) != 1 || b.jobs["job-1"] == nil {
		t.Errorf("the Jobs are %v", b.jobs)
	}
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"of our Job":                      {podOwnedBy("a", "job-1"), true},
		"of a stranger's Job":             {podOwnedBy("b", "other"), false},
		"of nobody, with our labels":      {podOwnedBy("c", ""), false},
		"orphan, recorded":                {podOwnedBy(string(podUID(1)), ""), true},
		"orphan of our Job, by its label": {orphanOf("d", "job-1"), true},
		"orphan of another":               {orphanOf("e", "other"), false},
	} {
		b.addPod(task, tc.pod)
		if got := b.pods[tc.pod.UID] != nil; got != tc.want {
			t.Errorf("%s: belongs is %v", name, got)
		}
	}
	// A Job that is gone still tells its pods, by its recorded UID.
	b.jobs = map[types.UID]*batchv1.Job{}
	late := podOwnedBy("f", "job-1")
	b.addPod(task, late)
	if b.pods["f"] == nil {
		t.Error("a pod of the recorded Job does not belong once the Job is gone")
	}
}

func orphanOf(name, job string) *corev1.Pod {
	p := podOwnedBy(name, "")
	p.Labels[batchv1.ControllerUidLabel] = job
	return p
}

// TestWorkerIsTheTemplatesContainer: a webhook may put a container of its own before those of the template.
func TestWorkerIsTheTemplatesContainer(t *testing.T) {
	task := fresh().Task
	task.Spec.Template.Spec.Containers = []corev1.Container{{Name: "worker"}, {Name: "second"}}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "proxy"}, {Name: "worker"}, {Name: "second"}}}}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 7}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "proxy", State: running}, {Name: "worker", State: ended}, {Name: "second", State: running}}
	b := &belongings{pods: map[types.UID]*corev1.Pod{"pod-1": pod}}
	if exit := b.workers(task)[0].Pods[0].Exit; exit == nil || exit.Code != 7 {
		t.Errorf("the worker's exit is %v", exit)
	}
	task.Spec.WorkerContainer = "second"
	if exit := b.workers(task)[0].Pods[0].Exit; exit != nil {
		t.Errorf("the second container's exit is %v", exit)
	}
}

// TestNodeReady: a node that is gone, or that nobody may read, has no word; a pass does not fail for it.
func TestNodeReady(t *testing.T) {
	nodes := schema.GroupResource{Resource: "nodes"}
	is := func(kind corev1.NodeConditionType, status corev1.ConditionStatus) corev1.NodeCondition {
		return corev1.NodeCondition{Type: kind, Status: status, LastTransitionTime: metav1.NewTime(started)}
	}
	for name, tc := range map[string]struct {
		says  []corev1.NodeCondition
		fails error
		ready bool
		since time.Time
	}{
		"ready":                {says: []corev1.NodeCondition{is(corev1.NodeDiskPressure, "True"), is(corev1.NodeReady, "True")}, ready: true, since: started},
		"not ready":            {says: []corev1.NodeCondition{is(corev1.NodeReady, "False")}, since: started},
		"not heard of":         {says: []corev1.NodeCondition{is(corev1.NodeReady, "Unknown")}, since: started},
		"says nothing":         {says: []corev1.NodeCondition{is(corev1.NodeDiskPressure, "True")}},
		"gone":                 {fails: apierrors.NewNotFound(nodes, testNode)},
		"forbidden":            {fails: apierrors.NewForbidden(nodes, testNode, errors.New("no role"))},
		"the API server moans": {fails: overloaded},
	} {
		live := newLiveReader(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: testNode}, Status: corev1.NodeStatus{Conditions: tc.says}})
		live.fails = tc.fails
		ready, since, err := (&Reconciler{Live: live}).nodeReady(t.Context(), testNode)
		if ready != tc.ready || !since.Equal(tc.since) || (err != nil) != errors.Is(tc.fails, overloaded) {
			t.Errorf("%s: ready is %v since %v, error %v", name, ready, since, err)
		}
	}
}

// TestC40JobNotToldOf: a Task that is about to end between two attempts may have a Job already that neither its status nor the
// caches know: made by a pass whose status write lost.
func TestC40JobNotToldOf(t *testing.T) {
	for name, tc := range map[string]struct {
		scene *scene
		job   string
		want  int32
	}{
		"first attempt, cancelled":         {fresh(cancel), "demo-1", 1},
		"first attempt, overall deadline":  {fresh(overall(60)).at(after(61)), "demo-1", 1},
		"accepted, cancelled":              {accepted(cancel), "demo-1", 1},
		"accepted, goes on":                {accepted(), "demo-1", 0},
		"second attempt, cancelled":        {retrying(cancel), "demo-2", 2},
		"second attempt, overall deadline": {retrying(overall(60)).at(after(61)), "demo-2", 2},
		"second attempt, goes on":          {retrying(), "demo-2", 0},
		"second attempt, a stranger's":     {retrying(cancel), "demo-1", 0},
	} {
		made := newJob(tc.scene.Task, nil)
		made.Name, made.UID, made.Labels[v1alpha1.LabelAttempt] = tc.job, jobUID(tc.want), strconv.Itoa(int(tc.want))
		w := &writes{}
		r := w.reconciler(t, tc.scene.Now, newLiveReader(t, made))
		s, err := r.observe(t.Context(), tc.scene.Task, false)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var found int32
		for i := range s.Workers {
			found = s.Workers[i].Attempt
		}
		if found != tc.want {
			t.Errorf("%s: found the Job of attempt %d, want %d", name, found, tc.want)
		}
	}
}
