package reporter

import (
	"context"
	"net/http"
	"time"

	"github.com/taskwarden/taskwarden/internal/report"
)

// checkpointTimeout bounds the try that a checkpoint has before a failure is reported.
const checkpointTimeout = 2 * time.Second

// deliverAll delivers one report after the other until ctx is done, or until there is nothing left to deliver after stop.
func (r *Reporter) deliverAll(ctx context.Context) {
	for ctx.Err() == nil {
		r.keep()
		it, wake, over := r.next()
		switch {
		case over:
			return
		case it != nil:
			r.deliver(ctx, it)
		default:
			r.pause(ctx, wake)
		}
	}
}

func (r *Reporter) next() (it *item, wake time.Time, over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	it, wake = r.queue.next(r.clock.Now())
	return it, wake, r.stopping && !r.taking && (r.final == nil || r.final.outcome != finalTaken) && r.queue.len() == 0
}

// pause waits for the given time, zero for ever, or until something has changed.
func (r *Reporter) pause(ctx context.Context, until time.Time) {
	var due <-chan time.Time
	if !until.IsZero() {
		timer := r.clock.NewTimer(until.Sub(r.clock.Now()))
		defer timer.Stop()
		due = timer.C()
	}
	select {
	case <-ctx.Done():
	case <-r.wake:
	case <-due:
	}
}

// keep brings the spool in line with the queue: once the quick tries of a report are used up, the newest report of each kind is
// kept on disk, and nothing is there that is not queued. News are not synced: they need to survive the process, not the node.
func (r *Reporter) keep() {
	r.mu.Lock()
	var write []*item
	var records []*record
	if r.queue.slow() {
		for _, kind := range []report.Kind{report.Progress, report.Stage, report.Checkpoint} {
			if it := r.queue.find(kind); it != nil && !it.spooled {
				write, records = append(write, it), append(records, &record{Report: it.report})
			}
		}
	}
	r.mu.Unlock()
	for i, it := range write {
		err := r.spool.write(records[i], false)
		if err == nil {
			r.mu.Lock()
			it.spooled = true
			r.mu.Unlock()
			r.held[it.report.Kind] = it
		}
		r.spoolResult(err)
	}
	for kind, it := range r.held {
		r.mu.Lock()
		queued := r.queue.has(it)
		r.mu.Unlock()
		if !queued {
			r.spool.remove(kind)
			delete(r.held, kind)
		}
	}
}

// deliver tries one report once.
func (r *Reporter) deliver(ctx context.Context, it *item) {
	ctx, cut := context.WithCancel(ctx)
	defer cut()
	r.mu.Lock()
	final := it == r.queue.final
	if !final && r.queue.final != nil {
		it.asked = true
		ctx, cut = context.WithTimeout(ctx, checkpointTimeout)
		defer cut()
	}
	if !final && it.report.Sequence <= r.queue.delivered {
		// Others have overtaken it, and under its old number it would be ignored.
		_ = r.number(&it.report)
		it.spooled = false
	}
	if light(it.report.Kind) {
		r.queue.lastLight = r.clock.Now()
	}
	rep := it.report
	r.inFlight, r.cut = it, cut
	r.mu.Unlock()

	d := r.gateway.send(ctx, &rep)

	r.mu.Lock()
	r.inFlight, r.cut = nil, nil
	dropped := ctx.Err() != nil && !final && !r.queue.has(it) && !d.answered() // cut, because nobody needs it
	refused := r.queue.refused(it, &d)
	r.mu.Unlock()
	switch {
	case dropped:
	case d.taken():
		r.taken(it, &rep, &d)
	case refused:
		r.refused(it, &rep, &d)
	default:
		r.failed(it, &rep, &d)
	}
}

func (r *Reporter) taken(it *item, rep *report.Report, d *delivery) {
	r.mu.Lock()
	final := it == r.queue.final
	r.queue.taken(it)
	r.status.Delivered++
	r.status.DeliveredRetries += int64(rep.RetryCount)
	r.mu.Unlock()
	if final {
		r.log.Info("the final report is delivered", "kind", rep.Kind, "sequence", rep.Sequence, "retries", rep.RetryCount)
		r.finish(d, finalDelivered)
	}
}

// refused sets a report aside, so that it does not stand in the way of the next one.
func (r *Reporter) refused(it *item, rep *report.Report, d *delivery) {
	log := r.log.With("kind", rep.Kind, "sequence", rep.Sequence, "status", d.status, "code", d.answer.Code)
	r.mu.Lock()
	final := it == r.queue.final
	if final && d.answer.Code == report.InvalidFinishTime && rep.ActualFinishTime != 0 {
		it.report.ActualFinishTime = 0
		r.final.report.ActualFinishTime = 0
		r.mu.Unlock()
		log.Warn("the final report goes once more without its time: the clocks are too far apart")
		return
	}
	r.queue.goOn(it)
	r.setAside(1, d)
	if d.answer.Code == report.AttemptClosed && !final {
		r.closed = true
		r.setAside(len(r.queue.clear()), d)
	}
	r.mu.Unlock()
	log.Error("a report is set aside, the gateway has refused it for good")
	if !final {
		return
	}
	outcome := finalRefused
	if d.status == http.StatusConflict || d.status == http.StatusGone {
		outcome = finalLate
	}
	r.finish(d, outcome)
}

// setAside counts what will never be delivered. The lock must be held.
func (r *Reporter) setAside(n int, d *delivery) {
	r.status.SetAside += int64(n)
	r.status.SetAsideReason = d.reason()
}

func (r *Reporter) failed(it *item, rep *report.Report, d *delivery) {
	r.mu.Lock()
	final := it == r.queue.final
	r.status.Retries++
	r.queue.failed(it, d, r.clock.Now(), r.jitter())
	// The worker has ended, and where it stood is of no use to anybody. Its checkpoint is.
	if r.stopping && !final && rep.Kind != report.Checkpoint {
		r.queue.remove(it)
		r.setAside(1, d)
	}
	due := it.due
	r.mu.Unlock()
	r.log.Warn("a delivery has failed", "kind", rep.Kind, "sequence", rep.Sequence, "failures", rep.RetryCount+1,
		"reason", d.reason(), "next", due)
}

// finish notes what has become of the final report, after which nothing is left to do.
func (r *Reporter) finish(d *delivery, outcome finalOutcome) {
	r.mu.Lock()
	if lost := r.queue.clear(); len(lost) > 0 {
		r.setAside(len(lost), d)
		r.log.Warn("reports are set aside, the final report has overtaken them", "count", len(lost))
	}
	final := r.final
	final.outcome, final.delivery = outcome, *d
	rec := &record{Report: final.report, Outcome: outcome}
	r.mu.Unlock()
	r.writeNote()
	r.spoolResult(r.spool.write(rec, false))
	close(final.done)
}
