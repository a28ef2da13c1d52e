package api

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/builders"
	"github.com/taskwarden/taskwarden/test/testenv"
)

// The tests of this file are about the harness: that what it plays looks real to the operator, and that its checker sees
// what an operator does wrong.

// TestCheckerSeesABadOperator plays an operator that breaks the rules against a real API server and reads the real log.
func TestCheckerSeesABadOperator(t *testing.T) {
	t.Parallel()
	env := testenv.New(t) // no operator but this test
	operator := env.ControllerClient()
	task := env.Create(builders.Task("victim").Obj())

	task.Status.State = v1alpha1.StateProcessing // without history
	for i := range 40 {
		task.Status.Message = fmt.Sprint(i)
		if err := operator.Status().Update(t.Context(), task); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{
			Namespace: env.Namespace, GenerateName: "victim-",
			Labels:          map[string]string{v1alpha1.LabelAttempt: "1", v1alpha1.LabelTaskUID: string(task.UID)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(task, v1alpha1.GroupVersion.WithKind("Task"))},
		}}
		job.Spec.Template = builders.Pod().Obj()
		job.Spec.Template.Labels = job.Labels
		job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		if err := operator.Create(t.Context(), job); err != nil {
			t.Fatal(err)
		}
	}
	var pods corev1.PodList
	testenv.Eventually(t, func(ctx context.Context) error {
		if err := env.Client.List(ctx, &pods, client.InNamespace(env.Namespace)); err != nil || len(pods.Items) < 2 {
			return fmt.Errorf("%d pods, %w", len(pods.Items), err)
		}
		return nil
	})
	for i := range pods.Items {
		env.Kubelet.Run(&pods.Items[i])
	}

	var got []string
	for _, v := range env.Violations() {
		got = append(got, fmt.Sprintf("%d %s", v.Invariant, v.Rule))
	}
	slices.Sort(got)
	got = slices.Compact(got)
	want := []string{"1 job-twice", "1 one-worker", "1 run-twice", "3 history-state", "7 writes"}
	if !slices.Equal(got, want) {
		t.Errorf("found %v, wanted %v", got, want)
	}
}

// TestCheckerSeesATaskThatNothingMoves has an operator that looks at a Task and lets it lie.
func TestCheckerSeesATaskThatNothingMoves(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.WithController(func(_ context.Context, mgr ctrl.Manager, _ *testenv.Env, wrap testenv.Wrap) error {
		return ctrl.NewControllerManagedBy(mgr).Named("idle").For(&v1alpha1.Task{}).Complete(wrap(
			reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) { return reconcile.Result{}, nil })))
	}))
	task := env.Create(builders.Task("forgotten").Obj())
	found := env.Violations()
	mustDelete(t, env, task)
	if len(found) != 1 || found[0].Invariant != 10 || !strings.Contains(found[0].Evidence, "no wake-up") {
		t.Errorf("found %v, wanted one missing wake-up", found)
	}
}

// TestEveryStateHasAWakeUp leaves a Task in each state for the checker, which asks when the operator will look at it again.
func TestEveryStateHasAWakeUp(t *testing.T) {
	t.Parallel()
	allStates(newEnv(t))
}

func TestLostAnswerToJobCreate(t *testing.T) {
	t.Parallel()
	env := newEnv(t, testenv.Stopped())
	env.Kubelet.AutoAll(testenv.Behaviour{})
	env.Faults.LoseAnswer("create jobs")
	env.StartController()
	task := env.Create(builders.Task("adopted").Obj())
	env.WaitState(task, v1alpha1.StateSucceeded)
	if n := env.Faults.Calls("create jobs"); n < 1 {
		t.Errorf("%d Jobs created", n)
	}
}

func TestKilledBeforeItsWriteArrives(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	env.Kubelet.AutoAll(testenv.Behaviour{})
	hold := env.Faults.Hold("create jobs")
	task := env.Create(builders.Task("killed").Obj())
	hold.Wait(t)
	env.KillController()
	hold.Release()
	env.StartController()
	env.WaitState(task, v1alpha1.StateSucceeded)
	if jobs := env.Jobs(task); len(jobs) != 1 {
		t.Errorf("%d Jobs", len(jobs))
	}
}

func TestFrozenWatch(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	task := env.Create(builders.Task("frozen").Obj())
	pod := env.Kubelet.Run(env.Kubelet.WaitPod(task, 1))
	env.WaitState(task, v1alpha1.StateProcessing)
	thaw := env.Faults.FreezeWatch("pods")
	env.Kubelet.Exit(pod, testenv.Exit{})
	env.Quiet(500 * time.Millisecond)
	thaw()
	env.Faults.CutWatch("jobs")
	env.WaitState(task, v1alpha1.StateSucceeded)
}

func TestDisruptedPodIsReplaced(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	task := env.Create(builders.Task("drained").Retry(0).FastBackoff().Obj())
	pod := env.Kubelet.Run(env.Kubelet.WaitPod(task, 1))
	env.WaitState(task, v1alpha1.StateProcessing)
	env.Kubelet.Disrupt(pod, "EvictionByEvictionAPI")
	if err := env.Client.Delete(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	env.Kubelet.Remove(pod)
	env.Kubelet.Flash(env.Kubelet.WaitPod(task, 2), testenv.Exit{})
	done := env.WaitState(task, v1alpha1.StateSucceeded)
	if done.Status.Charged != 0 || done.Status.Attempts[0].Reason != v1alpha1.ReasonDisrupted {
		t.Errorf("status %+v", done.Status)
	}
}

func TestFakeClock(t *testing.T) {
	t.Parallel()
	env := newEnv(t, testenv.WithClock(clocktesting.NewFakeClock(time.Now())))
	env.Kubelet.AutoAll(testenv.UntilStopped)
	task := env.Create(builders.Task("slow").Retry(0).ActiveDeadline(time.Hour).Obj())
	env.WaitState(task, v1alpha1.StateProcessing)
	env.Step(time.Hour + time.Second)
	done := env.WaitState(task, v1alpha1.StateFailed)
	if done.Status.Reason != v1alpha1.ReasonActiveDeadlineExceeded {
		t.Errorf("reason %s: %s", done.Status.Reason, done.Status.Message)
	}
}

func TestWaitingAndUnschedulablePods(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	pulls := env.Create(builders.Task("pulls").Obj())
	homeless := env.Create(builders.Task("homeless").Obj())
	env.Kubelet.Waiting(env.Kubelet.WaitPod(pulls, 1), "ImagePullBackOff", "Back-off pulling image")
	env.Kubelet.Unschedulable(env.Kubelet.WaitPod(homeless, 1), "0/3 nodes are available")
	for task, reason := range map[*v1alpha1.Task]string{pulls: v1alpha1.ReasonImagePullFailed, homeless: v1alpha1.ReasonUnschedulable} {
		env.WaitTask(task, func(t *v1alpha1.Task) error {
			if t.Status.Reason != reason {
				return fmt.Errorf("reason is %q", t.Status.Reason)
			}
			return nil
		})
	}
}
