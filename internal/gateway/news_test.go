package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/report"
)

// newsWorld is one with a clock that is played.
func newsWorld(t *testing.T, task *v1alpha1.Task) (*world, *clocktesting.FakeClock) {
	t.Helper()
	clk := fakeClock()
	return newWorld(t, clk, nil, task), clk
}

// flush lets the interval pass, once so many reports wait for its end.
func (w *world) flush(clk *clocktesting.FakeClock, task *v1alpha1.Task, waiting int) {
	w.t.Helper()
	eventually(w.t, func() bool { return w.held(task) == waiting && clk.HasWaiters() })
	clk.Step(DefaultWriteInterval)
}

func TestNewsIsStored(t *testing.T) {
	task := processing("mine", func(t *v1alpha1.Task) {
		t.Spec.Stages = []v1alpha1.Stage{{Name: "download"}, {Name: "resize"}}
	})
	w, clk := newsWorld(t, task)
	start := clk.Now()
	w.want(w.send(reportOf(task, report.Progress, 1), tokenOf("mine")), 200, "Stored")
	var held []<-chan answer
	for i, kind := range []report.Kind{report.Checkpoint, report.Stage} {
		held = append(held, w.start(reportOf(task, kind, int64(2+i)), tokenOf("mine")))
	}
	w.flush(clk, task, 2)
	for _, h := range held {
		w.want(<-h, 200, "Stored")
	}
	if n := w.count("news status"); n != 2 {
		t.Errorf("%d writes, want 2", n)
	}
	at := ptr.To(metav1.NewMicroTime(start))
	got := w.task("mine")
	want := task.DeepCopy()
	want.Status.Progress = &v1alpha1.TaskProgress{
		Percent: ptr.To[int32](50), FurthestBasisPoints: ptr.To[int32](4000), Stage: "resize", EstimatedRemainingSeconds: ptr.To[int64](60), UpdateTime: at, AdvanceTime: at, StageTime: at,
	}
	want.Status.Checkpoint = &v1alpha1.TaskCheckpoint{Data: apiextensionsv1.JSON{Raw: []byte(`{"at":1}`)}, Attempt: 1, UpdateTime: *at}
	want.Status.Worker.HeartbeatTime, want.Status.Worker.Sequence = at, 3
	if diff := cmp.Diff(want.Status, got.Status); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
}

// TestC47ProgressIsCoalesced: however often a worker reports, its Task is written at most once in two seconds, and in the end
// it has what was said last.
func TestC47ProgressIsCoalesced(t *testing.T) {
	task := processing("mine")
	w, clk := newsWorld(t, task)
	start, sequence := clk.Now(), int64(0)
	for range 10 {
		var held []<-chan answer
		for range 5 {
			sequence++
			held = append(held, w.start(reportOf(task, report.Progress, sequence, percent(float64(sequence))), tokenOf("mine")))
		}
		for _, h := range held {
			if got := drive(t, clk, h); got.status != 200 {
				t.Errorf("answered with %d %s", got.status, got.body)
			}
		}
	}
	if n, limit := w.count("news status"), int(clk.Since(start)/DefaultWriteInterval)+1; n > limit {
		t.Errorf("%d writes within %s, want at most %d", n, clk.Since(start), limit)
	}
	if s := w.task("mine").Status; int64(*s.Progress.Percent) != sequence || s.Worker.Sequence != sequence {
		t.Errorf("stored is %d %% of report %d, the last was %d", *s.Progress.Percent, s.Worker.Sequence, sequence)
	}
}

// drive lets the time pass until there is an answer, and only where something waits for the time.
func drive(t *testing.T, clk *clocktesting.FakeClock, got <-chan answer) (a answer) {
	t.Helper()
	eventually(t, func() bool {
		select {
		case a = <-got:
			return true
		default:
		}
		if clk.HasWaiters() {
			clk.Step(100 * time.Millisecond)
		}
		return false
	})
	return a
}

// TestC47WhatIsStoredOfProgress is the documented answer to what a worker may say.
func TestC47WhatIsStoredOfProgress(t *testing.T) {
	for name, c := range map[string]struct {
		said string
		want int32
		bad  bool
	}{
		"as sent": {said: "10", want: 10}, "a fraction": {said: "99.9", want: 99}, "over 100": {said: "250", want: 100}, "negative": {said: "-5", want: 0},
		"backwards": {said: "3", want: 3}, "NaN": {said: "NaN", bad: true}, "text": {said: `"abc"`, bad: true}, "beyond all numbers": {said: "1e999", bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			task := processing("mine", func(t *v1alpha1.Task) { t.Status.Progress = &v1alpha1.TaskProgress{Percent: ptr.To[int32](50)} })
			w, _ := newsWorld(t, task)
			body := `{"task_id":"mine-uid","attempt":1,"sequence":1,"kind":"progress","progress":{"percent":` + c.said + `}}`
			got := w.do(w.handler, newRequest(body, tokenOf("mine")))
			if c.bad {
				w.want(got, http.StatusBadRequest, "InvalidReport")
				return
			}
			w.want(got, 200, "Stored")
			if p := w.task("mine").Status.Progress; *p.Percent != c.want {
				t.Errorf("stored is %d, want %d", *p.Percent, c.want)
			}
		})
	}
}

// TestC15NewsOutOfOrder: what comes late changes nothing, and is not refused.
func TestC15NewsOutOfOrder(t *testing.T) {
	task := processing("mine")
	w, clk := newsWorld(t, task)
	w.want(w.send(reportOf(task, report.Progress, 5, percent(80)), tokenOf("mine")), 200, "Stored")
	for _, sequence := range []int64{5, 3} {
		late := w.start(reportOf(task, report.Progress, sequence, percent(30)), tokenOf("mine"))
		w.flush(clk, task, 1)
		w.want(<-late, 200, "Ignored")
	}
	if p := w.task("mine").Status.Progress; *p.Percent != 80 {
		t.Errorf("%d %% is stored", *p.Percent)
	}
	// Within one write they are put in order.
	newer := w.start(reportOf(task, report.Progress, 9, percent(90)), tokenOf("mine"))
	eventually(t, func() bool { return w.held(task) == 1 })
	older := w.start(reportOf(task, report.Progress, 8, percent(85)), tokenOf("mine"))
	w.flush(clk, task, 2)
	w.want(<-newer, 200, "Stored")
	w.want(<-older, 200, "Stored")
	if p := w.task("mine").Status.Progress; *p.Percent != 90 {
		t.Errorf("%d %% is stored", *p.Percent)
	}
	if n := w.value("task_reports_total", "kind=progress", "outcome=Ignored"); n != 2 {
		t.Errorf("%v are counted as ignored", n)
	}
}

// TestC15NewsAfterTheEnd: nothing is news once the outcome is known.
func TestC15NewsAfterTheEnd(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.Task){
		"a final report is stored": func(t *v1alpha1.Task) {
			t.Status.Report = &v1alpha1.FinalReport{Attempt: 1, Sequence: 9, Outcome: v1alpha1.ReportSucceeded, Source: v1alpha1.FromGateway}
		},
		"C14 an outcome is fixed": terminating,
		"the Task has ended":      ended,
	} {
		for _, kind := range []report.Kind{report.Heartbeat, report.Progress, report.Stage, report.Checkpoint} {
			t.Run(name+"/"+string(kind), func(t *testing.T) {
				task := processing("mine", change)
				w, _ := newsWorld(t, task)
				before := w.task("mine")
				w.want(w.send(reportOf(task, kind, 10), tokenOf("mine")), http.StatusGone, "AttemptClosed")
				if diff := cmp.Diff(before, w.task("mine")); diff != "" {
					t.Errorf("the Task has changed:\n%s", diff)
				}
			})
		}
	}
}

// TestC14NewsMeetsAnOutcome has something come between the read and the patch of progress.
func TestC14NewsMeetsAnOutcome(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.Task)
		status int
		what   string
	}{
		"a final report": {change: func(t *v1alpha1.Task) {
			t.Status.Report = &v1alpha1.FinalReport{Attempt: 1, Sequence: 9, Outcome: v1alpha1.ReportFailed, Source: v1alpha1.FromGateway}
		}, status: http.StatusGone, what: "AttemptClosed"},
		"the end":           {change: ended, status: http.StatusGone, what: "AttemptClosed"},
		"the next attempt":  {change: second, status: http.StatusGone, what: "AttemptClosed"},
		"a later report":    {change: func(t *v1alpha1.Task) { t.Status.Worker.Sequence = 7 }, status: 200, what: "Ignored"},
		"a condition alone": {change: func(t *v1alpha1.Task) { t.Status.Message = "changed" }, status: 200, what: "Stored"},
	} {
		t.Run(name, func(t *testing.T) {
			task := processing("mine")
			w := newWorld(t, clock.RealClock{}, nil, task)
			meanwhile := sync.OnceFunc(func() { w.write("mine", c.change) })
			w.on(func(what string) error {
				if what == "news status" {
					meanwhile()
				}
				return nil
			})
			w.want(w.send(reportOf(task, report.Progress, 1), tokenOf("mine")), c.status, c.what)
			p := w.task("mine").Status.Progress
			if stored := p != nil && *p.Percent == 40; stored != (c.what == "Stored") {
				t.Errorf("progress is stored: %v", stored)
			}
		})
	}
}

// TestNewsIsDecidedOnWhatTheLastWriteLeft: one request a write, as long as nobody else has changed what counts.
func TestNewsIsDecidedOnWhatTheLastWriteLeft(t *testing.T) {
	task := processing("mine")
	w, clk := newsWorld(t, task)
	send := func(kind report.Kind, sequence int64, status int, what string) {
		t.Helper()
		w.want(drive(t, clk, w.start(reportOf(task, kind, sequence), tokenOf("mine"))), status, what)
	}
	for sequence := range int64(5) {
		send(report.Progress, sequence+1, 200, "Stored")
	}
	if reads, writes := w.count("get Task"), w.count("news status"); reads != 1 || writes != 5 {
		t.Errorf("%d reads for %d writes", reads, writes)
	}
	w.write("mine", func(t *v1alpha1.Task) { t.Status.Message = "changed" }) // does not count
	send(report.Checkpoint, 6, 200, "Stored")
	if reads := w.count("get Task"); reads != 1 {
		t.Errorf("%d reads", reads)
	}
	send(report.Progress, 6, 200, "Ignored")
	if reads := w.count("get Task"); reads != 2 {
		t.Errorf("ignored after %d reads", reads)
	}
	send(report.Progress, 7, 200, "Stored")
	w.write("mine", func(t *v1alpha1.Task) { t.Status.Worker.Sequence = 20 }) // another replica
	send(report.Progress, 8, 200, "Ignored")
	send(report.Progress, 21, 200, "Stored")
	w.write("mine", terminating)
	send(report.Progress, 22, 200, "Stored") // was on its way, and shows what has come
	send(report.Progress, 23, http.StatusGone, "AttemptClosed")
	if s := w.task("mine").Status; s.Worker.Sequence != 22 || len(s.History) == 0 || s.Message != "changed" {
		t.Errorf("stored is %+v", s)
	}
}

// TestHeartbeats are written at a third of their timeout, and mostly not even looked up.
func TestHeartbeats(t *testing.T) {
	task := processing("mine", func(t *v1alpha1.Task) { t.Spec.HeartbeatTimeoutSeconds = ptr.To[int32](60) })
	w, clk := newsWorld(t, task)
	stored, ignored := 0, 0
	const seconds = 120
	for i := range seconds {
		a := w.send(reportOf(task, report.Heartbeat, int64(i+1)), tokenOf("mine"))
		switch {
		case a.Outcome == report.Stored:
			stored++
		case a.Outcome == report.Ignored:
			ignored++
		default:
			t.Fatalf("answered with %d %s", a.status, a.body)
		}
		clk.Step(time.Second)
	}
	if want := seconds / 20; stored != want || w.count("news status") != want {
		t.Errorf("%d stored by %d writes, want %d", stored, w.count("news status"), want)
	}
	if stored+ignored != seconds {
		t.Errorf("%d stored and %d ignored", stored, ignored)
	}
	if n := w.count("get Task"); n > stored+seconds/10 {
		t.Errorf("the Task was read %d times", n)
	}
	if at := w.task("mine").Status.Worker.HeartbeatTime; clk.Since(at.Time) > 21*time.Second {
		t.Errorf("the last one that is stored is of %s, now is %s", at, clk.Now())
	}
}

// TestHeartbeatsHearOfTheEnd: a worker that only lives learns soon that it should stop.
func TestHeartbeatsHearOfTheEnd(t *testing.T) {
	task := processing("mine", func(t *v1alpha1.Task) { t.Spec.HeartbeatTimeoutSeconds = ptr.To[int32](3600) })
	w, clk := newsWorld(t, task)
	w.want(w.send(reportOf(task, report.Heartbeat, 1), tokenOf("mine")), 200, "Stored")
	w.write("mine", terminating)
	w.want(w.send(reportOf(task, report.Heartbeat, 2), tokenOf("mine")), 200, "Ignored")
	clk.Step(maxUnread)
	w.want(w.send(reportOf(task, report.Heartbeat, 3), tokenOf("mine")), http.StatusGone, "AttemptClosed")
}

// TestWritesAreBounded: of many Tasks' progress only so much is written at once, and final reports pass.
func TestWritesAreBounded(t *testing.T) {
	const limit, number = 3, 20
	var tasks []*v1alpha1.Task
	for i := range number {
		tasks = append(tasks, processing("t"+string(rune('a'+i))))
	}
	w := newWorld(t, clock.RealClock{}, func(o *Options) { o.MaxWrites = limit }, tasks...)
	gate := make(chan struct{})
	var mu sync.Mutex
	running, most := 0, 0
	w.on(func(what string) error {
		if what != "news status" {
			return nil
		}
		mu.Lock()
		running++
		most = max(most, running)
		mu.Unlock()
		<-gate
		mu.Lock()
		running--
		mu.Unlock()
		return nil
	})
	var held []<-chan answer
	for _, task := range tasks {
		held = append(held, w.start(reportOf(task, report.Progress, 1), tokenOf(task.Name)))
	}
	eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return running == limit })
	w.want(w.send(reportOf(tasks[0], report.Succeeded, 2), tokenOf(tasks[0].Name)), 200, "Stored")
	close(gate)
	for i, h := range held {
		if got := <-h; i > 0 && got.status != 200 {
			t.Errorf("%s: answered with %d %s", tasks[i].Name, got.status, got.body)
		}
	}
	if most != limit {
		t.Errorf("%d writes at once, the limit is %d", most, limit)
	}
}

// TestOnePodCannotTakeAllPlaces: a worker that sends without end is told to wait, and others are not.
func TestOnePodCannotTakeAllPlaces(t *testing.T) {
	task, other := processing("mine"), processing("other")
	clk := fakeClock()
	w := newWorld(t, clk, nil, task, other)
	w.want(w.send(reportOf(task, report.Progress, 1), tokenOf("mine")), 200, "Stored")
	var held []<-chan answer
	for i := range int64(maxPerPod) {
		held = append(held, w.start(reportOf(task, report.Progress, 2+i), tokenOf("mine")))
	}
	eventually(t, func() bool { return w.held(task) == maxPerPod })
	w.want(w.send(reportOf(task, report.Progress, 100), tokenOf("mine")), http.StatusTooManyRequests, "TooManyRequests")
	w.want(w.send(reportOf(other, report.Progress, 1), tokenOf("other")), 200, "Stored")
	w.flush(clk, task, maxPerPod)
	for _, h := range held {
		w.want(<-h, 200, "Stored")
	}
	if n := len(w.gateway.pods.now); n != 0 {
		t.Errorf("%d pods are still counted", n)
	}
}

// abandon gives the coalescer a report whose request gives up at once.
func (w *world) abandon(task *v1alpha1.Task, r *report.Report) outcome {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 0)
	defer cancel()
	return w.sendWithin(ctx, task, r)
}

// sendWithin sends a report that is waited for until the context ends.
func (w *world) sendWithin(ctx context.Context, task *v1alpha1.Task, r *report.Report) outcome {
	w.t.Helper()
	held := newReservation(w.gateway.memory)
	defer held.release()
	if !held.grow(footprint(r)) {
		return outcome{err: errBusy}
	}
	own := worker{
		Namespace: namespace, TaskName: task.Name, TaskUID: task.UID, JobUID: jobUID(task, 1), PodUID: podUID(task, 1), Attempt: 1,
	}
	return w.gateway.news.take(ctx, &delivery{report: r, worker: own, received: w.clock.Now(), held: held})
}

// stuck is a world in which the writes of a Task do not come to an end until the test says so.
func stuck(t *testing.T, change func(*Options), tasks ...*v1alpha1.Task) (w *world, goOn func()) {
	t.Helper()
	w = newWorld(t, fakeClock(), change, tasks...)
	gate := make(chan struct{})
	w.on(func(what string) error {
		if what == "get Task" {
			<-gate
		}
		return nil
	})
	goOn = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(goOn)
	return w, goOn
}

// waiting tells how many reports of a Task wait beside those which are being written, and how many bytes all have.
func (w *world) waiting(task *v1alpha1.Task) (n int, bytes int64) {
	c := w.gateway.news
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.tasks[task.UID].batch), c.bytes
}

func sized(bytes int) func(*report.Report) {
	return func(r *report.Report) { r.Checkpoint = json.RawMessage(`"` + strings.Repeat("x", bytes-2) + `"`) }
}

// TestAbandonedReports: while the API server does not answer, what is sent again and again is kept once, what says less than a
// later report is not kept, and the memory is given back when all is over.
func TestAbandonedReports(t *testing.T) {
	task := processing("mine")
	w, goOn := stuck(t, nil, task)
	w.abandon(task, reportOf(task, report.Heartbeat, 1))
	eventually(t, func() bool { return w.count("get Task") == 1 }) // this one is being written
	for _, step := range []struct {
		kind     report.Kind
		sequence int64
		want     int
	}{
		{report.Checkpoint, 2, 1},
		{report.Checkpoint, 2, 1}, // tried again
		{report.Checkpoint, 2, 1},
		{report.Stage, 3, 2},
		{report.Checkpoint, 4, 2}, // in the place of 2
		{report.Progress, 5, 3},
		{report.Heartbeat, 6, 4},
		{report.Progress, 7, 3}, // in the place of 5 and 6
		{report.Progress, 5, 4}, // comes again, and decides nothing
	} {
		r := reportOf(task, step.kind, step.sequence)
		if step.kind == report.Checkpoint {
			sized(16 << 10)(r)
		}
		if o := w.abandon(task, r); !errors.Is(o.err, errBusy) {
			t.Errorf("%s %d: %+v", step.kind, step.sequence, o)
		}
		if n, bytes := w.waiting(task); n != step.want || bytes > 20<<10 {
			t.Errorf("%s %d: %d reports with %d bytes wait, want %d", step.kind, step.sequence, n, bytes, step.want)
		}
	}
	if w.gateway.memory.TryAcquire(DefaultMaxBodyMemory) {
		t.Error("the memory of what waits was given back")
		w.gateway.memory.Release(DefaultMaxBodyMemory)
	}
	goOn()
	w.settle(task)
	if s := w.task("mine").Status; s.Worker.Sequence != 7 || s.Progress.Stage != "resize" || len(s.Checkpoint.Data.Raw) != 16<<10 {
		t.Errorf("stored is %+v", s)
	}
}

// TestWithdrawnReports: a sidecar that no longer waits for its progress, since a final report goes first, has taken it back; it is no
// refusal. What has happened, a stage or a checkpoint, stays.
func TestWithdrawnReports(t *testing.T) {
	task := processing("mine")
	w, goOn := stuck(t, nil, task)
	w.abandon(task, reportOf(task, report.Heartbeat, 1))
	eventually(t, func() bool { return w.count("get Task") == 1 }) // this one is being written
	left, cancel := context.WithCancel(t.Context())
	cancel()
	for _, step := range []struct {
		kind report.Kind
		want int
	}{{report.Progress, 0}, {report.Heartbeat, 0}, {report.Stage, 1}, {report.Checkpoint, 2}} {
		if o := w.sendWithin(left, task, reportOf(task, step.kind, int64(2+step.want))); !errors.Is(o.err, errLeft) {
			t.Errorf("%s: %+v", step.kind, o)
		}
		if n, _ := w.waiting(task); n != step.want {
			t.Errorf("after a %s was withdrawn %d reports wait, want %d", step.kind, n, step.want)
		}
	}
	goOn()
	w.settle(task)
	if code := w.gateway.refused(nil, errLeft).Code; testutil.CollectAndCount(w.gateway.metrics.refused) == 0 || code != report.Unavailable {
		t.Errorf("code %s", code)
	}
	if n := testutil.ToFloat64(w.gateway.metrics.refused.WithLabelValues(string(report.Unavailable))); n != 0 {
		t.Errorf("counted as %v refusals", n)
	}
}

// settle lets the time pass until nothing of a Task waits, and sees to it that all memory is free then.
func (w *world) settle(task *v1alpha1.Task) {
	w.t.Helper()
	clk, ok := w.clock.(*clocktesting.FakeClock)
	if !ok {
		w.t.Fatal("the clock is a real one")
	}
	eventually(w.t, func() bool {
		if clk.HasWaiters() {
			clk.Step(DefaultWriteInterval)
		}
		w.gateway.news.mu.Lock()
		defer w.gateway.news.mu.Unlock()
		return !w.gateway.news.tasks[task.UID].running
	})
	if _, bytes := w.waiting(task); bytes != 0 {
		w.t.Errorf("%d bytes are still counted", bytes)
	}
	if !w.gateway.memory.TryAcquire(w.gateway.options.MaxBodyMemory) {
		w.t.Error("memory was not given back")
	}
}

// TestWaitingReportsAreBounded: what waits has a number for each Task and a size for all, which leaves room for final reports.
func TestWaitingReportsAreBounded(t *testing.T) {
	const memory = 1 << 20
	var tasks []*v1alpha1.Task
	for i := range 10 {
		tasks = append(tasks, processing(fmt.Sprint("t", i)))
	}
	w, goOn := stuck(t, func(o *Options) { o.MaxBodyMemory = memory }, tasks...)
	for _, task := range tasks {
		w.abandon(task, reportOf(task, report.Heartbeat, 1))
	}
	eventually(t, func() bool { return w.count("get Task") == DefaultMaxWrites })
	for sequence := range int64(maxHeld + 4) {
		w.abandon(tasks[0], reportOf(tasks[0], report.Stage, 2+sequence))
	}
	if n, _ := w.waiting(tasks[0]); n != maxHeld {
		t.Errorf("%d reports of one Task wait, the limit is %d", n, maxHeld)
	}
	for _, task := range tasks[1:] {
		for sequence := range int64(10) { // from the last to the first, so that none takes the place of another
			w.abandon(task, reportOf(task, report.Checkpoint, 20-sequence, sized(16<<10)))
		}
	}
	if _, bytes := w.waiting(tasks[0]); bytes < memory/2-(32<<10) || bytes > memory/2 {
		t.Errorf("%d bytes wait, the limit is %d", bytes, memory/2)
	}
	goOn()
	for _, task := range tasks {
		eventually(t, func() bool { n, _ := w.waiting(task); return n == 0 || w.step() })
	}
	eventually(t, func() bool { _, bytes := w.waiting(tasks[0]); return bytes == 0 })
	w.settle(tasks[0])
}

// step lets an interval pass where something waits for it. It is false.
func (w *world) step() bool {
	if clk, ok := w.clock.(*clocktesting.FakeClock); ok && clk.HasWaiters() {
		clk.Step(DefaultWriteInterval)
	}
	return false
}

// TestCheckpointsAreNotKept: what is known of a Task between two writes is small, and a checkpoint is stored all the same.
func TestCheckpointsAreNotKept(t *testing.T) {
	task := processing("mine")
	w, clk := newsWorld(t, task)
	for sequence := range int64(3) {
		r := reportOf(task, report.Checkpoint, sequence+1, sized(16<<10))
		w.want(drive(t, clk, w.start(r, tokenOf("mine"))), 200, "Stored")
		w.settle(task)
		w.gateway.memory.Release(DefaultMaxBodyMemory)
		known, err := json.Marshal(w.gateway.news.tasks[task.UID].known)
		if err != nil || len(known) < 100 || len(known) > 4<<10 {
			t.Errorf("%d bytes are kept: %v", len(known), err)
		}
	}
	w.want(drive(t, clk, w.start(reportOf(task, report.Progress, 4), tokenOf("mine"))), 200, "Stored")
	if c := w.task("mine").Status.Checkpoint; c == nil || len(c.Data.Raw) != 16<<10 {
		t.Errorf("the checkpoint is %+v", c)
	}
	if n := w.count("get Task"); n != 1 {
		t.Errorf("%d reads", n)
	}
}

// TestTasksKnownAreBounded: there is room for so many; the one that has been silent for longest is forgotten.
func TestTasksKnownAreBounded(t *testing.T) {
	task := processing("mine")
	w := newWorld(t, fakeClock(), nil, task)
	c := w.gateway.news
	now := w.clock.Now()
	for i := range maxTasks {
		c.tasks[types.UID(fmt.Sprint(i))] = &gathering{running: i == 7, used: now.Add(time.Duration(i-100) * time.Millisecond)}
	}
	delete(c.tasks, "0") // so that 7 would be among the first
	c.tasks["oldest"] = &gathering{used: now.Add(-time.Second)}
	w.want(w.send(reportOf(task, report.Progress, 1), tokenOf("mine")), 200, "Stored")
	if c.tasks["oldest"] != nil || c.tasks["7"] == nil || c.tasks[task.UID] == nil || len(c.tasks) != maxTasks {
		t.Errorf("%d Tasks are known, and not the right ones", len(c.tasks))
	}
	delete(c.tasks, task.UID)
	c.tasks["more"] = &gathering{}
	for _, g := range c.tasks {
		g.running = true
	}
	w.want(w.send(reportOf(task, report.Progress, 2), tokenOf("mine")), http.StatusTooManyRequests, "TooManyRequests")
}

// TestForgetsTasks: what is known of a Task is not kept for ever.
func TestForgetsTasks(t *testing.T) {
	one, two := processing("one"), processing("two")
	clk := fakeClock()
	w := newWorld(t, clk, nil, one, two)
	w.send(reportOf(one, report.Progress, 1), tokenOf("one"))
	eventually(t, func() bool {
		w.gateway.news.mu.Lock()
		defer w.gateway.news.mu.Unlock()
		return !w.gateway.news.tasks[one.UID].running
	})
	clk.Step(forgetAfter + time.Second)
	w.send(reportOf(two, report.Progress, 1), tokenOf("two"))
	if n := len(w.gateway.news.tasks); n != 1 {
		t.Errorf("%d Tasks are known", n)
	}
}

// TestNewsPatch: the patch tests all that was decided on, and changes nothing else than what is reported.
func TestNewsPatch(t *testing.T) {
	before := processing("mine")
	after := before.DeepCopy()
	at := metav1.NewMicroTime(started)
	after.Status.Progress = &v1alpha1.TaskProgress{Percent: ptr.To[int32](7)}
	after.Status.Worker.Sequence, after.Status.Worker.HeartbeatTime = 3, &at
	after.Status.State, after.Status.Message = v1alpha1.StateFailed, "not to be written"
	patch, err := newsPatch(before, after)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range operationsOf(t, patch, after) {
		value, _ := json.Marshal(o.Value)
		got = append(got, strings.Join([]string{o.Op, o.Path, string(value)}, " "))
	}
	want := []string{
		`test /metadata/uid "mine-uid"`, `test /status/attempt 1`, `test /status/state "Processing"`, `test /status/worker/sequence null`,
		`test /status/report null`, `add /status/progress {"percent":7}`,
		`add /status/worker/heartbeatTime "2030-01-01T00:00:10.000000Z"`, `add /status/worker/sequence 3`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("patch (-want +got):\n%s", diff)
	}
}
