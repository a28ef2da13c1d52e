package lifecycle_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/internal/report"
)

const skew = 15 * time.Minute

var gateway = lifecycle.Origin{PodUID: "pod", Source: v1alpha1.FromGateway}

// working is a Task whose worker has run since its creation.
func working(stages ...v1alpha1.Stage) *v1alpha1.Task {
	t := newTask()
	t.UID = "uid"
	t.Spec.Reporter = v1alpha1.ReporterSidecar
	t.Spec.Stages = stages
	lifecycle.Accept(t, created)
	lifecycle.Begin(t, "job", created)
	if err := lifecycle.Started(t, v1alpha1.WorkerStatus{PodName: "pod", PodUID: "pod", StartTime: micro(created)}, created); err != nil {
		panic(err)
	}
	return t
}

func said(sequence int64, kind report.Kind, change ...func(*report.Report)) *report.Report {
	r := &report.Report{TaskID: "uid", Attempt: 1, Sequence: sequence, Kind: kind}
	for _, c := range change {
		c(r)
	}
	return r
}

func percent(p float64) func(*report.Report) {
	return func(r *report.Report) { r.Progress = &report.ProgressPayload{Percent: p} }
}

func stage(name string) func(*report.Report) {
	return func(r *report.Report) { r.Stage = &report.StagePayload{Name: name} }
}

func take(t *testing.T, task *v1alpha1.Task, r *report.Report, at time.Time) {
	t.Helper()
	if _, err := lifecycle.Take(task, r, gateway, skew, at); err != nil {
		t.Fatalf("%s %d: %v", r.Kind, r.Sequence, err)
	}
}

func codeOf(err error) report.Code {
	var refused *lifecycle.ReportRefusedError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}

func TestC15C27WhoseReportCounts(t *testing.T) {
	final, news := said(5, report.Succeeded), said(5, report.Progress, percent(40))
	for name, c := range map[string]struct {
		task    *v1alpha1.Task
		report  *report.Report
		from    lifecycle.Origin
		code    report.Code
		changed bool
	}{
		"final":    {working(), final, gateway, "", true},
		"progress": {working(), news, gateway, "", true},
		"of an earlier attempt": {func() *v1alpha1.Task {
			task := working()
			fail(t, task)
			return task
		}(), final, gateway, report.AttemptClosed, false},
		"of an attempt to come": {working(), said(5, report.Succeeded, func(r *report.Report) { r.Attempt = 2 }), gateway, report.AttemptClosed, false},
		"of another Task":       {working(), said(5, report.Succeeded, func(r *report.Report) { r.TaskID = "recreated" }), gateway, report.AttemptClosed, false},
		"of a pod that has been replaced": {
			working(), final, lifecycle.Origin{PodUID: "another", Source: v1alpha1.FromGateway}, report.AttemptClosed, false,
		},
		"while the worker is being stopped": {terminating(working()), news, gateway, report.AttemptClosed, false},
		"before the operator has written":   {unseen(), final, gateway, "", true},
		"news before that":                  {unseen(), news, gateway, report.Unavailable, false},
	} {
		t.Run(name, func(t *testing.T) {
			before := c.task.DeepCopy()
			changed, err := lifecycle.Take(c.task, c.report, c.from, skew, created.Add(time.Minute))
			if changed != c.changed || codeOf(err) != c.code || (err != nil) != (c.code != "") {
				t.Errorf("changed %v, error %v; want %v, code %q", changed, err, c.changed, c.code)
			}
			if !changed && !cmp.Equal(before, c.task) {
				t.Errorf("it has changed all the same:\n%s", cmp.Diff(before, c.task))
			}
			if c.task.Status.State != before.Status.State {
				t.Errorf("a report has moved the state to %s", c.task.Status.State)
			}
		})
	}
}

func fail(t *testing.T, task *v1alpha1.Task) {
	t.Helper()
	if _, err := lifecycle.End(task, lifecycle.Ending{Event: lifecycle.Timeout, Reason: v1alpha1.ReasonHeartbeatTimeout}, lifecycle.Facts{}, created); err != nil {
		t.Fatal(err)
	}
	if err := lifecycle.Again(task, lifecycle.Facts{BackoffOver: true}, created); err != nil {
		t.Fatal(err)
	}
}

func unseen() *v1alpha1.Task {
	task := newTask()
	task.UID, task.Status.State = "uid", pending
	return task
}

func terminating(task *v1alpha1.Task) *v1alpha1.Task {
	task.Status.Conditions = append(task.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionTerminating, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonHeartbeatTimeout,
	})
	return task
}

func TestC15FirstFinalReportWins(t *testing.T) {
	task, now := working(), created.Add(time.Minute)
	first := said(3, report.Failed, func(r *report.Report) { r.Failure = &report.FailurePayload{Message: "m", Permanent: true} })
	take(t, task, first, now)
	stored := task.Status.Report.DeepCopy()
	if !ptr.Deref(stored.Permanent, false) || stored.Message != "m" || stored.Outcome != v1alpha1.ReportFailed || stored.Source != v1alpha1.FromGateway {
		t.Errorf("stored %+v", stored)
	}
	for name, c := range map[string]struct {
		report *report.Report
		code   report.Code
	}{
		"once more":        {first, ""},
		"another outcome":  {said(4, report.Succeeded), report.OutcomeRecorded},
		"the same, anew":   {said(4, report.Failed), report.OutcomeRecorded},
		"progress after":   {said(5, report.Progress, percent(40)), report.AttemptClosed},
		"progress before":  {said(1, report.Progress, percent(40)), report.AttemptClosed},
		"its own sequence": {said(3, report.Succeeded), report.OutcomeRecorded},
	} {
		changed, err := lifecycle.Take(task, c.report, gateway, skew, now.Add(time.Second))
		if changed && c.report.Kind != report.Succeeded || codeOf(err) != c.code {
			t.Errorf("%s: changed %v, error %v", name, changed, err)
		}
	}
	// That it has said the opposite, too, is kept.
	mismatch := meta.FindStatusCondition(task.Status.Conditions, v1alpha1.ConditionReportMismatch)
	if mismatch == nil || mismatch.Reason != "ReportedTwice" {
		t.Errorf("conditions %+v", task.Status.Conditions)
	}
	if diff := cmp.Diff(stored, task.Status.Report); diff != "" {
		t.Errorf("the first report has changed:\n%s", diff)
	}
	// The answer may be lost until the Task has ended.
	if _, err := lifecycle.End(task, lifecycle.Ending{Event: lifecycle.Fail, Reason: v1alpha1.ReasonPermanentFailure}, lifecycle.Facts{}, now); err != nil {
		t.Fatal(err)
	}
	if changed, err := lifecycle.Take(task, first, gateway, skew, now.Add(time.Hour)); changed || err != nil {
		t.Errorf("once more after the end: changed %v, error %v", changed, err)
	}
}

func TestC14FinalReportAfterTheOutcome(t *testing.T) {
	task := terminating(working())
	changed, err := lifecycle.Take(task, said(3, report.Succeeded), gateway, skew, created.Add(time.Minute))
	if !changed || codeOf(err) != report.OutcomeRecorded || task.Status.Report != nil {
		t.Errorf("changed %v, error %v, stored %+v; want it refused and noted", changed, err, task.Status.Report)
	}
	if c := meta.FindStatusCondition(task.Status.Conditions, v1alpha1.ConditionReportMismatch); c == nil || c.Status != metav1.ConditionTrue {
		t.Errorf("ReportMismatch is %+v", c)
	}
	if changed, _ := lifecycle.Take(task, said(3, report.Succeeded), gateway, skew, created.Add(2*time.Minute)); changed {
		t.Error("noted twice")
	}
}

func TestC26C48FinishTime(t *testing.T) {
	now := created.Add(time.Hour)
	for name, c := range map[string]struct {
		claim time.Time
		want  time.Time // zero: refused
	}{
		"in between":             {created.Add(time.Minute), created.Add(time.Minute)},
		"a little in the future": {now.Add(10 * time.Minute), now},
		"a little too early":     {created.Add(-10 * time.Minute), created},
		"far in the future":      {now.Add(16 * time.Minute), time.Time{}},
		"long before":            {created.Add(-16 * time.Minute), time.Time{}},
		"1970":                   {time.UnixMilli(1), time.Time{}},
		"year 9999":              {time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			task := working()
			r := said(1, report.Succeeded, func(r *report.Report) { r.ActualFinishTime = c.claim.UnixMilli() })
			changed, err := lifecycle.Take(task, r, gateway, skew, now)
			if c.want.IsZero() {
				if changed || codeOf(err) != report.InvalidFinishTime {
					t.Errorf("changed %v, error %v", changed, err)
				}
				return
			}
			if err != nil || !task.Status.Report.FinishTime.Time.Equal(c.want) || !task.Status.Report.ReceivedTime.Time.Equal(now) {
				t.Errorf("error %v, stored %+v, want %s", err, task.Status.Report, c.want)
			}
		})
	}
}

// TestC26ClockSkew: a finish time that is brought into bounds, or refused, still shows how far the worker's clock is off.
func TestC26ClockSkew(t *testing.T) {
	now := created.Add(time.Hour)
	message := lifecycle.Origin{PodUID: gateway.PodUID, Source: v1alpha1.FromTerminationMessage}
	for name, c := range map[string]struct {
		reason string
		claim  time.Time
		from   lifecycle.Origin
		retry  int
		want   int64
	}{
		"in step":                  {"the way takes its time", now.Add(-4 * time.Second), gateway, 0, 0},
		"a little ahead":           {"whole seconds", now.Add(4 * time.Second), gateway, 0, 0},
		"ahead":                    {"the future is no delay", now.Add(10 * time.Minute), gateway, 0, 600},
		"ahead, at the third try":  {"at no try", now.Add(10 * time.Minute), gateway, 2, 600},
		"behind":                   {"it came at the first try", now.Add(-10 * time.Minute), gateway, 0, -600},
		"behind, at the third try": {"it may have waited", now.Add(-10 * time.Minute), gateway, 2, 0},
		"before the creation":      {"nobody worked then", created.Add(-10 * time.Minute), gateway, 2, -600},
		"by the message, behind":   {"it has waited until the end of the pod", now.Add(-10 * time.Minute), message, 0, 0},
		"by the message, ahead":    {"the future is no delay", now.Add(time.Hour), message, 0, 3600},
		"by the message, 1970":     {"nobody worked then", time.UnixMilli(1), message, 0, time.UnixMilli(1).Unix() - created.Unix()},
		"no time, and a known clock": {
			"its time was refused before", time.UnixMilli(0), lifecycle.Origin{PodUID: gateway.PodUID, Source: v1alpha1.FromGateway, ClockSkew: time.Hour}, 1, 3600,
		},
		"no time": {"nothing is known", time.UnixMilli(0), gateway, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			task := working()
			r := said(1, report.Succeeded, func(r *report.Report) { r.ActualFinishTime, r.RetryCount = c.claim.UnixMilli(), c.retry })
			if _, err := lifecycle.Take(task, r, c.from, skew, now); err != nil {
				t.Fatal(err)
			}
			if got := task.Status.Report.ClockSkewSeconds; got < c.want-1 || got > c.want+1 || (got == 0) != (c.want == 0) {
				t.Errorf("%s: %d s, want %d", c.reason, got, c.want)
			}
		})
	}
}

func TestC47Progress(t *testing.T) {
	task := working()
	at := func(seconds int) time.Time { return created.Add(time.Duration(seconds) * time.Second) }
	steps := []struct {
		report    *report.Report
		percent   int32
		remaining int64 // -1: none
		advanced  int   // seconds; what was reached before is no advance
	}{
		{said(1, report.Progress, percent(10)), 10, 90, 10},
		{said(2, report.Progress, percent(80)), 80, 5, 20},
		{said(3, report.Progress, percent(30)), 30, 70, 20},
		{said(2, report.Progress, percent(99)), 30, 70, 20}, // came late
		{said(4, report.Progress, percent(250)), 100, 0, 50},
		{said(5, report.Progress, percent(-5)), 0, -1, 50},
		{said(6, report.Progress, func(r *report.Report) {
			r.Progress = &report.ProgressPayload{Percent: 1, EstimatedRemainingSeconds: ptr.To[int64](7)}
		}), 1, 7, 50},
		{said(7, report.Heartbeat), 1, 7, 50},
	}
	for i, s := range steps {
		now := at(10 * (i + 1))
		take(t, task, s.report, now)
		p := task.Status.Progress
		if *p.Percent != s.percent || ptr.Deref(p.EstimatedRemainingSeconds, -1) != s.remaining || !p.AdvanceTime.Time.Equal(at(s.advanced)) {
			t.Errorf("step %d: %d percent, %d s left, advanced at %s; want %d, %d, %s", i, *p.Percent,
				ptr.Deref(p.EstimatedRemainingSeconds, -1), p.AdvanceTime.Sub(created), s.percent, s.remaining, at(s.advanced).Sub(created))
		}
	}
	if w := task.Status.Worker; w.Sequence != 7 || !w.HeartbeatTime.Time.Equal(at(80)) {
		t.Errorf("sequence %d, heard at %s", w.Sequence, w.HeartbeatTime.Sub(created))
	}
	fail(t, task)
	if task.Status.Progress != nil || *task.Status.Attempts[0].Percent != 1 {
		t.Errorf("the next attempt begins with %+v; the last one had %v", task.Status.Progress, task.Status.Attempts[0].Percent)
	}
}

func TestStages(t *testing.T) {
	stages := []v1alpha1.Stage{{Name: "download"}, {Name: "resize", Weight: ptr.To[int32](2)}, {Name: "upload"}}
	task := working(stages...)
	for i, c := range []struct {
		name    string
		code    report.Code
		percent int32
		stage   string
	}{
		{"download", "", 0, "download"},
		{"scan", report.InvalidReport, 0, "download"},
		{"upload", "", 75, "upload"}, // one may be skipped
		{"resize", report.InvalidReport, 75, "upload"},
		{"upload", "", 75, "upload"},
	} {
		now := created.Add(time.Duration(i+1) * time.Minute)
		_, err := lifecycle.Take(task, said(int64(i+1), report.Stage, stage(c.name)), gateway, skew, now)
		if p := task.Status.Progress; codeOf(err) != c.code || p.Stage != c.stage || *p.Percent != c.percent {
			t.Errorf("%d, %s: error %v, %+v", i, c.name, err, p)
		}
	}
	if entered := task.Status.Progress.StageTime; !entered.Time.Equal(created.Add(3 * time.Minute)) {
		t.Errorf("upload was entered at %s; to say so again changes nothing", entered.Sub(created))
	}
	free := working()
	take(t, free, said(1, report.Stage, stage("anything")), created)
	if p := free.Status.Progress; p.Stage != "anything" || p.Percent != nil {
		t.Errorf("without spec.stages: %+v", p)
	}
}

func TestC33Checkpoint(t *testing.T) {
	task := working()
	for i := range 2 {
		take(t, task, said(int64(i+1), report.Checkpoint, func(r *report.Report) { r.Checkpoint = json.RawMessage(`{"page":` + string(rune('1'+i)) + `}`) }), created)
	}
	fail(t, task)
	if c := task.Status.Checkpoint; c == nil || string(c.Data.Raw) != `{"page":2}` || c.Attempt != 1 {
		t.Errorf("the next attempt gets %+v", c)
	}
}

// TestReportsAnyOrder: whatever comes in whatever order, the state stays, the first final report counts, sequences never go back.
func TestReportsAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		task := working(v1alpha1.Stage{Name: "a"}, v1alpha1.Stage{Name: "b"})
		var first *v1alpha1.FinalReport
		for range rapid.IntRange(1, 12).Draw(t, "reports") {
			r := said(rapid.Int64Range(1, 6).Draw(t, "sequence"), rapid.SampledFrom(report.Kinds).Draw(t, "kind"))
			r.Attempt = rapid.Int32Range(1, 2).Draw(t, "attempt")
			switch r.Kind {
			case report.Progress:
				percent(rapid.Float64Range(-10, 110).Draw(t, "percent"))(r)
			case report.Stage:
				stage(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "stage"))(r)
			case report.Checkpoint:
				r.Checkpoint = json.RawMessage(`1`)
			default:
			}
			before := task.DeepCopy()
			changed, err := lifecycle.Take(task, r, gateway, skew, created.Add(time.Minute))
			if equal := cmp.Equal(before, task); equal == changed {
				t.Fatalf("says changed %v, and equal is %v", changed, equal)
			}
			if err != nil && codeOf(err) == "" {
				t.Fatalf("an error without a code: %v", err)
			}
			if task.Status.State != processing || task.Status.Worker.Sequence < before.Status.Worker.Sequence {
				t.Fatalf("state %s, sequence %d after %d", task.Status.State, task.Status.Worker.Sequence, before.Status.Worker.Sequence)
			}
			if first == nil {
				first = task.Status.Report.DeepCopy()
			} else if !cmp.Equal(first, task.Status.Report) {
				t.Fatal("the first final report has changed")
			}
		}
	})
}

// TestAdvance: what counts as advancing, for progressTimeoutSeconds.
func TestAdvance(t *testing.T) {
	at := func(i int) time.Time { return created.Add(time.Duration(i) * time.Minute) }
	checkpoint := func(r *report.Report) { r.Checkpoint = json.RawMessage(`1`) }
	for name, c := range map[string]struct {
		second *report.Report
		want   bool
	}{
		"a little more":         {said(2, report.Progress, percent(40.01)), true},
		"less than can be told": {said(2, report.Progress, percent(40.001)), false},
		"the same":              {said(2, report.Progress, percent(40)), false},
		"less":                  {said(2, report.Progress, percent(20)), false},
		"a checkpoint":          {said(2, report.Checkpoint, checkpoint), true},
		"a stage":               {said(2, report.Stage, stage("a")), true},
		"a heartbeat":           {said(2, report.Heartbeat), false},
	} {
		task := working()
		task.Spec.ProgressTimeoutSeconds = ptr.To[int32](600)
		take(t, task, said(1, report.Progress, percent(40)), at(1))
		take(t, task, c.second, at(5))
		want := at(1)
		if c.want {
			want = at(5)
		}
		if got := lifecycle.ProgressDeadline(task); !got.Equal(want.Add(10 * time.Minute)) {
			t.Errorf("%s: must advance within %s", name, got.Sub(created))
		}
	}
	task := working()
	task.Spec.ProgressTimeoutSeconds = ptr.To[int32](600)
	for i := range 10 {
		take(t, task, said(int64(i+1), report.Progress, percent(float64(10+i%2*10))), at(i))
	}
	if got := lifecycle.ProgressDeadline(task); !got.Equal(at(1).Add(10 * time.Minute)) {
		t.Errorf("back and forth is an advance until %s", got.Sub(created))
	}
}

func TestDeadlinesOfReports(t *testing.T) {
	task := working(v1alpha1.Stage{Name: "a", TimeoutSeconds: ptr.To[int32](60)})
	task.Spec.ProgressTimeoutSeconds, task.Spec.HeartbeatTimeoutSeconds = ptr.To[int32](100), ptr.To[int32](30)
	took := func(r *report.Report, seconds int) { take(t, task, r, created.Add(time.Duration(seconds)*time.Second)) }
	took(said(1, report.Progress, percent(0)), 10)
	if got := lifecycle.ProgressDeadline(task).Sub(created); got != 100*time.Second {
		t.Errorf("progress of 0 is none: until %s, want 100 s from the start", got)
	}
	if got := lifecycle.HeartbeatDeadline(task).Sub(created); got != 40*time.Second {
		t.Errorf("heard of at 10 s: until %s", got)
	}
	took(said(2, report.Stage, stage("a")), 20)
	if got, timeout := lifecycle.StageDeadline(task); got.Sub(created) != 80*time.Second || timeout != 60 {
		t.Errorf("entered at 20 s: until %s, timeout %d", got.Sub(created), timeout)
	}
	task.Status.Worker.StartTime = micro(created.Add(50 * time.Second)) // the report was faster than the news of the start
	if got, _ := lifecycle.StageDeadline(task); got.Sub(created) != 110*time.Second {
		t.Errorf("a stage of a worker that starts at 50 s: until %s", got.Sub(created))
	}
}

func TestStageNeverLowersThePercent(t *testing.T) {
	task := working(v1alpha1.Stage{Name: "a"}, v1alpha1.Stage{Name: "b"})
	take(t, task, said(1, report.Progress, percent(80)), created)
	take(t, task, said(2, report.Stage, stage("b")), created)
	if got := *task.Status.Progress.Percent; got != 80 {
		t.Errorf("%d percent after the stage, which alone would give 50", got)
	}
}

// TestNextAttemptBeforeItsWrite: the Job of an attempt is made before the write that tells of it. Its worker is asked to try again.
func TestNextAttemptBeforeItsWrite(t *testing.T) {
	task := working()
	if _, err := lifecycle.End(task, lifecycle.Ending{Event: lifecycle.Fail, Reason: v1alpha1.ReasonNonZeroExitCode}, lifecycle.Facts{}, created); err != nil {
		t.Fatal(err)
	}
	for attempt, want := range map[int32]report.Code{1: report.AttemptClosed, 2: report.Unavailable, 3: report.AttemptClosed} {
		_, err := lifecycle.Take(task, said(1, report.Succeeded, func(r *report.Report) { r.Attempt = attempt }), gateway, skew, created)
		if codeOf(err) != want {
			t.Errorf("attempt %d: %v, want %s", attempt, err, want)
		}
	}
}

func TestLogOfAFailedAttempt(t *testing.T) {
	task := working()
	take(t, task, said(1, report.Failed, func(r *report.Report) { r.ExecutionLogURL = "https://logs/1" }), created)
	ending := lifecycle.Ending{Event: lifecycle.Fail, Reason: v1alpha1.ReasonWorkerFailed, Reported: true, Result: task.Status.Report.Result}
	if _, err := lifecycle.End(task, ending, lifecycle.Facts{}, created); err != nil {
		t.Fatal(err)
	}
	if a := task.Status.Attempts[0]; a.LogURL != "https://logs/1" || !ptr.Deref(a.Reported, false) {
		t.Errorf("%+v", a)
	}
}
