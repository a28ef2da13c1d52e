package main

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/taskwarden/taskwarden/test/audit"
	"github.com/taskwarden/taskwarden/test/benchkit"
)

func at(seconds float64) time.Time {
	return time.Unix(1000, 0).Add(time.Duration(seconds * float64(time.Second)))
}

// write is one of a Task's status, taken and stored at the same moment.
func write(agent, request, response string, seconds float64) *audit.Event {
	return &audit.Event{
		Stage: "ResponseComplete", Verb: "patch", UserAgent: agent + "/v1", Status: audit.Status{Code: 200},
		Object:  audit.Ref{Resource: "tasks", Subresource: "status", Namespace: "run", Name: "a"},
		Request: json.RawMessage(request), Response: json.RawMessage(response), Received: at(seconds), Done: at(seconds),
	}
}

func taskJSON(status string) string { return `{"metadata":{"name":"a"},"status":` + status + `}` }

func TestLedger(t *testing.T) {
	const report = `"report":{"attempt":1,"podUID":"p","sequence":7}`
	const news, final = `[{"op":"test","path":"/status/report"},{"op":"add","path":"/status/worker/sequence"}]`, `[{"op":"add","path":"/status/report"}]`
	conflict := write(benchkit.Gateway, news, `{"kind":"Status"}`, 3)
	conflict.Status.Code = 422
	pod := &audit.Event{
		Stage: "ResponseComplete", Verb: "patch", Status: audit.Status{Code: 200}, Done: at(7),
		Object: audit.Ref{Resource: "pods", Subresource: "status", Namespace: "run", Name: "a-1-x"},
		Response: json.RawMessage(`{"metadata":{"name":"a-1-x","labels":{"taskwarden.dev/task":"a"}},` +
			`"status":{"containerStatuses":[{"state":{"terminated":{}}}]}}`),
	}
	l := newLedger()
	for _, e := range []*audit.Event{
		write(benchkit.Controller, `{}`, taskJSON(`{"state":"Processing"}`), 1),
		// Logged in another order than they were stored.
		write(benchkit.Gateway, news, taskJSON(`{"state":"Processing"}`), 4),
		write(benchkit.Gateway, news, taskJSON(`{"state":"Processing"}`), 2),
		conflict,
		write(benchkit.Controller, `{}`, taskJSON(`{"state":"Succeeded",`+report+`}`), 6),
		write(benchkit.Gateway, final, taskJSON(`{"state":"Processing",`+report+`}`), 5),
		pod,
		write(benchkit.Controller, `{}`, taskJSON(`{"state":"Succeeded",`+report+`}`), 8),
	} {
		if err := l.add(e); err != nil {
			t.Fatal(err)
		}
	}
	s := l.tasks["a"]
	if got, want := len(l.tasks), 1; got != want {
		t.Fatalf("got %d Tasks, want %d", got, want)
	}
	if l.newsConflicts != 1 || l.finalConflicts != 0 || len(l.finalWrites) != 1 {
		t.Errorf("got %d and %d conflicts and %d writes of final reports, want 1, 0 and 1",
			l.newsConflicts, l.finalConflicts, len(l.finalWrites))
	}
	if diff := cmp.Diff(gaps(s.news), []float64{2}); diff != "" {
		t.Errorf("gaps (-got +want):\n%s", diff)
	}
	want := map[finalKey]time.Time{{Attempt: 1, PodUID: "p", Sequence: 7}: at(5)}
	if diff := cmp.Diff(s.reports, want); diff != "" {
		t.Errorf("reports (-got +want):\n%s", diff)
	}
	if !s.lastReport().Equal(at(5)) || !s.terminal.Equal(at(6)) || s.state != "Succeeded" || !s.podEnded.Equal(at(7)) {
		t.Errorf("got the report at %s, %s at %s, the end of the pod at %s", s.lastReport(), s.state, s.terminal, s.podEnded)
	}
}

func TestWriting(t *testing.T) {
	for _, c := range []struct {
		reason string
		news   [][]float64
		rate   float64
		share  float64
	}{
		{"one write has no rate", [][]float64{{1}}, math.NaN(), 0},
		{"one every two seconds", [][]float64{{0, 2, 4}}, 0.5, 0},
		{"the time before the first and after the last write does not count", [][]float64{{100, 102}, {0, 2}}, 0.5, 0},
		{"one gap of four is too short", [][]float64{{0, 1, 3, 5, 7}}, 4.0 / 7, 0.25},
	} {
		l := newLedger()
		for i, moments := range c.news {
			s := l.task(fmt.Sprint(i))
			for _, m := range moments {
				s.news = append(s.news, at(m))
			}
		}
		w := l.writing()
		if w.rate != c.rate && !(math.IsNaN(w.rate) && math.IsNaN(c.rate)) {
			t.Errorf("%s: got a rate of %v, want %v", c.reason, w.rate, c.rate)
		}
		if got := w.share(leastGap); got != c.share {
			t.Errorf("%s: got a share of %v, want %v", c.reason, got, c.share)
		}
	}
}

func TestCounts(t *testing.T) {
	page := func(retries, busy int) benchkit.Metrics {
		m, err := benchkit.ParseMetrics(fmt.Sprintf("callback_retry_total %d\n"+
			"task_reports_refused_total{code=\"TooManyRequests\"} %d\n"+
			"task_reports_refused_total{code=\"Forbidden\"} 0\n", retries, busy))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	var before, after counts
	before.refused, after.refused = map[string]float64{}, map[string]float64{}
	before.add(page(1, 2))
	for _, m := range []benchkit.Metrics{page(3, 4), page(5, 6)} { // one that was killed, and its successor
		after.add(m)
	}
	got := after.since(before)
	want := counts{retries: 7, refused: map[string]float64{"TooManyRequests": 8}}
	if diff := cmp.Diff(got, want, cmp.AllowUnexported(counts{})); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}
