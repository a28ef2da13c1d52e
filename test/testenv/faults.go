package testenv

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"
)

// ErrConnection is what a caller sees of a network that fails. It does not say whether the request was received.
var ErrConnection = errors.New("connection reset by peer (injected)")

// Fault is what happens to the operator's requests. An error that is an API status (from apimachinery's errors package)
// becomes the server's answer; any other becomes a failure of the connection.
type Fault struct {
	// Times is to how many calls it happens; 0 means to all.
	Times int
	// Match narrows the pattern down. Nil means all.
	Match func(Call) bool
	// Before happens before a request is sent. With an error it is not sent. It may wait; its context is the request's.
	Before func(context.Context, Call) error
	// After happens when the server has answered. With an error the answer, here its code, is lost: what was stored stays stored.
	After func(ctx context.Context, call Call, code int) error
}

// Faults keeps the faults of one test and counts the operator's requests. It survives restarts of the operator.
type Faults struct {
	mu     sync.Mutex
	rules  []*rule
	calls  []Call // without bodies
	last   time.Time
	frozen map[string]chan struct{} // by resource; closed to thaw
	cut    map[string]chan struct{} // by resource; closed to end the watches that run now
}

type rule struct {
	pattern string
	fault   Fault
	left    int
}

func newFaults() *Faults {
	return &Faults{frozen: map[string]chan struct{}{}, cut: map[string]chan struct{}{}, last: time.Now()}
}

// On makes something happen to the calls that fit a pattern: a verb and a resource, as in "create jobs" or
// "update tasks/status"; either may be "*", and the verb "write" stands for all that change something. The result ends it.
func (f *Faults) On(pattern string, fault Fault) (remove func()) {
	Call{}.matches(pattern) // panics now where the pattern is wrong
	r := &rule{pattern: pattern, fault: fault, left: fault.Times}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, r)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.rules = slices.DeleteFunc(f.rules, func(other *rule) bool { return other == r })
	}
}

// Refuse answers the next so many calls with an error, and they reach nothing.
func (f *Faults) Refuse(pattern string, times int, err error) (remove func()) {
	return f.On(pattern, Fault{Times: times, Before: func(context.Context, Call) error { return err }})
}

// LoseAnswer lets the next call through and loses the answer to it, as a connection does that breaks at the wrong moment.
func (f *Faults) LoseAnswer(pattern string) (remove func()) {
	return f.On(pattern, Fault{Times: 1, After: func(context.Context, Call, int) error { return ErrConnection }})
}

// Hold keeps the calls that fit from being sent until they are released.
func (f *Faults) Hold(pattern string) *Hold {
	h := &Hold{arrived: make(chan Call, 1000), released: make(chan struct{})}
	remove := f.On(pattern, Fault{Before: func(ctx context.Context, c Call) error {
		h.arrived <- c
		select {
		case <-h.released:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}})
	h.release = sync.OnceFunc(func() { remove(); close(h.released) })
	return h
}

// Hold is a stop in the operator's way.
type Hold struct {
	arrived  chan Call
	released chan struct{}
	release  func()
}

// Wait waits until a call has come to the stop.
func (h *Hold) Wait(t testing.TB) Call {
	t.Helper()
	select {
	case c := <-h.arrived:
		return c
	case <-time.After(Patience):
		t.Fatalf("no call came within %s", Patience)
	}
	return Call{}
}

// Release lets all go on.
func (h *Hold) Release() { h.release() }

// FreezeWatch keeps all news of a resource from the operator's caches, over an open connection, until the result is
// called. Live reads still answer.
func (f *Faults) FreezeWatch(resource string) (thaw func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gate := make(chan struct{})
	f.frozen[resource] = gate
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.frozen[resource] == gate { // else the end of the test has opened it
			delete(f.frozen, resource)
			close(gate)
		}
	})
}

// CutWatch ends the watches of a resource that run now, as a restart of the API server does.
func (f *Faults) CutWatch(resource string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if running := f.cut[resource]; running != nil {
		close(running)
		delete(f.cut, resource)
	}
}

// Calls counts the operator's requests that fit a pattern, since the test began.
func (f *Faults) Calls(pattern string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, c := range f.calls {
		if c.matches(pattern) {
			n++
		}
	}
	return n
}

func (f *Faults) lastCall() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// Clear ends all faults.
func (f *Faults) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = nil
	for resource, gate := range f.frozen {
		close(gate)
		delete(f.frozen, resource)
	}
}

// arrive counts a call and gives the faults that it meets, in the order in which they were set.
func (f *Faults) arrive(c Call) []Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.Verb != "watch" {
		f.last = time.Now()
	}
	counted := c
	counted.Body = nil
	f.calls = append(f.calls, counted)
	var met []Fault
	for _, r := range f.rules {
		if !c.matches(r.pattern) || r.fault.Match != nil && !r.fault.Match(c) || r.fault.Times > 0 && r.left == 0 {
			continue
		}
		r.left--
		met = append(met, r.fault)
	}
	return met
}

func (f *Faults) gate(resource string) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if gate := f.frozen[resource]; gate != nil {
		return gate
	}
	return nil
}

func (f *Faults) cutter(resource string) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cut[resource] == nil {
		f.cut[resource] = make(chan struct{})
	}
	return f.cut[resource]
}
