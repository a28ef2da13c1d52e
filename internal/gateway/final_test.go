package gateway

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/report"
)

func TestFinalReportIsStored(t *testing.T) {
	task := processing("mine")
	clk := fakeClock()
	w := newWorld(t, clk, nil, task)
	finish := clk.Now().Add(-3 * time.Second)
	r := reportOf(task, report.Succeeded, 9, func(r *report.Report) {
		r.ActualFinishTime = finish.UnixMilli()
		r.ExecutionLogURL = "https://logs/1"
		r.Result = &report.ResultPayload{URL: "s3://b/k", Data: json.RawMessage(`{"a":1}`), Message: "done"}
	})
	w.want(w.send(r, tokenOf("mine")), 200, "Stored")
	want := &v1alpha1.FinalReport{
		Attempt: 1, PodUID: podUID(task, 1), Sequence: 9, Outcome: v1alpha1.ReportSucceeded, Source: v1alpha1.FromGateway,
		ReceivedTime: metav1.NewMicroTime(clk.Now()), FinishTime: ptr.To(metav1.NewMicroTime(finish)), Message: "done",
		Result: &v1alpha1.TaskResult{URL: "s3://b/k", Data: &apiextensionsv1.JSON{Raw: []byte(`{"a":1}`)}, LogURL: "https://logs/1"},
	}
	got := w.task("mine")
	if diff := cmp.Diff(want, got.Status.Report); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
	got.Status.Report, got.ResourceVersion, task.ResourceVersion = nil, "", ""
	if diff := cmp.Diff(task.Status, got.Status); diff != "" {
		t.Errorf("more than the report has changed:\n%s", diff)
	}
	if n := w.value("task_reports_total", "kind=succeeded", "outcome=Stored"); n != 1 {
		t.Errorf("counted %v times", n)
	}
	if n := w.value("task_report_seconds", "final=true"); n != 1 {
		t.Errorf("timed %v times", n)
	}
	if n := w.value("task_worker_clock_skew_seconds"); n != 1 {
		t.Errorf("the clock was measured %v times", n)
	}
}

// TestFinalReports is one row for what a final report finds.
func TestFinalReports(t *testing.T) {
	stored := func(outcome v1alpha1.ReportOutcome) func(*v1alpha1.Task) {
		return func(t *v1alpha1.Task) {
			t.Status.Report = &v1alpha1.FinalReport{
				Attempt: 1, PodUID: podUID(t, 1), Sequence: 5, Outcome: outcome, Source: v1alpha1.FromGateway, ReceivedTime: metav1.NewMicroTime(started),
			}
		}
	}
	finishedAt := func(d time.Duration) func(*report.Report) {
		return func(r *report.Report) { r.ActualFinishTime = created.Add(d).UnixMilli() }
	}
	for name, c := range map[string]struct {
		task     []func(*v1alpha1.Task)
		kind     report.Kind
		change   func(*report.Report)
		status   int
		what     string
		mismatch bool
		report   bool
	}{
		"C15 the first":                          {kind: report.Succeeded, status: 200, what: "Stored", report: true},
		"C15 the same again":                     {task: []func(*v1alpha1.Task){stored(v1alpha1.ReportSucceeded)}, kind: report.Succeeded, status: 200, what: "Ignored", report: true},
		"C15 the opposite":                       {task: []func(*v1alpha1.Task){stored(v1alpha1.ReportSucceeded)}, kind: report.Failed, status: 409, what: "OutcomeRecorded", mismatch: true, report: true},
		"C15 another one that says the same":     {task: []func(*v1alpha1.Task){stored(v1alpha1.ReportFailed)}, kind: report.Failed, change: func(r *report.Report) { r.Sequence = 6 }, status: 409, what: "OutcomeRecorded", report: true},
		"C15 once more after the end":            {task: []func(*v1alpha1.Task){stored(v1alpha1.ReportSucceeded), ended}, kind: report.Succeeded, status: 200, what: "Ignored", report: true},
		"C14 an outcome is fixed":                {task: []func(*v1alpha1.Task){terminating}, kind: report.Succeeded, status: 409, what: "OutcomeRecorded", mismatch: true},
		"C27 the attempt has ended":              {task: []func(*v1alpha1.Task){ended}, kind: report.Succeeded, status: 410, what: "AttemptClosed"},
		"C48 a finish before the creation":       {kind: report.Succeeded, change: finishedAt(-16 * time.Minute), status: 400, what: "InvalidFinishTime"},
		"C48 a finish in 1970":                   {kind: report.Succeeded, change: func(r *report.Report) { r.ActualFinishTime = 1 }, status: 400, what: "InvalidFinishTime"},
		"C48 a finish before 1970":               {kind: report.Succeeded, change: func(r *report.Report) { r.ActualFinishTime = -1 }, status: 400, what: "InvalidFinishTime"},
		"C48 a finish in the year 9999":          {kind: report.Succeeded, change: func(r *report.Report) { r.ActualFinishTime = 253402300799000 }, status: 400, what: "InvalidFinishTime"},
		"C48 a finish far beyond":                {kind: report.Succeeded, change: func(r *report.Report) { r.ActualFinishTime = 1 << 62 }, status: 400, what: "InvalidFinishTime"},
		"C26 a clock that is 10 minutes early":   {kind: report.Succeeded, change: finishedAt(10 * time.Minute), status: 200, what: "Stored", report: true},
		"C26 a clock that is 10 minutes late":    {kind: report.Succeeded, change: finishedAt(-10 * time.Minute), status: 200, what: "Stored", report: true},
		"a Task that nobody has looked at yet":   {task: []func(*v1alpha1.Task){func(t *v1alpha1.Task) { t.Status = v1alpha1.TaskStatus{State: v1alpha1.StatePending} }}, kind: report.Failed, status: 200, what: "Stored", report: true},
		"another pod has taken the worker's job": {task: []func(*v1alpha1.Task){func(t *v1alpha1.Task) { t.Status.Worker.PodUID = "x" }}, kind: report.Succeeded, status: 410, what: "AttemptClosed"},
	} {
		t.Run(name, func(t *testing.T) {
			task := processing("mine", c.task...)
			w := newWorld(t, fakeClock(), nil, task)
			before := w.task("mine")
			r := reportOf(task, c.kind, 5)
			if c.change != nil {
				c.change(r)
			}
			w.want(w.send(r, tokenOf("mine")), c.status, c.what)
			w.want(w.send(r, tokenOf("mine")), c.status, strings.ReplaceAll(c.what, "Stored", "Ignored")) // the same answer every time
			after := w.task("mine")
			if got := meta.IsStatusConditionTrue(after.Status.Conditions, v1alpha1.ConditionReportMismatch); got != c.mismatch {
				t.Errorf("mismatch is noted: %v, want %v", got, c.mismatch)
			}
			if (after.Status.Report != nil) != c.report {
				t.Errorf("stored: %+v", after.Status.Report)
			}
			if f := after.Status.Report; f != nil && f.FinishTime != nil && (f.FinishTime.Time.Before(created) || f.FinishTime.After(f.ReceivedTime.Time)) {
				t.Errorf("the finish %s is not between the creation and the receipt", f.FinishTime)
			}
			if after.Status.State != before.Status.State {
				t.Errorf("the state has become %s", after.Status.State)
			}
			if n := w.count("patch status"); n > 1 {
				t.Errorf("%d writes", n)
			}
		})
	}
}

// TestNullsAreKept: a null within result data is a value like any other.
func TestNullsAreKept(t *testing.T) {
	const data = `{"a":null,"b":1,"c":[1,null,{"x":null}],"d":{"e":null}}`
	task := processing("mine")
	w := newWorld(t, fakeClock(), nil, task)
	r := reportOf(task, report.Succeeded, 1, func(r *report.Report) { r.Result = &report.ResultPayload{Data: json.RawMessage(data)} })
	w.want(w.send(r, tokenOf("mine")), 200, "Stored")
	if got := w.task("mine").Status.Report.Result.Data.Raw; string(got) != data {
		t.Errorf("stored is %s, sent was %s", got, data)
	}
}

// TestC27EarlierAttempt: the worker of an attempt that was given up is told so for good, and nothing of the current one
// changes.
func TestC27EarlierAttempt(t *testing.T) {
	task := processing("mine", second)
	w := newWorld(t, clock.RealClock{}, func(o *Options) { o.WriteInterval = time.Millisecond }, task)
	w.addWorker(task, 1, "first.attempts.token")
	before := w.task("mine")
	for i, kind := range report.Kinds {
		w.want(w.send(reportOf(task, kind, int64(i+1)), "first.attempts.token"), http.StatusGone, "AttemptClosed")
	}
	if diff := cmp.Diff(before, w.task("mine")); diff != "" {
		t.Errorf("the Task has changed:\n%s", diff)
	}
	if n := w.value("task_reports_refused_total", "code=AttemptClosed"); n != float64(len(report.Kinds)) {
		t.Errorf("counted %v times", n)
	}
	// What it says of another attempt than its own is not even looked at.
	w.want(w.send(reportOf(task, report.Succeeded, 1, func(r *report.Report) { r.Attempt = 2 }), "first.attempts.token"), http.StatusForbidden, "Forbidden")
	w.want(w.send(reportOf(task, report.Succeeded, 1, func(r *report.Report) { r.Attempt = 2 }), tokenOf("mine")), 200, "Stored")
}

func TestC27TaskIsGone(t *testing.T) {
	task := processing("mine")
	w := newWorld(t, fakeClock(), nil, task)
	if err := w.client.Delete(t.Context(), task.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	w.want(w.send(reportOf(task, report.Succeeded, 1), tokenOf("mine")), http.StatusGone, "AttemptClosed")
	again := processing("mine", func(t *v1alpha1.Task) { t.UID = "another" })
	if err := w.client.Create(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	before := w.task("mine")
	w.want(w.send(reportOf(task, report.Succeeded, 2), tokenOf("mine")), http.StatusGone, "AttemptClosed")
	w.want(w.send(reportOf(task, report.Progress, 3), tokenOf("mine")), http.StatusGone, "AttemptClosed")
	if diff := cmp.Diff(before, w.task("mine")); diff != "" {
		t.Errorf("the new Task has changed:\n%s", diff)
	}
}

// TestC14FirstFinalReportWins sends two that contradict each other to two replicas at once.
func TestC14FirstFinalReportWins(t *testing.T) {
	for range 50 {
		task := processing("mine")
		w := newWorld(t, clock.RealClock{}, nil, task)
		other := New(Options{Client: w.faulty()}).Handler()
		var wg sync.WaitGroup
		answers := make([]answer, 2)
		for i, kind := range []report.Kind{report.Succeeded, report.Failed} {
			handler := []http.Handler{w.handler, other}[i]
			wg.Go(func() { answers[i] = w.sendTo(handler, reportOf(task, kind, int64(i+1)), tokenOf("mine")) })
		}
		wg.Wait()
		won, lost := answers[0], answers[1]
		outcome := v1alpha1.ReportSucceeded
		if won.status != 200 {
			won, lost, outcome = lost, won, v1alpha1.ReportFailed
		}
		w.want(won, 200, "Stored")
		w.want(lost, http.StatusConflict, "OutcomeRecorded")
		after := w.task("mine")
		if after.Status.Report == nil || after.Status.Report.Outcome != outcome || !meta.IsStatusConditionTrue(after.Status.Conditions, v1alpha1.ConditionReportMismatch) {
			t.Fatalf("stored is %+v with conditions %+v, and %s was acknowledged", after.Status.Report, after.Status.Conditions, outcome)
		}
	}
}

// TestC14OutcomeIsFixedMeanwhile has the controller fix the outcome between the gateway's read and its write.
func TestC14OutcomeIsFixedMeanwhile(t *testing.T) {
	task := processing("mine")
	w := newWorld(t, clock.RealClock{}, nil, task)
	fix := sync.OnceFunc(func() { w.write("mine", terminating) })
	w.on(func(what string) error {
		if what == "patch status" {
			fix()
		}
		return nil
	})
	w.want(w.send(reportOf(task, report.Succeeded, 1), tokenOf("mine")), http.StatusConflict, "OutcomeRecorded")
	after := w.task("mine")
	if after.Status.Report != nil || !meta.IsStatusConditionTrue(after.Status.Conditions, v1alpha1.ConditionReportMismatch) {
		t.Errorf("stored is %+v with conditions %+v", after.Status.Report, after.Status.Conditions)
	}
}

// TestC14Conflicts: whoever changes something else does not make a report fail, unless it never ends.
func TestC14Conflicts(t *testing.T) {
	for name, c := range map[string]struct {
		conflicts, status int
		what              string
	}{
		"some":    {conflicts: 5, status: 200, what: "Stored"},
		"endless": {conflicts: 1000, status: http.StatusServiceUnavailable, what: "Unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			task := processing("mine")
			w := newWorld(t, clock.RealClock{}, nil, task)
			left := c.conflicts
			w.on(func(what string) error {
				if what != "patch status" || left == 0 {
					return nil
				}
				left--
				return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("tasks").GroupResource(), "mine", errors.New("changed"))
			})
			w.want(w.send(reportOf(task, report.Succeeded, 1), tokenOf("mine")), c.status, c.what)
			if n := w.count("patch status"); n != min(c.conflicts+1, maxTries) {
				t.Errorf("%d tries", n)
			}
			if strings.Contains(w.log.String(), "error") != (c.status == http.StatusServiceUnavailable) {
				t.Errorf("the log has\n%s", w.log.String())
			}
		})
	}
}

// TestC14FinalReportOfAKnownTask: after progress a final report is decided on what the write of that has left, and the Task is read
// only where somebody has changed it since or where the report would be refused.
func TestC14FinalReportOfAKnownTask(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(*v1alpha1.Task)
		final     func(*report.Report)
		reads     int
		status    int
		what      string
	}{
		"nothing":          {reads: 0, status: 200, what: "Stored"},
		"something else":   {meanwhile: func(t *v1alpha1.Task) { t.Status.Message = "changed" }, reads: 1, status: 200, what: "Stored"},
		"the outcome":      {meanwhile: terminating, reads: 1, status: http.StatusConflict, what: "OutcomeRecorded"},
		"the end":          {meanwhile: ended, reads: 1, status: http.StatusGone, what: "AttemptClosed"},
		"the next attempt": {meanwhile: second, reads: 1, status: http.StatusGone, what: "AttemptClosed"},
		"a finish too early": {
			final: func(r *report.Report) { r.ActualFinishTime = started.Add(-time.Hour).UnixMilli() },
			reads: 1, status: http.StatusBadRequest, what: "InvalidFinishTime",
		},
	} {
		t.Run(name, func(t *testing.T) {
			task := processing("mine")
			w, clk := newsWorld(t, task)
			w.want(w.send(reportOf(task, report.Progress, 1), tokenOf("mine")), 200, "Stored")
			before := w.count("get Task")
			if c.meanwhile != nil {
				w.write("mine", c.meanwhile)
			}
			final := reportOf(task, report.Succeeded, 2)
			if c.final != nil {
				c.final(final)
			}
			w.want(drive(t, clk, w.start(final, tokenOf("mine"))), c.status, c.what)
			if reads := w.count("get Task") - before; reads != c.reads {
				t.Errorf("%d reads, want %d", reads, c.reads)
			}
			if r := w.task("mine").Status.Report; (r != nil) != (c.status == 200) {
				t.Errorf("stored is %+v", r)
			}
		})
	}
}

// TestRetriesAreCountedOnce follows a report through failed deliveries and lost answers.
func TestRetriesAreCountedOnce(t *testing.T) {
	task := processing("mine")
	w := newWorld(t, fakeClock(), nil, task)
	total := func() float64 { return w.value("callback_retry_total") }
	final := func(n int) *report.Report { return reportOf(task, report.Succeeded, 1, retried(n)) }
	for _, step := range []struct {
		reason string
		count  int
		want   float64
	}{
		{"three deliveries have failed before it arrives", 3, 3},
		{"its answer was lost", 4, 4},
		{"and once more", 5, 5},
		{"a copy of an earlier delivery comes late", 3, 5},
	} {
		w.send(final(step.count), tokenOf("mine"))
		if got := total(); got != step.want {
			t.Errorf("%s: %v are counted, want %v", step.reason, got, step.want)
		}
	}
	w.send(reportOf(task, report.Failed, 2, retried(2)), tokenOf("mine"))
	if got := total(); got != 7 {
		t.Errorf("of a report that is refused for good: %v, want 7", got)
	}
	w.send(reportOf(processing("none"), report.Failed, 3, retried(9)), tokenOf("mine"))
	if got := total(); got != 7 {
		t.Errorf("of a report for another Task: %v, want 7", got)
	}
	w.send(reportOf(task, report.Failed, 4, retried(1<<40)), tokenOf("mine"))
	if got := total(); got != 7+maxRetriesCounted {
		t.Errorf("of a liar: %v", got)
	}
}

// TestRetriesAreCountedOnceAcrossReplicas: the one that stored a report has counted what failed before it.
func TestRetriesAreCountedOnceAcrossReplicas(t *testing.T) {
	task := processing("mine")
	one := newWorld(t, fakeClock(), nil, task)
	two := newWorld(t, fakeClock(), func(o *Options) { o.Client = one.faulty() })
	one.send(reportOf(task, report.Succeeded, 1, retried(3)), tokenOf("mine")) // and its answer is lost
	got := two.send(reportOf(task, report.Succeeded, 1, retried(4)), tokenOf("mine"))
	two.want(got, 200, "Ignored")
	if a, b := one.value("callback_retry_total"), two.value("callback_retry_total"); a != 3 || b != 1 {
		t.Errorf("counted are %v and %v", a, b)
	}
}

// TestC26RefusedFinishTime has a worker's clock be so far off that its finish time is refused: the same report without it is stored,
// and with it how far the clock is off. Of a later attempt, from another pod, it says nothing.
func TestC26RefusedFinishTime(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			task, other := processing("mine"), processing("other")
			clk := fakeClock()
			w := newWorld(t, clk, nil, task, other)
			r := reportOf(task, report.Succeeded, 5)
			r.ActualFinishTime = clk.Now().Add(ahead).UnixMilli()
			w.want(w.send(r, tokenOf("mine")), 400, "InvalidFinishTime")
			r.ActualFinishTime, r.RetryCount = 0, 1
			w.want(w.send(r, tokenOf("mine")), 200, "Stored")
			if got := w.task("mine").Status.Report; got.ClockSkewSeconds != int64(ahead/time.Second) || got.FinishTime != nil {
				t.Errorf("stored %+v, the clock is %s ahead", got, ahead)
			}
			w.want(w.send(reportOf(other, report.Succeeded, 5), tokenOf("other")), 200, "Stored")
			if got := w.task("other").Status.Report; got.ClockSkewSeconds != 0 {
				t.Errorf("stored %+v, nobody knows its clock", got)
			}
		})
	}
}
