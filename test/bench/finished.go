package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/benchkit"
)

// settled is how long the operator is left alone before its memory is read.
const settled = 10 * time.Second

// finishedRun restarts the operator over many finished Tasks.
func (b *bench) finishedRun(ctx context.Context, namespace string) error {
	if err := b.operator.Stop(); err != nil {
		return err
	}
	b.operator = nil
	b.say("%d finished Tasks, written while the operator is down", b.finished)
	err := benchkit.InParallel(ctx, b.finished, 2*b.creators, "writing finished Tasks", func(ctx context.Context, i int) error {
		return b.writeFinished(ctx, namespace, i)
	})
	if err != nil {
		return err
	}
	if err := b.cluster.Quiet(ctx); err != nil {
		return err
	}
	if err := b.cluster.Log.Skip(); err != nil {
		return err
	}
	if b.operator, err = b.newOperator(); err != nil {
		return err
	}
	ready, err := b.operator.WaitReady(ctx)
	if err != nil {
		return err
	}
	n, err := b.operator.idle(ctx, float64(b.finished), 2*time.Minute)
	if err != nil {
		return err
	}
	benchkit.Doing("letting the operator settle")
	if err := benchkit.Pause(ctx, settled); err != nil {
		return err
	}
	now, peak, err := b.operator.Memory()
	if err != nil {
		return err
	}
	l := newLedger()
	if err := b.cluster.Log.Read(namespace, l.add); err != nil {
		return err
	}
	// These say nothing of the profile, and come once.
	b.figures.Add("restart_ready_seconds", ready.Seconds())
	b.figures.Add(fmt.Sprintf("controller_rss_mib_%d_finished", b.finished), now)
	b.figures.Add(fmt.Sprintf("controller_rss_peak_mib_%d_finished", b.finished), peak)
	b.figures.Add("restart_reconciles_per_finished_task", n.reconciles/float64(b.finished))
	b.figures.Add("restart_writes_per_finished_task", float64(len(l.writes))/float64(b.finished))
	return nil
}

// writeFinished makes a Task that looks like the sample: as the law of states wants it, by way of Pending.
func (b *bench) writeFinished(ctx context.Context, namespace string, i int) error {
	t := newTask(namespace, i, longRetention)
	if err := b.cluster.Create(ctx, t); err != nil {
		return err
	}
	t.Status = v1alpha1.TaskStatus{ObservedGeneration: t.Generation, State: v1alpha1.StatePending, Attempt: 1}
	if err := b.cluster.Status().Update(ctx, t); err != nil {
		return err
	}
	if b.sample == nil || b.sample.Status.State != v1alpha1.StateSucceeded || len(b.sample.Status.Attempts) != 1 {
		return errors.New("the sample is no Task that has succeeded at its first attempt")
	}
	status := b.sample.Status.DeepCopy()
	status.ObservedGeneration = t.Generation
	job := t.Name + "-1"
	status.Worker.JobName, status.Attempts[0].JobName = job, job
	pod := job + "-bench"
	status.Worker.PodName, status.Attempts[0].PodName = pod, pod
	// Every Task has its own objects; equal texts would let a cache look smaller than it is.
	status.Worker.JobUID, status.Worker.PodUID = t.UID, t.UID
	t.Status = *status
	return b.cluster.Status().Update(ctx, t)
}
