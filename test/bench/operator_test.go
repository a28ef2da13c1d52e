package main

import (
	"strings"
	"testing"

	"github.com/taskwarden/taskwarden/test/benchkit"
)

const metricsPage = `# HELP controller_runtime_reconcile_total Total number of reconciliations per controller
# TYPE controller_runtime_reconcile_total counter
controller_runtime_reconcile_total{controller="task",result="error"} 1
controller_runtime_reconcile_total{controller="task",result="success"} 1.5e+03
controller_runtime_active_workers{controller="task"} 2
controller_runtime_reconcile_time_seconds_bucket{controller="task",le="0.005"} 99
workqueue_depth{controller="task",name="task",priority="0"} 3
workqueue_depth{controller="task",name="task",priority="10"} 4
go_goroutines 88
`

func parseCounters(t *testing.T, page string) (counters, error) {
	m, err := benchkit.ParseMetrics(page)
	if err != nil {
		t.Fatal(err)
	}
	return countersOf(m)
}

func TestParseCounters(t *testing.T) {
	got, err := parseCounters(t, metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	if want := (counters{reconciles: 1501, queued: 7, active: 2}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, err := parseCounters(t, strings.ReplaceAll(metricsPage, "workqueue_depth", "other")); err == nil {
		t.Error("a missing metric is taken for zero")
	}
}
