package api

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/invariants"
	"github.com/taskwarden/taskwarden/test/testenv"
)

// The files cases_*.go hold the cases: how systems of this kind are known to fail. Each test carries the number of its case.

// byTask has each pod behave by the name of its Task; those that are not named run at once and exit with 0.
func byTask(behaviours map[string]testenv.Behaviour) func(*corev1.Pod) testenv.Behaviour {
	return func(p *corev1.Pod) testenv.Behaviour { return behaviours[p.Labels[v1alpha1.LabelTask]] }
}

// firstThen has the pods of first attempts behave in one way and those of later ones in another.
func firstThen(first, later testenv.Behaviour) func(*corev1.Pod) testenv.Behaviour {
	return func(p *corev1.Pod) testenv.Behaviour {
		if p.Labels[v1alpha1.LabelAttempt] == "1" {
			return first
		}
		return later
	}
}

func failing(message string) testenv.Behaviour {
	return testenv.Behaviour{Exit: testenv.Exit{Code: 1, Message: message}}
}

// internalError is what a server in trouble answers.
func internalError() error { return apierrors.NewInternalError(fmt.Errorf("injected")) }

// runs are the marks of one kind that the workers of a Task have left.
func runs(t *testing.T, env *testenv.Env, task *v1alpha1.Task, event string) []invariants.Mark {
	t.Helper()
	all, err := env.Marks.All()
	if err != nil {
		t.Fatal(err)
	}
	var own []invariants.Mark
	for _, m := range all {
		if m.Task == string(task.UID) && m.Event == event {
			own = append(own, m)
		}
	}
	return own
}

func wantReason(t *testing.T, task *v1alpha1.Task, reason string) {
	t.Helper()
	if task.Status.Reason != reason {
		t.Errorf("Task %s: reason is %q (%s), wanted is %q", task.Name, task.Status.Reason, task.Status.Message, reason)
	}
}

func wantAttempts(t *testing.T, task *v1alpha1.Task, reasons ...string) {
	t.Helper()
	var got []string
	for _, a := range task.Status.Attempts {
		got = append(got, a.Reason)
	}
	if fmt.Sprint(got) != fmt.Sprint(reasons) {
		t.Errorf("Task %s: attempts ended with %v, wanted are %v", task.Name, got, reasons)
	}
}

// wantNever fails where a Task has ever been in a state.
func wantNever(t *testing.T, task *v1alpha1.Task, state v1alpha1.State) {
	t.Helper()
	for _, h := range task.Status.History {
		if h.To == state {
			t.Errorf("Task %s has been %s: %+v", task.Name, state, h)
		}
	}
}

func condition(task *v1alpha1.Task, kind string) metav1.Condition {
	for _, c := range task.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return metav1.Condition{}
}

// mustDelete deletes an object that must be there.
func mustDelete(t *testing.T, env *testenv.Env, object client.Object, opts ...client.DeleteOption) {
	t.Helper()
	if err := env.Client.Delete(t.Context(), object, opts...); err != nil {
		t.Fatalf("delete %T %s: %v", object, object.GetName(), err)
	}
}

func mustCreate(t *testing.T, env *testenv.Env, object client.Object) {
	t.Helper()
	if err := env.Client.Create(t.Context(), object); err != nil {
		t.Fatalf("create %T %s: %v", object, object.GetName(), err)
	}
}

// waitPodsGone waits until no pod of a Task is left.
func waitPodsGone(t *testing.T, env *testenv.Env, task *v1alpha1.Task) {
	t.Helper()
	testenv.Eventually(t, func(ctx context.Context) error {
		var pods corev1.PodList
		if err := env.Client.List(ctx, &pods, client.InNamespace(env.Namespace),
			client.MatchingLabels{v1alpha1.LabelTaskUID: string(task.UID)}); err != nil {
			return err
		}
		if len(pods.Items) > 0 {
			return fmt.Errorf("%d pods of Task %s are left", len(pods.Items), task.Name)
		}
		return nil
	})
}

// waitClock waits until the test's clock has passed a moment.
func waitClock(t *testing.T, env *testenv.Env, moment metav1.MicroTime) {
	t.Helper()
	testenv.Eventually(t, func(context.Context) error {
		if left := moment.Sub(env.Clock.Now()); left > 0 {
			return fmt.Errorf("%s are left", left)
		}
		return nil
	})
}

// wantSameEnd asserts that a Task that has succeeded has still done so, at the same moment.
func wantSameEnd(t *testing.T, done, now *v1alpha1.Task) {
	t.Helper()
	if now.Status.State != v1alpha1.StateSucceeded || !now.Status.CompletionTime.Equal(done.Status.CompletionTime) {
		t.Errorf("status was\n%+v\nand is\n%+v", done.Status, now.Status)
	}
}

// deleteJobs takes the Jobs of a Task away, as a stranger does.
func deleteJobs(t *testing.T, env *testenv.Env, task *v1alpha1.Task) {
	t.Helper()
	for _, job := range env.Jobs(task) {
		mustDelete(t, env, &job, client.PropagationPolicy(metav1.DeletePropagationBackground))
		env.WaitGone(&job)
	}
}
