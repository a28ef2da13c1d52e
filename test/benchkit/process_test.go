package benchkit

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestParseMetrics(t *testing.T) {
	m, err := ParseMetrics("# HELP a text\n# TYPE a counter\na{code=\"x y\"} 2\na{code=\"z\"} 1.5e+01\nab 7\n")
	if err != nil {
		t.Fatal(err)
	}
	if sum, found := m.Sum("a"); sum != 17 || !found {
		t.Errorf("got %v, %v, want 17", sum, found)
	}
	if sum, found := m.Sum("b"); sum != 0 || found {
		t.Errorf("of a metric that is not there: got %v, %v", sum, found)
	}
	if _, err := ParseMetrics("a x\n"); err == nil {
		t.Error("what is no number is taken for one")
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
	before := CPUTimes{at: time.Unix(0, 0), of: map[string]float64{"etcd": 1}, busy: 10}
	text := CPUTimes{at: time.Unix(10, 0), of: map[string]float64{"etcd": 3, "operator": 1}, busy: 20}.Since(before)
	if want := "etcd 2.0, operator 1.0, all others 7.0;"; !strings.Contains(text, want) {
		t.Errorf("got %q, want it to contain %q", text, want)
	}
}
