package main

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/taskwarden/taskwarden/test/benchkit"
)

func at(seconds float64) time.Time {
	return time.Unix(1000, 0).Add(time.Duration(seconds * float64(time.Second)))
}

func TestRates(t *testing.T) {
	units := []unit{
		{created: at(1), podEnded: at(3), ended: at(4), jobComplete: at(5)},
		{created: at(0), podEnded: at(2), ended: at(8), jobComplete: at(7)},
		{created: at(2), podEnded: at(4), ended: at(5)},
	}
	if got, want := perSecond(units), 3.0/8; got != want {
		t.Errorf("per second: got %v, want %v", got, want)
	}
	if got, want := perSecond(units, units[:1]), 4.0/11; got != want {
		t.Errorf("per second of two runs: got %v, want %v", got, want)
	}
	if got, want := beforeJobComplete(units), 2.0/3; got != want {
		t.Errorf("before the Job: got %v, want %v", got, want)
	}
	if got, want := benchkit.Percentile(durations(units, podEnded, ended), 50), 1.0; got != want {
		t.Errorf("lag: got %v, want %v", got, want)
	}
	if got := benchkit.Percentile(durations(units, podEnded, jobComplete), 99); !math.IsInf(got, 1) {
		t.Errorf("lag of a Job that did not end: got %v", got)
	}
}

func TestFigures(t *testing.T) {
	var out, table bytes.Buffer
	f := &benchkit.Figures{Out: &out, Bounds: boundOf}
	f.Add("lag_p99_ratio", 0.5)
	f.Add("lag_p99_ratio_tuned", 0.6)
	f.Add("ratio_tasks_per_second", 1.4)
	f.Add("ratio_tasks_per_second_tuned", 0.7)
	f.Add("conflicts_per_task", 0.2)
	f.Add("jobs_per_second", 1.0/3)
	if got, want := strings.Join(f.Table(&table), " "), "lag_p99_ratio_tuned ratio_tasks_per_second conflicts_per_task"; got != want {
		t.Errorf("missed: got %q, want %q", got, want)
	}
	if want := `{"figure":"jobs_per_second","value":0.333333}` + "\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("got %q, want it to end with %q", out.String(), want)
	}
	if strings.Contains(table.String(), "jobs_per_second") {
		t.Error("a figure without a bound is in the table")
	}
	if f.Err() != nil {
		t.Error(f.Err())
	}
	f.Add("nothing", math.NaN())
	if f.Err() == nil {
		t.Error("a figure that is no number is no error")
	}
}

func TestBoundsAreOfTheSameSizeAsTheDefaults(t *testing.T) {
	if _, ok := boundOf("controller_rss_mib_5000_finished"); !ok {
		t.Error("no bound for the memory over 5000 finished Tasks")
	}
	if _, ok := boundOf("controller_rss_mib_50_finished"); ok {
		t.Error("a run of another size is held to the bound for 5000")
	}
}
