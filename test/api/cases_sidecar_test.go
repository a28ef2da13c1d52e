package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/gateway"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/internal/report"
	"github.com/taskwarden/taskwarden/test/builders"
	"github.com/taskwarden/taskwarden/test/testenv"
)

// The tests of this file are about what the controller makes of reports, however they have come. Those of the gateway are in the
// files reports_*.go.

// addGateway makes what the controller looks for before it gives a worker a sidecar.
func addGateway(t *testing.T, env *testenv.Env) {
	t.Helper()
	mustCreate(t, env, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: env.Namespace, Name: gateway.ServiceName},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 8443}}},
	})
	mustCreate(t, env, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: env.Namespace, Name: gateway.ConfigMapName}, Data: map[string]string{gateway.ConfigMapKey: "PEM"},
	})
}

// reportBy stores a report as the gateway does.
func reportBy(t *testing.T, env *testenv.Env, one *v1alpha1.Task, pod *corev1.Pod, r *report.Report) {
	t.Helper()
	r.TaskID = string(one.UID)
	if r.Attempt == 0 {
		r.Attempt = 1
	}
	var uid types.UID
	if pod != nil {
		uid = pod.UID
	}
	env.ChangeStatus(one, func(t *v1alpha1.Task) error {
		_, err := lifecycle.Take(t, r, lifecycle.Origin{PodUID: uid, Source: v1alpha1.FromGateway}, time.Minute, env.Clock.Now())
		return err
	})
}

func TestSidecarNeedsAGateway(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	waits := env.Create(builders.Task("waits").Sidecar().Obj())
	got := env.WaitTask(waits, func(t *v1alpha1.Task) error {
		if t.Status.Reason != v1alpha1.ReasonGatewayMissing {
			return fmt.Errorf("reason is %q", t.Status.Reason)
		}
		return nil
	})
	if !strings.Contains(got.Status.Message, gateway.ServiceName) {
		t.Errorf("the message names nothing: %s", got.Status.Message)
	}
	addGateway(t, env)
	env.Kubelet.AutoAll(testenv.Behaviour{})
	done := env.WaitState(waits, v1alpha1.StateSucceeded)
	if done.Status.Attempt != 1 || done.Status.Charged != 0 {
		t.Errorf("the wait was charged: %+v", done.Status)
	}
}

// TestSidecarInARestrictedNamespace: the API server's own judgement on the sidecar.
func TestSidecarInARestrictedNamespace(t *testing.T) {
	t.Parallel()
	env := newEnv(t, testenv.WithNamespaceLabel("pod-security.kubernetes.io/enforce", "restricted"))
	addGateway(t, env)
	template := builders.Pod().Obj()
	template.Spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](1000), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	template.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
		AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	env.Kubelet.AutoAll(testenv.Behaviour{})
	env.WaitState(env.Create(builders.Task("restricted").Sidecar().Template(template).Obj()), v1alpha1.StateSucceeded)
}

// TestC15ReportEndsTheAttemptAtOnce: the worker runs on, and its Task has ended.
func TestC15ReportEndsTheAttemptAtOnce(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	addGateway(t, env)
	one := env.Create(builders.Task("reported").Sidecar().Obj())
	pod := env.Kubelet.Run(env.Kubelet.WaitPod(one, 1))
	env.WaitState(one, v1alpha1.StateProcessing)
	reportBy(t, env, one, pod, &report.Report{Sequence: 1, Kind: report.Progress, Progress: &report.ProgressPayload{Percent: 40}})
	reportBy(t, env, one, pod, &report.Report{Sequence: 2, Kind: report.Succeeded, Result: &report.ResultPayload{URL: "s3://b/k", Data: json.RawMessage(`{"a":1}`)}})
	done := env.WaitState(one, v1alpha1.StateSucceeded)
	if r := done.Status.Result; r == nil || r.URL != "s3://b/k" || string(r.Data.Raw) != `{"a":1}` {
		t.Errorf("result %+v", r)
	}
	if done.Status.SyncLagMilliseconds == nil || *done.Status.Progress.Percent != 100 {
		t.Errorf("lag %v, progress %+v", done.Status.SyncLagMilliseconds, done.Status.Progress)
	}
	env.Kubelet.Exit(pod, testenv.Exit{Code: 1})
	done = env.WaitCondition(one, v1alpha1.ConditionReportMismatch, metav1.ConditionTrue, "ExitContradictsReport")
	if done.Status.State != v1alpha1.StateSucceeded {
		t.Errorf("state %s", done.Status.State)
	}
}

// TestC43ExitAndNote: the exit waits for the sidecar, whose note is the worker's word.
func TestC43ExitAndNote(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	addGateway(t, env)
	one := env.Create(builders.Task("undelivered").Sidecar().Retry(0).Obj())
	pod := env.Kubelet.Run(env.Kubelet.WaitPod(one, 1))
	env.WaitState(one, v1alpha1.StateProcessing)
	env.Kubelet.Exit(pod, testenv.Exit{Container: "worker", Code: 0})
	env.WaitTask(one, func(t *v1alpha1.Task) error {
		if t.Status.Reason != v1alpha1.ReasonAwaitingReport {
			return fmt.Errorf("reason is %q", t.Status.Reason)
		}
		return nil
	})
	final := &report.Report{
		TaskID: string(one.UID), Attempt: 1, Sequence: 3, Kind: report.Failed, Failure: &report.FailurePayload{Message: "no such picture", Permanent: true},
	}
	env.Kubelet.Exit(pod, testenv.Exit{Container: v1alpha1.ReporterContainer, Message: string((&report.Note{Final: final}).Encode(4096))})
	done := env.WaitState(one, v1alpha1.StateFailed)
	wantReason(t, done, v1alpha1.ReasonPermanentFailure)
	if r := done.Status.Report; r == nil || r.Source != v1alpha1.FromTerminationMessage {
		t.Errorf("report %+v", r)
	}
	if c := condition(done, v1alpha1.ConditionReportMismatch); c.Status != metav1.ConditionTrue {
		t.Errorf("exit 0 after a failure: %+v", c)
	}
}

// TestReportOvertakesTheFirstWrite: the worker is faster than the operator's first write of its Task.
func TestReportOvertakesTheFirstWrite(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	addGateway(t, env)
	hold := env.Faults.Hold("update tasks/status")
	one := env.Create(builders.Task("early").Sidecar().Obj())
	pod := env.Kubelet.Run(env.Kubelet.WaitPod(one, 1))
	reportBy(t, env, one, pod, &report.Report{Sequence: 1, Kind: report.Succeeded})
	hold.Wait(t)
	hold.Release()
	done := env.WaitState(one, v1alpha1.StateSucceeded)
	wantAttempts(t, done, v1alpha1.ReasonCompleted)
	env.Kubelet.Exit(pod, testenv.Exit{})
}

// TestC33CheckpointReachesTheNextAttempt with its content, as a file of the pod.
func TestC33CheckpointReachesTheNextAttempt(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	addGateway(t, env)
	one := env.Create(builders.Task("resumes").Sidecar().Retry(1).FastBackoff().Obj())
	pod := env.Kubelet.Run(env.Kubelet.WaitPod(one, 1))
	env.WaitState(one, v1alpha1.StateProcessing)
	reportBy(t, env, one, pod, &report.Report{Sequence: 1, Kind: report.Checkpoint, Checkpoint: json.RawMessage(`{"page":7}`)})
	env.Kubelet.Exit(pod, testenv.Exit{Code: 1})
	next := env.Kubelet.WaitPod(one, 2)
	if got := next.Annotations[v1alpha1.AnnotationCheckpoint]; got != `{"page":7}` {
		t.Errorf("the next attempt gets %q", got)
	}
	env.Kubelet.Flash(next, testenv.Exit{})
	env.WaitState(one, v1alpha1.StateSucceeded)
}

// TestTimeoutsOfSilence: a worker that says nothing, one that lives and does not advance, one that stays in a stage.
func TestTimeoutsOfSilence(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	addGateway(t, env)
	env.Kubelet.AutoAll(testenv.UntilStopped)
	silent := env.Create(builders.Task("silent").Sidecar().Retry(0).HeartbeatTimeout(10 * time.Second).Obj())
	stuck := env.Create(builders.Task("stuck").Sidecar().Retry(0).ProgressTimeout(10 * time.Second).Obj())
	slow := env.Create(builders.Task("slow").Sidecar().Retry(0).Stage("download", 0).Stage("resize", time.Second).Obj())
	env.WaitState(slow, v1alpha1.StateProcessing)
	reportBy(t, env, slow, nil, &report.Report{Sequence: 1, Kind: report.Stage, Stage: &report.StagePayload{Name: "resize"}})
	env.WaitState(stuck, v1alpha1.StateProcessing)
	reportBy(t, env, stuck, nil, &report.Report{Sequence: 1, Kind: report.Heartbeat})
	for one, reason := range map[*v1alpha1.Task]string{
		silent: v1alpha1.ReasonHeartbeatTimeout, stuck: v1alpha1.ReasonNoProgress, slow: v1alpha1.ReasonStageTimeout,
	} {
		done := env.WaitState(one, v1alpha1.StateFailed)
		wantReason(t, done, reason)
		wantAttempts(t, done, reason)
	}
}

// TestC13ReportWithoutWatches: the watches of pods and Jobs say nothing any more. A final report ends its Task all the same, and a report
// that came while the watch of Tasks was silent is seen when that is taken up again.
func TestC13ReportWithoutWatches(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	addGateway(t, env)
	var tasks []*v1alpha1.Task
	var pods []*corev1.Pod
	for i := range 2 {
		one := env.Create(builders.Task(fmt.Sprint("unwatched-", i)).Sidecar().Obj())
		tasks, pods = append(tasks, one), append(pods, env.Kubelet.Run(env.Kubelet.WaitPod(one, 1)))
		env.WaitState(one, v1alpha1.StateProcessing)
	}
	thawPods, thawJobs := env.Faults.FreezeWatch("pods"), env.Faults.FreezeWatch("jobs")
	reportBy(t, env, tasks[0], pods[0], &report.Report{Sequence: 1, Kind: report.Succeeded})
	env.WaitState(tasks[0], v1alpha1.StateSucceeded)
	thawTasks := env.Faults.FreezeWatch("tasks")
	reportBy(t, env, tasks[1], pods[1], &report.Report{Sequence: 1, Kind: report.Succeeded})
	env.Quiet(500 * time.Millisecond)
	if got := env.Get(tasks[1]).Status.State; got != v1alpha1.StateProcessing {
		t.Errorf("state %s: the watch was not silent", got)
	}
	thawTasks()
	env.Faults.CutWatch("tasks")
	env.WaitState(tasks[1], v1alpha1.StateSucceeded)
	thawPods()
	thawJobs()
	for _, pod := range pods {
		env.Kubelet.Exit(pod, testenv.Exit{})
	}
}

// TestC07LateWordOfALostWorker: its node is lost, and its attempt closed for that. When the node comes back, what the worker says changes
// nothing.
func TestC07LateWordOfALostWorker(t *testing.T) {
	t.Parallel()
	env := newEnv(t, testenv.WithClock(clocktesting.NewFakeClock(time.Now())))
	addGateway(t, env)
	one := env.Create(builders.Task("lost").Sidecar().Retry(1).FastBackoff().HeartbeatTimeout(time.Minute).Obj())
	pod := env.Kubelet.Run(env.Kubelet.WaitPod(one, 1))
	env.WaitState(one, v1alpha1.StateProcessing)
	env.Kubelet.Unreachable(pod)
	env.Step(time.Minute + time.Second)
	env.WaitCondition(one, v1alpha1.ConditionTerminating, metav1.ConditionTrue, v1alpha1.ReasonHeartbeatTimeout)
	env.Waive(1, "one-worker", "the first worker is lost and runs on")
	env.Step(10 * time.Minute)
	env.WaitCondition(one, v1alpha1.ConditionWorkerStopped, metav1.ConditionUnknown, v1alpha1.ReasonWorkerLost)
	env.Step(2 * time.Second)
	next := env.Kubelet.Run(env.Kubelet.WaitPod(one, 2))
	env.WaitTask(one, func(t *v1alpha1.Task) error {
		if t.Status.Attempt != 2 || t.Status.State != v1alpha1.StateProcessing {
			return fmt.Errorf("state %s in attempt %d", t.Status.State, t.Status.Attempt)
		}
		return nil
	})
	before := env.Get(one)
	late := &report.Report{TaskID: string(one.UID), Attempt: 1, Sequence: 9, Kind: report.Succeeded}
	changed, err := lifecycle.Take(before.DeepCopy(), late, lifecycle.Origin{PodUID: pod.UID, Source: v1alpha1.FromGateway}, time.Minute, env.Clock.Now())
	var refused *lifecycle.ReportRefusedError
	if changed || !errors.As(err, &refused) || refused.Code != report.AttemptClosed {
		t.Errorf("changed %v, error %v", changed, err)
	}
	env.Kubelet.Exit(pod, testenv.Exit{})
	env.Kubelet.Exit(next, testenv.Exit{})
	env.WaitState(one, v1alpha1.StateSucceeded)
}
