package gateway

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/internal/report"
)

// delivery is a report on its way.
type delivery struct {
	report   *report.Report
	worker   worker
	received time.Time
	// clockSkew is how far the worker's clock is ahead, if the finish time that said so was refused.
	clockSkew time.Duration
	held      *reservation // the memory that the report takes
}

// origin is where the report comes from, for the Task's status.
func (d *delivery) origin() lifecycle.Origin {
	return lifecycle.Origin{PodUID: d.worker.PodUID, Source: v1alpha1.FromGateway, ClockSkew: d.clockSkew}
}

// outcome is what becomes of a delivery.
type outcome struct {
	// stored tells that the delivery has changed the status; without it and without an error it was ignored.
	stored bool
	// again tells that this very report was in the status before: its answer was lost.
	again bool
	err   error
}

func (g *Gateway) serveReport(w http.ResponseWriter, req *http.Request) {
	began := g.options.Clock.Now()
	d, o := g.receive(w, req)
	switch {
	case o.err != nil:
		writeAnswer(w, g.refused(d, o.err))
	case o.stored:
		g.taken(d, report.Stored, began)
		writeAnswer(w, report.Answer{Outcome: report.Stored})
	default:
		g.taken(d, report.Ignored, began)
		writeAnswer(w, report.Answer{Outcome: report.Ignored})
	}
}

// receive takes a request from its first line to the outcome of its report. The delivery is nil where the sender is not known
// to be the worker that the report is about.
func (g *Gateway) receive(w http.ResponseWriter, req *http.Request) (*delivery, outcome) {
	d, release, err := g.admitDelivery(w, req)
	defer release()
	if err != nil {
		closeAfter(w)
		return nil, outcome{err: err}
	}
	if d.report.TaskID != string(d.worker.TaskUID) || d.report.Attempt != d.worker.Attempt {
		return nil, outcome{err: errForbidden}
	}
	if skew, known := g.skewed.Get(d.worker.PodUID); known && d.report.Kind.Final() && d.report.ActualFinishTime == 0 {
		d.clockSkew, _ = skew.(time.Duration)
	}
	ctx, cancel := context.WithTimeout(req.Context(), g.options.RequestTimeout)
	defer cancel()
	o := g.take(ctx, d)
	g.retries.count(d, o)
	return d, o
}

// admitDelivery reads a request: first who sends it, so that a stranger's body is not even read, then what it says. Only who is
// known takes one of the places for requests, and of these each pod has a few. They are given back by release, which is never
// nil.
func (g *Gateway) admitDelivery(w http.ResponseWriter, req *http.Request) (d *delivery, release func(), err error) {
	ctx, cancel := context.WithTimeout(req.Context(), g.options.RequestTimeout)
	defer cancel()
	var taken places
	token, err := admit(req)
	if err != nil {
		return nil, taken.leave, err
	}
	s, err := g.tokens.identify(ctx, token)
	if err != nil {
		return nil, taken.leave, err
	}
	if !g.slots.TryAcquire(1) {
		return nil, taken.leave, errBusy
	}
	taken = append(taken, func() { g.slots.Release(1) })
	if !g.pods.enter(s.PodUID) {
		return nil, taken.leave, errBusy
	}
	taken = append(taken, func() { g.pods.leave(s.PodUID) })
	own, err := g.workers.bind(ctx, s)
	if err != nil {
		return nil, taken.leave, err
	}
	held := newReservation(g.memory)
	taken = append(taken, held.release)
	body, err := g.readBody(w, req, held)
	if err != nil {
		return nil, taken.leave, err
	}
	received := g.options.Clock.Now()
	r, err := report.Parse(body)
	if err != nil {
		return nil, taken.leave, err
	}
	held.shrink(footprint(r)) // the body itself is not needed any more
	return &delivery{report: r, worker: own, received: received, held: held}, taken.leave, nil
}

// places are what a request has taken, as that which gives it back.
type places []func()

func (p places) leave() {
	for _, f := range slices.Backward(p) {
		f()
	}
}

// closeAfter keeps the server from reading the rest of a request that was refused before its end, and a client from sending on.
func closeAfter(w http.ResponseWriter) { w.Header().Set("Connection", "close") }

// take brings a report into the status. Final reports go their own way, past whatever the others wait for.
func (g *Gateway) take(ctx context.Context, d *delivery) outcome {
	if d.report.Kind.Final() {
		return g.takeFinal(ctx, d)
	}
	if !g.newsSlots.TryAcquire(1) {
		return outcome{err: errBusy}
	}
	defer g.newsSlots.Release(1)
	return g.news.take(ctx, d)
}

// taken counts a report that was taken.
func (g *Gateway) taken(d *delivery, what report.Outcome, began time.Time) {
	g.metrics.reports.WithLabelValues(string(d.report.Kind), string(what)).Inc()
	final := strconv.FormatBool(d.report.Kind.Final())
	g.metrics.seconds.WithLabelValues(final).Observe(g.options.Clock.Since(began).Seconds())
	if what == report.Stored {
		g.observeSkew(d)
	}
}

// observeSkew measures how far the worker's clock is from this one. A report that was sent before tells how long it has waited,
// not how late a clock is.
func (g *Gateway) observeSkew(d *delivery) {
	if d.report.ActualFinishTime == 0 || d.report.RetryCount > 0 {
		return
	}
	skew := d.received.Sub(time.UnixMilli(d.report.ActualFinishTime)).Abs()
	g.metrics.skew.Observe(skew.Seconds())
}

// rememberSkew keeps what a finish time has shown that was refused: the same report comes again without it.
func (g *Gateway) rememberSkew(d *delivery) {
	if skew := time.UnixMilli(d.report.ActualFinishTime).Sub(d.received); skew > 0 || d.report.RetryCount == 0 {
		g.skewed.Add(d.worker.PodUID, skew, skewRemembered)
	}
}

// refused counts and logs a report that was not taken, and gives the answer. Only what a worker has sent for itself is worth a
// line in the log by default: strangers could fill it.
func (g *Gateway) refused(d *delivery, err error) report.Answer {
	r := refusalOf(err)
	if !errors.Is(err, errLeft) { // nobody was refused anything
		g.metrics.refused.WithLabelValues(string(r.answer.Code)).Inc()
	}
	log := g.options.Log.WithValues("code", r.answer.Code)
	if d != nil {
		log = log.WithValues("namespace", d.worker.Namespace, "task", d.worker.TaskName, "attempt", d.report.Attempt,
			"kind", d.report.Kind, "sequence", d.report.Sequence)
		if r.answer.Code == report.InvalidFinishTime {
			g.observeSkew(d)
			g.rememberSkew(d)
		}
	}
	switch {
	case r.cause != nil && !r.quiet && !errors.Is(r.cause, context.Canceled):
		log.Error(r.cause, "A report could not be taken")
	case d != nil:
		log.Info("Refused a report", "why", r.answer.Message)
	default:
		log.V(1).Info("Refused a request", "why", r.Error())
	}
	return r.answer
}
