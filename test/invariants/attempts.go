package invariants

import (
	"slices"
	"strconv"

	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// checkBudget is the first half of invariant 6: a run, which ends with a retry by hand, has at most limit + 1 charged
// attempts, and the counters say what the attempts say.
func checkBudget(f *finding, r *record) {
	firstOfRun := firstAttempt(r.first)
	charged := map[int32]bool{} // attempts of this run
	r.pairs(func(old, cur *version) {
		s := &cur.task.Status
		if lifecycle.Terminal(old.task.Status.State) && !lifecycle.Terminal(s.State) {
			firstOfRun, charged = s.Attempt, map[int32]bool{}
		}
		complete := len(s.Attempts) == 0 || s.Attempts[0].Number <= firstOfRun
		inList := int32(0)
		for _, a := range s.Attempts {
			if a.Number >= firstOfRun && ptr.Deref(a.Charged, false) {
				charged[a.Number] = true
				inList++
			}
		}
		limit, unchargedLimit := int32(lifecycle.DefaultRetryLimit), int32(lifecycle.DefaultUnchargedLimit)
		if p := cur.task.Spec.Retry; p != nil {
			limit = ptr.Deref(p.Limit, limit)
			unchargedLimit = ptr.Deref(p.UnchargedLimit, unchargedLimit)
		}
		if n := max(int32(len(charged)), s.Charged); n > limit+1 {
			f.add(6, "budget", "%d attempts of one run are charged, with retry.limit %d, in %s", n, limit, cur)
		}
		if s.Uncharged > unchargedLimit+1 {
			f.add(6, "uncharged-budget", "%d attempts are uncharged, with retry.unchargedLimit %d, in %s", s.Uncharged, unchargedLimit, cur)
		}
		if complete && inList != s.Charged {
			f.add(6, "count", "status.charged is %d and status.attempts has %d charged attempts of this run in %s", s.Charged, inList, cur)
		}
	})
	checkRunsOfJobs(f, r)
}

// firstAttempt is the number of the attempt with which a run began.
func firstAttempt(v *version) int32 {
	if v == nil {
		return 1
	}
	for _, h := range slices.Backward(v.task.Status.History) {
		if h.Event == string(lifecycle.Retry) && h.Actor == lifecycle.ActorUser {
			return h.Attempt
		}
	}
	return 1
}

// checkRunsOfJobs makes sure that no Job escapes the books: each attempt that got one is in status when the Task has ended.
func checkRunsOfJobs(f *finding, r *record) {
	last := r.last()
	if last == nil || !lifecycle.Terminal(last.Status.State) {
		return
	}
	listed := map[string]bool{}
	oldest := int32(0)
	for i, a := range last.Status.Attempts {
		if i == 0 && len(last.Status.Attempts) == v1alpha1.MaxAttempts {
			oldest = a.Number
		}
		listed[strconv.Itoa(int(a.Number))] = a.Outcome != ""
	}
	for _, j := range r.jobs {
		if number, err := strconv.Atoi(j.attempt); err == nil && int32(number) >= oldest && !listed[j.attempt] {
			f.add(6, "attempt-missing", "the Task is %s and attempt %s, which got Job %s, is not closed in status.attempts",
				last.Status.State, j.attempt, j.name)
		}
	}
}

// checkAttempts is the second half of invariant 6: numbers only grow, and a closed attempt tells how it ended, for good.
func checkAttempts(f *finding, r *record) {
	r.pairs(func(old, cur *version) {
		was, is := &old.task.Status, &cur.task.Status
		if is.Attempt < was.Attempt || is.Attempt > was.Attempt+1 {
			f.add(6, "attempt-number", "status.attempt went from %d to %d in %s", was.Attempt, is.Attempt, cur)
		}
		number := int32(0)
		for _, a := range is.Attempts {
			if a.Number <= number || a.Number > is.Attempt {
				f.add(6, "attempt-order", "attempt %d follows attempt %d, the current one is %d, in %s", a.Number, number, is.Attempt, cur)
			}
			number = a.Number
			checkClosed(f, &a, cur)
		}
		for _, before := range was.Attempts {
			checkUnchanged(f, before, is.Attempts, cur)
		}
	})
}

func checkClosed(f *finding, a *v1alpha1.AttemptStatus, v *version) {
	if a.Outcome == "" {
		return
	}
	if a.Reason == "" || a.FinishTime == nil {
		f.add(6, "attempt-incomplete", "attempt %d ended with %s, reason %q, finish time %v in %s",
			a.Number, a.Outcome, a.Reason, show(a.FinishTime), v)
	}
	if a.FinishTime != nil && a.StartTime != nil && a.FinishTime.Before(a.StartTime) {
		f.add(6, "attempt-times", "attempt %d ended at %v, before it began at %v, in %s", a.Number, show(a.FinishTime), show(a.StartTime), v)
	}
	failed := a.Outcome == string(lifecycle.Fail) || a.Outcome == string(lifecycle.Timeout)
	if failed && a.Charged == nil {
		f.add(6, "attempt-charge", "attempt %d ended with %s and does not say whether it is charged in %s", a.Number, a.Outcome, v)
	}
	exited := a.Reason == v1alpha1.ReasonCompleted || a.Reason == v1alpha1.ReasonNonZeroExitCode
	if exited && a.ExitCode == nil && !ptr.Deref(a.Reported, false) {
		f.add(6, "attempt-exit", "attempt %d ended with %s and has no exit code in %s", a.Number, a.Reason, v)
	}
}

func checkUnchanged(f *finding, before v1alpha1.AttemptStatus, now []v1alpha1.AttemptStatus, v *version) {
	if before.Outcome == "" {
		return
	}
	for _, a := range now {
		if a.Number != before.Number {
			continue
		}
		if a.Outcome != before.Outcome || a.Reason != before.Reason || !a.FinishTime.Equal(before.FinishTime) ||
			ptr.Deref(a.Charged, false) != ptr.Deref(before.Charged, false) {
			f.add(6, "attempt-changed", "attempt %d was closed with %s/%s and became %s/%s in %s",
				a.Number, before.Outcome, before.Reason, a.Outcome, a.Reason, v)
		}
		return
	}
	if len(now) < v1alpha1.MaxAttempts {
		f.add(6, "attempt-lost", "attempt %d went from status.attempts in %s", before.Number, v)
	}
}

// checkExits compares what is stored about the last attempts with the exit that the worker itself wrote down.
func checkExits(f *finding, r *record, marks []Mark) {
	last := r.last()
	if last == nil {
		return
	}
	for _, one := range runsOf(marks) {
		for _, a := range last.Status.Attempts {
			if a.Number == one.attempt && one.exit != nil && !tellsExit(&a, *one.exit) {
				f.add(6, "exit-mismatch", "the worker of attempt %d exited with %d, stored is %s with exit code %d",
					a.Number, *one.exit, a.Reason, ptr.Deref(a.ExitCode, -1))
			}
		}
	}
}

// tellsExit tells whether what is stored of an attempt agrees with how its worker ended. Where a report has ended it, the exit is kept
// beside that as it was.
func tellsExit(a *v1alpha1.AttemptStatus, exit int32) bool {
	switch {
	case ptr.Deref(a.Reported, false):
		return a.ExitCode == nil || *a.ExitCode == exit
	case a.Reason == v1alpha1.ReasonCompleted && exit != 0, a.Reason == v1alpha1.ReasonNonZeroExitCode && exit == 0:
		return false
	}
	return exit == 0 || ptr.Deref(a.ExitCode, exit) != 0
}
