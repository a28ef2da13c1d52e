package main

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/test/audit"
	"github.com/taskwarden/taskwarden/test/benchkit"
)

// ledger is what the audit log tells of one phase.
type ledger struct {
	tasks map[string]*story
	// conflicts are writes of the gateways that somebody else was faster than: of final reports, and of what is not final.
	finalConflicts, newsConflicts int
	// finalWrites is how long the API server took for the gateways' writes of final reports, in seconds.
	finalWrites []float64
}

// story is what was stored of one Task, and when.
type story struct {
	// news are when the gateways sent their writes of what is not final.
	news []time.Time
	// reports are the final reports that its status has had.
	reports map[finalKey]time.Time
	// podEnded is when its worker had exited, terminal when its terminal state was stored.
	podEnded, terminal time.Time
	state              v1alpha1.State
}

// finalKey tells final reports apart.
type finalKey struct {
	Attempt  int32  `json:"attempt"`
	PodUID   string `json:"podUID"`
	Sequence int64  `json:"sequence"`
}

// stored is what a ledger reads of a Task or a pod.
type stored struct {
	Metadata struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
	Status struct {
		State             v1alpha1.State `json:"state"`
		Report            *finalKey      `json:"report"`
		ContainerStatuses []struct {
			State struct {
				Terminated *struct{} `json:"terminated"`
			} `json:"state"`
		} `json:"containerStatuses"`
	} `json:"status"`
}

func newLedger() *ledger { return &ledger{tasks: map[string]*story{}} }

func (l *ledger) task(name string) *story {
	s := l.tasks[name]
	if s == nil {
		s = &story{reports: map[finalKey]time.Time{}}
		l.tasks[name] = s
	}
	return s
}

// add enters one request.
func (l *ledger) add(e *audit.Event) error {
	byGateway := strings.HasPrefix(e.UserAgent, benchkit.Gateway)
	if byGateway && e.Write() && (e.Status.Code == http.StatusConflict || e.Status.Code == http.StatusUnprocessableEntity) {
		l.addConflict(e)
	}
	isTask, isPod := e.Object.Resource == "tasks", e.Object.Resource == "pods" && e.Object.Subresource != "binding"
	if !isTask && !isPod || !e.Stored() || strings.HasPrefix(e.Verb, "delete") {
		return nil
	}
	var o stored
	if err := json.Unmarshal(e.Response, &o); err != nil {
		return fmt.Errorf("answer to %s %s: %w", e.Verb, e.RequestURI, err)
	}
	if isPod {
		l.addPod(e, &o)
		return nil
	}
	l.addTask(e, &o, byGateway)
	return nil
}

func (l *ledger) addTask(e *audit.Event, o *stored, byGateway bool) {
	s := l.task(o.Metadata.Name)
	switch {
	case byGateway && isNews(e):
		s.news = append(s.news, e.Received)
	case byGateway:
		l.finalWrites = append(l.finalWrites, e.Done.Sub(e.Received).Seconds())
	}
	if r := o.Status.Report; r != nil {
		s.reports[*r] = earlier(s.reports[*r], e.Done)
	}
	if lifecycle.Terminal(o.Status.State) {
		if s.terminal = earlier(s.terminal, e.Done); s.terminal.Equal(e.Done) {
			s.state = o.Status.State
		}
	}
}

func (l *ledger) addConflict(e *audit.Event) {
	if isNews(e) {
		l.newsConflicts++
	} else {
		l.finalConflicts++
	}
}

// isNews tells the gateways' writes apart: all are JSON patches, and those of what is not final put a sequence into the worker's
// status.
func isNews(e *audit.Event) bool {
	var patch []struct {
		Op   string `json:"op"`
		Path string `json:"path"`
	}
	if json.Unmarshal(e.Request, &patch) != nil {
		return false
	}
	for _, o := range patch {
		if o.Op == "add" && o.Path == "/status/worker/sequence" {
			return true
		}
	}
	return false
}

func (l *ledger) addPod(e *audit.Event, o *stored) {
	name := o.Metadata.Labels[v1alpha1.LabelTask]
	if name == "" || len(o.Status.ContainerStatuses) == 0 {
		return
	}
	for _, c := range o.Status.ContainerStatuses {
		if c.State.Terminated == nil {
			return
		}
	}
	s := l.task(name)
	s.podEnded = earlier(s.podEnded, e.Done)
}

// earlier is the earlier of two moments, of which the first may not have come: requests that end together may be logged in any
// order.
func earlier(known, at time.Time) time.Time {
	if known.IsZero() || at.Before(known) {
		return at
	}
	return known
}

// lastReport is when the last of the final reports was stored, zero where there is none.
func (s *story) lastReport() time.Time {
	var last time.Time
	for _, at := range s.reports {
		if at.After(last) {
			last = at
		}
	}
	return last
}

// writing is how often the gateways wrote what is not final.
type writing struct {
	writes int
	// rate is that of a Task, in writes a second: one over the mean gap between two writes, NaN where no Task has two.
	rate float64
	// gaps are the times from one write of a Task to its next, in seconds.
	gaps []float64
}

func (l *ledger) writing() writing {
	w := writing{rate: math.NaN()}
	took := 0.0
	for _, s := range l.tasks {
		w.writes += len(s.news)
		g := gaps(s.news)
		w.gaps = append(w.gaps, g...)
		for _, gap := range g {
			took += gap
		}
	}
	if took > 0 {
		w.rate = float64(len(w.gaps)) / took
	}
	return w
}

// share is the part of the gaps that are shorter than a limit.
func (w *writing) share(limit float64) float64 {
	n := 0
	for _, gap := range w.gaps {
		if gap < limit {
			n++
		}
	}
	return float64(n) / float64(max(1, len(w.gaps)))
}

// gaps are the seconds between moments that follow each other, in whatever order they were logged.
func gaps(moments []time.Time) []float64 {
	sorted := slices.SortedFunc(slices.Values(moments), time.Time.Compare)
	var values []float64
	for i := 1; i < len(sorted); i++ {
		values = append(values, sorted[i].Sub(sorted[i-1]).Seconds())
	}
	return values
}
