package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// clockResolution is that of the audit log's time stamps.
const clockResolution = time.Microsecond

// bound is what a figure must reach.
type bound struct {
	text string
	ok   func(float64) bool
}

func atLeast(limit float64) bound {
	return bound{fmt.Sprintf("at least %g", limit), func(v float64) bool { return v >= limit }}
}

func atMost(limit float64) bound {
	return bound{fmt.Sprintf("at most %g", limit), func(v float64) bool { return v <= limit }}
}

func below(limit float64) bound {
	return bound{fmt.Sprintf("below %g", limit), func(v float64) bool { return v < limit }}
}

// bounds by figure. One with suffix _tuned that is not listed has the bound of the same figure without it.
var bounds = map[string]bound{
	"ratio_tasks_per_second":           atLeast(1.5),
	"ratio_tasks_per_second_tuned":     atLeast(0.65),
	"lag_p99_ratio":                    atMost(0.5),
	"light_lag_p50_seconds":            atMost(0.15),
	"before_job_complete_share":        atLeast(0.95),
	"operator_writes_per_task":         atMost(4),
	"operator_writes_life_per_task":    atMost(6),
	"operator_events_per_task":         atMost(2),
	"conflicts_per_task":               below(0.2),
	"reconciles_per_task":              atMost(15),
	"reconciles_idle_finished":         atMost(0),
	"controller_rss_mib_5000_finished": below(150),
	"restart_ready_seconds":            below(10),
}

func boundOf(name string) (bound, bool) {
	b, ok := bounds[name]
	if !ok {
		b, ok = bounds[strings.TrimSuffix(name, "_tuned")]
	}
	return b, ok
}

// figure is one line of the output.
type figure struct {
	Name  string  `json:"figure"`
	Value float64 `json:"value"`
}

// figures are printed as soon as they are known, so that a run that is cut off has not been for nothing.
type figures struct {
	out io.Writer
	all []figure
	err error // the first one of writing them
}

// add prints a figure, rounded to the resolution of the clock.
func (f *figures) add(name string, value float64) {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		f.err = errors.Join(f.err, fmt.Errorf("figure %s is %v", name, value))
		return
	}
	one := figure{Name: name, Value: math.Round(value*1e6) / 1e6}
	f.all = append(f.all, one)
	line, err := json.Marshal(one)
	if err == nil {
		_, err = fmt.Fprintf(f.out, "%s\n", line)
	}
	f.err = errors.Join(f.err, err)
}

// resolution says how exact the figures can be.
func (f *figures) resolution() {
	f.add("clock_resolution_seconds", clockResolution.Seconds())
	f.add("readiness_poll_seconds", readinessPoll.Seconds())
	say("clocks: times of objects are the audit log's, to the microsecond, when the answer had been sent; reconciles are " +
		"counters, exact; memory is VmRSS, to a page of 4 KiB; readiness is asked for every 5 ms")
}

// table prints every figure that has a bound and answers the names of those that miss it.
func (f *figures) table(out io.Writer) (missed []string) {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "\nFIGURE\tVALUE\tBOUND\t")
	for _, one := range f.all {
		b, ok := boundOf(one.Name)
		if !ok {
			continue
		}
		verdict := "ok"
		if !b.ok(one.Value) {
			verdict = "MISSED"
			missed = append(missed, one.Name)
		}
		fmt.Fprintf(w, "%s\t%.4g\t%s\t%s\n", one.Name, one.Value, b.text, verdict)
	}
	fmt.Fprintln(w)
	f.err = errors.Join(f.err, w.Flush())
	return missed
}

// percentile is the smallest value that at least p percent of the values do not exceed; it was really measured, nothing is
// interpolated.
func percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// durations measures each unit; one whose moments did not both come is infinitely late.
func durations(units []unit, from, to func(unit) time.Time) []float64 {
	values := make([]float64, 0, len(units))
	for _, u := range units {
		a, b := from(u), to(u)
		if a.IsZero() || b.IsZero() {
			values = append(values, math.Inf(1))
			continue
		}
		values = append(values, b.Sub(a).Seconds())
	}
	return values
}

func created(u unit) time.Time     { return u.created }
func podEnded(u unit) time.Time    { return u.podEnded }
func jobComplete(u unit) time.Time { return u.jobComplete }
func ended(u unit) time.Time       { return u.ended }

// perSecond is the number of units of some runs over their time, each from its first creation to its last end.
func perSecond(runs ...[]unit) float64 {
	n, took := 0, time.Duration(0)
	for _, units := range runs {
		if len(units) == 0 {
			return math.NaN()
		}
		first := slices.MinFunc(units, func(a, b unit) int { return a.created.Compare(b.created) }).created
		last := slices.MaxFunc(units, func(a, b unit) int { return a.ended.Compare(b.ended) }).ended
		n, took = n+len(units), took+last.Sub(first)
	}
	return float64(n) / took.Seconds()
}

// beforeJobComplete is the share of Tasks that were terminal before their own Job was Complete.
func beforeJobComplete(units []unit) float64 {
	n := 0
	for _, u := range units {
		if u.jobComplete.IsZero() || u.ended.Before(u.jobComplete) {
			n++
		}
	}
	return float64(n) / float64(len(units))
}
