package reporter

import (
	"net/http"
	"slices"
	"time"

	"github.com/taskwarden/taskwarden/internal/report"
)

// The waits after a failed delivery.
var quickWaits = []time.Duration{time.Second, 3 * time.Second, 9 * time.Second}

const (
	// maxWait caps the waits that follow the quick ones.
	maxWait = 30 * time.Second
	// maxQueued bounds the queue. Only stages can become so many: of all other kinds the newest alone is kept. So the queue has at
	// most some 60 KiB.
	maxQueued = 100
	// leastPause is the least time from one report of progress, or heartbeat, to the next, while nothing else waits behind it.
	leastPause = 250 * time.Millisecond
	// maxDenied is how many answers with 401 a report may have before it is set aside with the next one.
	maxDenied = 3
	// leastAgain is the least time from one try of a report to the next, however well others do.
	leastAgain = time.Second
)

// item is a report on its way.
type item struct {
	report report.Report
	// waits is how many waits there have been; the next one is longer.
	waits int
	// due is when the next try may be made, lastTry when the last one ended.
	due, lastTry time.Time
	// denied is how many answers with 401 there have been.
	denied int
	// answered tells whether the gateway has answered the last try.
	answered bool
	// spooled tells whether a file of the spool holds it.
	spooled bool
	// asked tells of a checkpoint that it has had its try before the next one of the final report.
	asked bool
	// successor took its place in the queue.
	successor *item
}

// slow tells whether the quick tries are used up.
func (it *item) slow() bool { return it.waits > len(quickWaits) }

// queue is what is on its way, in the order of the sequence numbers, and decides what goes when. It does no I/O and has no
// clock.
type queue struct {
	news  []*item
	final *item
	// delivered is the highest sequence number that the gateway has.
	delivered int64
	// lastLight is when the last progress or heartbeat was sent.
	lastLight time.Time
}

func (q *queue) len() int {
	if q.final != nil {
		return len(q.news) + 1
	}
	return len(q.news)
}

// has tells whether a report is queued that is not final.
func (q *queue) has(it *item) bool { return slices.Contains(q.news, it) }

// slow tells whether the quick tries of any report are used up.
func (q *queue) slow() bool { return slices.ContainsFunc(q.news, (*item).slow) }

// find is the newest report of a kind, nil where there is none.
func (q *queue) find(k report.Kind) *item {
	for _, it := range slices.Backward(q.news) {
		if it.report.Kind == k {
			return it
		}
	}
	return nil
}

// add queues what is not final. It returns what fell out of the queue although nothing newer says the same: an old stage, where
// the worker has reported too many.
func (q *queue) add(it *item) (lost *item) {
	kind := it.report.Kind
	switch old := q.find(kind); {
	case kind == report.Heartbeat && q.find(report.Heartbeat) == nil && len(q.news) > 0:
		return nil // what is queued says that the worker lives
	case old == nil:
	case kind == report.Stage:
		if old.report.Stage.Name == it.report.Stage.Name {
			return nil
		}
	default:
		q.remove(old)
		old.successor = it
		it.waits, it.denied, it.due, it.lastTry, it.answered = old.waits, old.denied, old.due, old.lastTry, old.answered
	}
	if kind != report.Heartbeat {
		q.news = slices.DeleteFunc(q.news, func(it *item) bool { return it.report.Kind == report.Heartbeat })
	}
	q.news = append(q.news, it)
	if len(q.news) <= maxQueued {
		return nil
	}
	oldest := slices.IndexFunc(q.news, func(it *item) bool { return it.report.Kind == report.Stage })
	if oldest < 0 {
		return nil
	}
	lost = q.news[oldest]
	q.news = slices.Delete(q.news, oldest, oldest+1)
	return lost
}

// addFinal queues a final report, and drops what it makes superfluous. A checkpoint is worth something after a failure: the
// next attempt begins with it.
func (q *queue) addFinal(it *item) {
	q.final = it
	q.news = slices.DeleteFunc(q.news, func(n *item) bool { return superfluous(n.report.Kind, it.report.Kind) })
}

// superfluous tells whether nobody needs a report once there is a final one.
func superfluous(kind, final report.Kind) bool {
	return kind != report.Checkpoint || final == report.Succeeded
}

func (q *queue) remove(it *item) {
	if q.final == it {
		q.final = nil
		return
	}
	q.news = slices.DeleteFunc(q.news, func(other *item) bool { return other == it })
}

// next is the report that is to be sent now; where there is none, the time at which there will be one, zero for never.
func (q *queue) next(now time.Time) (*item, time.Time) {
	if q.final != nil {
		return q.nextFinal(now)
	}
	var wake time.Time
	stageWaits := false
	for _, it := range q.news {
		stage := it.report.Kind == report.Stage
		if stage && stageWaits {
			continue // stages keep their order
		}
		due := q.dueTime(it)
		if !due.After(now) {
			return it, time.Time{}
		}
		if wake.IsZero() || due.Before(wake) {
			wake = due
		}
		// A gateway that cannot be reached has nothing to say to the next one either. One that is there, and again and again does not
		// take this report, may take others.
		if !it.slow() || !it.answered {
			break
		}
		stageWaits = stageWaits || stage
	}
	return nil, wake
}

// dueTime is when a report may go. Progress at a thousand times a second is not passed on as often.
func (q *queue) dueTime(it *item) time.Time {
	if !light(it.report.Kind) || len(q.news) > 1 {
		return it.due
	}
	if least := q.lastLight.Add(leastPause); !q.lastLight.IsZero() && least.After(it.due) {
		return least
	}
	return it.due
}

// light tells whether reports of a kind may be passed on less often than they are made.
func light(k report.Kind) bool { return k == report.Progress || k == report.Heartbeat }

// nextFinal lets a checkpoint have one try before each try of a failure: once the failure is stored the gateway takes no
// checkpoint.
func (q *queue) nextFinal(now time.Time) (*item, time.Time) {
	if q.final.due.After(now) {
		return nil, q.final.due
	}
	if c := q.find(report.Checkpoint); c != nil && !c.asked {
		return c, time.Time{}
	}
	return q.final, time.Time{}
}

// taken takes out what the gateway has.
func (q *queue) taken(it *item) {
	q.delivered = max(q.delivered, it.report.Sequence)
	q.goOn(it)
}

// goOn takes a report out, and lets everything else go at once: the gateway is there. But nothing goes twice within a second.
func (q *queue) goOn(it *item) {
	q.remove(it)
	for _, other := range q.news {
		if soon := other.lastTry.Add(leastAgain); soon.Before(other.due) {
			other.due = soon
		}
	}
}

// refused tells whether an answer is the last word on a report. On a final one that is only what the gateway itself has said of
// it: a token that is not valid is replaced, and what stands in the way goes away, while a final report that is set aside is
// lost.
// Of all others a few are lost rather than that they stand in the way for long.
func (q *queue) refused(it *item, d *delivery) bool {
	denied := d.status == http.StatusUnauthorized
	switch {
	case !report.Permanent(d.status):
		return false
	case it == q.final:
		return !denied && d.answer.Code.Known()
	default:
		return !denied || it.denied >= maxDenied
	}
}

// failed sets the next try of a report, or of what has taken its place. jitter is between 0 and 1.
func (q *queue) failed(it *item, d *delivery, now time.Time, jitter float64) {
	it.report.RetryCount++
	final := it == q.final
	for it.successor != nil {
		it = it.successor
	}
	wait := waitAfter(it.waits, jitter)
	it.waits++
	if d.status == http.StatusUnauthorized {
		it.denied++
	}
	it.due, it.lastTry, it.answered = now.Add(max(wait, d.retryAfter)), now, d.answered()
	if final {
		for _, other := range q.news {
			other.asked = false
		}
	}
}

// waitAfter is the wait after so many waits before it.
func waitAfter(waits int, jitter float64) time.Duration {
	if waits < len(quickWaits) {
		return quickWaits[waits]
	}
	wait := maxWait
	if doublings := waits - len(quickWaits) + 1; doublings < 8 {
		wait = min(maxWait, quickWaits[len(quickWaits)-1]<<doublings)
	}
	// The pods that have lost the same gateway do not come back to it at the same moment.
	return wait - time.Duration(jitter*float64(wait)/4)
}

// hurry lets everything have another try at once, and the quick ones again: the end is near.
func (q *queue) hurry(now time.Time) {
	for _, it := range append(slices.Clone(q.news), q.final) {
		if it != nil {
			it.due, it.waits, it.asked = now, 0, false
		}
	}
}

// clear takes out everything but a final report.
func (q *queue) clear() []*item {
	news := q.news
	q.news = nil
	return news
}
