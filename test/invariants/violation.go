// Package invariants is the one checker of what must hold after every test, whatever the test is about: that no Task runs
// twice at a time, comes back to life, leaks or goes missing. It judges from the outside, by the API server's audit log and
// the workers' own start and stop marks; what a status says of itself is compared with them.
//
// The numbers are those of the list in docs: 1 one live worker, 2 terminal states stay, 3 every change of state is in the
// table, 5 nothing leaks, 6 attempts within the budget, 7 bounded writes, 8 all views agree, 10 something will move every
// Task that goes on. Slots (4) and reports (9) join when there are queues and a gateway.
package invariants

import (
	"fmt"
	"slices"
	"strings"
)

// Violation is one breach of an invariant.
type Violation struct {
	// Invariant is its number.
	Invariant int
	// Rule is the part of the invariant that is broken, one word for it.
	Rule string
	// Task is namespace/name and UID.
	Task string
	// Evidence says what was seen.
	Evidence string
}

func (v Violation) String() string {
	return fmt.Sprintf("invariant %d (%s) broken by Task %s: %s", v.Invariant, v.Rule, v.Task, v.Evidence)
}

// Waiver names a violation that a test provokes on purpose. Each one has a reason that a reader can judge.
type Waiver struct {
	Invariant int
	Rule      string // "" for all of the invariant
	Why       string
}

func waived(v Violation, waivers []Waiver) bool {
	return slices.ContainsFunc(waivers, func(w Waiver) bool {
		return w.Invariant == v.Invariant && (w.Rule == "" || w.Rule == v.Rule)
	})
}

// finding collects violations of one Task.
type finding struct {
	task string
	list []Violation
}

func (f *finding) add(invariant int, rule, format string, args ...any) {
	f.list = append(f.list, Violation{invariant, rule, f.task, fmt.Sprintf(format, args...)})
}

func sorted(all []Violation) []Violation {
	slices.SortStableFunc(all, func(a, b Violation) int {
		if a.Invariant != b.Invariant {
			return a.Invariant - b.Invariant
		}
		return strings.Compare(a.Task, b.Task)
	})
	return all
}
