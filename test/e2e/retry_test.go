package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// TestRunCount is C28: a Task runs limit + 1 times, whatever else happens to it, by the count of the workers themselves.
func TestRunCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	type counted struct {
		task *v1alpha1.Task
		runs int
	}
	var all []counted
	for _, c := range []struct {
		name  string
		limit *int32
		runs  int
	}{{"limit-0", ptr.To[int32](0), 1}, {"limit-2", ptr.To[int32](2), 3}, {"no-limit", nil, 3}} {
		b := w.worker(c.name, "--exit=3", "--message=the disk of attempt $(TASKWARDEN_ATTEMPT) is on fire")
		all = append(all, counted{w.createWith(b, func(task *v1alpha1.Task) { task.Spec.Retry.Limit = c.limit }), c.runs})
	}
	// Somebody keeps the operator busy with each of them.
	touch := 0
	for _, c := range all {
		w.await(2*soon, c.task, func(task *v1alpha1.Task) error {
			touch++
			w.patch(task, fmt.Sprintf(`{"metadata":{"annotations":{"e2e.taskwarden.dev/touched":"%d"}}}`, touch))
			if !meta.IsStatusConditionTrue(task.Status.Conditions, v1alpha1.ConditionFinished) {
				return errors.New(describe(task))
			}
			return nil
		})
	}
	for _, c := range all {
		done := w.end(soon, c.task, v1alpha1.StateFailed, v1alpha1.ReasonNonZeroExitCode)
		if n := w.started(c.task); n != c.runs {
			t.Errorf("Task %s ran %d times, wanted %d", c.task.Name, n, c.runs)
		}
		if n := len(w.jobs(c.task)); n != c.runs {
			t.Errorf("Task %s has %d Jobs, wanted %d", c.task.Name, n, c.runs)
		}
		if n := len(w.pods(c.task)); n != c.runs {
			t.Errorf("Task %s has %d pods, wanted one for each of %d Jobs", c.task.Name, n, c.runs)
		}
		dead := meta.FindStatusCondition(done.Status.Conditions, v1alpha1.ConditionDeadLettered)
		if dead == nil || dead.Reason != v1alpha1.ReasonRetryLimitReached {
			t.Errorf("Task %s: condition DeadLettered is %+v", c.task.Name, dead)
		}
		for _, text := range []string{fmt.Sprintf("ttempt %d of %d", c.runs, c.runs), fmt.Sprintf("the disk of attempt %d is on fire", c.runs)} {
			if !strings.Contains(done.Status.Message, text) {
				t.Errorf("Task %s: message %q lacks %q", c.task.Name, done.Status.Message, text)
			}
		}
	}
}

func TestFailsThenSucceeds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	task := w.create(w.worker("third-time", "--fail-until-attempt=3").Retry(3))
	done := w.end(2*soon, task, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted)
	if n := w.started(task); n != 3 || done.Status.Attempt != 3 || done.Status.Charged != 2 {
		t.Errorf("%s, %d charged, and %d runs", describe(done), done.Status.Charged, n)
	}
	var path []string
	for _, h := range done.Status.History {
		path = append(path, string(h.To))
	}
	one := "Pending Processing Retrying "
	if got := strings.Join(path, " "); got != one+one+"Pending Processing Succeeded" {
		t.Errorf("states: %s", got)
	}
	for i, a := range done.Status.Attempts[:min(2, len(done.Status.Attempts))] {
		want := fmt.Sprintf("attempt %d fails, as every one before attempt 3", i+1)
		if a.ExitCode == nil || *a.ExitCode != 1 || !strings.Contains(a.Message, want) {
			t.Errorf("attempt %d: exit code %v, message %q, wanted %q", a.Number, ptr.Deref(a.ExitCode, -1), a.Message, want)
		}
	}
}

// TestMoreMemory lets the kernel kill a worker and answers with a higher limit for the next one.
func TestMoreMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	small := w.build("greedy", func(c *corev1.Container) {
		c.Command = []string{"/worker"}
		c.Args = []string{"--marks=" + shared, "--allocate=96Mi"}
		c.Resources.Limits = memory("32Mi")
	})
	task := w.create(small.Retry(1).OnReasonWith(v1alpha1.ReasonOOMKilled, corev1.ResourceRequirements{Limits: memory("160Mi")}))
	done := w.end(2*soon, task, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted)
	if len(done.Status.Attempts) != 2 {
		t.Fatalf("attempts: %+v", done.Status.Attempts)
	}
	if first := done.Status.Attempts[0]; first.Reason != v1alpha1.ReasonOOMKilled || ptr.Deref(first.ExitCode, -1) != 137 {
		t.Errorf("first attempt: %+v", first)
	}
	if w.stopped(task, 1) != nil {
		t.Error("the first worker left a stop mark, so nothing has killed it")
	}
	limits := map[string]string{}
	for _, p := range w.pods(task) {
		limits[p.Labels[v1alpha1.LabelAttempt]] = p.Spec.Containers[0].Resources.Limits.Memory().String()
	}
	if limits["1"] != "32Mi" || limits["2"] != "160Mi" {
		t.Errorf("memory limits by attempt: %v", limits)
	}
}

// TestRetryByHand asks for a retry as a user does, and again with a Task that is not Failed.
func TestRetryByHand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	task := w.create(w.worker("second-chance", "--fail-until-attempt=2"))
	w.end(soon, task, v1alpha1.StateFailed, v1alpha1.ReasonNonZeroExitCode)
	ask := func(when string, outcome v1alpha1.RetryOutcome) {
		w.kubectl("annotate", "tasks.taskwarden.dev", task.Name, "--overwrite", v1alpha1.AnnotationRetryRequestedAt+"="+when)
		w.await(soon, task, func(live *v1alpha1.Task) error {
			if r := live.Status.LastHandledRetry; r == nil || r.RequestedAt != when || r.Outcome != outcome {
				return fmt.Errorf("answer %+v, wanted %s to %s", r, outcome, when)
			}
			return nil
		})
	}
	ask("today", v1alpha1.RetryAccepted)
	done := w.end(soon, task, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted)
	ask("tomorrow", v1alpha1.RetryRefused)
	if n := w.started(task); n != 2 || done.Status.Attempt != 2 {
		t.Errorf("%s, and %d runs", describe(done), n)
	}
}

// TestSuspend stops a worker, keeps the Task from running, and lets it go on at no charge.
func TestSuspend(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	task := w.create(w.worker("paused", "--sleep=6s", "--term-grace=2s"))
	idle := w.create(w.worker("never-begun").Suspend())
	w.state(soon, task, v1alpha1.StateProcessing)
	w.patch(task, `{"spec":{"suspend":true}}`)
	paused := w.state(soon, task, v1alpha1.StateRetrying)
	stop := w.stopped(task, 1)
	last := paused.Status.History[len(paused.Status.History)-1]
	if stop == nil || stop.Time.After(last.Time.Time) {
		t.Errorf("%s to %s at %s, and the worker stopped with %+v", last.From, last.To, last.Time.UTC(), stop)
	}
	if paused.Status.Reason != v1alpha1.ReasonSuspended || !meta.IsStatusConditionTrue(paused.Status.Conditions, v1alpha1.ConditionSuspended) {
		t.Errorf("%s, conditions %+v", describe(paused), paused.Status.Conditions)
	}
	// The wait before a retry is one second: by now it would run again.
	w.eventually(soon, func(context.Context) error {
		if since := time.Since(paused.Status.Attempts[0].FinishTime.Time); since < 4*time.Second {
			return fmt.Errorf("only %s have passed", since)
		}
		return nil
	})
	if n := w.started(task); n != 1 {
		t.Errorf("%d runs while suspended", n)
	}
	if n := w.started(idle) + len(w.jobs(idle)); n != 0 {
		t.Errorf("%d runs and Jobs of a Task that was suspended from the beginning", n)
	}
	w.patch(task, `{"spec":{"suspend":false}}`)
	w.patch(idle, `{"spec":{"suspend":false}}`)
	done := w.end(soon, task, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted)
	if done.Status.Attempt != 2 || done.Status.Uncharged != 1 || done.Status.Charged != 0 {
		t.Errorf("%s, %d charged, %d uncharged", describe(done), done.Status.Charged, done.Status.Uncharged)
	}
	w.end(soon, idle, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted)
}
