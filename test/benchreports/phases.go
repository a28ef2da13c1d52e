package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/benchkit"
)

const (
	// shortWork is how long a worker of phase latency reports, rest the time between two of them.
	shortWork = 500 * time.Millisecond
	rest      = time.Second
	// endLimit bounds the time from the end of the last worker to that of the last Task.
	endLimit = 10 * time.Minute
)

// latency runs Tasks one after the other on a control plane that has nothing else to do.
func (b *bench) latency(ctx context.Context, namespace string) error {
	benchkit.Say("latency: %d Tasks with a sidecar, and as many without, one after the other", b.light)
	crew, err := newCrew(ctx, b.cluster, namespace, b.light)
	defer crew.stop()
	if err != nil {
		return err
	}
	called := map[string]time.Time{}
	var acknowledged []float64
	for i := range b.light {
		w, err := b.lightTask(ctx, namespace, "sidecar-"+taskName(i), crew)
		if err != nil {
			return err
		}
		called[w.task] = w.called
		acknowledged = append(acknowledged, w.took.Seconds())
		if err := b.plainTask(ctx, namespace, "plain-"+taskName(i)); err != nil {
			return err
		}
		benchkit.Doing("latency: %d of %d", i+1, b.light)
	}
	l, err := b.readLedger(ctx, namespace)
	if err != nil {
		return err
	}
	var reported, plain []float64
	for name, s := range l.tasks {
		if at, ok := called[name]; ok {
			reported = append(reported, since(at, s.terminal))
		} else {
			plain = append(plain, since(s.podEnded, s.terminal))
		}
	}
	b.figures.Add("report_to_acknowledged_p50_seconds", benchkit.Percentile(acknowledged, 50))
	b.figures.Add("report_to_terminal_p50_seconds", benchkit.Percentile(reported, 50))
	b.figures.Add("report_to_terminal_max_seconds", benchkit.Percentile(reported, 100))
	b.figures.Add("pod_end_to_terminal_without_sidecar_p50_seconds", benchkit.Percentile(plain, 50))
	return b.cluster.Clear(ctx, namespace)
}

// since is the time between two moments; infinite where one of them did not come.
func since(from, to time.Time) float64 {
	if from.IsZero() || to.IsZero() {
		return math.Inf(1)
	}
	return to.Sub(from).Seconds()
}

// lightTask takes one Task with a sidecar to its end.
func (b *bench) lightTask(ctx context.Context, namespace, name string, c *crew) (*worker, error) {
	if err := b.cluster.Create(ctx, newTask(namespace, name, v1alpha1.ReporterSidecar)); err != nil {
		return nil, err
	}
	workers, err := b.gather(ctx, c, 1, func(int, int) plan { return plan{finish: shortWork} })
	defer release(workers)
	if err != nil {
		return nil, err
	}
	if err := workers[0].work(ctx, time.Now()); err != nil {
		return nil, err
	}
	return workers[0], b.waitTerminal(ctx, namespace, name)
}

// plainTask takes one Task without a sidecar to its end, after the one before it has left the cluster quiet.
func (b *bench) plainTask(ctx context.Context, namespace, name string) error {
	if err := benchkit.Pause(ctx, rest); err != nil {
		return err
	}
	if err := b.cluster.Create(ctx, newTask(namespace, name, v1alpha1.ReporterNone)); err != nil {
		return err
	}
	if err := b.waitTerminal(ctx, namespace, name); err != nil {
		return err
	}
	return benchkit.Pause(ctx, rest)
}

func (b *bench) waitTerminal(ctx context.Context, namespace, name string) error {
	var t v1alpha1.Task
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		err := b.cluster.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &t)
		return t.Status.CompletionTime != nil, err
	})
	if err != nil {
		return fmt.Errorf("wait for Task %s (%s, %s): %w", name, t.Status.State, t.Status.Reason, err)
	}
	return nil
}

// readLedger reads what the audit log has of a phase, once everything is written.
func (b *bench) readLedger(ctx context.Context, namespace string) (*ledger, error) {
	if err := b.cluster.Quiet(ctx); err != nil {
		return nil, err
	}
	l := newLedger()
	return l, b.cluster.Log.Read(namespace, l.add)
}

// load lets all workers report at the same time.
func (b *bench) load(ctx context.Context, namespace string) error {
	benchkit.Say("load: %d workers report every second for %s", b.tasks, b.timing.report)
	r, err := b.round(ctx, namespace, b.timing.underLoad, true, nil)
	if err != nil {
		return err
	}
	b.tell(r, "")
	return b.cluster.Clear(ctx, namespace)
}

// outage lets all workers report at the same time, and kills the gateways meanwhile.
func (b *bench) outage(ctx context.Context, namespace string) error {
	benchkit.Say("outage: %d workers report every second, and the gateways are away for %s", b.tasks, b.timing.outage)
	r, err := b.round(ctx, namespace, b.timing.inOutage, false, b.bringDown)
	if err != nil {
		return err
	}
	b.tell(r, suffixOutage)
	return b.cluster.Clear(ctx, namespace)
}

// bringDown kills the gateways and starts them again.
func (b *bench) bringDown(ctx context.Context, begin time.Time) error {
	down, up := b.timing.away()
	if err := until(ctx, begin.Add(down)); err != nil {
		return err
	}
	benchkit.Say("the gateways are killed")
	if err := b.gateways.kill(ctx); err != nil {
		return err
	}
	if err := until(ctx, begin.Add(up)); err != nil {
		return err
	}
	if err := b.gateways.start(ctx); err != nil {
		return err
	}
	benchkit.Say("the gateways are back")
	return nil
}

// round is what was said, stored and counted in one phase.
type round struct {
	// workers are those of the first attempts, second those of the second ones.
	workers, second []*worker
	ledger          *ledger
	verdict         *verdict
	// before and after are the counts of the gateways.
	before, after counts
	rivals        *rival
	began, ended  time.Time
}

// all are the workers of all attempts.
func (r *round) all() []*worker { return slices.Concat(r.workers, r.second) }

// failing is how many workers fail as it is planned.
func (r *round) failing() int {
	n := 0
	for _, w := range r.workers {
		if w.plan.fails {
			n++
		}
	}
	return n
}

// late lets the worker before this one speak once more.
func (r *round) late(ctx context.Context, w *worker) error {
	for _, earlier := range r.workers {
		if earlier.task == w.task {
			return r.rivals.late(ctx, earlier)
		}
	}
	return fmt.Errorf("no first attempt of Task %s", w.task)
}

// round runs one phase of many workers. during runs beside them.
func (b *bench) round(ctx context.Context, namespace string, plan func(i, n int) plan, rivals bool,
	during func(ctx context.Context, begin time.Time) error) (*round, error) {
	r := &round{}
	var err error
	if r.before, err = b.gateways.counts(ctx); err != nil {
		return nil, err
	}
	crew, err := newCrew(ctx, b.cluster, namespace, b.tasks)
	defer crew.stop()
	if err != nil {
		return nil, err
	}
	if err := b.createTasks(ctx, namespace); err != nil {
		return nil, err
	}
	r.workers, err = b.gather(ctx, crew, b.tasks, plan)
	defer func() { release(r.all()) }()
	if err != nil {
		return nil, err
	}
	if err := b.addRivals(ctx, r, rivals); err != nil {
		return nil, err
	}
	if err := b.together(ctx, r, crew, during); err != nil {
		return nil, err
	}
	return r, b.examine(ctx, namespace, r)
}

func (b *bench) createTasks(ctx context.Context, namespace string) error {
	return benchkit.InParallel(ctx, b.tasks, b.creators, "creating Tasks", func(ctx context.Context, i int) error {
		return b.cluster.Create(ctx, newTask(namespace, taskName(i), v1alpha1.ReporterSidecar))
	})
}

func (b *bench) addRivals(ctx context.Context, r *round, wanted bool) (err error) {
	if r.rivals, err = newRival(ctx, b.cluster.Client, b.gateways.addresses); err != nil || !wanted {
		return err
	}
	for i := 0; i < len(r.workers); i += rivalEvery {
		r.workers[i].check = func(ctx context.Context, w *worker) error { return r.rivals.check(ctx, w, i) }
	}
	return nil
}

// together lets the workers work and, beside them, happen what else is wanted.
func (b *bench) together(ctx context.Context, r *round, c *crew, during func(context.Context, time.Time) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	processes := map[string]*benchkit.Process{"operator": b.controller}
	if during == nil { // else they do not live to the end
		for i, p := range b.gateways.running {
			processes[fmt.Sprintf("gateway-%d", i)] = p
		}
	}
	report, err := benchkit.MeasureCPU(b.cluster, processes, benchkit.Say)
	if err != nil {
		return err
	}
	benchkit.Say("all %d workers run", len(r.workers))
	benchkit.Doing("workers report")
	r.began = time.Now().Add(time.Second)
	beside := make(chan error, 1)
	go func() {
		if during == nil {
			beside <- nil
			return
		}
		beside <- during(ctx, r.began)
	}()
	relieved := make(chan error, 1)
	go func() {
		var err error
		r.second, err = b.relieve(ctx, c, r.failing(), r.began, r.late)
		relieved <- err
	}()
	if err = b.goOn(ctx, r.workers, r.began); err != nil {
		cancel()
	}
	err = errors.Join(err, <-relieved, <-beside)
	r.ended = time.Now()
	return errors.Join(err, report())
}

// examine waits until everything has come to its end, and compares what was said with what is stored.
func (b *bench) examine(ctx context.Context, namespace string, r *round) error {
	said := map[string]word{}
	for _, w := range r.all() { // the second attempts come last, so that their words count
		if w.word.data == "" {
			continue // it could say nothing
		}
		w.word.acknowledged = w.word.acknowledged || w.last.Final == "delivered"
		said[w.task] = w.word
	}
	if err := b.cluster.WaitTasks(ctx, namespace, b.tasks, endLimit); err != nil {
		benchkit.Say("%v", err) // the verdict tells which
	}
	var err error
	if r.ledger, err = b.readLedger(ctx, namespace); err != nil {
		return err
	}
	if r.after, err = b.gateways.counts(ctx); err != nil {
		return err
	}
	var list v1alpha1.TaskList
	if err := b.cluster.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return err
	}
	tasks := map[string]*v1alpha1.Task{}
	for i := range list.Items {
		tasks[list.Items[i].Name] = &list.Items[i]
	}
	r.verdict = judge(said, tasks, r.ledger)
	return nil
}
