package main

import (
	"testing"
	"time"
)

func TestPlansInOutage(t *testing.T) {
	for _, timing := range []timing{
		{report: time.Minute, spread: 20 * time.Second, outage: 2 * time.Minute},
		{report: 5 * time.Second, outage: 10 * time.Second},
	} {
		const n = 600
		down, up := timing.away()
		leaving, cut, failing := 0, 0, 0
		for i := range n {
			p := timing.inOutage(i, n)
			switch {
			case p.start < 0 || p.start > timing.spread || p.start >= down:
				t.Errorf("worker %d begins at %s", i, p.start)
			case p.leaves && (p.finish <= down || p.finish >= up):
				t.Errorf("worker %d leaves at %s, not during the outage from %s to %s", i, p.finish, down, up)
			case !p.leaves && (p.finish <= up || p.cut > 0):
				t.Errorf("worker %d, which stays, finishes at %s", i, p.finish)
			case p.cut > 0 && p.finish+p.cut >= up:
				t.Errorf("the sidecar of worker %d may still deliver: it ends at %s", i, p.finish+p.cut)
			}
			if p.leaves {
				leaving++
			}
			if p.cut > 0 {
				cut++
			}
			if p.fails && p.leaves {
				failing++
			}
		}
		if leaving != n/3 || cut != n/6 || failing != n/12 {
			t.Errorf("got %d that leave, %d that are cut and %d that fail of %d, want a third, a sixth and a twelfth",
				leaving, cut, failing, n)
		}
		if p := timing.afterOutage(down); p.start != down || p.finish <= up {
			t.Errorf("a second attempt that begins at %s: got %+v", down, p)
		}
		if p := timing.afterOutage(2 * up); p.finish <= p.start {
			t.Errorf("a second attempt that begins after everything else: got %+v", p)
		}
	}
}

func TestPlansUnderLoad(t *testing.T) {
	timing := timing{report: time.Minute, spread: 20 * time.Second}
	if got, want := timing.underLoad(5, 10), (plan{start: 10 * time.Second, finish: 70 * time.Second}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
