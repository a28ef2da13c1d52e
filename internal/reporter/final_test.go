package reporter

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/taskwarden/taskwarden/internal/report"
	"github.com/taskwarden/taskwarden/worker"
)

// TestFinalIsKeptFirst: in the spool and in the note before the first delivery; afterwards the note says that it is delivered,
// and no longer has the data.
func TestFinalIsKeptFirst(t *testing.T) {
	r := newRig(t)
	var spooled, note string
	r.gateway.answers(func(*report.Report) gatewayAnswer {
		spooled = r.spooled()
		note, _ = r.noteText()
		return gatewayAnswer{status: http.StatusOK}
	})
	r.start(nil)
	if status, _ := r.post("/v1/succeeded?wait=30",
		`{"url":"s3://b/k","data":{"pages":12},"execution_log_url":"https://l/1"}`); status != http.StatusOK {
		t.Fatalf("answered with %d", status)
	}
	before, after := report.ParseNote(note), func() *report.Note { _, n := r.noteText(); return n }()
	if spooled != finalName || before == nil || before.Delivered || string(before.Final.Result.Data) != `{"pages":12}` {
		t.Errorf("at the delivery there is %q on disk, and the note is %s", spooled, note)
	}
	if after == nil || !after.Delivered || after.Final.Result.URL != "s3://b/k" || after.Final.Result.Data != nil ||
		len(after.Omitted) > 0 {
		t.Errorf("after the delivery the note is %+v", after)
	}
	if got := r.gateway.reports()[0]; got.ActualFinishTime != begin.UnixMilli() || got.ExecutionLogURL != "https://l/1" ||
		string(got.Result.Data) != `{"pages":12}` {
		t.Errorf("delivered is %+v", got)
	}
}

func TestOneFinalReport(t *testing.T) {
	r := newRig(t).start(nil)
	r.take("/v1/failed", `{"message":"m"}`)
	r.take("/v1/failed", ` { "message" : "m" } `)
	for path, body := range map[string]string{
		"/v1/failed": `{"message":"another"}`, "/v1/succeeded": ``, "/v1/progress": `{"percent":1}`, "/v1/heartbeat": ``,
		"/v1/stage": `{"name":"a"}`, "/v1/checkpoint": `1`,
	} {
		if status, a := r.post(path, body); status != http.StatusConflict || a.Code != report.OutcomeRecorded {
			t.Errorf("%s: got %d %+v", path, status, a)
		}
	}
	r.came(1)
}

// TestFinalOvertakesNews: progress in flight does not hold it up, and what waits is dropped.
func TestFinalOvertakesNews(t *testing.T) {
	r := newRig(t)
	held := make(chan struct{})
	t.Cleanup(func() { close(held) })
	r.gateway.answers(func(got *report.Report) gatewayAnswer {
		if got.Kind == report.Progress {
			<-held
		}
		return gatewayAnswer{status: http.StatusOK}
	})
	r.start(nil)
	r.take("/v1/progress", `{"percent":1}`)
	eventually(t, "progress is in flight", func() bool { return len(r.gateway.reports()) == 1 })
	r.take("/v1/stage", `{"name":"a"}`)
	r.take("/v1/checkpoint", `1`)
	if status, _ := r.post("/v1/succeeded?wait=30", ``); status != http.StatusOK {
		t.Errorf("answered with %d", status)
	}
	if got := r.gateway.kinds(); got != "progress succeeded" {
		t.Errorf("got %s", got)
	}
	if s := r.status(); s.Queued != 0 || s.Retries != 0 || s.SetAside != 0 {
		t.Errorf("status %+v", s)
	}
}

// TestCheckpointGoesBeforeAFailure: the next attempt needs it, and once the failure is stored it is refused. It never holds the
// failure up.
func TestCheckpointGoesBeforeAFailure(t *testing.T) {
	r := newRig(t)
	r.gateway.answers(always(http.StatusServiceUnavailable, report.Unavailable))
	r.start(nil)
	r.take("/v1/checkpoint", `{"page":7}`)
	r.came(1)
	r.take("/v1/failed", ``)
	r.came(3)
	r.step(time.Second)
	r.came(5)
	r.gateway.answers(func(got *report.Report) gatewayAnswer {
		if got.Kind == report.Checkpoint {
			return gatewayAnswer{status: http.StatusInternalServerError}
		}
		return gatewayAnswer{status: http.StatusOK}
	})
	r.step(3 * time.Second)
	r.came(7)
	if got := r.gateway.kinds(); got != "checkpoint checkpoint failed checkpoint failed checkpoint failed" {
		t.Errorf("got %s", got)
	}
	if s := r.status(); s.Final != finalDelivered || s.SetAside != 1 || s.Queued != 0 {
		t.Errorf("status %+v", s)
	}
}

// TestFinalIsNotLostToAStranger: a token that is not valid for a while, and what answers in place of the gateway, are failures
// like any other. The final report goes again until the gateway itself has spoken, each time with the token as it is then.
func TestFinalIsNotLostToAStranger(t *testing.T) {
	for name, answer := range map[string]gatewayAnswer{
		"the token is not valid":       {status: http.StatusUnauthorized, code: report.Unauthenticated},
		"a stranger wants a token":     {status: http.StatusUnauthorized, foreign: true},
		"a stranger forbids it":        {status: http.StatusForbidden, foreign: true},
		"a stranger forbids, in JSON":  {status: http.StatusForbidden},
		"a code that nobody knows":     {status: http.StatusForbidden, code: "Blocked"},
		"a stranger knows no path":     {status: http.StatusNotFound, foreign: true},
		"a stranger has a conflict":    {status: http.StatusConflict, foreign: true},
		"a stranger says it is gone":   {status: http.StatusGone, foreign: true},
		"a stranger has a page for it": {status: http.StatusOK, foreign: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.gateway.answers(func(*report.Report) gatewayAnswer { return answer })
			r.start(nil)
			r.take("/v1/succeeded", `{"data":1}`)
			r.came(1)
			for i, wait := range []time.Duration{1, 3, 9, 18, 30, 30} {
				r.step(wait*time.Second - 1)
				r.came(i + 1)
				r.step(1)
				r.came(i + 2)
			}
			if s := r.status(); s.Final != finalTaken || s.Retries != 7 || s.SetAside != 0 {
				t.Errorf("status %+v", s)
			}
			mustWrite(t, r.config.TokenFile, "another")
			r.gateway.answers(nil)
			r.step(30 * time.Second)
			r.came(8)
			got := r.gateway.reports()
			if s := r.status(); s.Final != finalDelivered || got[6].token != "Bearer "+secret || got[7].token != "Bearer another" {
				t.Errorf("status %+v, tokens %s and %s", s, got[6].token, got[7].token)
			}
		})
	}
}

// TestFinalIsTriedUntilTheEnd: where the token stays invalid the note says what the worker has said, not delivered.
func TestFinalIsTriedUntilTheEnd(t *testing.T) {
	r := newRig(t)
	r.gateway.answers(always(http.StatusUnauthorized, report.Unauthenticated))
	r.start(nil)
	r.take("/v1/succeeded", `{"data":1}`)
	r.came(1)
	r.step(500 * time.Millisecond)
	r.stop()
	eventually(t, "it has another try", func() bool { return len(r.gateway.reports()) == 2 && r.clock.Waiters() == 2 })
	r.clock.Step(r.config.Grace - exitMargin)
	eventually(t, "it has ended", r.over)
	if _, note := r.noteText(); note == nil || note.Delivered || string(note.Final.Result.Data) != "1" {
		t.Errorf("the note is %+v", note)
	}
}

// TestNewsSurviveAMoment: a token that is not valid for a moment costs no news; one that stays invalid costs each report in its
// turn, and not all at once.
func TestNewsSurviveAMoment(t *testing.T) {
	r := newRig(t)
	r.gateway.answers(always(http.StatusUnauthorized, report.Unauthenticated))
	r.start(nil)
	r.take("/v1/stage", `{"name":"a"}`)
	r.take("/v1/stage", `{"name":"b"}`)
	r.came(1)
	for i, wait := range []time.Duration{1, 3} {
		r.step(wait * time.Second)
		r.came(i + 2)
	}
	if s := r.status(); s.SetAside != 0 || s.Queued != 2 {
		t.Errorf("after three tries the status is %+v", s)
	}
	r.step(9 * time.Second)
	r.came(5)
	if s := r.status(); s.SetAside != 1 || s.Queued != 1 || s.SetAsideReason != "401 Unauthenticated" {
		t.Errorf("after four tries the status is %+v", s)
	}
	r.gateway.answers(nil)
	r.step(time.Second)
	r.came(6)
	if s := r.status(); s.Delivered != 1 || s.SetAside != 1 {
		t.Errorf("in the end the status is %+v", s)
	}
}

// TestAStrangerClosesNothing: a 410 that is not the gateway's costs the report, and neither the others nor the worker.
func TestAStrangerClosesNothing(t *testing.T) {
	r := newRig(t)
	r.gateway.answers(func(got *report.Report) gatewayAnswer {
		if got.Stage.Name == "a" {
			return gatewayAnswer{status: http.StatusGone, foreign: true}
		}
		return gatewayAnswer{status: http.StatusOK}
	})
	r.start(nil)
	r.take("/v1/stage", `{"name":"a"}`)
	r.take("/v1/stage", `{"name":"b"}`)
	r.came(2)
	if s := r.status(); s.SetAside != 1 || s.Delivered != 1 {
		t.Errorf("status %+v", s)
	}
	r.take("/v1/stage", `{"name":"c"}`)
}

// TestC27ClosedAttempt: after 410 everything that waits is set aside, and the worker is told that nobody waits for it. Its
// final word is delivered even so: the operator wants to know of it.
func TestC27ClosedAttempt(t *testing.T) {
	r := newRig(t)
	r.gateway.answers(always(http.StatusServiceUnavailable, report.Unavailable))
	r.start(nil)
	r.take("/v1/stage", `{"name":"a"}`)
	r.came(1)
	r.take("/v1/stage", `{"name":"b"}`)
	r.take("/v1/checkpoint", `1`)
	r.gateway.answers(always(http.StatusGone, report.AttemptClosed))
	r.step(time.Second)
	r.came(2)
	eventually(t, "all are set aside", func() bool { s := r.status(); return s.SetAside == 3 && s.Queued == 0 })
	if status, a := r.post("/v1/heartbeat", ""); status != http.StatusGone || a.Code != report.AttemptClosed {
		t.Errorf("got %d %+v", status, a)
	}
	r.gateway.answers(always(http.StatusConflict, report.OutcomeRecorded))
	if status, a := r.post("/v1/succeeded?wait=30", ""); status != http.StatusConflict || a.Code != report.OutcomeRecorded {
		t.Errorf("got %d %+v", status, a)
	}
	r.came(3)
	if _, note := r.noteText(); note == nil || !note.Delivered {
		t.Errorf("the note is %+v", note)
	}
	if s := r.status(); s.Final != finalLate || s.Retries != 1 {
		t.Errorf("status %+v", s)
	}
}

// TestRefusedFinalStaysInTheNote: a gateway that does not take it does not know what the worker has said, but the note does.
func TestRefusedFinalStaysInTheNote(t *testing.T) {
	r := newRig(t)
	r.gateway.answers(always(http.StatusForbidden, report.Forbidden))
	r.start(nil)
	if status, a := r.post("/v1/succeeded?wait=30", `{"data":1}`); status != http.StatusForbidden ||
		a.Code != report.Forbidden {
		t.Errorf("got %d %+v", status, a)
	}
	if _, note := r.noteText(); note == nil || note.Delivered || string(note.Final.Result.Data) != "1" {
		t.Errorf("the note is %+v", note)
	}
	if s := r.status(); s.Final != finalRefused || s.SetAside != 1 {
		t.Errorf("status %+v", s)
	}
}

// TestRestart: kill -9 at any moment loses nothing that is on disk, and no number is used twice.
func TestRestart(t *testing.T) {
	r := newRig(t)
	r.gateway.answers(always(http.StatusServiceUnavailable, report.Unavailable))
	r.start(nil)
	r.take("/v1/stage", `{"name":"a"}`)
	r.came(1)
	r.take("/v1/checkpoint", `1`)
	for i, wait := range []time.Duration{1, 3, 9} {
		r.step(wait * time.Second)
		eventually(t, "it was tried", func() bool { return len(r.gateway.reports()) >= i+2 })
	}
	eventually(t, "all is on disk", func() bool { return r.spooled() == "checkpoint.json stage.json" })
	r = r.killed()
	r.gateway.answers(nil)
	before := len(r.gateway.reports())
	r.start(nil)
	eventually(t, "all is delivered", func() bool { return r.status().Delivered == 2 })
	got := r.gateway.reports()[before:]
	if got[0].Kind != report.Stage || got[0].Sequence != 1 || got[1].Kind != report.Checkpoint || got[1].Sequence != 2 ||
		got[0].RetryCount != 4 {
		t.Errorf("after the restart came %+v", got)
	}
	r.take("/v1/stage", `{"name":"b"}`)
	r.came(before + 3)
	if got := r.gateway.reports()[before+2].Sequence; got <= 2 {
		t.Errorf("the next number is %d", got)
	}
	eventually(t, "the spool is empty", func() bool { return r.spooled() == "" })
}

func TestRestartWithAFinalReport(t *testing.T) {
	r := newRig(t)
	r.gateway.answers(always(http.StatusServiceUnavailable, report.Unavailable))
	r.start(nil)
	r.take("/v1/succeeded", `{"data":1}`)
	r.came(1)
	r = r.killed()
	r.start(nil)
	if _, note := r.noteText(); note == nil || note.Delivered || string(note.Final.Result.Data) != "1" {
		t.Errorf("the note is %+v", note)
	}
	r.came(2)
	r.take("/v1/succeeded", `{"data":1}`)
	if status, _ := r.post("/v1/heartbeat", ""); status != http.StatusConflict {
		t.Errorf("a heartbeat after it is answered with %d", status)
	}
	r.gateway.answers(nil)
	r.step(time.Second)
	r.came(3)
	if got := r.gateway.reports(); got[2].Sequence != got[0].Sequence || got[2].ActualFinishTime != begin.UnixMilli() {
		t.Errorf("another report goes after the restart: %+v", got)
	}

	r = r.killed()
	r.start(nil)
	if _, note := r.noteText(); note == nil || !note.Delivered {
		t.Errorf("after the delivery and a restart the note is %+v", note)
	}
	if status, a := r.post("/v1/succeeded?wait=30", `{"data":1}`); status != http.StatusOK || a.Outcome != report.Stored {
		t.Errorf("the same again is answered with %d %+v", status, a)
	}
	r.came(3)
}

func TestWait(t *testing.T) {
	r := newRig(t)
	r.gateway.answers(always(http.StatusServiceUnavailable, report.Unavailable))
	r.start(nil)
	if status, a := r.post("/v1/succeeded?wait=1", ``); status != http.StatusAccepted || a.Outcome != report.Queued {
		t.Errorf("got %d %+v, want 202 when the time is over", status, a)
	}
	for _, wait := range []string{"31", "-1", "1.5", "x"} {
		if status, a := r.post("/v1/succeeded?wait="+wait, ``); status != http.StatusBadRequest || a.Field != "wait" {
			t.Errorf("wait=%s: got %d %+v", wait, status, a)
		}
	}
}

// TestShutdown: with nothing to deliver the sidecar ends at once.
func TestShutdown(t *testing.T) {
	r := newRig(t).start(nil)
	r.take("/v1/stage", `{"name":"a"}`)
	r.came(1)
	r.stop()
	<-r.ended
	if r.err != nil {
		t.Error(r.err)
	}
	if text, _ := r.noteText(); text != "" {
		t.Errorf("without a final report the note is %s", text)
	}
}

// TestShutdownDrains: everything has another try at once, and a final report goes on until shortly before the grace is over.
func TestShutdownDrains(t *testing.T) {
	for name, recovers := range map[string]bool{"the gateway comes back": true, "the grace ends": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.gateway.answers(always(http.StatusServiceUnavailable, report.Unavailable))
			r.start(nil)
			r.take("/v1/failed", ``)
			r.came(1)
			r.step(500 * time.Millisecond)
			r.stop()
			eventually(t, "it has another try", func() bool { return len(r.gateway.reports()) == 2 && r.clock.Waiters() == 2 })
			if recovers {
				r.gateway.answers(nil)
				r.clock.Step(time.Second)
			} else {
				r.clock.Step(174 * time.Second)
				eventually(t, "it has another try", func() bool { return len(r.gateway.reports()) == 3 && r.clock.Waiters() == 2 })
				r.clock.Step(time.Second)
			}
			<-r.ended
			if r.err != nil {
				t.Error(r.err)
			}
			if _, note := r.noteText(); note == nil || note.Delivered != recovers {
				t.Errorf("the note is %+v", note)
			}
		})
	}
}

// TestShutdownDropsNews: where a worker that has ended stood is worth one try, not the pod's grace.
func TestShutdownDropsNews(t *testing.T) {
	r := newRig(t)
	r.gateway.answers(always(http.StatusServiceUnavailable, report.Unavailable))
	r.start(nil)
	r.take("/v1/stage", `{"name":"a"}`)
	r.came(1)
	r.take("/v1/progress", `{"percent":1}`)
	r.stop()
	<-r.ended
	if got := r.gateway.kinds(); got != "stage stage progress" {
		t.Errorf("got %s", got)
	}
}

func TestNoteIsRewrittenInPlace(t *testing.T) {
	r := newRig(t)
	mustWrite(t, r.config.NoteFile, strings.Repeat("x", 3000))
	n := noteFile{path: r.config.NoteFile, limit: 4096}
	final := report.Report{TaskID: "u", Attempt: 1, Sequence: 1, Kind: report.Succeeded,
		Result: &report.ResultPayload{Message: strings.Repeat("m", 900)}}
	for _, note := range []*report.Note{noteOf(&final, finalTaken, "e"), noteOf(&final, finalDelivered, ""), noteOf(nil, "", ""),
		noteOf(&final, finalTaken, "")} {
		if err := n.write(note); err != nil {
			t.Fatal(err)
		}
		text, got := r.noteText()
		if got == nil || (got.Final == nil) != (note.Final == nil) || got.Delivered != note.Delivered ||
			strings.HasSuffix(text, " ") {
			t.Errorf("want %+v, got %s", note, text)
		}
	}
}

// TestNoteIsNeverHalf: a process that is killed before the rest of an older and longer note is cut off leaves one that is read.
func TestNoteIsNeverHalf(t *testing.T) {
	r := newRig(t)
	killed := errors.New("killed")
	n := noteFile{path: r.config.NoteFile, limit: r.config.NoteLimit}
	final := report.Report{TaskID: "u", Attempt: 1, Sequence: 1, Kind: report.Succeeded,
		Result: &report.ResultPayload{Data: []byte(`"` + strings.Repeat("x", 900) + `"`)}}
	if err := n.write(noteOf(&final, finalTaken, "")); err != nil {
		t.Fatal(err)
	}
	n.fault = func(string) error { return killed }
	if err := n.write(noteOf(&final, finalDelivered, "")); !errors.Is(err, killed) {
		t.Fatalf("got %v", err)
	}
	text, note := r.noteText()
	if note == nil || !note.Delivered || len(note.Omitted) > 0 || note.Final.Result == nil || note.Final.Result.Data != nil {
		t.Errorf("%q is read as %+v", text, note)
	}
}

// TestShutdownEndsBeforeTheGrace: a sidecar that the kubelet kills at the end of the grace has its note from before; so it ends
// by itself, and not earlier than it must.
func TestShutdownEndsBeforeTheGrace(t *testing.T) {
	for grace, want := range map[time.Duration]time.Duration{
		180 * time.Second: 175 * time.Second, 30 * time.Second: 25 * time.Second, 4 * time.Second: 2 * time.Second,
	} {
		t.Run(grace.String(), func(t *testing.T) {
			r := newRig(t)
			r.config.Grace = grace
			r.gateway.answers(always(http.StatusServiceUnavailable, report.Unavailable))
			r.start(nil)
			r.take("/v1/failed", ``)
			r.came(1)
			r.stop()
			waits := func(tries int) func() bool {
				return func() bool { return len(r.gateway.reports()) == tries && !r.busy() && r.clock.Waiters() == 2 }
			}
			eventually(t, "it has another try", waits(2))
			r.clock.Step(want - 1)
			eventually(t, "it goes on until the end is near", waits(3))
			if r.over() {
				t.Fatalf("it has ended before %s", want)
			}
			r.clock.Step(1)
			eventually(t, "it ends before the grace", r.over)
		})
	}
}

// TestFirstReportComesEarly: a worker may report before the operator has written of its attempt, and then the gateway asks for
// another try. The worker goes on, and the sidecar asks again in a second.
func TestFirstReportComesEarly(t *testing.T) {
	r := newRig(t)
	r.gateway.answers(func(*report.Report) gatewayAnswer {
		return gatewayAnswer{status: http.StatusServiceUnavailable, code: report.Unavailable, retryAfter: "1"}
	})
	r.start(nil)
	env := map[string]string{"TASKWARDEN_REPORTER": r.base, "TASKWARDEN_TASK_UID": "uid", "TASKWARDEN_ATTEMPT": "2"}
	code := worker.Run(t.Context(), func(ctx context.Context, task *worker.Task) error {
		task.Stage("a")
		r.came(1)
		r.step(time.Second - 1)
		r.came(1)
		r.gateway.answers(nil)
		r.step(1)
		r.came(2)
		return errors.Join(ctx.Err(), task.SetResult(worker.Result{URL: "s3://b/k"}))
	}, worker.Options{
		HeartbeatInterval: -1, Log: slog.New(slog.DiscardHandler), MessageFile: filepath.Join(t.TempDir(), "none"),
		Getenv: func(name string) string { return env[name] },
	})
	eventually(t, "all is delivered", func() bool { return r.status().Final == finalDelivered })
	if got := r.gateway.kinds(); code != worker.ExitSucceeded || got != "stage stage succeeded" {
		t.Errorf("exit code %d, got %s", code, got)
	}
	if s := r.status(); s.Delivered != 2 || s.SetAside != 0 || s.Retries != 1 {
		t.Errorf("status %+v", s)
	}
}

// TestOnlyWordComesEarly: the same where the first report is the final one.
func TestOnlyWordComesEarly(t *testing.T) {
	r := newRig(t)
	r.gateway.answers(always(http.StatusServiceUnavailable, report.Unavailable))
	r.start(nil)
	r.take("/v1/succeeded", ``)
	r.came(1)
	r.gateway.answers(nil)
	r.step(time.Second - 1)
	r.came(1)
	r.step(1)
	r.came(2)
	if s := r.status(); s.Final != finalDelivered {
		t.Errorf("status %+v", s)
	}
}
