package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/test/builders"
	"github.com/taskwarden/taskwarden/test/invariants"
	"github.com/taskwarden/taskwarden/test/testenv"
)

func TestC01JobDeletedWhileProcessing(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]metav1.DeletionPropagation{
		"background": metav1.DeletePropagationBackground,
		"orphan":     metav1.DeletePropagationOrphan,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := newEnv(t)
			// The first worker takes its time to stop, so that a replacement which does not wait overlaps with it.
			env.Kubelet.Auto(firstThen(testenv.Behaviour{RunFor: -1, StopAfter: 700 * time.Millisecond}, testenv.Behaviour{}))
			again := env.Create(builders.Task("again").Retry(1).FastBackoff().Obj())
			once := env.Create(builders.Task("once").Retry(0).Obj())
			for _, task := range []*v1alpha1.Task{again, once} {
				env.WaitState(task, v1alpha1.StateProcessing)
				mustDelete(t, env, env.WaitJob(task, 1), client.PropagationPolicy(how))
			}
			done := env.WaitState(again, v1alpha1.StateSucceeded)
			wantAttempts(t, done, v1alpha1.ReasonJobDeleted, v1alpha1.ReasonCompleted)
			lost := env.WaitState(once, v1alpha1.StateFailed)
			wantReason(t, lost, v1alpha1.ReasonJobDeleted)
			wantAttempts(t, lost, v1alpha1.ReasonJobDeleted)
			// The invariants give a pod that outlives its Job more time than this.
			if started, stopped := len(runs(t, env, once, invariants.Start)), len(runs(t, env, once, invariants.Stop)); started != 1 || stopped != 1 {
				t.Errorf("%d workers started and %d stopped", started, stopped)
			}
			// What somebody has orphaned is theirs to remove.
			if err := env.Client.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(env.Namespace)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestC06ExitAfterADeletionIsNoSuccess has Job or pod deleted while the worker runs, which then exits with 0 on its SIGTERM,
// with the operator watching or down.
func TestC06ExitAfterADeletionIsNoSuccess(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		job, down bool
		reason    string
	}{
		"pod":                 {false, false, v1alpha1.ReasonPodDeleted},
		"pod, while down":     {false, true, v1alpha1.ReasonPodDeleted},
		"C01 job":             {true, false, v1alpha1.ReasonJobDeleted},
		"C01 job, while down": {true, true, v1alpha1.ReasonJobDeleted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := newEnv(t)
			task := env.Create(builders.Task("polite").Retry(1).FastBackoff().Obj())
			pod := env.Kubelet.Run(env.Kubelet.WaitPod(task, 1))
			env.WaitState(task, v1alpha1.StateProcessing)
			if c.down {
				env.KillController()
			}
			var victim client.Object = pod
			if c.job {
				victim = env.WaitJob(task, 1)
			}
			mustDelete(t, env, victim, client.PropagationPolicy(metav1.DeletePropagationBackground))
			testenv.Eventually(t, func(context.Context) error {
				if env.Kubelet.Get(pod).DeletionTimestamp == nil {
					return errors.New("the pod is not being deleted yet")
				}
				return nil
			})
			// Times of a pod have whole seconds; it is the order of these two that tells.
			env.Kubelet.Exit(pod, testenv.Exit{Code: 0, At: time.Now().Add(2 * time.Second)})
			if c.down {
				env.StartController()
			}
			env.WaitTask(task, func(t *v1alpha1.Task) error {
				if a := t.Status.Attempts; len(a) == 0 || a[0].Outcome == "" {
					return errors.New("the attempt is not closed yet")
				}
				return nil
			})
			env.Kubelet.Vanish(pod)
			env.Kubelet.Flash(env.Kubelet.WaitPod(task, 2), testenv.Exit{})
			done := env.WaitState(task, v1alpha1.StateSucceeded)
			wantAttempts(t, done, c.reason, v1alpha1.ReasonCompleted)
			if first := done.Status.Attempts[0]; first.Outcome == string(lifecycle.Succeed) || ptr.Deref(first.Charged, false) != (done.Status.Charged == 1) {
				t.Errorf("charged %d, attempt %+v", done.Status.Charged, first)
			}
		})
	}
}

func TestC02KilledBetweenJobAndStatus(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	hold := env.Faults.Hold("update tasks/status")
	task := env.Create(builders.Task("cut").Obj())
	hold.Wait(t)
	job := env.WaitJob(task, 1)
	if got := env.Get(task).Status; lifecycle.Accepted(env.Get(task)) {
		t.Fatalf("the status says %+v already: the Job must come first", got)
	}
	env.KillController()
	hold.Release()
	env.Kubelet.AutoAll(testenv.Behaviour{})
	env.StartController()
	done := env.WaitState(task, v1alpha1.StateSucceeded)
	wantAttempts(t, done, v1alpha1.ReasonCompleted)
	if got := done.Status.Worker.JobUID; got != job.UID {
		t.Errorf("Job %s was adopted, wanted is %s", got, job.UID)
	}
}

// TestC02KilledBetweenSecondJobAndStatus is the same for a Task that is Retrying, whose attempt is counted in that write.
func TestC02KilledBetweenSecondJobAndStatus(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	env.Kubelet.Auto(firstThen(failing("boom"), testenv.Behaviour{StartAfter: time.Second}))
	task := env.Create(builders.Task("cut").Retry(1).FastBackoff().Obj())
	env.WaitState(task, v1alpha1.StateRetrying)
	hold := env.Faults.Hold("update tasks/status")
	hold.Wait(t)
	job := env.WaitJob(task, 2)
	env.KillController()
	hold.Release()
	env.StartController()
	done := env.WaitState(task, v1alpha1.StateSucceeded)
	wantAttempts(t, done, v1alpha1.ReasonNonZeroExitCode, v1alpha1.ReasonCompleted)
	if got := done.Status.Worker.JobUID; got != job.UID {
		t.Errorf("Job %s was adopted, wanted is %s", got, job.UID)
	}
}

func TestC02FrozenWatchesWhileTouched(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	env.Kubelet.AutoAll(testenv.UntilStopped)
	thawJobs, thawPods := env.Faults.FreezeWatch("jobs"), env.Faults.FreezeWatch("pods")
	task := env.Create(builders.Task("frozen").Retry(0).Obj())
	env.WaitJob(task, 1)
	for range 20 {
		env.Touch(task)
	}
	env.Quiet(500 * time.Millisecond)
	if n := len(env.Jobs(task)); n != 1 {
		t.Errorf("%d Jobs", n)
	}
	thawJobs()
	thawPods()
	wantAttempts(t, env.WaitState(task, v1alpha1.StateProcessing), "")
}

// TestC02StoredButAnsweredWithAnError has the API server store the Job and then answer as if it had not.
func TestC02StoredButAnsweredWithAnError(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{
		"500":        internalError(),
		"504":        apierrors.NewTimeoutError("injected", 0),
		"429":        apierrors.NewTooManyRequests("injected", 1),
		"connection": testenv.ErrConnection,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := newEnv(t, testenv.Stopped())
			env.Kubelet.AutoAll(testenv.Behaviour{})
			env.Faults.On("create jobs", testenv.Fault{Times: 1, After: func(context.Context, testenv.Call, int) error { return answer }})
			env.StartController()
			done := env.WaitState(env.Create(builders.Task("stored").Retry(0).Obj()), v1alpha1.StateSucceeded)
			wantAttempts(t, done, v1alpha1.ReasonCompleted)
		})
	}
}

func TestC04FinishedStaysFinished(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	env.Kubelet.Auto(byTask(map[string]testenv.Behaviour{
		"good":    {Exit: testenv.Exit{Message: `{"data": 7}`}},
		"bad":     failing("boom"),
		"stopped": testenv.UntilStopped,
	}))
	good := env.Create(builders.Task("good").Obj())
	bad := env.Create(builders.Task("bad").Retry(0).Obj())
	stopped := env.Create(builders.Task("stopped").Obj())
	env.WaitState(stopped, v1alpha1.StateProcessing)
	env.Cancel(stopped)
	ends := []*v1alpha1.Task{
		env.WaitState(good, v1alpha1.StateSucceeded),
		env.WaitState(bad, v1alpha1.StateFailed),
		env.WaitState(stopped, v1alpha1.StateCancelled),
	}
	env.Quiet(300 * time.Millisecond)
	for i, task := range ends {
		ends[i] = env.Get(task)
	}
	created := env.Faults.Calls("create jobs")
	for _, task := range ends {
		deleteJobs(t, env, task)
		waitPodsGone(t, env, task)
		env.Change(task, func(t *v1alpha1.Task) { metav1.SetMetaDataLabel(&t.ObjectMeta, "touched", "yes") })
	}
	env.TouchAll()
	env.Quiet(300 * time.Millisecond)
	env.RestartController()
	env.TouchAll()
	env.Quiet(300 * time.Millisecond)
	for _, task := range ends {
		if now := env.Get(task); !equality.Semantic.DeepEqual(now.Status, task.Status) {
			t.Errorf("Task %s: the status of a finished Task was\n%+v\nand is\n%+v", task.Name, task.Status, now.Status)
		}
	}
	if n := env.Faults.Calls("create jobs"); n != created {
		t.Errorf("%d Jobs were created after the end", n-created)
	}
}

// TestC04StaleCopyLoses shows the operator a Task as it was before its end, when its Job is gone. Its cache may lag behind
// its own writes, as where it watches several namespaces.
func TestC04FirstCopyMakesNoSecondJob(t *testing.T) {
	t.Parallel()
	for name, namespaces := range map[string]int{"one": 1, "several": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := newEnv(t, operatorFor(namespaces)...)
			env.Kubelet.AutoAll(testenv.Behaviour{})
			env.WaitState(env.Create(builders.Task("before").Obj()), v1alpha1.StateSucceeded)
			env.Quiet(300 * time.Millisecond)
			// From the moment of its creation on, the operator hears no more of the Task than that it was created.
			var thaw func()
			env.Faults.On("create jobs", testenv.Fault{Times: 1, Before: func(context.Context, testenv.Call) error {
				thaw = env.Faults.FreezeWatch("tasks")
				return nil
			}})
			task := env.Create(builders.Task("new").Obj())
			done := env.WaitState(task, v1alpha1.StateSucceeded)
			deleteJobs(t, env, task)
			env.Quiet(time.Second)
			thaw()
			env.Touch(task)
			env.Quiet(500 * time.Millisecond)
			wantSameEnd(t, done, env.Get(task))
			if n := env.Faults.Calls("create jobs"); n != 2 {
				t.Errorf("%d Jobs were asked for", n)
			}
		})
	}
}

func TestC04StaleCopyLoses(t *testing.T) {
	t.Parallel()
	env := newEnv(t, operatorFor(2)...)
	stale := env.Create(builders.Task("stale").Obj())
	pod := env.Kubelet.Run(env.Kubelet.WaitPod(stale, 1))
	env.WaitState(stale, v1alpha1.StateProcessing)
	env.Quiet(300 * time.Millisecond)
	thaw := env.Faults.FreezeWatch("tasks")
	env.Kubelet.Exit(pod, testenv.Exit{})
	done := env.WaitState(stale, v1alpha1.StateSucceeded)
	deleteJobs(t, env, stale)
	refused := env.Faults.Calls("update tasks/status")
	testenv.Eventually(t, func(context.Context) error { // it decides on the old copy, and its write loses
		if n := env.Faults.Calls("update tasks/status"); n == refused {
			return fmt.Errorf("%d status writes", n)
		}
		return nil
	})
	thaw()
	env.Touch(stale)
	env.Quiet(500 * time.Millisecond)
	wantSameEnd(t, done, env.Get(stale))
	if n := env.Faults.Calls("create jobs"); n != 1 {
		t.Errorf("%d Jobs were asked for", n)
	}
}

func TestC05OutcomeIsStoredBeforeTheJobGoes(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	env.Kubelet.AutoAll(testenv.Behaviour{RunFor: 200 * time.Millisecond, Exit: testenv.Exit{Message: `{"data": 7}`}})
	var refused atomic.Int32
	var gone atomic.Bool
	env.Faults.On("update tasks/status", testenv.Fault{
		Times: 2,
		Match: func(c testenv.Call) bool {
			var task v1alpha1.Task
			return c.Into(&task) == nil && task.Status.State == v1alpha1.StateSucceeded
		},
		Before: func(ctx context.Context, c testenv.Call) error {
			var jobs batchv1.JobList
			if err := env.Client.List(ctx, &jobs, client.InNamespace(c.Namespace)); err != nil || len(jobs.Items) != 1 || jobs.Items[0].DeletionTimestamp != nil {
				gone.Store(true)
			}
			if refused.Add(1) == 1 {
				return apierrors.NewConflict(schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "tasks"}, c.Name, errors.New("injected"))
			}
			return internalError()
		},
	})
	task := env.Create(builders.Task("kept").WorkerRetention(0).Obj())
	done := env.WaitState(task, v1alpha1.StateSucceeded)
	wantAttempts(t, done, v1alpha1.ReasonCompleted)
	if done.Status.Result == nil || done.Status.Result.Data == nil || string(done.Status.Result.Data.Raw) != "7" {
		t.Errorf("result is %+v", done.Status.Result)
	}
	if refused.Load() != 2 || gone.Load() {
		t.Errorf("%d writes were refused; the Job was gone meanwhile: %v", refused.Load(), gone.Load())
	}
	// And then it does go: there is nothing to keep it for.
	testenv.Eventually(t, func(context.Context) error {
		if n := len(env.Jobs(task)); n > 0 {
			return fmt.Errorf("%d Jobs", n)
		}
		return nil
	})
}

// TestC05JobCleanedUpFromOutside has somebody's policy remove Job and pod at their end, while the operator is down: nobody
// knows any more how it ended, which is said, within a bound.
func TestC05JobCleanedUpFromOutside(t *testing.T) {
	t.Parallel()
	env := newEnv(t, testenv.WithClock(clocktesting.NewFakeClock(time.Now())))
	task := env.Create(builders.Task("swept").Retry(0).WorkerLostTimeout(time.Minute).Obj())
	pod := env.Kubelet.Run(env.Kubelet.WaitPod(task, 1))
	env.WaitState(task, v1alpha1.StateProcessing)
	job := env.WaitJob(task, 1)
	env.StopController()
	ttl := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"ttlSecondsAfterFinished":0}}`))
	if err := env.Client.Patch(t.Context(), job, ttl); err != nil {
		t.Fatal(err)
	}
	env.Kubelet.Exit(pod, testenv.Exit{})
	env.WaitGone(job)
	waitPodsGone(t, env, task)
	env.StartController()
	env.WaitCondition(task, v1alpha1.ConditionTerminating, metav1.ConditionTrue, v1alpha1.ReasonJobDeleted)
	env.Step(5 * time.Minute)
	done := env.WaitState(task, v1alpha1.StateFailed)
	wantAttempts(t, done, v1alpha1.ReasonJobDeleted)
}

func TestStrangersJobIsLeftAlone(t *testing.T) {
	t.Parallel()
	env := newEnv(t, testenv.Stopped())
	env.Kubelet.AutoAll(testenv.Behaviour{})
	task := env.Create(builders.Task("taken").Obj())
	// Labels prove nothing: this one says that it is the Task's own.
	stranger := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{
		Namespace: env.Namespace, Name: "taken-1",
		Labels: map[string]string{v1alpha1.LabelTaskUID: string(task.UID), v1alpha1.LabelAttempt: "1"},
	}}
	stranger.Spec.Suspend = ptr.To(true)
	stranger.Spec.Template = builders.Pod().RestartPolicy("Never").Obj()
	mustCreate(t, env, stranger)
	env.StartController()
	waiting := env.WaitCondition(task, v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonNameConflict)
	if message := condition(waiting, v1alpha1.ConditionReconciling).Message; !strings.Contains(message, "taken-1") {
		t.Errorf("the message does not name the Job: %s", message)
	}
	env.Touch(task)
	env.Quiet(300 * time.Millisecond)
	env.RestartController()
	env.Quiet(300 * time.Millisecond)
	live := &batchv1.Job{}
	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(stranger), live); err != nil {
		t.Fatal(err)
	}
	if live.UID != stranger.UID || live.ResourceVersion != stranger.ResourceVersion && len(live.OwnerReferences) > 0 {
		t.Errorf("the stranger's Job was touched: %+v", live.ObjectMeta)
	}
	mustDelete(t, env, live, client.PropagationPolicy(metav1.DeletePropagationBackground))
	wantAttempts(t, env.WaitState(task, v1alpha1.StateSucceeded), v1alpha1.ReasonCompleted)
}

func TestLongestNameRuns(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	env.Kubelet.AutoAll(testenv.Behaviour{Exit: testenv.Exit{Code: 1}})
	// Two names that differ at their ends only must not meet in one Job.
	one := env.Create(builders.Task(strings.Repeat("n", 252) + "1").Retry(0).Obj())
	two := env.Create(builders.Task(strings.Repeat("n", 252) + "2").Retry(0).Obj())
	for _, task := range []*v1alpha1.Task{one, two} {
		wantAttempts(t, env.WaitState(task, v1alpha1.StateFailed), v1alpha1.ReasonNonZeroExitCode)
		if jobs := env.Jobs(task); len(jobs) != 1 || len(jobs[0].Name) > 63 {
			t.Errorf("%d Jobs: %+v", len(jobs), jobs)
		}
	}
}

func TestInputOverTheLimit(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	env.Kubelet.AutoAll(testenv.Behaviour{})
	// A JSON text has two quotes.
	over := env.Create(builders.Task("over").Input(strings.Repeat("x", v1alpha1.MaxInputBytes-1)).Obj())
	just := env.Create(builders.Task("just").Input(strings.Repeat("x", v1alpha1.MaxInputBytes-2)).Obj())
	done := env.WaitState(over, v1alpha1.StateFailed)
	wantReason(t, done, v1alpha1.ReasonInputTooLarge)
	if !strings.Contains(done.Status.Message, "65537") || !strings.Contains(done.Status.Message, "65536") {
		t.Errorf("the message lacks size or limit: %s", done.Status.Message)
	}
	env.WaitState(just, v1alpha1.StateSucceeded)
	if n := env.Faults.Calls("create jobs"); n != 1 {
		t.Errorf("%d Jobs were asked for", n)
	}
}
