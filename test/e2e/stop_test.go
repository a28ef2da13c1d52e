package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// TestCancel is C36: a Task is Cancelled when its worker has stopped, not before, and what the worker had to say stays.
func TestCancel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// The pod's grace is far more than is needed: a stop that takes longer is believed not to have worked, and the pod goes.
	task := w.createWith(w.worker("slow-to-stop", "--sleep=5m", "--term-grace=3s").Retry(2), func(task *v1alpha1.Task) {
		task.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](60)
	})
	w.state(soon, task, v1alpha1.StateProcessing)
	w.patch(task, `{"spec":{"cancel":true}}`)
	announced := false
	w.await(2*soon, task, func(live *v1alpha1.Task) error {
		terminating := meta.FindStatusCondition(live.Status.Conditions, v1alpha1.ConditionTerminating)
		if live.Status.State == v1alpha1.StateProcessing && terminating != nil && terminating.Status == metav1.ConditionTrue {
			announced = announced || terminating.Reason == v1alpha1.ReasonCancelled
		}
		// The marks are read after the Task, so they are not older than it.
		switch stop := w.stopped(task, 1); {
		case live.Status.State != v1alpha1.StateCancelled:
			return errors.New(describe(live))
		case stop == nil:
			t.Fatal("Cancelled, and the worker still runs")
		case stop.Time.After(live.Status.CompletionTime.Time):
			t.Errorf("Cancelled at %s, and the worker stopped at %s", live.Status.CompletionTime.UTC(), stop.Time)
		}
		return nil
	})
	if !announced {
		t.Error("condition Terminating did not say that the worker is being stopped while it was")
	}
	done := w.end(soon, task, v1alpha1.StateCancelled, v1alpha1.ReasonCancelled)
	if n := w.started(task); n != 1 || len(done.Status.Attempts) != 1 {
		t.Fatalf("%d runs, attempts %+v", n, done.Status.Attempts)
	}
	if logs := w.kubectl("logs", done.Status.Attempts[0].PodName); !strings.Contains(logs, `"msg":"SIGTERM"`) {
		t.Errorf("the worker's logs do not have its last words:\n%s", logs)
	}
}

// TestCancelDeaf is C36 with a worker that has to be killed when its grace is over.
func TestCancelDeaf(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	task := w.create(w.worker("deaf", "--sleep=5m", "--ignore-sigterm").Retry(2))
	w.state(soon, task, v1alpha1.StateProcessing)
	w.patch(task, `{"spec":{"cancel":true}}`)
	asked := time.Now()
	done := w.end(2*soon, task, v1alpha1.StateCancelled, v1alpha1.ReasonCancelled)
	if w.stopped(task, 1) != nil {
		t.Error("a worker that ignores SIGTERM left a stop mark")
	}
	if took := done.Status.CompletionTime.Sub(asked); took < 4*time.Second {
		t.Errorf("Cancelled after %s, and the worker may run on for 5s", took)
	}
	w.quiet(task)
	for _, p := range w.pods(task) { // on a very busy node it may have been deleted
		ended := p.Status.ContainerStatuses[0].State.Terminated
		// Seconds are all that the kubelet gives.
		if ended == nil || ended.ExitCode != 137 || ended.FinishedAt.After(done.Status.CompletionTime.Add(time.Second)) {
			t.Errorf("Cancelled at %s, and the container ended with %+v", done.Status.CompletionTime.UTC(), ended)
		}
	}
	if n := w.started(task); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// nowhere asks for a node that no cluster has.
func nowhere(task *v1alpha1.Task) {
	task.Spec.Template.Spec.NodeSelector = map[string]string{"e2e.taskwarden.dev/no-such": "node"}
}

// TestCancelBeforeItRuns: nothing runs, so nothing is waited for.
func TestCancelBeforeItRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	task := w.createWith(w.worker("unplaced"), nowhere)
	w.waits(soon, task, v1alpha1.ReasonUnschedulable, "nodes are available")
	w.patch(task, `{"spec":{"cancel":true}}`)
	w.end(soon, task, v1alpha1.StateCancelled, v1alpha1.ReasonCancelled)
	if n := w.started(task); n != 0 {
		t.Errorf("%d runs", n)
	}
}

// TestActiveDeadline is C19 with nothing in the way.
func TestActiveDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const limit = 3 * time.Second
	task := w.create(w.worker("endless", "--sleep=1h", "--term-grace=2s").ActiveDeadline(limit))
	done := w.end(soon, task, v1alpha1.StateFailed, v1alpha1.ReasonActiveDeadlineExceeded)
	w.checkDeadline(done, limit)
	if took := done.Status.CompletionTime.Sub(done.Status.StartTime.Time); took > limit+15*time.Second {
		t.Errorf("a limit of %s ended the attempt after %s", limit, took)
	}
}

// checkDeadline: the worker ran for at least the limit, was stopped before the end, and the message says how long.
func (w *world) checkDeadline(done *v1alpha1.Task, limit time.Duration) {
	w.t.Helper()
	stop := w.stopped(done, 1)
	switch {
	case stop == nil:
		w.t.Errorf("%s, and the worker has not stopped", describe(done))
	case stop.Time.After(done.Status.CompletionTime.Time):
		w.t.Errorf("ended at %s, and the worker stopped at %s", done.Status.CompletionTime.UTC(), stop.Time)
	case stop.Time.Sub(w.runs(done)[1][0].Time) < limit-time.Second:
		w.t.Errorf("the worker was stopped %s after its start, before its limit of %s", stop.Time.Sub(w.runs(done)[1][0].Time), limit)
	}
	if want := fmt.Sprintf("activeDeadlineSeconds %d passed", int(limit.Seconds())); !strings.Contains(done.Status.Message, want) {
		w.t.Errorf("message %q lacks %q", done.Status.Message, want)
	}
	if n := w.started(done); n != 1 {
		w.t.Errorf("%d runs", n)
	}
}

// TestDeleteRunning: a deleted Task takes its worker with it.
func TestDeleteRunning(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	task := w.create(w.worker("unwanted", "--sleep=5m"))
	w.state(soon, task, v1alpha1.StateProcessing)
	w.kubectl("delete", "tasks.taskwarden.dev", task.Name, "--timeout=30s")
	w.eventually(soon, w.nothingLeft)
	if w.stopped(task, 1) == nil {
		t.Error("the worker left no stop mark")
	}
	if n := w.started(task); n != 1 {
		t.Errorf("%d runs", n)
	}
	// A new Task of the same name is another one.
	again := w.create(w.worker("unwanted"))
	w.end(soon, again, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted)
	if again.UID == task.UID || w.started(again) != 1 {
		t.Errorf("%d runs of the new Task", w.started(again))
	}
}

// TestExpires: a Task with a time to live goes by itself, with all that belongs to it.
func TestExpires(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	task := w.create(w.worker("short-lived").TTL(3 * time.Second))
	w.end(soon, task, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted)
	w.eventually(soon, func(ctx context.Context) error {
		err := cluster.client.Get(ctx, client.ObjectKeyFromObject(task), &v1alpha1.Task{})
		if client.IgnoreNotFound(err) != nil {
			return err
		}
		if err == nil {
			return errors.New("it is still there")
		}
		return w.nothingLeft(ctx)
	})
}
