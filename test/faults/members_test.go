package faults

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/internal/report"
	"github.com/taskwarden/taskwarden/test/builders"
	"github.com/taskwarden/taskwarden/test/invariants"
	"github.com/taskwarden/taskwarden/test/testenv"
)

// nodes is how many of them there are.
const nodes = 4

func nodeName(n int) string { return fmt.Sprint("node-", n) }

var jobKind = batchv1.SchemeGroupVersion.WithKind("Job")

func attemptOf(pod *corev1.Pod) int {
	n := 0
	_, _ = fmt.Sscan(pod.Labels[v1alpha1.LabelAttempt], &n) // 0 where it has none
	return n
}

// kind is what a Task of the population is like.
type kind struct {
	name string
	// task completes a Task.
	task func(*builders.TaskBuilder)
	// behave completes how the pod of an attempt plays itself: by default it works for a while and exits with 0.
	behave func(w *weather, attempt int, b *testenv.Behaviour)
	// person does something about it while faults happen. Nil: nobody does.
	person func(*weather, *v1alpha1.Task)
	// ends are the states in which it may come to its end.
	ends []v1alpha1.State
}

func failing(b *testenv.Behaviour) { b.Exit = testenv.Exit{Code: 3, Message: "boom"} }

var kinds = []kind{
	{name: "works", ends: []v1alpha1.State{v1alpha1.StateSucceeded}},
	{
		name: "fails-twice", ends: []v1alpha1.State{v1alpha1.StateSucceeded},
		behave: func(_ *weather, attempt int, b *testenv.Behaviour) {
			if attempt <= 2 {
				failing(b)
			}
		},
	},
	{
		name: "fails", ends: []v1alpha1.State{v1alpha1.StateFailed},
		task:   func(b *builders.TaskBuilder) { b.Retry(1) },
		behave: func(_ *weather, _ int, b *testenv.Behaviour) { failing(b) },
	},
	{
		name: "overruns", ends: []v1alpha1.State{v1alpha1.StateFailed},
		task:   func(b *builders.TaskBuilder) { b.Retry(1).ActiveDeadline(3 * time.Second) },
		behave: func(_ *weather, _ int, b *testenv.Behaviour) { b.RunFor = -1 },
	},
	{
		name: "cancelled", ends: []v1alpha1.State{v1alpha1.StateCancelled},
		behave: func(_ *weather, _ int, b *testenv.Behaviour) { b.RunFor = -1 },
		person: func(w *weather, task *v1alpha1.Task) { w.Cancel(task) },
	},
	{
		name: "cancelled-too-late", ends: []v1alpha1.State{v1alpha1.StateCancelled, v1alpha1.StateSucceeded},
		person: func(w *weather, task *v1alpha1.Task) { w.Cancel(task) },
	},
	{
		name: "suspended", ends: []v1alpha1.State{v1alpha1.StateSucceeded},
		person: func(w *weather, task *v1alpha1.Task) {
			w.Suspend(task, !ptr.Deref(w.Get(task).Spec.Suspend, false))
		},
	},
	{
		name: "reports", ends: []v1alpha1.State{v1alpha1.StateSucceeded},
		task:   func(b *builders.TaskBuilder) { b.Sidecar() },
		behave: func(w *weather, _ int, b *testenv.Behaviour) { b.LastWord = w.reportSuccess },
	},
	{
		name: "reports-failure", ends: []v1alpha1.State{v1alpha1.StateFailed},
		task: func(b *builders.TaskBuilder) { b.Sidecar().Retry(1) },
		behave: func(w *weather, _ int, b *testenv.Behaviour) {
			failing(b)
			b.LastWord = w.reportFailure
		},
	},
	{name: "retried", ends: []v1alpha1.State{v1alpha1.StateSucceeded},
		task: func(b *builders.TaskBuilder) { b.Retry(0) },
		behave: func(_ *weather, attempt int, b *testenv.Behaviour) {
			if attempt == 1 {
				failing(b)
			}
		},
		person: func(w *weather, task *v1alpha1.Task) { w.RetryByHand(task, time.Now().String()) },
	},
	{
		name:   "deleted",
		person: func(w *weather, task *v1alpha1.Task) { w.delete("Task deleted", task.DeepCopy()) },
	},
}

// member is one Task of the population.
type member struct {
	kind *kind
	task *v1alpha1.Task
}

// people are those who create Tasks and do something about them.
func (w *weather) people() []at {
	var plan []at
	for i := range w.form.tasks {
		m := &member{kind: &kinds[i%len(kinds)]}
		created := w.moment(0, 0.8)
		plan = append(plan, at{created, func() {
			b := builders.Task(fmt.Sprintf("%s-%d", m.kind.name, i)).Template(builders.Pod().GracePeriod(1).Obj()).
				FastBackoff().Retry(8).UnchargedLimit(30).StartTimeout(time.Hour).WorkerLostTimeout(time.Second)
			if m.kind.task != nil {
				m.kind.task(b)
			}
			m.task = w.Create(b.Obj())
			w.tasks = append(w.tasks, m)
		}})
		if m.kind.person != nil {
			plan = append(plan, at{created + w.short(8000) + time.Millisecond, func() { m.kind.person(w, m.task) }})
		}
	}
	return plan
}

// behave says how a pod plays itself. It depends on the seed, the Task and the attempt alone.
func (w *weather) behave(pod *corev1.Pod) testenv.Behaviour {
	name, attempt := pod.Labels[v1alpha1.LabelTask], attemptOf(pod)
	luck := func(what string) int { return w.chance(fmt.Sprint(name, attempt, what)) }
	b := testenv.Behaviour{
		Node:       nodeName(luck("node") % nodes),
		StartAfter: time.Duration(luck("start")) * time.Millisecond,
		RunFor:     time.Duration(luck("run")*5) * time.Millisecond,
		StopAfter:  time.Duration(luck("stop")) * time.Millisecond,
	}
	for i := range kinds {
		if k := &kinds[i]; name[:strings.LastIndex(name, "-")] == k.name && k.behave != nil {
			k.behave(w, attempt, &b)
		}
	}
	return b
}

func (w *weather) reportSuccess(ctx context.Context, pod *corev1.Pod) {
	w.report(ctx, pod, &report.Report{Sequence: 1, Kind: report.Succeeded, Result: &report.ResultPayload{URL: urlOf(pod)}})
}

func (w *weather) reportFailure(ctx context.Context, pod *corev1.Pod) {
	w.report(ctx, pod, &report.Report{Sequence: 1, Kind: report.Failed, Failure: &report.FailurePayload{Message: urlOf(pod)}})
}

func (w *weather) report(ctx context.Context, pod *corev1.Pod, r *report.Report) {
	if w.mouth.final(ctx, pod, r) {
		w.mark(w.taken, pod)
	}
}

func urlOf(pod *corev1.Pod) string {
	return "s3://storm/" + pod.Labels[v1alpha1.LabelTask] + "/" + pod.Labels[v1alpha1.LabelAttempt]
}

// over is nil where a Task has come to its end. Who suspends resumes, and who wants a retry by hand asks for it, now that the storm
// is over.
func (w *weather) over(m *member, live *v1alpha1.Task) error {
	switch {
	case live == nil && m.kind.ends == nil:
		return nil
	case live == nil:
		return errors.New("it is gone")
	case ptr.Deref(live.Spec.Suspend, false):
		w.Suspend(live, false)
	case m.kind.name == "retried" && live.Status.State == v1alpha1.StateFailed:
		w.RetryByHand(live, fmt.Sprint("after attempt ", live.Status.Attempt))
	case live.Status.CompletionTime != nil && m.kind.ends != nil:
		return nil
	}
	return fmt.Errorf("%s in attempt %d: %s: %s", live.Status.State, live.Status.Attempt, live.Status.Reason, live.Status.Message)
}

// verdict counts what must not be.
type verdict struct{ lost, twice, wrong int }

// judge compares what is stored with what the workers have written down.
func (w *weather) judge() {
	w.t.Helper()
	marks, err := w.Marks.All()
	if err != nil {
		w.t.Fatal(err)
	}
	byTask := map[string][]invariants.Mark{}
	for _, m := range marks {
		byTask[m.Task] = append(byTask[m.Task], m)
	}
	var v verdict
	for _, m := range w.tasks {
		runs := byTask[string(m.task.UID)]
		if n := atOnce(runs); n > 1 {
			v.twice++
			w.t.Errorf("Task %s had %d workers at once: %v", m.task.Name, n, runsOf(runs))
		}
		if m.kind.ends == nil {
			continue
		}
		if wrong := w.contradictions(m.kind, w.Get(m.task), runs); len(wrong) > 0 {
			v.wrong++
			w.t.Errorf("Task %s: %v: outcome %+v", m.task.Name, errors.Join(wrong...), outcomeOf(w.Get(m.task)))
		}
	}
	w.t.Logf("seed %d: %d lost, %d doubly running, %d wrong outcomes", w.seed, v.lost, v.twice, v.wrong)
}

// atOnce is how many workers of a Task have run at the same time.
func atOnce(runs []invariants.Mark) int {
	most := 0
	running := map[string]bool{}
	for _, m := range runs {
		if m.Event == invariants.Start {
			running[m.Run] = true
		} else {
			delete(running, m.Run)
		}
		most = max(most, len(running))
	}
	return most
}

// contradictions are what the stored Task says that its workers do not.
func (w *weather) contradictions(k *kind, t *v1alpha1.Task, runs []invariants.Mark) []error {
	var wrong []error
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	if !hasState(k.ends, t.Status.State) {
		add("it came to %s", t.Status.State)
	}
	attempts := map[int32]*v1alpha1.AttemptStatus{}
	for i := range t.Status.Attempts {
		attempts[t.Status.Attempts[i].Number] = &t.Status.Attempts[i]
	}
	worked := w.taken[t.UID][int(t.Status.Attempt)]
	for _, m := range runs {
		a := attempts[m.Attempt]
		if m.Event != invariants.Stop || a == nil {
			continue
		}
		exit := ptr.Deref(m.Exit, testenv.ExitSIGKILL)
		worked = worked || exit == 0 && m.Attempt == t.Status.Attempt
		shaken, taken := w.shaken[t.UID][int(m.Attempt)], w.taken[t.UID][int(m.Attempt)]
		byItself := exit != testenv.ExitSIGTERM && exit != testenv.ExitSIGKILL
		said := a.Outcome == string(lifecycle.Succeed)
		switch {
		case taken && !ptr.Deref(a.Reported, false):
			add("the report of attempt %d was taken, and is not what has ended it", m.Attempt)
		case said != (exit == 0) && byItself && !shaken && (k.person == nil || k.name == "retried"):
			add("the worker of attempt %d exited with %d, and the attempt ended with %s", m.Attempt, exit, a.Outcome)
		case said && !shaken && !taken && a.ExitCode == nil:
			add("the exit code of attempt %d is lost", m.Attempt)
		case said && exit != 0 && !taken:
			add("the worker of attempt %d exited with %d, and the attempt succeeded", m.Attempt, exit)
		}
	}
	if t.Status.State == v1alpha1.StateSucceeded && !worked {
		add("it succeeded, and no worker says that it did the work")
	}
	return wrong
}

func hasState(states []v1alpha1.State, state v1alpha1.State) bool {
	for _, s := range states {
		if s == state {
			return true
		}
	}
	return false
}
