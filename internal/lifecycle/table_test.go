package lifecycle_test

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

const (
	none       = v1alpha1.State("")
	pending    = v1alpha1.StatePending
	processing = v1alpha1.StateProcessing
	retrying   = v1alpha1.StateRetrying
	succeeded  = v1alpha1.StateSucceeded
	failed     = v1alpha1.StateFailed
	cancelled  = v1alpha1.StateCancelled
)

// wanted says again, in other words than the table, where an event leads; none where it is refused.
func wanted(from v1alpha1.State, event lifecycle.Event, f lifecycle.Facts) v1alpha1.State {
	ended := failed
	if f.AnotherAllowed {
		ended = retrying
	}
	switch from {
	case pending:
		switch {
		case event == lifecycle.Start && f.WorkerRunning:
			return processing
		case event == lifecycle.Fail || event == lifecycle.Timeout:
			return ended
		case event == lifecycle.Cancel && f.WorkerStopped:
			return cancelled
		}
	case processing:
		switch {
		case event == lifecycle.Succeed:
			return succeeded
		case event == lifecycle.Fail || event == lifecycle.Timeout:
			return ended
		case event == lifecycle.Cancel && f.WorkerStopped:
			return cancelled
		}
	case retrying:
		switch {
		case event == lifecycle.Retry && f.AlreadyReplaced, event == lifecycle.Retry && f.BackoffOver && !f.Suspended:
			return pending
		case event == lifecycle.Timeout && f.DeadlinePassed:
			return failed
		case event == lifecycle.Cancel && f.WorkerStopped:
			return cancelled
		}
	case failed:
		if event == lifecycle.Retry && f.AskedByHand && !f.Cancelled {
			return pending
		}
	default:
		// final
	}
	return none
}

// allFacts is every combination of facts, a new one included by itself.
func allFacts() []lifecycle.Facts {
	n := reflect.TypeFor[lifecycle.Facts]().NumField()
	all := make([]lifecycle.Facts, 1<<n)
	for bits := range all {
		v := reflect.ValueOf(&all[bits]).Elem()
		for i := range n {
			v.Field(i).SetBool(bits&(1<<i) != 0)
		}
	}
	return all
}

func TestEveryStateEventAndGuard(t *testing.T) {
	states := append([]v1alpha1.State{none, "Unheard"}, lifecycle.States...)
	events := append([]lifecycle.Event{"", "UNHEARD"}, lifecycle.Events...)
	facts := allFacts()
	for _, from := range states {
		for _, event := range events {
			for _, f := range facts {
				got, err := lifecycle.Next(from, event, f)
				want := wanted(from, event, f)
				if want != none {
					if err != nil || got != want {
						t.Errorf("Next(%q, %s, %+v) = %q, %v; want %q", from, event, f, got, err, want)
					}
					continue
				}
				var refused *lifecycle.RefusedError
				if !errors.As(err, &refused) || got != from {
					t.Errorf("Next(%q, %s, %+v) = %q, %v; want a refusal that leaves the state", from, event, f, got, err)
				} else if refused.State != from || refused.Event != event {
					t.Errorf("Next(%q, %s) is refused as %v", from, event, refused)
				}
			}
		}
	}
}

func TestTableIsUnambiguous(t *testing.T) {
	for _, f := range allFacts() {
		for i, a := range lifecycle.Table {
			for _, b := range lifecycle.Table[i+1:] {
				if a.From == b.From && a.Event == b.Event && a.Guard.Holds(f) && b.Guard.Holds(f) {
					t.Fatalf("both %+v and %+v hold for %+v", a, b, f)
				}
			}
		}
	}
	if lifecycle.Guard("unheard").Holds(lifecycle.Facts{}) {
		t.Error("a guard that nobody knows holds")
	}
}

func TestTableNamesOnlyListedStatesAndEvents(t *testing.T) {
	used := map[v1alpha1.State]bool{lifecycle.First: true}
	for _, r := range lifecycle.Table {
		if !slices.Contains(lifecycle.States, r.From) || !slices.Contains(lifecycle.States, r.To) ||
			!slices.Contains(lifecycle.Events, r.Event) {
			t.Errorf("%+v names something that is not listed", r)
		}
		used[r.To] = true
	}
	for _, s := range lifecycle.States {
		if !used[s] {
			t.Errorf("no row leads to %s", s)
		}
	}
}

func TestAllowedNext(t *testing.T) {
	want := map[v1alpha1.State][]v1alpha1.State{
		none:       {pending},
		pending:    {cancelled, failed, processing, retrying, succeeded},
		processing: {cancelled, failed, retrying, succeeded},
		retrying:   {cancelled, failed, pending},
		succeeded:  {},
		failed:     {pending},
		cancelled:  {},
	}
	if got := lifecycle.AllowedNext(); !reflect.DeepEqual(got, want) {
		t.Errorf("AllowedNext() = %v, want %v", got, want)
	}
}

func TestTerminal(t *testing.T) {
	for s, want := range map[v1alpha1.State]bool{
		none: false, pending: false, processing: false, retrying: false, succeeded: true, failed: true, cancelled: true,
	} {
		if lifecycle.Terminal(s) != want {
			t.Errorf("Terminal(%q) = %v, want %v", s, !want, want)
		}
	}
}
