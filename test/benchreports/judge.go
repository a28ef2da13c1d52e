package main

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// word is the final report of a worker, which its sidecar has taken.
type word struct {
	podUID  types.UID
	attempt int32
	url     string
	// data is the result as compact JSON; no two workers have the same.
	data string
	// acknowledged tells that the gateway has said that it is stored.
	acknowledged bool
}

// verdict is what became of the words of all workers.
type verdict struct {
	// lost are those of which the Task has no result.
	lost int
	// lostAcknowledged are those of them of which the gateway had said that they are stored.
	lostAcknowledged int
	// wrong are Tasks with a result that is not that of the worker of this attempt.
	wrong int
	// twice are Tasks of which more than one final report was stored, or that came to an end more than once.
	twice int
	// overtaken are Tasks that were ended by the exit of a worker that had made a final report.
	overtaken int
	// byNote are final reports that came by the termination message of a sidecar.
	byNote int
	// faults says what is wrong, a line each.
	faults []string
}

// judge compares what the workers have said, by the name of their Task, with what is stored.
func judge(said map[string]word, tasks map[string]*v1alpha1.Task, l *ledger) *verdict {
	v := &verdict{}
	for name, w := range said {
		t := tasks[name]
		if t == nil {
			v.lose(name, &w, "its Task is gone")
			continue
		}
		v.judgeResult(t, &w)
		v.judgeAttempts(t, w.attempt, l.tasks[name])
		if r := t.Status.Report; r != nil && r.Source == v1alpha1.FromTerminationMessage {
			v.byNote++
		}
	}
	slices.Sort(v.faults)
	return v
}

func (v *verdict) fault(name, format string, args ...any) {
	v.faults = append(v.faults, name+": "+fmt.Sprintf(format, args...))
}

func (v *verdict) lose(name string, w *word, why string) {
	v.lost++
	if w.acknowledged {
		v.lostAcknowledged++
	}
	v.fault(name, "the result is lost (acknowledged: %t): %s", w.acknowledged, why)
}

func (v *verdict) judgeResult(t *v1alpha1.Task, w *word) {
	result, r := t.Status.Result, t.Status.Report
	switch {
	case t.Status.State != v1alpha1.StateSucceeded || r == nil:
		v.lose(t.Name, w, fmt.Sprintf("state %s, reason %s, %s", t.Status.State, t.Status.Reason, t.Status.Message))
	case result == nil || result.Data == nil:
		v.lose(t.Name, w, "status.result has no data")
	case string(result.Data.Raw) != w.data || result.URL != w.url:
		v.wrong++
		v.fault(t.Name, "status.result is %s %s, the worker's is %s %s", result.URL, result.Data.Raw, w.url, w.data)
	case r.PodUID != w.podUID || r.Attempt != w.attempt:
		v.wrong++
		v.fault(t.Name, "status.report is of pod %s and attempt %d, not of %s and %d", r.PodUID, r.Attempt, w.podUID, w.attempt)
	}
}

// judgeAttempts looks for what each of the attempts should have had: one report, and the end by it.
func (v *verdict) judgeAttempts(t *v1alpha1.Task, attempts int32, s *story) {
	ends := 0
	for i := range t.Status.History {
		if t.Status.History[i].To == v1alpha1.StateSucceeded {
			ends++
		}
	}
	if n := int(attempts); ends > 1 || s != nil && len(s.reports) > n || len(t.Status.Attempts) > n {
		v.twice++
		v.fault(t.Name, "%d attempts, %d ends", len(t.Status.Attempts), ends)
	}
	reported := 0
	for i := range t.Status.Attempts {
		if ptr.Deref(t.Status.Attempts[i].Reported, false) {
			reported++
		}
	}
	if reported < int(attempts) {
		v.overtaken++
		v.fault(t.Name, "%d of %d attempts were ended by a report: state %s, reason %s",
			reported, attempts, t.Status.State, t.Status.Reason)
	}
}

// some is a few of the faults, for people.
func (v *verdict) some() string {
	const most = 10
	shown := v.faults[:min(most, len(v.faults))]
	return strings.Join(shown, "\n  ")
}
