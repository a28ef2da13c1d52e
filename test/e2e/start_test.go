package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/invariants"
)

// TestCannotStart is C17 and C21: what keeps a worker from starting is said while it waits and when it is given up, with
// the text of whoever knows, and the pod goes.
func TestCannotStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	worker := func(change func(*corev1.PodSpec)) func(*v1alpha1.Task) {
		return func(task *v1alpha1.Task) { change(&task.Spec.Template.Spec) }
	}
	cases := []struct {
		name, reason, text string
		change             func(*v1alpha1.Task)
		task               *v1alpha1.Task
	}{
		{name: "no-registry", reason: v1alpha1.ReasonImagePullFailed, text: "registry.invalid/no/image:1",
			change: worker(func(s *corev1.PodSpec) { s.Containers[0].Image = "registry.invalid/no/image:1" })},
		{name: "no-image-name", reason: v1alpha1.ReasonInvalidImageName, text: "NO SUCH NAME",
			change: worker(func(s *corev1.PodSpec) { s.Containers[0].Image = "NO SUCH NAME" })},
		{name: "no-secret", reason: v1alpha1.ReasonConfigError, text: `"absent-secret"`,
			change: worker(func(s *corev1.PodSpec) { s.Containers[0].EnvFrom = fromSecret("absent-secret") })},
		{name: "no-volume", reason: v1alpha1.ReasonMountFailed, text: `"absent-config"`,
			change: worker(func(s *corev1.PodSpec) {
				s.Volumes = append(s.Volumes, corev1.Volume{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: "absent-config"},
				}}})
				s.Containers[0].VolumeMounts = append(s.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "config", MountPath: "/config"})
			})},
		{name: "no-node", reason: v1alpha1.ReasonUnschedulable, text: "nodes are available", change: nowhere},
	}
	for i := range cases {
		cases[i].task = w.createWith(w.worker(cases[i].name).StartTimeout(20*time.Second), cases[i].change)
	}
	for _, c := range cases {
		w.waits(20*time.Second, c.task, c.reason, c.text)
	}
	for _, c := range cases {
		done := w.end(soon, c.task, v1alpha1.StateFailed, c.reason)
		if !strings.Contains(done.Status.Message, c.text) {
			t.Errorf("Task %s: message %q lacks %q", c.name, done.Status.Message, c.text)
		}
		w.eventually(soon, func(context.Context) error {
			for _, p := range w.pods(c.task) {
				if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodPending {
					return fmt.Errorf("pod %s still waits", p.Name)
				}
			}
			return nil
		})
		if n := w.started(c.task); n != 0 || done.Status.Attempt != 1 {
			t.Errorf("%s, and %d runs", describe(done), n)
		}
	}
}

func fromSecret(name string) []corev1.EnvFromSource {
	return []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}}
}

// TestSecretComesLater is the fifth variant of C17: what is missing comes in time, and the Task never was anything but
// waiting.
func TestSecretComesLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	task := w.createWith(w.worker("patient").StartTimeout(90*time.Second), func(task *v1alpha1.Task) {
		task.Spec.Template.Spec.Containers[0].EnvFrom = fromSecret("late-secret")
	})
	w.waits(soon, task, v1alpha1.ReasonConfigError, `"late-secret"`)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "late-secret"}}
	if err := cluster.client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	done := w.end(90*time.Second, task, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted)
	for _, h := range done.Status.History {
		if h.To != v1alpha1.StatePending && h.To != v1alpha1.StateProcessing && h.To != v1alpha1.StateSucceeded {
			t.Errorf("it was %s on the way, for %s", h.To, h.Reason)
		}
	}
	if n := w.started(task); n != 1 || done.Status.Attempt != 1 {
		t.Errorf("%s, and %d runs", describe(done), n)
	}
}

// TestQuota is C18 with real pods: room in the namespace's quota is noticed, and the wait costs no attempt.
func TestQuota(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "one-pod"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}},
	}
	if err := cluster.client.Create(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	w.eventually(soon, func(ctx context.Context) error {
		if err := cluster.client.Get(ctx, w.key(quota.Name), quota); err != nil {
			return err
		}
		if len(quota.Status.Hard) == 0 {
			return errors.New("the quota is not in force yet")
		}
		return nil
	})
	first := w.create(w.worker("first", "--sleep=8s"))
	w.state(soon, first, v1alpha1.StateProcessing)
	second := w.create(w.worker("second"))
	w.waits(soon, second, v1alpha1.ReasonQuotaExceeded, "one-pod")
	ended := w.end(soon, first, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted)
	done := w.end(2*time.Minute, second, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted)
	for _, m := range w.runs(second)[1] { // by its own word: the operator may never see so fast a worker run
		if wait := m.Time.Sub(ended.Status.CompletionTime.Time); m.Event == invariants.Start && wait > time.Minute {
			t.Errorf("the room was noticed after %s", wait)
		}
	}
	if n := w.started(second); n != 1 || done.Status.Attempt != 1 || done.Status.Charged != 0 {
		t.Errorf("%s, %d charged, and %d runs", describe(done), done.Status.Charged, n)
	}
}
