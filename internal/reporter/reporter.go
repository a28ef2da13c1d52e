// Package reporter is the sidecar that stands beside a worker, takes its reports and brings them to the gateway: what it has
// taken is delivered once, in order, or is still there when somebody looks for it. It imports the standard library, the clock
// and a listener with a limit alone, so that it stays below 20 MiB of memory.
package reporter

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"k8s.io/utils/clock"

	"github.com/taskwarden/taskwarden/internal/report"
)

const (
	// exitMargin is how long before the end of the pod's grace the sidecar ends by itself.
	exitMargin = 5 * time.Second
	// lastAnswers is how long requests that are being answered may still take in the end.
	lastAnswers = 100 * time.Millisecond
)

// finalOutcome is where a final report is.
type finalOutcome string

const (
	// finalTaken: it is on its way.
	finalTaken finalOutcome = "taken"
	// finalDelivered: the gateway has it.
	finalDelivered finalOutcome = "delivered"
	// finalLate: the gateway has refused it, because the outcome of the attempt was fixed before.
	finalLate finalOutcome = "late"
	// finalRefused: the gateway has refused it for another reason, and does not know what the worker has said.
	finalRefused finalOutcome = "refused"
)

// Reporter is the sidecar.
type Reporter struct {
	config  *Config
	clock   clock.Clock
	log     *slog.Logger
	jitter  func() float64
	gateway *gateway
	spool   *spool
	note    noteFile
	noteMu  sync.Mutex

	// wake tells the loop that something has changed.
	wake chan struct{}
	// stopped is closed when nothing more is taken.
	stopped chan struct{}
	// finalMu lets one final report at a time in, until it is kept.
	finalMu sync.Mutex

	mu       sync.Mutex
	queue    queue
	sequence int64 // the last number that was given
	inFlight *item
	cut      context.CancelFunc // ends the delivery in flight
	closed   bool               // the attempt is over: the gateway has said so
	stopping bool
	taking   bool // a final report is being kept
	final    *finalState
	status   Status

	// held is what the files of the spool hold. The loop alone touches it.
	held map[report.Kind]*item
}

// finalState is a final report and what has become of it.
type finalState struct {
	report  report.Report
	outcome finalOutcome
	// delivery is the gateway's last word, once done is closed.
	delivery delivery
	done     chan struct{}
}

// New opens the spool, takes up what an earlier container of the same pod has left there, and writes the note about it. The
// error is about a spool that another process uses; one that cannot be written is reported instead, and everything goes on from
// memory.
func New(c *Config, clk clock.Clock, log *slog.Logger) (*Reporter, error) {
	r := &Reporter{
		config: c, clock: clk, log: log, jitter: rand.Float64, gateway: newGateway(c, clk),
		note: noteFile{path: c.NoteFile, limit: c.NoteLimit},
		wake: make(chan struct{}, 1), stopped: make(chan struct{}), held: map[report.Kind]*item{},
	}
	s, err := openSpool(c.SpoolDir, log)
	if s == nil {
		return nil, err
	}
	r.spool = s
	// What cannot be written any more may still be read.
	final, news, errLoad := s.load(c.TaskUID, c.Attempt)
	first, errSequence := s.firstSequence()
	r.sequence = first - 1
	err = cmp.Or(err, errLoad, errSequence)
	if err != nil {
		// Numbers that an earlier process may have used must not come again: the gateway would take the reports for old ones.
		r.sequence = max(r.sequence, clk.Now().UnixMilli())
	}
	r.resume(final, news)
	r.spoolResult(err)
	return r, nil
}

// resume takes up what was in the spool.
func (r *Reporter) resume(final *record, news []*record) {
	slices.SortFunc(news, func(a, b *record) int { return cmp.Compare(a.Report.Sequence, b.Report.Sequence) })
	for _, rec := range news {
		it := &item{report: rec.Report, spooled: true}
		r.sequence = max(r.sequence, rec.Report.Sequence)
		r.queue.add(it)
		r.held[rec.Report.Kind] = it
	}
	if final == nil {
		return
	}
	r.sequence = max(r.sequence, final.Report.Sequence)
	r.final = &finalState{report: final.Report, outcome: cmp.Or(final.Outcome, finalTaken), done: make(chan struct{})}
	if r.final.outcome == finalTaken {
		r.queue.addFinal(&item{report: final.Report})
	} else {
		r.queue.clear()
		// What the gateway has said was not kept, only what it meant.
		r.final.delivery = delivery{status: http.StatusOK, answer: report.Answer{Outcome: report.Stored}}
		if r.final.outcome != finalDelivered {
			r.final.delivery = delivery{status: http.StatusConflict, answer: report.Answer{Code: report.OutcomeRecorded}}
		}
		close(r.final.done)
	}
	r.writeNote()
}

// Run serves the worker's API and delivers, until ctx is done and then until everything is delivered, or shortly before the
// pod's grace is over. listening is told the address that it listens on; may be nil.
func (r *Reporter) Run(ctx context.Context, listening func(net.Addr)) error {
	defer r.spool.close()
	defer r.gateway.client.CloseIdleConnections()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", r.config.Listen)
	if err != nil {
		return err
	}
	server := newServer(r)
	served := make(chan error, 1)
	go func() { served <- server.Serve(netutil.LimitListener(listener, maxConnections)) }()
	defer func() { _ = server.Close() }()
	if listening != nil {
		listening(listener.Addr())
	}

	delivering, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	delivered := make(chan struct{})
	go func() {
		defer close(delivered)
		r.deliverAll(delivering)
	}()
	select {
	case <-ctx.Done():
	case err = <-served:
		err = fmt.Errorf("the API has ended: %w", err)
	}
	r.stop()
	grace := r.clock.NewTimer(r.config.Grace - min(exitMargin, r.config.Grace/2))
	defer grace.Stop()
	select {
	case <-delivered:
	case <-grace.C():
		cancel()
		<-delivered
	}
	closing, done := context.WithTimeout(context.WithoutCancel(ctx), lastAnswers)
	defer done()
	_ = server.Shutdown(closing)
	r.mu.Lock()
	left := r.queue.len()
	r.mu.Unlock()
	r.log.Info("the end", "undelivered", left)
	return err
}

// stop takes nothing more, and lets what is there go at once.
func (r *Reporter) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopping = true
	close(r.stopped)
	r.queue.hurry(r.clock.Now())
	r.awake()
}

func (r *Reporter) awake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// refusal is why a report is not taken, as the worker is told.
type refusal struct {
	status int
	answer report.Answer
}

// closedFor tells why nothing is taken; nil where it is. The lock must be held.
func (r *Reporter) closedFor() *refusal {
	switch {
	case r.stopping:
		return &refusal{http.StatusServiceUnavailable, report.Answer{Code: report.Unavailable,
			Message: "the sidecar is shutting down"}}
	case r.taking || r.final != nil:
		return &refusal{http.StatusConflict, report.Answer{
			Code: report.OutcomeRecorded, Message: "a final report has been made, nothing more is taken",
		}}
	default:
		return nil
	}
}

// number fills in who reports. The lock must be held.
func (r *Reporter) number(rep *report.Report) error {
	rep.TaskID, rep.Attempt = r.config.TaskUID, r.config.Attempt
	r.sequence++
	rep.Sequence = r.sequence
	return r.spool.reserve(r.sequence)
}

// takeNews queues what is not final.
func (r *Reporter) takeNews(rep *report.Report) *refusal {
	r.mu.Lock()
	no := r.closedFor()
	if no == nil && r.closed {
		no = &refusal{http.StatusGone, report.Answer{
			Code: report.AttemptClosed, Message: "the attempt is over; the worker should stop",
		}}
	}
	if no != nil {
		r.mu.Unlock()
		return no
	}
	errSpool := r.number(rep)
	lost := r.queue.add(&item{report: *rep})
	if lost != nil {
		r.status.SetAside++
		r.status.SetAsideReason = "the queue is full"
	}
	r.awake()
	r.mu.Unlock()
	if lost != nil {
		r.log.Warn("a report is set aside, the queue is full", "kind", lost.report.Kind, "sequence", lost.report.Sequence)
	}
	if errSpool != nil {
		r.spoolResult(errSpool)
	}
	return nil
}

// takeFinal keeps a final report: in the spool, then in the note, both before it is sent. The same one again is taken again.
func (r *Reporter) takeFinal(rep *report.Report) (*finalState, *refusal) {
	r.finalMu.Lock()
	defer r.finalMu.Unlock()
	r.mu.Lock()
	if r.final != nil && sameFinal(&r.final.report, rep) {
		defer r.mu.Unlock()
		return r.final, nil
	}
	if no := r.closedFor(); no != nil {
		r.mu.Unlock()
		return nil, no
	}
	r.taking = true
	rep.ActualFinishTime = r.clock.Now().UnixMilli()
	_ = r.number(rep) // the write that follows tells of the same fault
	r.mu.Unlock()

	err := r.spool.write(&record{Report: *rep}, true)

	r.mu.Lock()
	r.taking = false
	final := &finalState{report: *rep, outcome: finalTaken, done: make(chan struct{})}
	r.final = final
	r.mu.Unlock()
	r.spoolResult(err)
	r.writeNote()

	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue.addFinal(&item{report: *rep})
	r.preempt()
	r.awake()
	return final, nil
}

// preempt ends the delivery in flight where the final report waits for it: at once where it is superfluous. The lock must be
// held.
func (r *Reporter) preempt() {
	if r.inFlight == nil || r.queue.final == nil {
		return
	}
	if !r.queue.has(r.inFlight) {
		r.cut()
		return
	}
	r.inFlight.asked = true
	cut := r.cut
	limit, done := context.WithTimeout(context.Background(), checkpointTimeout)
	context.AfterFunc(limit, func() {
		done()
		cut()
	})
}

// sameFinal tells whether two final reports say the same.
func sameFinal(a, b *report.Report) bool {
	return a.Kind == b.Kind && a.ExecutionLogURL == b.ExecutionLogURL &&
		sameResult(a.Result, b.Result) && *orZero(a.Failure) == *orZero(b.Failure)
}

func sameResult(a, b *report.ResultPayload) bool {
	a, b = orZero(a), orZero(b)
	return a.URL == b.URL && a.Message == b.Message && string(a.Data) == string(b.Data)
}

func orZero[T any](p *T) *T {
	if p == nil {
		return new(T)
	}
	return p
}

// spoolResult notes whether the spool can be written: in the status, the log and the note.
func (r *Reporter) spoolResult(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	r.mu.Lock()
	changed := text != r.status.SpoolError
	r.status.SpoolError = text
	r.mu.Unlock()
	switch {
	case !changed:
		return
	case err != nil:
		r.log.Error("the spool cannot be written, everything goes on from memory", "error", text)
	default:
		r.log.Info("the spool can be written again")
	}
	r.writeNote()
}

// writeNote brings the termination message up to date.
func (r *Reporter) writeNote() {
	r.noteMu.Lock()
	defer r.noteMu.Unlock()
	r.mu.Lock()
	note := noteOf(nil, "", r.status.SpoolError)
	if r.final != nil {
		rep := r.final.report
		note = noteOf(&rep, r.final.outcome, r.status.SpoolError)
	}
	r.mu.Unlock()
	err := r.note.write(note)
	text := ""
	if err != nil {
		text = err.Error()
		r.log.Error("the termination message cannot be written", "error", text)
	}
	r.mu.Lock()
	r.status.NoteError = text
	r.mu.Unlock()
}

// Status is what GET /v1/status answers.
type Status struct {
	// Queued is how many reports are on their way.
	Queued int `json:"queued"`
	// Spooled is how many of them are on disk.
	Spooled int `json:"spooled"`
	// Delivered is how many the gateway has taken.
	Delivered int64 `json:"delivered"`
	// SetAside is how many will never be delivered: the gateway has refused them for good, or the queue was full.
	SetAside int64 `json:"set_aside"`
	// SetAsideReason is why the last of them was: the HTTP status and code of the gateway.
	SetAsideReason string `json:"set_aside_reason,omitempty"`
	// Retries is how many deliveries have failed and were to be tried again.
	Retries int64 `json:"retries"`
	// DeliveredRetries is the sum of retry_count over what was delivered.
	DeliveredRetries int64 `json:"delivered_retries"`
	// SpoolError says why the spool cannot be written.
	SpoolError string `json:"spool_error,omitempty"`
	// NoteError says why the termination message cannot be written.
	NoteError string `json:"note_error,omitempty"`
	// Final is empty until there is a final report, then taken, and in the end delivered, late (the outcome of the attempt was
	// fixed before) or refused.
	Final finalOutcome `json:"final,omitempty"`
}

// Status tells how the sidecar stands, also after its end.
func (r *Reporter) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.status
	s.Queued = r.queue.len()
	for _, it := range r.queue.news {
		if it.spooled {
			s.Spooled++
		}
	}
	if r.final != nil {
		s.Final = r.final.outcome
		if s.Final == finalTaken && s.SpoolError == "" {
			s.Spooled++
		}
	}
	return s
}
