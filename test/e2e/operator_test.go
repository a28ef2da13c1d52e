package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// The tests of this file disturb the operator, which all tests share: none of them is parallel.

// TestOperatorKilled kills the operator while one Task is Processing and another waits for its next attempt. Both end as if
// nothing had happened.
func TestOperatorKilled(t *testing.T) {
	w := newWorld(t)
	running := w.create(w.worker("running", "--sleep=15s"))
	waiting := w.create(w.worker("waiting", "--fail-until-attempt=2").Retry(1).Backoff(15*time.Second, 15*time.Second, "1"))
	w.state(soon, waiting, v1alpha1.StateRetrying)
	w.state(soon, running, v1alpha1.StateProcessing)
	killed := w.operators()
	for i := range killed {
		w.kill(&killed[i])
	}
	w.state(time.Second, running, v1alpha1.StateProcessing)
	w.state(time.Second, waiting, v1alpha1.StateRetrying)
	w.operatorReady(killed...)
	done := w.end(2*soon, running, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted)
	if n := w.started(running); n != 1 || done.Status.Attempt != 1 {
		t.Errorf("%s, and %d runs", describe(done), n)
	}
	done = w.end(2*soon, waiting, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted)
	if n := w.started(waiting); n != 2 || done.Status.Attempt != 2 || done.Status.Charged != 1 {
		t.Errorf("%s, %d charged, and %d runs", describe(done), done.Status.Charged, n)
	}
}

// TestDeadlineWhileOperatorIsAway is C19: nobody was there when the deadline passed, and it is enforced by whoever comes
// back, at once.
func TestDeadlineWhileOperatorIsAway(t *testing.T) {
	w := newWorld(t)
	const limit = 15 * time.Second
	late := w.create(w.worker("late", "--sleep=1h", "--term-grace=2s").ActiveDeadline(limit))
	done := w.create(w.worker("done-meanwhile", "--sleep=4s"))
	started := w.state(soon, late, v1alpha1.StateProcessing)
	w.state(soon, done, v1alpha1.StateProcessing, v1alpha1.StateSucceeded)
	t.Cleanup(func() { w.scale(1) }) // before the checks, which need it
	w.scale(0)
	w.eventually(soon, func(context.Context) error {
		if over := time.Until(started.Status.StartTime.Add(limit + 2*time.Second)); over > 0 {
			return fmt.Errorf("the deadline passes in %s", over)
		}
		return nil
	})
	w.state(time.Second, late, v1alpha1.StateProcessing)
	if w.stopped(late, 1) != nil {
		t.Error("the worker has stopped with nobody there to stop it")
	}
	w.scale(1)
	back := time.Now()
	ended := w.end(soon, late, v1alpha1.StateFailed, v1alpha1.ReasonActiveDeadlineExceeded)
	w.checkDeadline(ended, limit)
	if after := ended.Status.CompletionTime.Sub(back); after > 15*time.Second {
		t.Errorf("it took the operator %s from its readiness", after)
	}
	w.end(soon, done, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted)
}

// TestLeaderKilled runs two replicas and kills the one that leads.
func TestLeaderKilled(t *testing.T) {
	w := newWorld(t)
	t.Cleanup(func() { w.scale(1) })
	w.scale(2)
	first := w.leader()
	running := w.create(w.worker("running", "--sleep=5s"))
	w.state(soon, running, v1alpha1.StateProcessing)
	w.kill(&first)
	w.eventually(2*soon, func(ctx context.Context) error {
		holder, err := leaseHolder(ctx)
		if err == nil && (holder == "" || strings.HasPrefix(holder, first.Name+"_")) {
			err = fmt.Errorf("the lease is held by %q", holder)
		}
		return err
	})
	later := w.create(w.worker("later"))
	w.end(2*soon, running, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted)
	w.end(soon, later, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted)
	for _, task := range []*v1alpha1.Task{running, later} {
		if n := w.started(task); n != 1 {
			t.Errorf("Task %s ran %d times", task.Name, n)
		}
	}
}

// operators are the operator's pods that are not about to go.
func (w *world) operators() []corev1.Pod {
	w.t.Helper()
	return w.podsOf("controller")
}

func (w *world) podsOf(component string) []corev1.Pod {
	w.t.Helper()
	var pods corev1.PodList
	err := cluster.client.List(context.WithoutCancel(w.t.Context()), &pods, client.InNamespace(operatorNamespace), client.MatchingLabels{
		"app.kubernetes.io/name": "taskwarden", "app.kubernetes.io/component": component,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

// kill deletes a pod without grace.
func (w *world) kill(pod *corev1.Pod) {
	w.t.Helper()
	if err := cluster.client.Delete(w.t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		w.t.Fatal(err)
	}
}

// operatorReady waits until there is one operator and it is ready, and none of the old ones.
func (w *world) operatorReady(old ...corev1.Pod) {
	w.t.Helper()
	w.eventually(2*soon, func(context.Context) error {
		pods := w.operators()
		if len(pods) != 1 {
			return fmt.Errorf("%d operators", len(pods))
		}
		for i := range pods {
			p := &pods[i]
			if slices.ContainsFunc(old, func(o corev1.Pod) bool { return o.UID == p.UID }) || !ready(p) {
				return fmt.Errorf("operator %s is %s and not ready, or an old one", p.Name, p.Status.Phase)
			}
		}
		return nil
	})
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// scale sets the number of replicas and waits until so many are there and the others are gone.
func (w *world) scale(replicas int) {
	w.t.Helper()
	w.scaleOf("controller", replicas)
}

// scaleOf does so for one component.
func (w *world) scaleOf(component string, replicas int) {
	w.t.Helper()
	ctx := context.WithoutCancel(w.t.Context()) // also used when the test is over
	deployment := &appsv1.Deployment{}
	deployment.Namespace, deployment.Name = operatorNamespace, "taskwarden-"+component
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	if err := cluster.client.Patch(ctx, deployment, client.RawPatch("application/merge-patch+json", patch)); err != nil {
		w.t.Fatal(err)
	}
	args := []string{"-n", operatorNamespace, "rollout", "status", "--timeout=120s", "deployment/" + deployment.Name}
	if replicas == 0 {
		args = []string{"-n", operatorNamespace, "wait", "--for=delete", "pod", "-l", "app.kubernetes.io/component=" + component, "--timeout=60s"}
	}
	if _, err := kubectl(ctx, "", args...); err != nil {
		w.t.Fatal(err)
	}
}

// leader is the pod that holds the lease.
func (w *world) leader() corev1.Pod {
	w.t.Helper()
	var leader corev1.Pod
	w.eventually(soon, func(ctx context.Context) error {
		holder, err := leaseHolder(ctx)
		if err != nil {
			return err
		}
		pods := w.operators()
		i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return strings.HasPrefix(holder, p.Name+"_") })
		if i < 0 || len(pods) != 2 {
			return fmt.Errorf("%d operators, and the lease is held by %q", len(pods), holder)
		}
		leader = pods[i]
		return nil
	})
	return leader
}

func leaseHolder(ctx context.Context) (string, error) {
	lease := &coordinationv1.Lease{}
	if err := cluster.client.Get(ctx, client.ObjectKey{Namespace: operatorNamespace, Name: operatorName}, lease); err != nil {
		return "", err
	}
	return ptr.Deref(lease.Spec.HolderIdentity, ""), nil
}
