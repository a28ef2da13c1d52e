package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/benchkit"
)

const (
	// lifeTasks is the size of the run whose Jobs are deleted at once.
	lifeTasks = 100
	// untouched is how long finished Tasks are watched for passes that they should not cause.
	untouched = 20 * time.Second
)

// bench is the run of one profile.
type bench struct {
	*options
	profile  profile
	program  string
	figures  *benchkit.Figures
	last     bool
	cluster  *benchkit.Cluster
	operator *operator

	jobRuns, taskRuns [][]unit // one for each round

	spent  spent
	sample *v1alpha1.Task // a finished one
}

// spent is what the operator did for the Tasks of all rounds.
type spent struct{ writes, reads, events, conflicts, reconciles float64 }

func (b *bench) figure(name string, value float64) { b.figures.Add(name+b.profile.suffix, value) }

func (b *bench) say(format string, args ...any) {
	benchkit.Say(b.profile.name+": "+format, args...)
}

// run does all phases and ends what it has started, whatever happens.
func (b *bench) run(ctx context.Context) (err error) {
	if b.cluster, err = benchkit.StartCluster(ctx, b.clusterBin, "bench-"+b.profile.name, b.profile.args); err != nil {
		return err
	}
	defer func() {
		if b.operator != nil {
			err = errors.Join(err, b.operator.Stop())
		}
		if b.keep {
			b.say("cluster %s stays up", b.cluster.Name)
			return
		}
		err = errors.Join(err, b.cluster.Down())
	}()
	if err := b.cluster.WriteKubeconfig(ctx, benchkit.Controller, b.file("kubeconfig")); err != nil {
		return err
	}
	if err := b.startOperator(ctx); err != nil {
		return err
	}
	type phase struct {
		name string
		run  func(context.Context, string) error
	}
	phases := []phase{{"light", b.lightRun}}
	for i := range b.profile.rounds {
		round := []phase{{fmt.Sprintf("jobs-%d", i+1), b.jobRun}, {fmt.Sprintf("tasks-%d", i+1), b.taskRun}}
		if i%2 == 1 {
			slices.Reverse(round)
		}
		phases = append(phases, round...)
	}
	phases = append(phases, phase{"life", b.lifeRun})
	if b.last && b.finished > 0 {
		phases = append(phases, phase{"finished", b.finishedRun})
	}
	for _, phase := range phases {
		namespace := "bench-" + phase.name
		if err := b.cluster.MakeNamespace(ctx, namespace); err != nil {
			return err
		}
		if err := b.cluster.Quiet(ctx); err != nil {
			return err
		}
		if err := phase.run(ctx, namespace); err != nil {
			return fmt.Errorf("%s run: %w", phase.name, err)
		}
	}
	return nil
}

// file is one of the files of this profile.
func (b *bench) file(name string) string { return filepath.Join(runFolder, b.profile.name+"-"+name) }

func (b *bench) newOperator() (*operator, error) {
	p, err := benchkit.Start(b.program, "controller", b.file("kubeconfig"), b.file("operator.log"), b.operatorArgs)
	return &operator{Process: p}, err
}

func (b *bench) startOperator(ctx context.Context) error {
	var err error
	if b.operator, err = b.newOperator(); err != nil {
		return err
	}
	ready, err := b.operator.WaitReady(ctx)
	if err != nil {
		return err
	}
	b.say("the operator is ready after %.2f s", ready.Seconds())
	return nil
}

// lightRun shows the lag without load. It also warms everything up.
func (b *bench) lightRun(ctx context.Context, namespace string) error {
	l, err := b.tasksThrough(ctx, namespace, b.light)
	if err != nil {
		return err
	}
	units, err := l.taskUnits()
	if err != nil {
		return err
	}
	b.figure("light_lag_p50_seconds", benchkit.Percentile(durations(units, podEnded, ended), 50))
	b.figure("light_job_lag_p50_seconds", benchkit.Percentile(durations(units, podEnded, jobComplete), 50))
	return b.cluster.Clear(ctx, namespace)
}

// jobRun is what the Tasks are compared with.
func (b *bench) jobRun(ctx context.Context, namespace string) error {
	if err := b.cluster.Log.Skip(); err != nil {
		return err
	}
	b.say("%d plain Jobs", b.tasks)
	report, err := b.measureCPU()
	if err != nil {
		return err
	}
	if err := b.createPlainJobs(ctx, namespace, b.tasks); err != nil {
		return err
	}
	if err := waitJobs(ctx, b.cluster, namespace, b.tasks, benchkit.RunLimit); err != nil {
		return err
	}
	if err := report(); err != nil {
		return err
	}
	if err := b.cluster.Quiet(ctx); err != nil {
		return err
	}
	l := newLedger()
	if err := b.cluster.Log.Read(namespace, l.add); err != nil {
		return err
	}
	b.sayRequests(l, b.tasks)
	units := l.plainJobs()
	if len(units) != b.tasks {
		return fmt.Errorf("the audit log has %d Jobs of %d", len(units), b.tasks)
	}
	b.jobRuns = append(b.jobRuns, units)
	b.say("%.1f Jobs a second", perSecond(units))
	return b.roundEnds(ctx, namespace)
}

// taskRun is the main run.
func (b *bench) taskRun(ctx context.Context, namespace string) error {
	before, err := b.operator.idle(ctx, 0, time.Minute)
	if err != nil {
		return err
	}
	b.say("%d Tasks", b.tasks)
	l, err := b.tasksThrough(ctx, namespace, b.tasks)
	if err != nil {
		return err
	}
	after, err := b.operator.idle(ctx, 0, time.Minute)
	if err != nil {
		return err
	}
	units, err := l.taskUnits()
	if err != nil {
		return err
	}
	if len(units) != b.tasks {
		return fmt.Errorf("the audit log has %d Tasks of %d", len(units), b.tasks)
	}
	b.taskRuns = append(b.taskRuns, units)
	b.say("%.1f Tasks a second", perSecond(units))
	b.sayRequests(l, b.tasks)
	events, err := b.countEvents(ctx, namespace)
	if err != nil {
		return err
	}
	b.spent.writes += float64(l.writesUntilEnd())
	b.spent.reads += float64(l.reads)
	b.spent.events += float64(events)
	b.spent.conflicts += float64(l.conflicts)
	b.spent.reconciles += after.reconciles - before.reconciles
	if len(b.taskRuns) == b.profile.rounds {
		if err := b.idleRun(ctx, namespace); err != nil {
			return err
		}
	}
	return b.roundEnds(ctx, namespace)
}

// roundEnds clears up, and draws the figures once all rounds are over.
func (b *bench) roundEnds(ctx context.Context, namespace string) error {
	if len(b.jobRuns) == b.profile.rounds && len(b.taskRuns) == b.profile.rounds {
		b.compare()
	}
	return b.cluster.Clear(ctx, namespace)
}

// compare sets the Tasks of all rounds against the plain Jobs.
func (b *bench) compare() {
	jobs, tasks := slices.Concat(b.jobRuns...), slices.Concat(b.taskRuns...)
	lag, jobLag := durations(tasks, podEnded, ended), durations(jobs, podEnded, ended)
	b.figure("jobs_per_second", perSecond(b.jobRuns...))
	b.figure("tasks_per_second", perSecond(b.taskRuns...))
	b.figure("ratio_tasks_per_second", perSecond(b.taskRuns...)/perSecond(b.jobRuns...))
	b.figure("job_lag_p50_seconds", benchkit.Percentile(jobLag, 50))
	b.figure("job_lag_p99_seconds", benchkit.Percentile(jobLag, 99))
	b.figure("task_lag_p50_seconds", benchkit.Percentile(lag, 50))
	b.figure("task_lag_p99_seconds", benchkit.Percentile(lag, 99))
	b.figure("lag_p99_ratio", benchkit.Percentile(lag, 99)/benchkit.Percentile(jobLag, 99))
	b.figure("job_create_to_complete_p50_seconds", benchkit.Percentile(durations(jobs, created, ended), 50))
	b.figure("task_create_to_terminal_p50_seconds", benchkit.Percentile(durations(tasks, created, ended), 50))
	b.figure("before_job_complete_share", beforeJobComplete(tasks))
	n := float64(len(tasks))
	b.figure("operator_writes_per_task", b.spent.writes/n)
	b.figure("operator_reads_per_task", b.spent.reads/n)
	b.figure("operator_events_per_task", b.spent.events/n)
	b.figure("conflicts_per_task", b.spent.conflicts/n)
	b.figure("reconciles_per_task", b.spent.reconciles/n)
}

// idleRun watches finished Tasks that nothing touches.
func (b *bench) idleRun(ctx context.Context, namespace string) error {
	before, err := b.operator.counters(ctx)
	if err != nil {
		return err
	}
	benchkit.Doing("watching finished Tasks for %s", untouched)
	if err := benchkit.Pause(ctx, untouched); err != nil {
		return err
	}
	after, err := b.operator.counters(ctx)
	if err != nil {
		return err
	}
	b.figure("reconciles_idle_finished", after.reconciles-before.reconciles)
	b.sample = &v1alpha1.Task{}
	return b.cluster.Get(ctx, client.ObjectKeyFromObject(newTask(namespace, 0, 0)), b.sample)
}

// lifeRun counts the writes of whole lives: the Jobs are deleted as soon as their Tasks have succeeded.
func (b *bench) lifeRun(ctx context.Context, namespace string) error {
	if err := b.cluster.Log.Skip(); err != nil {
		return err
	}
	n := min(lifeTasks, b.tasks)
	b.say("%d Tasks whose Jobs are deleted at once", n)
	if err := b.createTasks(ctx, namespace, n, 0); err != nil {
		return err
	}
	if err := b.cluster.WaitTasks(ctx, namespace, n, benchkit.RunLimit); err != nil {
		return err
	}
	err := b.cluster.WaitNone(ctx, "Jobs to be deleted", benchkit.JobList(), benchkit.RunLimit, n, client.InNamespace(namespace))
	if err != nil {
		return err
	}
	if err := b.cluster.Quiet(ctx); err != nil {
		return err
	}
	l := newLedger()
	if err := b.cluster.Log.Read(namespace, l.add); err != nil {
		return err
	}
	if _, err := l.taskUnits(); err != nil {
		return err
	}
	b.figure("operator_writes_life_per_task", float64(len(l.writes))/float64(n))
	return b.cluster.Clear(ctx, namespace)
}

// tasksThrough runs Tasks until they and their Jobs have ended and the control plane is quiet.
func (b *bench) tasksThrough(ctx context.Context, namespace string, n int) (*ledger, error) {
	if err := b.cluster.Log.Skip(); err != nil {
		return nil, err
	}
	report, err := b.measureCPU()
	if err != nil {
		return nil, err
	}
	if err := b.createTasks(ctx, namespace, n, longRetention); err != nil {
		return nil, err
	}
	if err := b.cluster.WaitTasks(ctx, namespace, n, benchkit.RunLimit); err != nil {
		return nil, err
	}
	if err := report(); err != nil {
		return nil, err
	}
	if err := waitJobs(ctx, b.cluster, namespace, n, benchkit.RunLimit); err != nil {
		return nil, err
	}
	if err := b.cluster.Quiet(ctx); err != nil {
		return nil, err
	}
	l := newLedger()
	return l, b.cluster.Log.Read(namespace, l.add)
}

// countEvents counts what the operator has told about the objects of a namespace, repetitions included. The audit log does
// not have them: they would bury all else.
func (b *bench) countEvents(ctx context.Context, namespace string) (int, error) {
	var list eventsv1.EventList
	if err := b.cluster.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return 0, err
	}
	n := 0
	for i := range list.Items {
		e := &list.Items[i]
		if e.ReportingController != "taskwarden" {
			continue
		}
		n++
		if e.Series != nil {
			n += int(e.Series.Count) - 1
		}
	}
	return n, nil
}

// measureCPU begins to measure; the returned function says what took the processors since.
func (b *bench) measureCPU() (report func() error, err error) {
	return benchkit.MeasureCPU(b.cluster, map[string]*benchkit.Process{"operator": b.operator.Process}, b.say)
}

// sayRequests tells who asked the API server how often.
func (b *bench) sayRequests(l *ledger, n int) {
	var parts []string
	for _, agent := range slices.Sorted(maps.Keys(l.requests)) {
		parts = append(parts, fmt.Sprintf("%s %.2f", agent, float64(l.requests[agent])/float64(n)))
	}
	b.say("writes, and reads of Tasks and Jobs, for each: %s", strings.Join(parts, ", "))
}
