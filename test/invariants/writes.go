package invariants

import (
	"slices"
	"time"
)

// window is the time over which writes are counted.
const window = time.Minute

// maxStatusBytes bounds a stored status.
const maxStatusBytes = 64 << 10

// Budget bounds what one Task may cost the API server in a minute, in writes of the operator. It grows with what really
// happens, so that a busy Task has room and a stuck one has not.
type Budget struct {
	// Base is for a Task with which nothing happens.
	Base int
	// PerAttempt is for each attempt that gets its Job in that minute.
	PerAttempt int
}

// DefaultBudget allows for the writes of an attempt from its Job to its end, and for errors that are tried again with a
// growing wait.
var DefaultBudget = Budget{Base: 20, PerAttempt: 10}

// checkWrites is invariant 7: an object costs a bounded number of writes per minute, refused ones included. What others
// change about the Task or its pods adds to the bound.
func checkWrites(f *finding, r *record, b Budget) {
	times := slices.Clone(r.writes)
	slices.SortFunc(times, time.Time.Compare)
	worst, most, bound := time.Time{}, 0, 0
	for _, end := range times {
		n := 0
		for _, at := range times {
			if within(at, end, window) {
				n++
			}
		}
		if allowed := r.allowance(end, b); n > allowed && n > most {
			worst, most, bound = end, n, allowed
		}
	}
	if most > 0 {
		f.add(7, "writes", "the operator wrote %d times in the minute to %s; what happened in it is worth %d writes", most, stamp(worst), bound)
	}
}

func (r *record) allowance(end time.Time, b Budget) int {
	allowed := b.Base
	for _, j := range r.jobs {
		if within(j.at, end, window) {
			allowed += b.PerAttempt
		}
	}
	for _, o := range r.outside {
		if within(o.at, end, window) {
			allowed += o.weight
		}
	}
	return allowed
}

// checkSize is the bound on status, which keeps a Task from growing until nobody can store it.
func checkSize(f *finding, r *record) {
	for i := range r.versions {
		if v := &r.versions[i]; v.statusSize > maxStatusBytes {
			f.add(7, "status-size", "status has %d bytes, the bound is %d, in %s", v.statusSize, maxStatusBytes, v)
			return
		}
	}
}
