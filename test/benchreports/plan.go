package main

import "time"

// timing is what the flags say of a run's times.
type timing struct {
	// report is how long a worker reports, spread within which time they begin, outage how long the gateways are away.
	report, spread, outage time.Duration
}

// plan is what one worker does. Times are from the moment at which all pods were running.
type plan struct {
	// From start on it reports progress every second, until it makes its final report at finish.
	start, finish time.Duration
	// leaves: it exits when the sidecar has taken its final report, and does not wait for the gateway.
	leaves bool
	// cut, above 0, is all that its node gives the sidecar to deliver.
	cut time.Duration
	// fails: its final report says so, and another attempt follows.
	fails bool
}

// part is a share of a duration, for worker i of n.
func part(d time.Duration, i, n int) time.Duration { return d * time.Duration(i) / time.Duration(n) }

// underLoad: all report for the same time.
func (t timing) underLoad(i, n int) plan {
	start := part(t.spread, i, n)
	return plan{start: start, finish: start + t.report}
}

// away is when the gateways go, and when they come back: all workers report for a while before and after.
func (t timing) away() (down, up time.Duration) {
	down = t.spread + t.report/2
	return down, down + t.outage
}

// inOutage: a third of the workers finish while the gateways are away, and exit at once. The sidecars of half of these have the
// usual grace, which is longer than the outage; the others must end before anything can be delivered. A quarter of all these
// workers fail, and their Tasks get a second attempt. All other workers finish when the gateways are back.
func (t timing) inOutage(i, n int) plan {
	down, up := t.away()
	p := plan{start: part(t.spread, i, n), finish: up + t.report/2 + part(t.spread, i, n)}
	if i%3 != 0 {
		return p
	}
	p.finish, p.leaves = down+t.outage/10+part(t.outage/2, i, n), true
	p.fails = i%4 == 0
	if i%6 == 0 {
		p.cut = max(time.Second, min(20*time.Second, t.outage/5).Truncate(time.Second))
	}
	return p
}

// afterOutage is the plan of a second attempt whose worker runs at a time: it finishes when the gateways are back.
func (t timing) afterOutage(now time.Duration) plan {
	_, up := t.away()
	return plan{start: now, finish: max(now+t.report/4, up+t.report/2)}
}
