package apiclock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
)

const (
	// Ignored is the difference between the clocks below which nothing is corrected: the header in which the API server tells its
	// time has whole seconds, and a clock that is set again and again is worse than one that is a little off.
	Ignored = 5 * time.Second
	// samples are the requests of one measurement. Of those that were answered the fastest ones count, half of all and one more.
	samples = 5
	// slowest is how long a request may take. Half of it, and half a second, is what a measurement can be wrong by: 2 s.
	slowest = 3 * time.Second
	// period is the time between two measurements.
	period = time.Minute
	// lookEvery is how often the machine's clock is looked at whether it was set, or the machine was asleep.
	lookEvery = 5 * time.Second
	// stepped is how far a clock that was set goes at least. What keeps clocks in step moves them more slowly.
	stepped = time.Second
	// tryAgain is the wait after a measurement that failed.
	tryAgain = time.Second
	// firstWithin is how long the first measurement is tried for: less than a liveness probe bears, so that the process itself says why.
	firstWithin = 45 * time.Second
)

// Options of a Meter. Zero values mean the defaults.
type Options struct {
	// Config reaches the API server. Required.
	Config *rest.Config
	// Machine is the clock of the machine. Default: the real one.
	Machine Machine
	// Registerer takes the metric taskwarden_clock_offset_seconds. Default: one that nobody reads.
	Registerer prometheus.Registerer
	// Log is where a difference is told.
	Log logr.Logger
}

// Meter keeps a Clock with the API server's.
type Meter struct {
	// Clock is the one to decide by, once Synchronize has returned.
	Clock *Clock

	options Options
	http    *http.Client
	url     string

	next time.Duration // when it is measured again

	mu   sync.Mutex
	off  bool      // the machine's clock was off when it was last measured
	wall time.Time // wallZero, when it was last looked at
	// offset is the API server's clock less the machine's, in seconds.
	offset prometheus.Gauge
}

// New makes a Meter.
func New(o Options) (*Meter, error) {
	if o.Machine == nil {
		o.Machine = newMachine()
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	client, err := rest.HTTPClientFor(o.Config)
	if err != nil {
		return nil, err
	}
	url, _, err := rest.DefaultServerUrlFor(o.Config)
	if err != nil {
		return nil, err
	}
	m := &Meter{
		Clock: newClock(o.Machine), options: o, http: client, url: url.JoinPath("version").String(),
		offset: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "taskwarden_clock_offset_seconds",
			Help: "The API server's clock less that of this machine. Decisions are made by the API server's; from 5 s on that makes a difference.",
		}),
	}
	return m, o.Registerer.Register(m.offset)
}

// Synchronize makes the first measurement. Nothing may be decided before; it is tried for 45 seconds.
func (m *Meter) Synchronize(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, firstWithin, fmt.Errorf("it was tried for %s", firstWithin))
	defer cancel()
	for {
		err := m.measure(ctx)
		if err == nil {
			m.next = m.options.Machine.Elapsed() + period
			return nil
		}
		m.options.Log.Info("Waiting for the API server's clock, by which everything is decided", "cause", err.Error())
		if !m.pause(ctx, tryAgain) {
			return fmt.Errorf("the API server's clock could not be read (%w): %w", context.Cause(ctx), err)
		}
	}
}

// Start implements manager.Runnable: it measures again and again, at once where the machine's clock was set.
func (m *Meter) Start(ctx context.Context) error {
	for m.pause(ctx, lookEvery) {
		m.look(ctx)
	}
	return nil
}

// look measures where it is time to.
func (m *Meter) look(ctx context.Context) {
	if set := m.wasSet(); !set && m.options.Machine.Elapsed() < m.next {
		return
	}
	m.next = m.options.Machine.Elapsed() + period
	if err := m.measure(ctx); err != nil && ctx.Err() == nil {
		m.next = 0 // the next look tries again
		m.options.Log.Info("The API server's clock could not be read; the time since it was read last goes on", "cause", err.Error())
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: who does not lead yet keeps its clock, too.
func (m *Meter) NeedLeaderElection() bool { return false }

// pause waits; it tells whether there is a reason to go on.
func (m *Meter) pause(ctx context.Context, d time.Duration) bool {
	timer := m.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}

// wasSet tells whether somebody has set the machine's clock since it was looked at last.
func (m *Meter) wasSet() bool {
	now := wallZero(m.options.Machine)
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.wall
	m.wall = now
	return now.Sub(was).Abs() >= stepped
}

// sample is what one request has told.
type sample struct {
	took time.Duration
	// zero is what the API server's clock showed when no time had passed.
	zero time.Time
}

// measure corrects the clock if it is off.
func (m *Meter) measure(ctx context.Context) error {
	var taken []sample
	var failed error
	for range samples {
		s, err := m.ask(ctx)
		if err != nil {
			failed = err
			continue
		}
		taken = append(taken, s)
	}
	if len(taken) <= samples/2 {
		return fmt.Errorf("%d of %d requests told no time: %w", samples-len(taken), samples, failed)
	}
	m.take(median(taken))
	return nil
}

// median of the fastest samples.
func median(taken []sample) time.Time {
	slices.SortFunc(taken, func(a, b sample) int { return cmp.Compare(a.took, b.took) })
	fastest := taken[:samples/2+1]
	slices.SortFunc(fastest, func(a, b sample) int { return a.zero.Compare(b.zero) })
	return fastest[len(fastest)/2].zero
}

// ask reads the API server's clock once. The header has whole seconds, so the middle of the second is taken, and the middle of the
// request for the moment at which it was written.
func (m *Meter) ask(ctx context.Context) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, slowest)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.url, http.NoBody)
	if err != nil {
		return sample{}, err
	}
	began := m.options.Machine.Elapsed()
	res, err := m.http.Do(req)
	took := m.options.Machine.Elapsed() - began
	if err != nil {
		return sample{}, err
	}
	defer res.Body.Close()
	switch {
	case res.StatusCode != http.StatusOK && res.StatusCode != http.StatusUnauthorized && res.StatusCode != http.StatusForbidden:
		return sample{}, fmt.Errorf("the answer is %s, which may be another one's than the API server's", res.Status)
	case took > slowest:
		return sample{}, fmt.Errorf("the answer took %s", took)
	}
	date, err := http.ParseTime(res.Header.Get("Date"))
	if err != nil {
		return sample{}, errors.Join(errors.New("the answer has no date"), err)
	}
	return sample{took: took, zero: date.Add(time.Second/2 - began - took/2)}, nil
}

// take corrects the clock where it is off, and tells of the machine's.
func (m *Meter) take(zero time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	wall := wallZero(m.options.Machine)
	m.wall = wall
	offset := zero.Sub(wall)
	m.offset.Set(offset.Seconds())
	if correction := zero.Sub(*m.Clock.zero.Load()); correction.Abs() >= Ignored {
		m.Clock.zero.Store(&zero)
		m.options.Log.Info("Corrected the time to the API server's", "seconds", correction.Seconds())
	}
	off := offset.Abs() >= Ignored
	if off && !m.off {
		m.options.Log.Info("WARNING: the clock of this machine is off; the API server's is used", "secondsAhead", -offset.Seconds())
	}
	m.off = off
}
