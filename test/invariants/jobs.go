package invariants

import (
	"time"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// tooLate is how long after a stored cancel or suspend a Job can still be in the making: the operator reads the Task live
// just before, and a slow machine may take its time in between. Such a Job is stopped again, which invariant 5 sees.
const tooLate = 3 * time.Second

// newFor is how long the operator may take a Task that has not had a Job for as new as its copy is, and not read it again (ADR 7):
// where watches are silent a wish of these seconds is heard of later.
const newFor = 10 * time.Second

// checkJobs is what invariants 1 and 2 say about Jobs: one for each attempt, and none for a Task that has ended or is not
// to run.
func checkJobs(f *finding, r *record) {
	byAttempt := map[string]job{}
	for _, j := range r.jobs {
		if j.attempt == "" {
			f.add(1, "job-attempt", "Job %s (%s) does not say of which attempt it is", j.name, j.uid)
		}
		if first, ok := byAttempt[j.attempt]; ok {
			f.add(1, "job-twice", "attempt %s got two Jobs: %s (%s) at %s and %s (%s) at %s",
				j.attempt, first.name, first.uid, stamp(first.at), j.name, j.uid, stamp(j.at))
		}
		byAttempt[j.attempt] = j
		checkMayRun(f, r, j)
	}
}

func checkMayRun(f *finding, r *record, j job) {
	stored := r.before(j.version)
	if stored == nil {
		return
	}
	if lifecycle.Terminal(stored.task.Status.State) && !asksAgain(stored.task) {
		f.add(2, "job-after-end", "Job %s was created at %s, after the Task had come to %s in %s",
			j.name, stamp(j.at), stored.task.Status.State, stored)
	}
	for _, wish := range []struct {
		name string
		is   func(*version) bool
	}{
		{"cancel", func(v *version) bool { return v.task.Spec.Cancel != nil && *v.task.Spec.Cancel }},
		{"suspend", func(v *version) bool { return v.task.Spec.Suspend != nil && *v.task.Spec.Suspend }},
	} {
		since := r.since(stored, wish.is)
		if since == nil {
			continue
		}
		late := tooLate
		isNew := !lifecycle.Accepted(stored.task) && j.at.Before(stored.task.CreationTimestamp.Add(newFor))
		if isNew && since.number != r.versions[0].number { // else every copy of it has the wish
			late = newFor
		}
		if j.at.Sub(since.at) > late {
			f.add(2, "job-unwanted", "Job %s was created at %s although spec.%s was set since %s", j.name, stamp(j.at), wish.name, since)
		}
	}
}

// asksAgain tells of a Failed Task with a request for a retry that has no answer yet: its Job may come before the write that
// answers.
func asksAgain(t *v1alpha1.Task) bool {
	request := t.Annotations[v1alpha1.AnnotationRetryRequestedAt]
	request = request[:min(len(request), v1alpha1.MaxRetryRequestBytes)]
	answer := t.Status.LastHandledRetry
	return t.Status.State == v1alpha1.StateFailed && request != "" && (answer == nil || answer.RequestedAt != request)
}

// since is the first version of the unbroken row, up to this one, for which something is so; nil where it is not so now.
func (r *record) since(now *version, is func(*version) bool) *version {
	var first *version
	for i := range r.versions {
		v := &r.versions[i]
		if v.number > now.number {
			break
		}
		if !is(v) {
			first = nil
		} else if first == nil {
			first = v
		}
	}
	return first
}
