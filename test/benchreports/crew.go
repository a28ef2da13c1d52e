package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/taskwarden/taskwarden/test/benchkit"
)

// startLimit bounds the wait until the workers of a phase run.
const startLimit = 10 * time.Minute

// crew finds the pods of a namespace as their workers begin to run.
type crew struct {
	running chan *corev1.Pod
	stop    context.CancelFunc

	mu   sync.Mutex
	seen map[types.UID]bool
}

// newCrew watches a namespace in which there will be so many Tasks, of which some have a second pod.
func newCrew(ctx context.Context, cluster *benchkit.Cluster, namespace string, most int) (*crew, error) {
	ctx, stop := context.WithCancel(ctx)
	c := &crew{running: make(chan *corev1.Pod, 2*most), stop: stop, seen: map[types.UID]bool{}}
	pods, err := cache.New(cluster.Config, cache.Options{
		Scheme: cluster.Scheme(), DefaultNamespaces: map[string]cache.Config{namespace: {}},
	})
	if err != nil {
		return c, err
	}
	informer, err := pods.GetInformer(ctx, &corev1.Pod{}, cache.BlockUntilSynced(false))
	if err != nil {
		return c, err
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: c.look, UpdateFunc: func(_, now any) { c.look(now) },
	})
	go func() { _ = pods.Start(ctx) }() // it ends with the context, and tells nothing else
	return c, err
}

// look hands a pod with a sidecar on when it is first seen running.
func (c *crew) look(object any) {
	p, ok := object.(*corev1.Pod)
	if !ok || p.Status.Phase != corev1.PodRunning || sidecarOf(p) == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.seen[p.UID] {
		c.seen[p.UID] = true
		select {
		case c.running <- p.DeepCopy():
		default: // more pods than Tasks: the figures will tell
		}
	}
}

// next waits for the next pod.
func (c *crew) next(ctx context.Context) (*corev1.Pod, error) {
	select {
	case p := <-c.running:
		return p, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// gather takes over the pods of n workers, each with the plan of its number, and starts their sidecars.
func (b *bench) gather(ctx context.Context, c *crew, n int, plans func(i, n int) plan) ([]*worker, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	workers := make([]*worker, n)
	err := benchkit.InParallel(ctx, n, b.creators, "workers that run", func(ctx context.Context, i int) error {
		var err error
		workers[i], err = b.takeOver(ctx, c, i, func() plan { return plans(i, n) })
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("start the workers: %w", err)
	}
	return workers, nil
}

// takeOver takes over the next pod that runs, and starts its sidecar, which reports to the replica with the worker's number.
func (b *bench) takeOver(ctx context.Context, c *crew, i int, planned func() plan) (*worker, error) {
	object, err := c.next(ctx)
	if err != nil {
		return nil, err
	}
	p, err := b.around.newPod(ctx, object)
	if err != nil {
		return nil, err
	}
	w := &worker{pod: p, plan: planned()}
	return w, b.around.start(p, i, w.plan.cut)
}

// goOn lets all workers work, and waits for their ends.
func (b *bench) goOn(ctx context.Context, workers []*worker, begin time.Time) error {
	return benchkit.InParallel(ctx, len(workers), len(workers), "workers that have ended", func(ctx context.Context, i int) error {
		return workers[i].work(ctx, begin)
	})
}

// relieve takes over the pods of n second attempts as they begin to run, and lets their workers work. late is called when their
// final reports are acknowledged.
func (b *bench) relieve(ctx context.Context, c *crew, n int, begin time.Time,
	late func(context.Context, *worker) error) ([]*worker, error) {
	ctx, cancel := context.WithTimeout(ctx, b.timing.spread+2*b.timing.report+b.timing.outage+endLimit)
	defer cancel()
	workers := make([]*worker, n)
	return workers, benchkit.InParallel(ctx, n, n, "second attempts that have ended", func(ctx context.Context, i int) error {
		w, err := b.takeOver(ctx, c, i, func() plan { return b.timing.afterOutage(time.Since(begin)) })
		workers[i] = w
		if err != nil {
			return err
		}
		w.check = late
		return w.work(ctx, begin)
	})
}

// release ends the sidecars that still run.
func release(workers []*worker) {
	for _, w := range workers {
		if w != nil && w.pod != nil && w.stop != nil {
			w.stop()
		}
	}
}
