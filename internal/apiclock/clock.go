// Package apiclock is a clock that shows the API server's time, so that every decision is made by one clock, whatever the machine's
// own one says (ADR 11).
package apiclock

import (
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// Machine is the clock of the machine. Tests play one.
type Machine interface {
	// Wall is what it shows. It can be wrong, and be set.
	Wall() time.Time
	// Elapsed is how much time has passed since some moment. Nobody can set it.
	Elapsed() time.Duration
}

// machine is the real one.
type machine struct {
	clock.RealClock
	since time.Time
}

func newMachine() *machine {
	m := &machine{}
	m.since = m.Now()
	return m
}

// Wall implements Machine: without its monotonic reading a time is what the clock shows.
func (m *machine) Wall() time.Time { return m.Now().Round(0) }

// Elapsed implements Machine.
func (m *machine) Elapsed() time.Duration { return m.Since(m.since) }

// Clock shows the API server's time. Between two measurements it goes on with the time that has passed, so that it does not notice
// when the machine's clock is set. Its waits are the machine's, which does them by the time that passes, too.
//
// A Clock that has not been measured yet shows what the machine's did when it was made.
type Clock struct {
	clock.RealClock
	machine Machine
	// zero is what the API server's clock showed when no time had passed.
	zero atomic.Pointer[time.Time]
}

var _ clock.WithTicker = &Clock{}

func newClock(m Machine) *Clock {
	c := &Clock{machine: m}
	zero := wallZero(m)
	c.zero.Store(&zero)
	return c
}

// wallZero is what the machine's clock, as it is set now, would have shown when no time had passed.
func wallZero(m Machine) time.Time { return m.Wall().Add(-m.Elapsed()).UTC() }

// Now is the API server's time.
func (c *Clock) Now() time.Time { return c.zero.Load().Add(c.machine.Elapsed()) }

// Since is the time since a moment of the API server's clock.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
