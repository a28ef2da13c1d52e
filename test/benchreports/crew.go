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

// newCrew watches a namespace in which there will be at most so many pods.
func newCrew(ctx context.Context, cluster *benchkit.Cluster, namespace string, most int) (*crew, error) {
	ctx, stop := context.WithCancel(ctx)
	c := &crew{running: make(chan *corev1.Pod, most), stop: stop, seen: map[types.UID]bool{}}
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
func (b *bench) gather(ctx context.Context, c *crew, n int, plan func(i, n int) plan) ([]*worker, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	workers := make([]*worker, n)
	err := benchkit.InParallel(ctx, n, b.creators, "workers that run", func(ctx context.Context, i int) error {
		object, err := c.next(ctx)
		if err != nil {
			return err
		}
		p, err := b.around.newPod(ctx, object)
		if err != nil {
			return err
		}
		w := &worker{pod: p, plan: plan(i, n)}
		workers[i] = w
		return b.around.start(p, i, w.plan.cut)
	})
	if err != nil {
		return nil, fmt.Errorf("start the workers: %w", err)
	}
	return workers, nil
}

// goOn lets all workers work, and waits for their ends.
func (b *bench) goOn(ctx context.Context, workers []*worker, begin time.Time) error {
	return benchkit.InParallel(ctx, len(workers), len(workers), "workers that have ended", func(ctx context.Context, i int) error {
		return workers[i].work(ctx, begin)
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
