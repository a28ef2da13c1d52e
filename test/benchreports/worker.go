package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/taskwarden/taskwarden/internal/report"
	"github.com/taskwarden/taskwarden/internal/reporter"
	"github.com/taskwarden/taskwarden/test/benchkit"
)

const (
	// every is how often a worker reports its progress.
	every = time.Second
	// patience is how long a worker waits for the gateway's answer to its final report, the most that a sidecar lets it.
	patience = 30 * time.Second
	// deliveryLimit bounds the time until a final report is delivered after all.
	deliveryLimit = 5 * time.Minute
)

// worker is a worker that works by a plan.
type worker struct {
	*pod
	plan plan
	// check is called when the final report is acknowledged, before the worker exits; may be nil.
	check func(context.Context, *worker) error

	word word
	// called is when it made its final report, took how long the gateway's acknowledgement came after that; 0 where nobody waited.
	called time.Time
	took   time.Duration
	// reports is how often it reported progress, unheard how often its sidecar did not take that.
	reports, unheard int
	// refused is why its final report was not taken.
	refused error
	// last is how the sidecar stood at its end.
	last reporter.Status
}

// work goes through the plan.
func (w *worker) work(ctx context.Context, begin time.Time) error {
	if err := w.reportProgress(ctx, begin); err != nil {
		return fmt.Errorf("progress of %s: %w", w.task, err)
	}
	// What a sidecar or gateway refuses is a figure, and no reason to end the run.
	w.refused = w.reportFinal(ctx)
	if w.refused != nil {
		benchkit.Say("final report of %s: %v", w.task, w.refused)
	}
	if w.check != nil && w.refused == nil {
		if err := w.check(ctx, w); err != nil {
			return fmt.Errorf("%s: %w", w.task, err)
		}
	}
	code := int32(0)
	if w.plan.fails {
		code = 1
	}
	if err := w.exitWorker(ctx, code); err != nil {
		return err
	}
	err := w.end(ctx)
	w.last = w.sidecar.Status()
	return err
}

// reportProgress reports every second until it is time for the final report.
func (w *worker) reportProgress(ctx context.Context, begin time.Time) error {
	for at := w.plan.start; at < w.plan.finish; at += every {
		if err := until(ctx, begin.Add(at)); err != nil {
			return err
		}
		percent := 100 * float64(at-w.plan.start) / float64(w.plan.finish-w.plan.start)
		body := report.ProgressPayload{Percent: percent, Message: "at " + at.String()}
		if _, err := w.worker.Post(ctx, report.Progress, body, 0); err != nil {
			w.unheard++
			continue
		}
		w.reports++
	}
	return until(ctx, begin.Add(w.plan.finish))
}

// reportFinal makes the final report, and unless it leaves at once waits until the gateway has it.
func (w *worker) reportFinal(ctx context.Context) error {
	data, err := json.Marshal(map[string]any{"attempt": w.attempt, "pod": w.object.UID, "task": w.task, "uid": w.uid})
	if err != nil {
		return err
	}
	said := word{podUID: w.object.UID, attempt: w.attempt, url: "https://results.example/" + w.uid, data: string(data)}
	kind, body := report.Succeeded, any(report.ResultPayload{URL: said.url, Data: data, Message: w.task})
	if w.plan.fails {
		kind, body = report.Failed, report.FailurePayload{Message: "as it was planned"}
	}
	wait := patience
	if w.plan.leaves {
		wait = 0
	}
	w.called = time.Now()
	status, err := w.worker.Post(ctx, kind, body, wait)
	if err != nil {
		return err
	}
	w.word = said // the sidecar has it
	if w.plan.leaves {
		return nil
	}
	if status != http.StatusOK {
		if err := w.delivered(ctx); err != nil {
			return err
		}
	}
	w.took, w.word.acknowledged = time.Since(w.called), true
	return nil
}

// delivered waits until the gateway has the final report.
func (w *worker) delivered(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, deliveryLimit)
	defer cancel()
	for {
		switch outcome := w.sidecar.Status().Final; outcome {
		case "delivered":
			return nil
		case "taken":
		default:
			return errors.New("the gateway has refused it: " + string(outcome))
		}
		if err := benchkit.Pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// until waits for a moment.
func until(ctx context.Context, at time.Time) error {
	if d := time.Until(at); d > 0 {
		return benchkit.Pause(ctx, d)
	}
	return ctx.Err()
}
