package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/report"
	"github.com/taskwarden/taskwarden/test/builders"
	"github.com/taskwarden/taskwarden/test/testenv"
)

// shape is one way in which a Task's life can go. Its story is told in steps that wait for what the operator has stored, so that it
// makes the same writes in the same order each time, with and without faults.
type shape struct {
	name string
	task *builders.TaskBuilder
	// behave says which attempts play themselves; the others are played by the story.
	behave map[int]testenv.Behaviour
	story  func(*life)
}

// shapes are the lives of Tasks.
func shapes() []shape {
	task := func() *builders.TaskBuilder {
		return builders.Task("one").Template(builders.Pod().GracePeriod(1).Obj()).FastBackoff().Retry(0).StartTimeout(time.Hour)
	}
	untilStopped := map[int]testenv.Behaviour{1: testenv.UntilStopped}
	homeless := map[int]testenv.Behaviour{1: {Unschedulable: "0/3 nodes are available"}}
	return []shape{
		{"success", task().WorkerRetention(0), nil, func(l *life) {
			l.works(1)
			l.exits(1, testenv.Exit{Message: `{"data": 7}`})
		}},
		{"flash", task(), nil, func(l *life) { l.Kubelet.Flash(l.pod(1), testenv.Exit{}) }},
		{"failure", task(), nil, func(l *life) {
			l.works(1)
			l.exits(1, testenv.Exit{Code: 1, Message: "boom"})
		}},
		{"retry", task().Retry(1), nil, func(l *life) {
			l.works(1)
			l.exits(1, testenv.Exit{Code: 1, Message: "boom"})
			l.works(2)
			l.exits(2, testenv.Exit{})
		}},
		{"retry by hand", task(), nil, func(l *life) {
			l.works(1)
			l.exits(1, testenv.Exit{Code: 1})
			l.waitFor(inState(v1alpha1.StateFailed, 1))
			l.RetryByHand(l.task, "now")
			l.works(2)
			l.exits(2, testenv.Exit{})
		}},
		{"deadline", task().ActiveDeadline(2 * time.Second), untilStopped, func(*life) {}},
		{"start timeout", task().StartTimeout(6 * time.Second), homeless, func(*life) {}},
		{"overall deadline", task().ActiveDeadline(10 * time.Second).OverallDeadline(10 * time.Second), untilStopped, func(*life) {}},
		{"cancel", task(), untilStopped, func(l *life) {
			l.waitFor(inState(v1alpha1.StateProcessing, 1))
			l.Cancel(l.task)
		}},
		{"cancel before a start", task(), homeless, func(l *life) {
			l.waitFor(hasReason(v1alpha1.ReasonUnschedulable))
			l.Cancel(l.task)
		}},
		{"cancel in backoff", task().Retry(1).Backoff(time.Hour, time.Hour, "1"), nil, func(l *life) {
			l.works(1)
			l.exits(1, testenv.Exit{Code: 1})
			l.waitFor(inState(v1alpha1.StateRetrying, 1))
			l.Cancel(l.task)
		}},
		{"suspend", task(), untilStopped, func(l *life) {
			l.waitFor(inState(v1alpha1.StateProcessing, 1))
			l.Suspend(l.task, true)
			l.waitFor(inState(v1alpha1.StateRetrying, 1))
			l.Suspend(l.task, false)
			l.works(2)
			l.exits(2, testenv.Exit{})
		}},
		{"eviction", task(), nil, func(l *life) {
			l.works(1)
			l.Kubelet.Disrupt(l.pod(1), "EvictionByEvictionAPI")
			l.delete(l.pod(1))
			l.goes(1)
			l.works(2)
			l.exits(2, testenv.Exit{})
		}},
		{"pod deleted", task().Retry(1), nil, func(l *life) {
			l.works(1)
			l.delete(l.pod(1))
			l.goes(1)
			l.works(2)
			l.exits(2, testenv.Exit{})
		}},
		{"job deleted", task().Retry(1), nil, func(l *life) {
			l.works(1)
			l.delete(l.WaitJob(l.task, 1))
			l.goes(1)
			l.works(2)
			l.exits(2, testenv.Exit{})
		}},
		{"time to live", task().TTL(0), nil, func(l *life) { l.Kubelet.Flash(l.pod(1), testenv.Exit{}) }},
		{"reported success", task().Sidecar(), nil, func(l *life) {
			l.works(1)
			l.reports(1, &report.Report{Sequence: 1, Kind: report.Succeeded, Result: &report.ResultPayload{URL: "s3://b/k", Data: json.RawMessage(`{"a":1}`)}})
			l.waitFor(inState(v1alpha1.StateSucceeded, 1))
			l.exits(1, testenv.Exit{})
		}},
		{"reported failure", task().Sidecar().Retry(1), nil, func(l *life) {
			l.works(1)
			l.reports(1, &report.Report{Sequence: 1, Kind: report.Checkpoint, Checkpoint: json.RawMessage(`{"page":7}`)})
			l.reports(1, &report.Report{Sequence: 2, Kind: report.Failed, Failure: &report.FailurePayload{Message: "no such picture"}})
			l.waitFor(inState(v1alpha1.StateRetrying, 1))
			l.exits(1, testenv.Exit{Code: 1})
			l.works(2)
			l.reports(2, &report.Report{Sequence: 1, Kind: report.Succeeded})
			l.waitFor(inState(v1alpha1.StateSucceeded, 2))
			l.exits(2, testenv.Exit{})
		}},
		{"report left in a note", task().Sidecar(), nil, func(l *life) {
			l.works(1)
			l.exits(1, testenv.Exit{Container: builders.WorkerName})
			l.waitFor(hasReason(v1alpha1.ReasonAwaitingReport))
			note := &report.Note{Final: &report.Report{TaskID: string(l.task.UID), Attempt: 1, Sequence: 3, Kind: report.Succeeded}}
			l.exits(1, testenv.Exit{Container: v1alpha1.ReporterContainer, Message: string(note.Encode(4096))})
			l.waitFor(inState(v1alpha1.StateSucceeded, 1))
			l.exits(1, testenv.Exit{})
		}},
	}
}

// life is one Task in a world of its own. Whatever it waits for, it brings the operator back where that was killed.
type life struct {
	*testenv.Env
	t      *testing.T
	shape  shape
	task   *v1alpha1.Task
	pods   map[int]*corev1.Pod
	mouth  *mouth
	revive func() // nil: nobody is killed
}

// begin prepares a life, before the operator and the Task.
func begin(t *testing.T, s shape) *life {
	t.Helper()
	l := &life{Env: newEnv(t), t: t, shape: s, pods: map[int]*corev1.Pod{}}
	l.mouth = newMouth(t, l.Env)
	l.Kubelet.Auto(func(p *corev1.Pod) testenv.Behaviour {
		attempt := 0
		_, _ = fmt.Sscan(p.Labels[v1alpha1.LabelAttempt], &attempt) // 0 where it has none
		if b, ok := s.behave[attempt]; ok {
			return b
		}
		return testenv.Behaviour{Manual: true}
	})
	return l
}

// live goes through the story from the operator's start to the Task's end.
func (l *life) live() {
	l.t.Helper()
	l.StartController()
	l.task = l.Create(l.shape.task.Obj())
	l.shape.story(l)
}

// wait polls, with the operator alive.
func (l *life) wait(check func(context.Context) error) {
	l.t.Helper()
	testenv.Eventually(l.t, func(ctx context.Context) error {
		if l.revive != nil {
			l.revive()
		}
		return check(ctx)
	})
}

// waitFor waits until the stored Task is as it should be.
func (l *life) waitFor(check func(*v1alpha1.Task) error) {
	l.t.Helper()
	l.wait(func(ctx context.Context) error {
		live := &v1alpha1.Task{}
		if err := l.Client.Get(ctx, client.ObjectKeyFromObject(l.task), live); err != nil {
			return err
		}
		return check(live)
	})
}

func inState(state v1alpha1.State, attempt int32) func(*v1alpha1.Task) error {
	return func(t *v1alpha1.Task) error {
		if t.Status.State != state || t.Status.Attempt != attempt {
			return fmt.Errorf("%s in attempt %d (%s: %s), wanted is %s in attempt %d",
				t.Status.State, t.Status.Attempt, t.Status.Reason, t.Status.Message, state, attempt)
		}
		return nil
	}
}

func hasReason(reason string) func(*v1alpha1.Task) error {
	return func(t *v1alpha1.Task) error {
		if t.Status.Reason != reason {
			return fmt.Errorf("reason is %s, wanted is %s", t.Status.Reason, reason)
		}
		return nil
	}
}

func terminating(t *v1alpha1.Task) error {
	if !meta.IsStatusConditionTrue(t.Status.Conditions, v1alpha1.ConditionTerminating) {
		return errors.New("the worker is not being stopped")
	}
	return nil
}

// pod waits for the pod of an attempt.
func (l *life) pod(attempt int) *corev1.Pod {
	l.t.Helper()
	if p := l.pods[attempt]; p != nil {
		return p
	}
	l.wait(func(ctx context.Context) error {
		var pods corev1.PodList
		if err := l.Client.List(ctx, &pods, client.InNamespace(l.Namespace), client.MatchingLabels{v1alpha1.LabelAttempt: fmt.Sprint(attempt)}); err != nil {
			return err
		}
		if len(pods.Items) == 0 {
			return fmt.Errorf("attempt %d has no pod", attempt)
		}
		l.pods[attempt] = &pods.Items[0]
		return nil
	})
	return l.pods[attempt]
}

// works has the worker of an attempt run, and waits until that is stored.
func (l *life) works(attempt int) {
	l.t.Helper()
	l.Kubelet.Run(l.pod(attempt))
	l.waitFor(inState(v1alpha1.StateProcessing, int32(attempt)))
}

func (l *life) exits(attempt int, exit testenv.Exit) {
	l.t.Helper()
	l.Kubelet.Exit(l.pod(attempt), exit)
}

// goes has a worker that is being stopped end, and its pod go when that is stored: with the pod its exit code would be gone.
func (l *life) goes(attempt int) {
	l.t.Helper()
	l.waitFor(terminating)
	l.exits(attempt, testenv.Exit{Code: testenv.ExitSIGTERM})
	l.waitFor(inState(v1alpha1.StateRetrying, int32(attempt)))
	l.Kubelet.Remove(l.pod(attempt))
}

// reports delivers a report, and delivers it again until it is taken.
func (l *life) reports(attempt int, r *report.Report) {
	l.t.Helper()
	l.wait(func(ctx context.Context) error {
		code, err := l.mouth.say(ctx, l.pods[attempt], r)
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("answered with %d", code)
		}
		return err
	})
}

// delete deletes what a stranger should not.
func (l *life) delete(object client.Object) {
	l.t.Helper()
	if err := l.Client.Delete(l.t.Context(), object, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		l.t.Fatal(err)
	}
}

// outcome waits until the Task has come to rest, and gives all that is left of it.
func (l *life) outcome() (*outcome, error) {
	l.t.Helper()
	live := &v1alpha1.Task{}
	err := l.Client.Get(l.t.Context(), client.ObjectKeyFromObject(l.task), live)
	if client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	marks, err2 := l.Marks.All()
	if err2 != nil {
		return nil, err2
	}
	if apierrors.IsNotFound(err) {
		return &outcome{Gone: true, Runs: runsOf(marks)}, nil
	}
	if live.Status.CompletionTime == nil {
		return nil, errors.New("the Task has not ended")
	}
	o := outcomeOf(live)
	o.Runs = runsOf(marks)
	for _, job := range l.Jobs(l.task) {
		o.Jobs = append(o.Jobs, job.Name)
	}
	return o, nil
}
