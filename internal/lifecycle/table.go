package lifecycle

import (
	"fmt"
	"slices"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// Event is a cause that may move a Task on. A state is a fact, an event is a cause.
type Event string

// The events.
const (
	Start   Event = "START"   // the worker container is running
	Succeed Event = "SUCCEED" // the worker says that it did its work
	Fail    Event = "FAIL"    // the worker failed, was lost, or could not be made
	Timeout Event = "TIMEOUT" // a deadline or timeout of the spec passed
	Cancel  Event = "CANCEL"  // the user wants it cancelled
	Retry   Event = "RETRY"   // another attempt is due
)

// Guard is a condition on a transition, evaluated on Facts.
type Guard string

// The guards.
const (
	Always            Guard = ""
	WorkerRunning     Guard = "worker container is running"
	AnotherAllowed    Guard = "another attempt is allowed"
	NoneAllowed       Guard = "otherwise"
	WorkerStopped     Guard = "worker stopped"
	WorkerStoppedNone Guard = "worker stopped, or none"
	BackoffOver       Guard = "backoff over, not suspended"
	DeadlinePassed    Guard = "overall deadline passed"
	AskedByHand       Guard = "asked for by hand, not cancelled"
)

// Row is one allowed transition.
type Row struct {
	From  v1alpha1.State
	Event Event
	Guard Guard
	To    v1alpha1.State
}

// Table is every allowed transition. An event with no row is refused.
var Table = []Row{
	{v1alpha1.StatePending, Start, WorkerRunning, v1alpha1.StateProcessing},
	{v1alpha1.StatePending, Fail, AnotherAllowed, v1alpha1.StateRetrying},
	{v1alpha1.StatePending, Fail, NoneAllowed, v1alpha1.StateFailed},
	{v1alpha1.StatePending, Timeout, AnotherAllowed, v1alpha1.StateRetrying},
	{v1alpha1.StatePending, Timeout, NoneAllowed, v1alpha1.StateFailed},
	{v1alpha1.StatePending, Cancel, WorkerStoppedNone, v1alpha1.StateCancelled},
	{v1alpha1.StateProcessing, Succeed, Always, v1alpha1.StateSucceeded},
	{v1alpha1.StateProcessing, Fail, AnotherAllowed, v1alpha1.StateRetrying},
	{v1alpha1.StateProcessing, Fail, NoneAllowed, v1alpha1.StateFailed},
	{v1alpha1.StateProcessing, Timeout, AnotherAllowed, v1alpha1.StateRetrying},
	{v1alpha1.StateProcessing, Timeout, NoneAllowed, v1alpha1.StateFailed},
	{v1alpha1.StateProcessing, Cancel, WorkerStopped, v1alpha1.StateCancelled},
	{v1alpha1.StateRetrying, Retry, BackoffOver, v1alpha1.StatePending},
	{v1alpha1.StateRetrying, Timeout, DeadlinePassed, v1alpha1.StateFailed},
	{v1alpha1.StateRetrying, Cancel, WorkerStoppedNone, v1alpha1.StateCancelled},
	{v1alpha1.StateFailed, Retry, AskedByHand, v1alpha1.StatePending},
}

// First is the only state that a Task may begin in.
const First = v1alpha1.StatePending

// States are all states, in the order in which a Task meets them.
var States = []v1alpha1.State{
	v1alpha1.StatePending, v1alpha1.StateProcessing, v1alpha1.StateRetrying,
	v1alpha1.StateSucceeded, v1alpha1.StateFailed, v1alpha1.StateCancelled,
}

// Events are all events.
var Events = []Event{Start, Succeed, Fail, Timeout, Cancel, Retry}

// Facts are what the guards look at.
type Facts struct {
	WorkerRunning   bool // the worker container of this attempt runs, or ran and has ended
	AnotherAllowed  bool // Verdict.Again
	WorkerStopped   bool // no container of this Task may still run, or the wait for a lost one is over; true where there is none
	BackoffOver     bool // status.nextRetryTime has come
	Suspended       bool // spec.suspend
	Cancelled       bool // spec.cancel
	DeadlinePassed  bool // the overall deadline has passed
	AskedByHand     bool // an unanswered request for a retry by hand
	AlreadyReplaced bool // the next attempt's Job exists: the RETRY was decided, and the write that says so was lost
}

// Holds tells whether the guard lets a transition pass.
func (g Guard) Holds(f Facts) bool {
	switch g {
	case Always:
		return true
	case WorkerRunning:
		return f.WorkerRunning
	case AnotherAllowed:
		return f.AnotherAllowed
	case NoneAllowed:
		return !f.AnotherAllowed
	case WorkerStopped, WorkerStoppedNone:
		return f.WorkerStopped
	case BackoffOver:
		return f.AlreadyReplaced || f.BackoffOver && !f.Suspended
	case DeadlinePassed:
		return f.DeadlinePassed
	case AskedByHand:
		return f.AskedByHand && !f.Cancelled
	}
	return false
}

// RefusedError tells that an event has no row that lets it pass. It is never retried: the caller logs and counts it.
type RefusedError struct {
	State v1alpha1.State
	Event Event
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("event %s is refused in state %q", e.Event, e.State)
}

// Next is the state that an event leads to. It fails with *RefusedError where no row of the table lets it pass.
func Next(from v1alpha1.State, event Event, f Facts) (v1alpha1.State, error) {
	for _, r := range Table {
		if r.From == from && r.Event == event && r.Guard.Holds(f) {
			return r.To, nil
		}
	}
	return from, &RefusedError{State: from, Event: event}
}

// Terminal tells whether a state ends a Task. A Failed one can be retried by hand.
func Terminal(s v1alpha1.State) bool {
	return s == v1alpha1.StateSucceeded || s == v1alpha1.StateFailed || s == v1alpha1.StateCancelled
}

// AllowedNext maps each stored state, "" for none, to the states that one status write may put in its place, sorted.
// It holds the pairs of the table and the compositions of START with what follows it: of a worker so fast that its start
// and its end are seen together both transitions are in one write.
func AllowedNext() map[v1alpha1.State][]v1alpha1.State {
	next := map[v1alpha1.State][]v1alpha1.State{"": {First}}
	add := func(from, to v1alpha1.State) {
		if from != to && !slices.Contains(next[from], to) {
			next[from] = append(next[from], to)
		}
	}
	for _, s := range States {
		next[s] = []v1alpha1.State{}
	}
	for _, r := range Table {
		add(r.From, r.To)
		if r.Event != Start {
			continue
		}
		for _, then := range Table {
			if then.From == r.To {
				add(r.From, then.To)
			}
		}
	}
	for s := range next {
		slices.Sort(next[s])
	}
	return next
}
