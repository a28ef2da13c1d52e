package e2e

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/builders"
)

// TestPodForceDeleted is C06: a pod that is torn away closes its attempt, and the retry policy decides.
func TestPodForceDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	again := w.create(w.worker("again", "--sleep=12s").Retry(1).Backoff(3*time.Second, 3*time.Second, "1"))
	once := w.create(w.worker("once", "--sleep=5m"))
	for _, task := range []*v1alpha1.Task{again, once} {
		w.state(soon, task, v1alpha1.StateProcessing)
		w.kill(w.pod(task))
	}
	failed := w.end(soon, once, v1alpha1.StateFailed, v1alpha1.ReasonPodDeleted)
	if n := w.started(once); n != 1 {
		t.Errorf("%s, and %d runs", describe(failed), n)
	}
	done := w.end(2*soon, again, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted)
	first := done.Status.Attempts[0]
	if len(done.Status.Attempts) != 2 || first.Reason != v1alpha1.ReasonPodDeleted || w.started(again) != 2 {
		t.Errorf("%s, %d runs, attempts %+v", describe(done), w.started(again), done.Status.Attempts)
	}
}

// TestPodForceDeletedWhilePulling is C06 before anything ran: nobody waits for the start timeout then.
func TestPodForceDeletedWhilePulling(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	task := w.create(w.worker("half-pulled").Image(deafRegistry(t)).StartTimeout(5 * time.Minute))
	var pod *corev1.Pod
	w.eventually(soon, func(ctx context.Context) error {
		var events corev1.EventList
		if err := cluster.client.List(ctx, &events, client.InNamespace(w.namespace)); err != nil {
			return err
		}
		for i := range events.Items {
			if e := &events.Items[i]; e.Reason == "Pulling" && e.InvolvedObject.Kind == "Pod" {
				pod = &corev1.Pod{}
				pod.Namespace, pod.Name = w.namespace, e.InvolvedObject.Name
				return nil
			}
		}
		return errors.New("nothing is being pulled")
	})
	w.kill(pod)
	done := w.end(soon, task, v1alpha1.StateFailed, v1alpha1.ReasonPodDeleted)
	if n := w.started(task); n != 0 || done.Status.Attempt != 1 {
		t.Errorf("%s, and %d runs", describe(done), n)
	}
}

// TestEviction is C30: a drained worker costs nothing and is replaced, also one that says goodbye with exit code 0.
func TestEviction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var tasks []*v1alpha1.Task
	for _, b := range []*builders.TaskBuilder{
		w.worker("exits-0", "--sleep=15s", "--on-sigterm-exit=0"), w.worker("exits-143", "--sleep=15s"),
	} {
		task := w.create(b.Backoff(2*time.Second, 60*time.Second, "5"))
		tasks = append(tasks, task)
		w.state(soon, task, v1alpha1.StateProcessing)
		pod := w.pod(task)
		if err := cluster.client.SubResource("eviction").Create(t.Context(), pod, &policyv1.Eviction{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, task := range tasks {
		done := w.end(2*soon, task, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted)
		if len(done.Status.Attempts) != 2 {
			t.Errorf("Task %s: attempts %+v", task.Name, done.Status.Attempts)
			continue
		}
		if first := done.Status.Attempts[0]; first.Reason != v1alpha1.ReasonDisrupted || ptr.Deref(first.Charged, true) {
			t.Errorf("Task %s: first attempt %+v", task.Name, first)
		}
		if n := w.started(task); n != 2 || done.Status.Uncharged != 1 {
			t.Errorf("%s, %d uncharged, and %d runs", describe(done), done.Status.Uncharged, n)
		}
	}
}
