package reporter

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/taskwarden/taskwarden/internal/report"
)

// news makes an item of words such as "progress 40" and "stage resize".
func news(sequence int64, words string) *item {
	kind, rest, _ := strings.Cut(words, " ")
	it := &item{report: report.Report{TaskID: "u", Attempt: 1, Sequence: sequence, Kind: report.Kind(kind)}}
	switch it.report.Kind {
	case report.Progress:
		it.report.Progress = &report.ProgressPayload{Message: rest}
	case report.Stage:
		it.report.Stage = &report.StagePayload{Name: rest}
	case report.Checkpoint:
		it.report.Checkpoint = []byte(rest)
	default:
	}
	return it
}

func wordsOf(it *item) string {
	words := string(it.report.Kind)
	switch it.report.Kind {
	case report.Progress:
		words += " " + it.report.Progress.Message
	case report.Stage:
		words += " " + it.report.Stage.Name
	case report.Checkpoint:
		words += " " + string(it.report.Checkpoint)
	default:
	}
	return words
}

func (q *queue) words() []string {
	words := []string{}
	for _, it := range q.news {
		words = append(words, wordsOf(it))
	}
	return words
}

func TestQueueKeepsTheNewest(t *testing.T) {
	for name, c := range map[string]struct {
		reason string
		add    []string
		want   []string
	}{
		"progress": {
			reason: "newer progress replaces older",
			add:    []string{"progress 1", "progress 2", "progress 3"}, want: []string{"progress 3"},
		},
		"checkpoints": {
			reason: "a newer checkpoint replaces an older one",
			add:    []string{"checkpoint 1", "stage a", "checkpoint 2"}, want: []string{"stage a", "checkpoint 2"},
		},
		"stages": {
			reason: "stages keep their order",
			add:    []string{"stage a", "stage b", "stage c"}, want: []string{"stage a", "stage b", "stage c"},
		},
		"the same stage": {
			reason: "it is no news",
			add:    []string{"stage a", "stage a"}, want: []string{"stage a"},
		},
		"heartbeats": {
			reason: "one is enough",
			add:    []string{"heartbeat", "heartbeat"}, want: []string{"heartbeat"},
		},
		"a heartbeat behind something": {
			reason: "what is queued says that the worker lives",
			add:    []string{"progress 1", "heartbeat"}, want: []string{"progress 1"},
		},
		"something behind a heartbeat": {
			reason: "what is queued says that the worker lives",
			add:    []string{"heartbeat", "stage a"}, want: []string{"stage a"},
		},
		"everything": {
			reason: "the order is that of the sequence",
			add:    []string{"stage a", "progress 1", "checkpoint 1", "stage b", "progress 2"},
			want:   []string{"stage a", "checkpoint 1", "stage b", "progress 2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var q queue
			for i, words := range c.add {
				q.add(news(int64(i+1), words))
			}
			if diff := cmp.Diff(c.want, q.words()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func TestQueueIsBounded(t *testing.T) {
	var q queue
	q.add(news(1, "checkpoint 1"))
	lost := 0
	for i := range 1000 {
		if q.add(news(int64(i+2), fmt.Sprintf("stage %d", i))) != nil {
			lost++
		}
	}
	if len(q.news) != maxQueued || lost != 1001-maxQueued {
		t.Errorf("%d queued, %d lost", len(q.news), lost)
	}
	if q.find(report.Checkpoint) == nil || wordsOf(q.news[len(q.news)-1]) != "stage 999" {
		t.Error("the checkpoint or the newest stage is lost, want the oldest stages")
	}
}

func TestFinalMakesNewsSuperfluous(t *testing.T) {
	for kind, want := range map[report.Kind][]string{report.Succeeded: {}, report.Failed: {"checkpoint 1"}} {
		var q queue
		for i, words := range []string{"stage a", "progress 1", "checkpoint 1"} {
			q.add(news(int64(i+1), words))
		}
		q.addFinal(news(4, string(kind)))
		if diff := cmp.Diff(want, q.words()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", kind, diff)
		}
		first, _ := q.next(begin)
		if want := len(want) == 0; (first == q.final) != want {
			t.Errorf("%s: %s goes first", kind, wordsOf(first))
		}
	}
}

// TestWaitsGrow: 1, 3 and 9 seconds, then growing to a cap, which jitter never exceeds.
func TestWaitsGrow(t *testing.T) {
	want := []time.Duration{1, 3, 9, 18, 30, 30, 30}
	for i := range want {
		if got := waitAfter(i, 0); got != want[i]*time.Second {
			t.Errorf("wait %d is %s, want %s", i, got, want[i]*time.Second)
		}
		if got := waitAfter(i, 1); i >= len(quickWaits) && got != want[i]*time.Second*3/4 || got > maxWait {
			t.Errorf("wait %d is %s with the most jitter", i, got)
		}
	}
	for _, waits := range []int{8, 63, 64, 1 << 30} {
		if got := waitAfter(waits, 0); got != maxWait {
			t.Errorf("wait %d is %s", waits, got)
		}
	}
}

// TestC45StuckItemIsOvertaken: what the gateway answers with 5xx again and again lets the others pass, but no stage passes
// another.
func TestC45StuckItemIsOvertaken(t *testing.T) {
	var q queue
	for i, words := range []string{"stage a", "stage b", "progress 1", "checkpoint 1"} {
		q.add(news(int64(i+1), words))
	}
	now := begin
	answered := &delivery{status: 503}
	for range len(quickWaits) + 1 {
		it, _ := q.next(now)
		if it == nil || wordsOf(it) != "stage a" {
			t.Fatal("the first one has its quick tries before anything else")
		}
		q.failed(it, answered, now, 0)
		now = now.Add(9 * time.Second)
	}
	it, _ := q.next(now)
	if it == nil || wordsOf(it) != "progress 1" {
		t.Fatalf("got %v, want the progress to pass", it)
	}
	q.taken(it)
	if it, _ = q.next(now); wordsOf(it) != "stage a" {
		t.Errorf("%s goes, want the stuck one to have its try after a success", wordsOf(it))
	}
	if q.delivered != 3 {
		t.Errorf("the highest number is %d", q.delivered)
	}

	var unreachable queue
	for i, words := range []string{"stage a", "progress 1"} {
		unreachable.add(news(int64(i+1), words))
	}
	for range 10 {
		unreachable.failed(unreachable.news[0], &delivery{}, now, 0)
	}
	if it, _ := unreachable.next(now); it != nil {
		t.Errorf("%s goes to a gateway that cannot be reached", wordsOf(it))
	}
}

// TestSuccessorInheritsTheWait: a worker that reports progress each second does not make the sidecar knock each second.
func TestSuccessorInheritsTheWait(t *testing.T) {
	var q queue
	q.add(news(1, "progress 1"))
	first, _ := q.next(begin)
	second := news(2, "progress 2")
	q.add(second)
	q.failed(first, &delivery{}, begin, 0)
	third := news(3, "progress 3")
	q.add(third)
	if it, wake := q.next(begin); it != nil || !wake.Equal(begin.Add(time.Second)) {
		t.Errorf("the next try is at %s, want it a second later", wake)
	}
	if third.report.RetryCount != 0 || first.report.RetryCount != 1 {
		t.Errorf("failures are counted at the wrong report: %d, %d", first.report.RetryCount, third.report.RetryCount)
	}
}

func TestLightReportsPause(t *testing.T) {
	q := queue{lastLight: begin}
	q.add(news(1, "progress 1"))
	if it, wake := q.next(begin); it != nil || !wake.Equal(begin.Add(leastPause)) {
		t.Errorf("goes at %s, want %s later", wake, leastPause)
	}
	q.add(news(2, "stage a"))
	if it, _ := q.next(begin); it == nil {
		t.Error("holds up a stage")
	}
}

// TestNothingGoesTwiceWithinASecond: a success lets the others go at once, but a report that fails again and again between ones
// that succeed is not sent with each of them.
func TestNothingGoesTwiceWithinASecond(t *testing.T) {
	var q queue
	stuck := news(1, "checkpoint 1")
	q.add(stuck)
	for range len(quickWaits) + 1 {
		q.failed(stuck, &delivery{status: 503}, begin, 0)
	}
	now := begin.Add(leastAgain / 2)
	stage := news(2, "stage a")
	q.add(stage)
	q.taken(stage)
	if it, wake := q.next(now); it != nil || !wake.Equal(begin.Add(time.Second)) {
		t.Errorf("after a success the next try is at %s, want it a second after the last one", wake)
	}
	if it, _ := q.next(begin.Add(time.Second)); it != stuck {
		t.Errorf("got %v, want the one that is stuck to go a second after its last try", it)
	}
}
