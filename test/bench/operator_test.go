package main

import (
	"math"
	"strings"
	"testing"
	"time"
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

func TestParseCounters(t *testing.T) {
	got, err := parseCounters(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	if want := (counters{reconciles: 1501, queued: 7, active: 2}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, err := parseCounters(strings.ReplaceAll(metricsPage, "workqueue_depth", "other")); err == nil {
		t.Error("a missing metric is taken for zero")
	}
}

func TestParseMemory(t *testing.T) {
	now, peak, err := parseMemory("Name:\ttaskwarden\nVmHWM:\t  204800 kB\nVmRSS:\t  102400 kB\n")
	if err != nil || now != 100 || peak != 200 {
		t.Errorf("got %v, %v, %v, want 100, 200", now, peak, err)
	}
	if _, _, err := parseMemory("Name:\ttaskwarden\n"); err == nil {
		t.Error("no memory, no error")
	}
}

func TestParseTimes(t *testing.T) {
	got, err := parseProcessTime("7 (a b) c) S 1 7 7 0 -1 4194560 100 0 0 0 150 50 9 9 20 0 8 0 2487 0 0")
	if err != nil || got != 2 {
		t.Errorf("process: got %v, %v, want 2", got, err)
	}
	got, err = parseMachineTime("cpu  100 200 300 9000 9000 10 20 30 5 5\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
	if err != nil || math.Abs(got-6.6) > 1e-9 {
		t.Errorf("machine: got %v, %v, want 6.6", got, err)
	}
	before := cpuTimes{at: time.Unix(0, 0), of: map[string]float64{"etcd": 1}, busy: 10}
	text := cpuTimes{at: time.Unix(10, 0), of: map[string]float64{"etcd": 3, "operator": 1}, busy: 20}.since(before)
	if want := "etcd 2.0, operator 1.0, all others 7.0;"; !strings.Contains(text, want) {
		t.Errorf("got %q, want it to contain %q", text, want)
	}
}
