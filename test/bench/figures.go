package main

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/taskwarden/taskwarden/test/benchkit"
)

// bounds by figure. One with suffix _tuned that is not listed has the bound of the same figure without it.
var bounds = map[string]benchkit.Bound{
	"ratio_tasks_per_second":           benchkit.AtLeast(1.5),
	"ratio_tasks_per_second_tuned":     benchkit.AtLeast(0.65),
	"lag_p99_ratio":                    benchkit.AtMost(0.5),
	"light_lag_p50_seconds":            benchkit.AtMost(0.15),
	"before_job_complete_share":        benchkit.AtLeast(0.95),
	"operator_writes_per_task":         benchkit.AtMost(4),
	"operator_writes_life_per_task":    benchkit.AtMost(6),
	"operator_events_per_task":         benchkit.AtMost(2),
	"conflicts_per_task":               benchkit.Below(0.2),
	"reconciles_per_task":              benchkit.AtMost(15),
	"reconciles_idle_finished":         benchkit.AtMost(0),
	"controller_rss_mib_5000_finished": benchkit.Below(150),
	"restart_ready_seconds":            benchkit.Below(10),
}

func boundOf(name string) (benchkit.Bound, bool) {
	b, ok := bounds[name]
	if !ok {
		b, ok = bounds[strings.TrimSuffix(name, "_tuned")]
	}
	return b, ok
}

// resolution says how exact the figures can be.
func resolution(f *benchkit.Figures) {
	f.Add("clock_resolution_seconds", benchkit.ClockResolution.Seconds())
	f.Add("readiness_poll_seconds", benchkit.ReadinessPoll.Seconds())
	benchkit.Say("clocks: times of objects are the audit log's, to the microsecond, when the answer had been sent; reconciles are " +
		"counters, exact; memory is VmRSS, to a page of 4 KiB; readiness is asked for every 5 ms")
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
