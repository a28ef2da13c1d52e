package main

import (
	"strings"

	"github.com/taskwarden/taskwarden/test/benchkit"
)

// suffixOutage is that of the figures of phase outage.
const suffixOutage = "_outage"

// A Task may have one progress write every two seconds. Two requests differ in how long they are on their way to the API
// server, so a gap may be a little shorter, and the mean of a few as well.
const (
	leastGap   = 1.9
	mostWrites = 0.505
)

// bounds by figure.
var bounds = map[string]benchkit.Bound{
	"report_to_terminal_p50_seconds": benchkit.Below(0.3),
	"results_lost":                   benchkit.AtMost(0),
	"results_wrong":                  benchkit.AtMost(0),
	"results_twice":                  benchkit.AtMost(0),
	"final_reports_not_taken":        benchkit.AtMost(0),
	"exits_overtaking_reports":       benchkit.AtMost(0),
	"status_writes_per_task_second":  benchkit.AtMost(mostWrites),
	"status_write_gap_min_seconds":   benchkit.AtLeast(leastGap),
	"gateway_rss_peak_mib":           benchkit.Below(128),
	"final_report_p99_seconds":       benchkit.Below(2),
	"callback_retry_difference":      benchkit.AtMost(0),
	"replica_disagreements":          benchkit.AtMost(0),
}

// unbounded are figures of the outage that only tell what it was like.
var unbounded = map[string]bool{
	"final_report_p99_seconds" + suffixOutage: true,
}

// boundOf finds the bound of a figure. One of the outage has that of the same figure under load, unless it is listed without.
func boundOf(name string) (benchkit.Bound, bool) {
	if unbounded[name] {
		return benchkit.Bound{}, false
	}
	b, ok := bounds[name]
	if !ok {
		b, ok = bounds[strings.TrimSuffix(name, suffixOutage)]
	}
	return b, ok
}
