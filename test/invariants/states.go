package invariants

import (
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// checkStates is invariant 3: every stored change of state is in the table.
func checkStates(f *finding, r *record, allowed map[v1alpha1.State][]v1alpha1.State) {
	r.pairs(func(old, cur *version) {
		from, to := old.task.Status.State, cur.task.Status.State
		if from != to && !slices.Contains(allowed[from], to) {
			f.add(3, "state-table", "%q became %q in %s", from, to, cur)
		}
	})
}

// checkFrozen is the first half of invariant 2: what has ended stays as it is, unless somebody asks for a retry of a Failed
// Task.
func checkFrozen(f *finding, r *record) {
	r.pairs(func(old, cur *version) {
		was, is := &old.task.Status, &cur.task.Status
		if !lifecycle.Terminal(was.State) {
			return
		}
		if was.State != is.State {
			if why := r.notByHand(old, cur); why != "" {
				f.add(2, "terminal-state", "%s became %s in %s %s", was.State, is.State, cur, why)
			}
			return
		}
		for _, field := range []struct {
			name    string
			old, is any
		}{
			{"reason", was.Reason, is.Reason},
			{"attempt", was.Attempt, is.Attempt},
			{"charged", was.Charged, is.Charged},
			{"uncharged", was.Uncharged, is.Uncharged},
			{"startTime", was.StartTime, is.StartTime},
			{"completionTime", was.CompletionTime, is.CompletionTime},
			{"result", was.Result, is.Result},
			{"history", was.History, is.History},
		} {
			if !reflect.DeepEqual(field.old, field.is) {
				f.add(2, "terminal-"+field.name, "status.%s of a Task that is %s changed from %v to %v in %s",
					field.name, is.State, show(field.old), show(field.is), cur)
			}
		}
	})
}

// notByHand says what is wrong with a way out of a terminal state, "" where nothing is.
func (r *record) notByHand(old, cur *version) string {
	request := cur.task.Annotations[v1alpha1.AnnotationRetryRequestedAt]
	if len(request) > v1alpha1.MaxRetryRequestBytes {
		request = request[:v1alpha1.MaxRetryRequestBytes]
	}
	answer, before := cur.task.Status.LastHandledRetry, old.task.Status.LastHandledRetry
	switch {
	case old.task.Status.State != v1alpha1.StateFailed:
		return "(only a Failed Task can be retried)"
	case request == "" || !r.askedByOthers(cur.task.Annotations[v1alpha1.AnnotationRetryRequestedAt]):
		return "although nobody asked for a retry"
	case answer == nil || answer.Outcome != v1alpha1.RetryAccepted || answer.RequestedAt != request:
		return "without an answer to the request in status.lastHandledRetry"
	case before != nil && before.RequestedAt == request:
		return "for a request that had been answered before"
	case cur.task.Spec.Cancel != nil && *cur.task.Spec.Cancel:
		return "although it is cancelled"
	}
	return ""
}

func (r *record) askedByOthers(request string) bool {
	return slices.ContainsFunc(r.versions, func(v version) bool {
		return !v.controller && v.task.Annotations[v1alpha1.AnnotationRetryRequestedAt] == request
	})
}

// checkTimes is the second half of invariant 2: creation <= start <= finish, each set once.
func checkTimes(f *finding, r *record) {
	r.pairs(func(old, cur *version) {
		s := &cur.task.Status
		created := cur.task.CreationTimestamp.Time
		if s.StartTime != nil && s.StartTime.Time.Before(created) {
			f.add(2, "start-before-creation", "startTime %s is before the creation at %s in %s", stamp(s.StartTime.Time), stamp(created), cur)
		}
		if was := old.task.Status.StartTime; was != nil && !was.Equal(s.StartTime) {
			f.add(2, "start-once", "startTime changed from %s to %v in %s", stamp(was.Time), show(s.StartTime), cur)
		}
		if (s.CompletionTime != nil) != lifecycle.Terminal(s.State) {
			f.add(2, "completion", "completionTime is %v in state %q in %s", show(s.CompletionTime), s.State, cur)
		}
		if s.CompletionTime == nil {
			return
		}
		floor := created
		if s.StartTime != nil && s.StartTime.After(floor) {
			floor = s.StartTime.Time
		}
		if s.CompletionTime.Time.Before(floor) {
			f.add(2, "finish-before-start", "completionTime %s is before creation or start at %s in %s", stamp(s.CompletionTime.Time), stamp(floor), cur)
		}
	})
}

// maxSteps is how many entries one write may add to the history: a start with the end that is seen together with it, and
// one more where a first acceptance comes with it.
const maxSteps = 3

// checkHistory is the part of invariant 3 about status.history: what it tells is what the API server stored.
func checkHistory(f *finding, r *record, allowed map[v1alpha1.State][]v1alpha1.State) {
	r.pairs(func(old, cur *version) {
		was, is := old.task.Status.History, cur.task.Status.History
		added, ok := appended(was, is)
		if !ok {
			f.add(3, "history-rewritten", "status.history was not only appended to in %s: %v became %v", cur, steps(was), steps(is))
			return
		}
		state := old.task.Status.State
		if len(was) == 0 && len(added) > 0 {
			state = "" // the first entry tells of the state that the API server gave it
		}
		for _, h := range added {
			if h.From != state || !slices.Contains(allowed[h.From], h.To) {
				f.add(3, "history-chain", "status.history says %v after %q in %s", steps(added), old.task.Status.State, cur)
				return
			}
			state = h.To
		}
		given := len(is) == 0 && cur.task.Status.State == lifecycle.First // by the API server
		if state != cur.task.Status.State && !given {
			f.add(3, "history-state", "status.history ends in %q and the state is %q in %s", state, cur.task.Status.State, cur)
		}
	})
}

// appended gives the entries by which is goes on after was. Only a full history drops old entries.
func appended(was, is []v1alpha1.Transition) ([]v1alpha1.Transition, bool) {
	for dropped := 0; dropped <= min(len(was), maxSteps); dropped++ {
		if dropped > 0 && len(is) != v1alpha1.MaxHistory {
			break
		}
		kept := was[dropped:]
		if len(kept) <= len(is) && slices.EqualFunc(kept, is[:len(kept)], sameTransition) {
			return is[len(kept):], true
		}
	}
	return nil, false
}

func sameTransition(a, b v1alpha1.Transition) bool {
	sameTime := a.Time.Equal(&b.Time)
	a.Time, b.Time = metav1.MicroTime{}, metav1.MicroTime{}
	return sameTime && a == b
}

func steps(history []v1alpha1.Transition) []string {
	var out []string
	for _, h := range history {
		out = append(out, string(h.From)+"-"+h.Event+"->"+string(h.To))
	}
	return out
}

// show makes values readable behind pointers.
func show(v any) any {
	switch v := v.(type) {
	case *metav1.MicroTime:
		if v == nil {
			return "unset"
		}
		return v.UTC().Format(time.RFC3339Nano)
	case *v1alpha1.TaskResult:
		if v == nil {
			return "unset"
		}
		return *v
	}
	return v
}
