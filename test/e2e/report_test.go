package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/builders"
)

// The tests of this file have workers that report through a real sidecar and a real gateway.

// reporting starts a Task without retries whose worker behaves as its flags say and has a sidecar.
func (w *world) reporting(name string, flags ...string) *builders.TaskBuilder {
	return w.worker(name, flags...).Sidecar()
}

const succeeds = "--report-at-end=succeeded --url s3://bucket/key --data {\"pages\":3} --message three"

// result asserts that a Task has what the worker of `succeeds` has reported, and by which way it has come.
func (w *world) result(task *v1alpha1.Task, source v1alpha1.ReportSource) {
	w.t.Helper()
	s := task.Status
	if s.Result == nil || s.Result.URL != "s3://bucket/key" || s.Result.Data == nil || string(s.Result.Data.Raw) != `{"pages":3}` || s.Message != "three" {
		w.t.Errorf("%s: result %+v", describe(task), s.Result)
	}
	if s.Report == nil || s.Report.Source != source || s.Report.Attempt != s.Attempt {
		w.t.Errorf("%s: report %+v, wanted by %s", describe(task), s.Report, source)
	}
}

// TestC47Reports: stages and progress are seen while the worker works, its result when it has ended.
func TestC47Reports(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	task := w.create(w.reporting("reports", "--report=stage download", "--report=progress 10 --message reading", "--report=stage resize",
		"--sleep=6s", "--progress-every=500ms", succeeds).Stage("download", 0).Stage("resize", 0).HeartbeatTimeout(30 * time.Second))
	seen := map[int32]bool{}
	w.await(2*soon, task, func(t *v1alpha1.Task) error {
		p := t.Status.Progress
		if p != nil && p.Percent != nil && t.Status.State == v1alpha1.StateProcessing {
			seen[*p.Percent] = true
		}
		if len(seen) < 3 || p == nil || p.Stage != "resize" {
			return fmt.Errorf("%s: seen %v, progress %+v", describe(t), seen, p)
		}
		return nil
	})
	done := w.end(soon, task, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted)
	w.result(done, v1alpha1.FromGateway)
	if lag := ptr.Deref(done.Status.SyncLagMilliseconds, -1); lag < 0 || lag > 20000 {
		t.Errorf("sync lag %d ms", lag)
	}
	if columns := w.kubectl("get", "tasks.taskwarden.dev", task.Name); !strings.Contains(columns, "PROGRESS") || !strings.Contains(columns, "100") ||
		!strings.Contains(columns, "resize") {
		t.Errorf("kubectl get shows\n%s", columns)
	}
	w.quiet(task)
	w.sidecarLeavesAtOnce(w.pods(task)[0])
	live := w.await(soon, task, func(t *v1alpha1.Task) error {
		if t.Status.Attempts[0].ExitCode == nil {
			return fmt.Errorf("%s: no exit code yet", describe(t))
		}
		return nil
	})
	if code := *live.Status.Attempts[0].ExitCode; code != 0 || meta.IsStatusConditionTrue(live.Status.Conditions, v1alpha1.ConditionReportMismatch) {
		t.Errorf("exit code %d, conditions %+v", code, live.Status.Conditions)
	}
}

// sidecarLeavesAtOnce: with nothing to deliver it does not delay the pod's end. Kubelet times have whole seconds.
func (w *world) sidecarLeavesAtOnce(pod corev1.Pod) {
	w.t.Helper()
	side, worker := pod.Status.InitContainerStatuses[0].State.Terminated, pod.Status.ContainerStatuses[0].State.Terminated
	if side == nil || worker == nil || side.FinishedAt.Sub(worker.FinishedAt.Time) > 5*time.Second || side.ExitCode != 0 {
		w.t.Errorf("the worker ended with %+v, the sidecar with %+v", worker, side)
	}
}

// TestC15ReportThenExit: a failure report ends the attempt, whatever the exit code; a success report stays one.
func TestC15ReportThenExit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	failed := w.create(w.reporting("failed", "--report-at-end=failed --message no-such-picture --permanent").Retry(3))
	odd := w.create(w.reporting("odd", succeeds, "--exit=1"))
	plain := w.create(w.reporting("plain", "--exit=7", "--message=by exit alone"))
	end := w.end(2*soon, failed, v1alpha1.StateFailed, v1alpha1.ReasonPermanentFailure)
	if end.Status.Attempt != 1 || !strings.Contains(end.Status.Message, "no-such-picture") {
		t.Errorf("%s", describe(end))
	}
	w.result(w.end(soon, odd, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted), v1alpha1.FromGateway)
	w.await(soon, odd, func(t *v1alpha1.Task) error {
		if !meta.IsStatusConditionTrue(t.Status.Conditions, v1alpha1.ConditionReportMismatch) {
			return fmt.Errorf("%s: conditions %+v", describe(t), t.Status.Conditions)
		}
		return nil
	})
	end = w.end(soon, plain, v1alpha1.StateFailed, v1alpha1.ReasonNonZeroExitCode)
	if a := end.Status.Attempts[0]; ptr.Deref(a.ExitCode, -1) != 7 || a.Reported != nil {
		t.Errorf("%s: %+v", describe(end), a)
	}
}

// TestC33CheckpointHandedOn: what the first attempt has left the second one finds.
func TestC33CheckpointHandedOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	task := w.create(w.reporting("resumes", "--report=checkpoint {\"page\":7}", "--fail-until-attempt=2").Retry(1))
	done := w.end(2*soon, task, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted)
	if c := done.Status.Checkpoint; c == nil || string(c.Data.Raw) != `{"page":7}` || c.Attempt != 2 {
		t.Errorf("checkpoint %+v", c)
	}
	for _, pod := range w.pods(task) {
		want := ""
		if pod.Labels[v1alpha1.LabelAttempt] == "2" {
			want = `{"page":7}`
		}
		if got := pod.Annotations[v1alpha1.AnnotationCheckpoint]; got != want {
			t.Errorf("attempt %s is handed %q", pod.Labels[v1alpha1.LabelAttempt], got)
		}
	}
}

// TestC06ProgressIsKept: a pod that is torn away leaves its attempt with the last progress.
func TestC06ProgressIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	task := w.create(w.reporting("torn", "--report=progress 60", "--sleep=5m"))
	w.await(2*soon, task, func(t *v1alpha1.Task) error {
		if t.Status.Progress == nil || ptr.Deref(t.Status.Progress.Percent, 0) != 60 {
			return fmt.Errorf("%s: progress %+v", describe(t), t.Status.Progress)
		}
		return nil
	})
	w.kill(w.pod(task))
	end := w.end(2*soon, task, v1alpha1.StateFailed, v1alpha1.ReasonPodDeleted)
	if got := end.Status.Attempts[0].Percent; ptr.Deref(got, 0) != 60 {
		t.Errorf("the attempt's percent is %v", got)
	}
}

// TestHeartbeatTimeout: a worker that falls silent is stopped, one that goes on reporting is not.
func TestHeartbeatTimeout(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	silent := w.create(w.reporting("silent", "--report=progress 5", "--sleep=5m").HeartbeatTimeout(10 * time.Second))
	lively := w.create(w.reporting("lively", "--sleep=16s", "--progress-every=2s", succeeds).HeartbeatTimeout(10 * time.Second))
	w.end(3*soon, silent, v1alpha1.StateFailed, v1alpha1.ReasonHeartbeatTimeout)
	if w.stopped(silent, 1) == nil {
		t.Error("the silent worker runs on")
	}
	w.result(w.end(soon, lively, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted), v1alpha1.FromGateway)
}

// TestSidecarKilled: a sidecar that is killed while its worker works comes back, and what it had taken is delivered.
func TestSidecarKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	task := w.create(w.reporting("bereft", "--report=progress 10", "--sleep=10s", succeeds))
	w.await(2*soon, task, func(t *v1alpha1.Task) error {
		if t.Status.Progress == nil {
			return fmt.Errorf("%s: no progress yet", describe(t))
		}
		return nil
	})
	if killed := killProcesses(t, sidecarOf(task)); killed != 1 {
		t.Fatalf("killed %d sidecars", killed)
	}
	w.result(w.end(2*soon, task, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted), v1alpha1.FromGateway)
	if n := w.pods(task)[0].Status.InitContainerStatuses[0].RestartCount; n != 1 {
		t.Errorf("the sidecar was started again %d times", n)
	}
}

// The tests from here on disturb the gateway, which all tests share: none of them is parallel.

// TestC43GatewayAway: without a gateway a result waits in the sidecar, and goes by its termination message when that ends; what does not
// fit there is told of. When the gateway comes back, what waits is delivered.
func TestC43GatewayAway(t *testing.T) {
	w := newWorld(t)
	waits := w.create(w.reporting("waits", "--sleep=5s", succeeds))
	small := w.create(w.reporting("small", "--sleep=5s", succeeds))
	large := w.create(w.reporting("large", "--sleep=5s", `--report-at-end=succeeded --data "`+strings.Repeat("x", 10000)+`"`))
	all := []*v1alpha1.Task{waits, small, large}
	for _, task := range all {
		w.state(2*soon, task, v1alpha1.StateProcessing)
	}
	t.Cleanup(func() { w.scaleOf("gateway", 1) })
	w.scaleOf("gateway", 0)
	for _, task := range all {
		w.waits(soon, task, v1alpha1.ReasonAwaitingReport, "exited with code 0")
	}
	for _, task := range []*v1alpha1.Task{small, large} { // their nodes are in a hurry
		if killed := killProcesses(t, sidecarOf(task)); killed != 1 {
			t.Fatalf("killed %d sidecars of %s", killed, task.Name)
		}
	}
	w.result(w.end(soon, small, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted), v1alpha1.FromTerminationMessage)
	end := w.end(soon, large, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted)
	if !meta.IsStatusConditionTrue(end.Status.Conditions, v1alpha1.ConditionResultUndelivered) {
		t.Errorf("%s: conditions %+v", describe(end), end.Status.Conditions)
	}
	w.state(time.Second, waits, v1alpha1.StateProcessing)
	w.scaleOf("gateway", 1)
	w.result(w.end(2*soon, waits, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted), v1alpha1.FromGateway)
}

// process tells which processes of this machine are meant: by its command line, and by a variable of its environment.
type process struct{ command, env string }

func sidecarOf(task *v1alpha1.Task) process {
	return process{"/taskwarden-reporter\x00serve", v1alpha1.EnvTaskUID + "=" + string(task.UID)}
}

func workerOf(task *v1alpha1.Task) process {
	return process{"/worker\x00", v1alpha1.EnvTaskUID + "=" + string(task.UID)}
}

// killProcesses kills the processes of a container as the kernel does, and tells how many there were.
func killProcesses(t *testing.T, p process) int {
	t.Helper()
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	killed := 0
	for _, file := range commands {
		command, _ := os.ReadFile(file) // processes come and go
		if !bytes.HasPrefix(command, []byte(p.command)) {
			continue
		}
		environ, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "environ"))
		if !slices.Contains(strings.Split(string(environ), "\x00"), p.env) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err == nil {
			killed++
		}
	}
	return killed
}
