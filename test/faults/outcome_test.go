package faults

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/invariants"
)

// outcome is how a Task has ended, as far as faults must not change it: everything but names, times and texts.
type outcome struct {
	// Gone: the Task was deleted by its time to live.
	Gone                        bool
	State                       v1alpha1.State
	Reason                      string
	Attempt, Charged, Uncharged int32
	Attempts, History           []string
	Conditions                  map[string]string
	Result, Checkpoint          string
	// Jobs that are left.
	Jobs []string
	// Runs are the workers that have really run, by what they have written down themselves.
	Runs []string
}

func outcomeOf(t *v1alpha1.Task) *outcome {
	s := &t.Status
	o := &outcome{
		State: s.State, Reason: s.Reason, Attempt: s.Attempt, Charged: s.Charged, Uncharged: s.Uncharged, Conditions: map[string]string{},
	}
	for _, a := range s.Attempts {
		o.Attempts = append(o.Attempts, fmt.Sprintf("%d %s %s, exit code %d, charged %v, reported %v",
			a.Number, a.Outcome, a.Reason, ptr.Deref(a.ExitCode, -1), ptr.Deref(a.Charged, false), ptr.Deref(a.Reported, false)))
	}
	for _, h := range s.History {
		o.History = append(o.History, fmt.Sprintf("%s %s %s, attempt %d, %s", h.From, h.Event, h.To, h.Attempt, h.Reason))
	}
	for _, c := range s.Conditions {
		if c.Status != metav1.ConditionFalse { // what is not so may be said or left out
			o.Conditions[c.Type] = string(c.Status) + " " + c.Reason
		}
	}
	if s.Result != nil {
		raw, err := json.Marshal(s.Result)
		o.Result = fmt.Sprint(string(raw), err)
	}
	if s.Checkpoint != nil {
		o.Checkpoint = string(s.Checkpoint.Data.Raw)
	}
	return o
}

// runsOf are the starts and ends that workers have written down.
func runsOf(marks []invariants.Mark) []string {
	var runs []string
	for _, m := range marks {
		runs = append(runs, fmt.Sprintf("attempt %d %s %d", m.Attempt, m.Event, ptr.Deref(m.Exit, 0)))
	}
	return runs
}
