package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/taskwarden/taskwarden/test/benchkit"
)

// operator is the controller as a process of its own.
type operator struct{ *benchkit.Process }

// counters are what the operator's metrics say of its work.
type counters struct {
	reconciles, queued, active float64
}

func (o *operator) counters(ctx context.Context) (counters, error) {
	m, err := o.Metrics(ctx)
	if err != nil {
		return counters{}, err
	}
	return countersOf(m)
}

// errFewMetrics says that a metric is missing, as all are until the first pass.
var errFewMetrics = errors.New("the operator has not all of the metrics wanted")

func countersOf(m benchkit.Metrics) (c counters, err error) {
	for name, sum := range map[string]*float64{
		"controller_runtime_reconcile_total": &c.reconciles,
		"workqueue_depth":                    &c.queued,
		"controller_runtime_active_workers":  &c.active,
	} {
		found := false
		if *sum, found = m.Sum(name); !found {
			err = fmt.Errorf("%w, not %s", errFewMetrics, name)
		}
	}
	return c, err
}

// idle waits until the operator has nothing to do and has done nothing for a while.
func (o *operator) idle(ctx context.Context, atLeast float64, limit time.Duration) (counters, error) {
	const while = 2 * time.Second
	var before counters
	since := time.Now()
	err := wait.PollUntilContextTimeout(ctx, 250*time.Millisecond, limit, true, func(ctx context.Context) (bool, error) {
		now, err := o.counters(ctx)
		if err != nil && !errors.Is(err, errFewMetrics) {
			return false, err
		}
		benchkit.Doing("waiting until the operator is idle: %.0f reconciles so far, %.0f queued", now.reconciles, now.queued)
		if now != before || now.queued > 0 || now.active > 0 || now.reconciles < atLeast {
			before, since = now, time.Now()
			return false, nil
		}
		return time.Since(since) >= while, nil
	})
	if err != nil {
		return before, fmt.Errorf("wait until the operator is idle (%+v): %w", before, err)
	}
	return before, nil
}
