package apiclock

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/client-go/rest"
)

// world plays a machine and an API server. Time passes only while a request is under way, or when a test says so.
type world struct {
	t *testing.T

	mu      sync.Mutex
	elapsed time.Duration
	slept   time.Duration // what has passed while the machine was asleep
	ahead   time.Duration // of the machine's clock
	calls   int
	// answer plays one request: how long it takes on its way there and back, and its status, 0 for none.
	answer func(call int) (there, back time.Duration, status int)
}

var start = time.Date(2026, 3, 1, 12, 0, 0, 300e6, time.UTC)

func newWorld(t *testing.T) *world {
	return &world{t: t, answer: func(int) (time.Duration, time.Duration, int) {
		return 2 * time.Millisecond, 2 * time.Millisecond, http.StatusOK
	}}
}

// dateless is an answer without a date.
const dateless = -1

// truth is what the API server's clock shows.
func (w *world) truth() time.Time { return start.Add(w.elapsed + w.slept) }

func (w *world) Wall() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.truth().Add(w.ahead)
}

func (w *world) Elapsed() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.elapsed
}

func (w *world) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *world) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.URL.Path != "/version" {
		w.t.Errorf("asked for %s", r.URL)
	}
	there, back, status := w.answer(w.calls)
	w.calls++
	w.elapsed += there
	date := w.truth().Format(http.TimeFormat) // whole seconds
	w.elapsed += back
	if status == 0 {
		return nil, errors.New("no answer")
	}
	header := http.Header{"Date": {date}}
	if status == dateless {
		header, status = http.Header{}, http.StatusOK
	}
	return &http.Response{StatusCode: status, Status: http.StatusText(status), Header: header, Body: io.NopCloser(strings.NewReader("{}")), Request: r}, nil
}

func (w *world) meter() *Meter {
	w.t.Helper()
	m, err := New(Options{Config: &rest.Config{Host: "https://api.example.com", Transport: w}, Machine: w})
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

// wantError fails where the clock is further from the API server's than a measurement may be wrong.
func (w *world) wantError(m *Meter, atMost time.Duration) {
	w.t.Helper()
	w.mu.Lock()
	truth := w.truth()
	w.mu.Unlock()
	if d := m.Clock.Now().Sub(truth); d.Abs() > atMost {
		w.t.Errorf("the clock is %s ahead of the API server's", d)
	}
}

// fine is what the header's whole seconds cost at most, and a fast request.
const fine = 510 * time.Millisecond

func TestC26MachineIsOff(t *testing.T) {
	t.Parallel()
	slow := func(there, back time.Duration) func(int) (time.Duration, time.Duration, int) {
		return func(call int) (time.Duration, time.Duration, int) {
			if call%2 == 0 {
				return there, back, http.StatusOK
			}
			return time.Millisecond, time.Millisecond, http.StatusOK
		}
	}
	for name, c := range map[string]struct {
		reason string
		ahead  time.Duration
		answer func(int) (time.Duration, time.Duration, int)
		keeps  bool
		atMost time.Duration
	}{
		"in step":        {reason: "nothing is corrected", keeps: true},
		"a little ahead": {reason: "less than 5 s is ignored", ahead: 4 * time.Second, keeps: true},
		"a little late":  {reason: "the same on the other side", ahead: -4 * time.Second, keeps: true},
		"ahead":          {reason: "what is off by 10 minutes is corrected", ahead: 10 * time.Minute, atMost: fine},
		"late":           {reason: "both ways", ahead: -10 * time.Minute, atMost: fine},
		"just ahead":     {reason: "so is what is just over the threshold", ahead: 6 * time.Second, atMost: fine},
		"years off":      {reason: "a machine without a battery begins in 1970", ahead: -56 * 365 * 24 * time.Hour, atMost: fine},
		"some slow there": {
			reason: "slow requests are the outliers: two fast ones and one slow one count, of which the middle is fast or better",
			ahead:  10 * time.Minute, answer: slow(2900*time.Millisecond, 0), atMost: fine + 1450*time.Millisecond,
		},
		"one slow back": {
			reason: "a single slow request has no say", ahead: 10 * time.Minute, atMost: fine,
			answer: func(call int) (time.Duration, time.Duration, int) {
				if call == 0 {
					return 0, 2900 * time.Millisecond, http.StatusOK
				}
				return time.Millisecond, time.Millisecond, http.StatusOK
			},
		},
		"all slow": {
			reason: "then it is known less exactly", ahead: 10 * time.Minute, atMost: 2 * time.Second,
			answer: func(int) (time.Duration, time.Duration, int) {
				return 2900 * time.Millisecond, 0, http.StatusOK
			},
		},
		"two too slow, and one without an answer": {
			reason: "three are enough, and the API server's refusal tells the time as well", ahead: time.Hour, atMost: fine,
			answer: func(call int) (time.Duration, time.Duration, int) {
				switch call {
				case 0:
					return time.Minute, 0, http.StatusOK
				case 1:
					return 0, 0, 0
				}
				return time.Millisecond, time.Millisecond, http.StatusForbidden
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.ahead = c.ahead
			if c.answer != nil {
				w.answer = c.answer
			}
			m := w.meter()
			if err := m.Synchronize(t.Context()); err != nil {
				t.Fatal(err)
			}
			if c.keeps {
				if d := m.Clock.Now().Sub(w.Wall()); d != 0 {
					t.Errorf("%s: the clock was moved by %s", c.reason, d)
				}
			} else {
				w.wantError(m, c.atMost)
			}
			if got := testutil.ToFloat64(m.offset); got < (-c.ahead-2*time.Second).Seconds() || got > (-c.ahead+2*time.Second).Seconds() {
				t.Errorf("%s: the metric says %g s", c.reason, got)
			}
			if w.calls != samples {
				t.Errorf("%d requests", w.calls)
			}
		})
	}
}

// TestC26MachineIsSet sets the machine's clock while the process runs: nothing of it is seen, not even until it is measured again.
func TestC26MachineIsSet(t *testing.T) {
	t.Parallel()
	for _, step := range []time.Duration{10 * time.Minute, -10 * time.Minute} {
		w := newWorld(t)
		m := w.meter()
		if err := m.Synchronize(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := m.Clock.Now()
		w.change(func() { w.ahead += step; w.elapsed += time.Second })
		if d := m.Clock.Since(before); d != time.Second {
			t.Errorf("set by %s: %s have passed, not a second", step, d)
		}
		m.look(t.Context())
		if w.calls != 2*samples {
			t.Errorf("set by %s: it was not measured at once", step)
		}
		if got := testutil.ToFloat64(m.offset) + step.Seconds(); got < -1 || got > 1 {
			t.Errorf("set by %s: the metric is %g s wrong", step, got)
		}
		w.wantError(m, fine)
		m.look(t.Context())
		if w.calls != 2*samples {
			t.Error("it was measured once more, although nothing has happened")
		}
		w.change(func() { w.elapsed += period })
		m.look(t.Context())
		if w.calls != 3*samples {
			t.Error("it was not measured again after a while")
		}
		// Back again, as a clock that is set right: nothing changes.
		shown := m.Clock.Now()
		w.change(func() { w.ahead -= step })
		m.look(t.Context())
		if d := m.Clock.Since(shown); d < 0 || d > time.Second {
			t.Errorf("set right: the clock went on by %s", d)
		}
	}
}

// TestC26MachineWasAsleep has time pass of which the machine knows only by its clock, which is right afterwards.
func TestC26MachineWasAsleep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := w.meter()
	if err := m.Synchronize(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.change(func() { w.slept = time.Hour })
	m.look(t.Context())
	w.wantError(m, fine)
}

// TestAPIServerIsAway has measurements fail: time goes on, and the next look tries again.
func TestAPIServerIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ahead = time.Hour
	m := w.meter()
	if err := m.Synchronize(t.Context()); err != nil {
		t.Fatal(err)
	}
	good := w.answer
	w.change(func() {
		w.elapsed += period
		w.answer = func(int) (time.Duration, time.Duration, int) { return 0, 0, http.StatusServiceUnavailable }
	})
	m.look(t.Context())
	w.wantError(m, fine)
	calls := w.calls
	w.change(func() { w.answer = good })
	m.look(t.Context())
	if w.calls != calls+samples {
		t.Error("it was not tried again")
	}
}

// TestNothingIsDecidedBefore lets the first measurement fail, once and for good.
func TestNothingIsDecidedBefore(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		tells  string
	}{
		"no answer":      {status: 0, tells: "no answer"},
		"a proxy's":      {status: http.StatusBadGateway, tells: "may be another one's"},
		"without a date": {status: dateless, tells: "has no date"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.ahead = time.Hour
			w.answer = func(call int) (time.Duration, time.Duration, int) {
				if call < samples {
					return 0, 0, c.status
				}
				return 0, 0, http.StatusOK
			}
			m := w.meter()
			if err := m.Synchronize(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.wantError(m, fine)

			w = newWorld(t)
			ctx, cancel := context.WithCancel(t.Context())
			w.answer = func(call int) (time.Duration, time.Duration, int) {
				if call == samples {
					cancel()
				}
				return 0, 0, c.status
			}
			err := w.meter().Synchronize(ctx)
			if err == nil || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), c.tells) {
				t.Errorf("without a time it goes on: %v", err)
			}
		})
	}
}

// TestRealMachine compares the real machine with itself.
func TestRealMachine(t *testing.T) {
	t.Parallel()
	m := newMachine()
	c := newClock(m)
	if d := c.Now().Sub(m.Wall()).Abs(); d > time.Minute {
		t.Errorf("the clock is %s off", d)
	}
	if m.Elapsed() < 0 || strings.Contains(m.Wall().String(), "m=") {
		t.Errorf("elapsed %s, wall %s", m.Elapsed(), m.Wall())
	}
}
