package reporter

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/taskwarden/taskwarden/internal/report"
)

// TestC45OneBadItemDoesNotBlock: what the gateway refuses for good is set aside, and the next ones go on.
func TestC45OneBadItemDoesNotBlock(t *testing.T) {
	r := newRig(t)
	r.gateway.answers(func(got *report.Report) gatewayAnswer {
		switch {
		case got.Kind == report.Checkpoint:
			return gatewayAnswer{status: http.StatusRequestEntityTooLarge, code: report.TooLarge}
		case got.Kind == report.Stage && got.Stage.Name == "bad":
			return gatewayAnswer{status: http.StatusBadRequest, code: report.InvalidReport}
		case got.Kind == report.Stage && got.Stage.Name == "forbidden":
			return gatewayAnswer{status: http.StatusForbidden, code: report.Forbidden}
		}
		return gatewayAnswer{status: http.StatusOK}
	})
	r.start(nil)
	for i, c := range []struct{ path, body string }{
		{"/v1/progress", `{"percent":10}`},
		{"/v1/checkpoint", `"large"`},
		{"/v1/stage", `{"name":"bad"}`},
		{"/v1/stage", `{"name":"forbidden"}`},
		{"/v1/stage", `{"name":"good"}`},
	} {
		r.take(c.path, c.body)
		r.came(i + 1)
	}
	if status, _ := r.post("/v1/succeeded?wait=30", `{"url":"s3://b/k"}`); status != http.StatusOK {
		t.Errorf("the success is answered with %d", status)
	}
	r.came(6)
	s := r.status()
	if s.Delivered != 3 || s.SetAside != 3 || s.SetAsideReason != "403 Forbidden" || s.Retries != 0 ||
		s.Final != finalDelivered {
		t.Errorf("status %+v", s)
	}
	for _, code := range []string{"TooLarge", "InvalidReport", "Forbidden"} {
		if !strings.Contains(r.log.String(), code) {
			t.Errorf("the log does not say %s: %s", code, r.log)
		}
	}
}

// TestC45SpoolOfABadItem: the same from a spool that an earlier container has left.
func TestC45SpoolOfABadItem(t *testing.T) {
	r := newRig(t)
	for _, rep := range []report.Report{
		{Sequence: 1, Kind: report.Progress, Progress: &report.ProgressPayload{Percent: 10}},
		{Sequence: 2, Kind: report.Checkpoint, Checkpoint: json.RawMessage(`"large"`)},
		{Sequence: 3, Kind: report.Failed},
	} {
		r.keep(&rep)
	}
	r.gateway.answers(func(got *report.Report) gatewayAnswer {
		if got.Kind == report.Checkpoint {
			return gatewayAnswer{status: http.StatusRequestEntityTooLarge, code: report.TooLarge}
		}
		return gatewayAnswer{status: http.StatusOK}
	})
	r.start(nil)
	r.came(2)
	if got := r.gateway.kinds(); got != "checkpoint failed" {
		t.Errorf("got %s", got)
	}
	eventually(t, "only the final report is on disk", func() bool { return r.spooled() == finalName })
}

// keep puts a report into the spool of a sidecar that does not run.
func (r *rig) keep(rep *report.Report) {
	r.t.Helper()
	rep.TaskID, rep.Attempt = r.config.TaskUID, r.config.Attempt
	text, err := json.Marshal(record{Report: *rep})
	if err != nil {
		r.t.Fatal(err)
	}
	mustWrite(r.t, filepath.Join(r.config.SpoolDir, nameOf(rep.Kind)), string(text))
}

// TestC45BadSpoolFile: what is half written, not JSON, or of somebody else, is put aside, and the rest goes on.
func TestC45BadSpoolFile(t *testing.T) {
	whole, err := json.Marshal(record{Report: report.Report{TaskID: "uid", Attempt: 2, Sequence: 9, Kind: report.Stage,
		Stage: &report.StagePayload{Name: "a"}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"empty":           "",
		"cut off":         string(whole[:len(whole)-3]),
		"zeros":           strings.Repeat("\x00", len(whole)),
		"junk":            "\xff\xfe{",
		"large":           strings.Repeat("x", maxRecordBytes+1),
		"another kind":    strings.Replace(string(whole), `"stage","`, `"heartbeat","`, 1),
		"another Task":    strings.Replace(string(whole), `"uid"`, `"other"`, 1),
		"another attempt": strings.Replace(string(whole), `"attempt":2`, `"attempt":1`, 1),
		"another name": strings.Replace(strings.Replace(string(whole), `"kind":"stage"`, `"kind":"heartbeat"`, 1),
			`,"stage":{"name":"a"}`, "", 1),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			mustWrite(t, filepath.Join(r.config.SpoolDir, "stage.json"), content)
			r.keep(&report.Report{Sequence: 3, Kind: report.Checkpoint, Checkpoint: json.RawMessage(`1`)})
			mustWrite(t, filepath.Join(r.config.SpoolDir, "final.json.tmp"), string(whole[:20])) // kill -9 in mid-write
			r.start(nil)
			r.came(1)
			if got := r.gateway.kinds(); got != "checkpoint" {
				t.Errorf("got %s", got)
			}
			eventually(t, "the bad ones are put aside", func() bool { return r.spooled() == "final.json.tmp.bad stage.json.bad" })
			if !strings.Contains(r.log.String(), "put aside") {
				t.Errorf("the log does not tell: %s", r.log)
			}
			if _, note := r.noteText(); note != nil {
				t.Errorf("there is a note: %+v", note)
			}
		})
	}
}

// TestC45FullDisk: at whichever step the disk is full, the final report goes on from memory, and everyone is told.
func TestC45FullDisk(t *testing.T) {
	for _, step := range []string{"create", "write", "sync", "rename"} {
		t.Run(step, func(t *testing.T) {
			r := newRig(t)
			r.gateway.answers(always(http.StatusServiceUnavailable, report.Unavailable))
			r.start(func(s, name string) error {
				if s == step && strings.HasPrefix(name, "final") {
					return &os.PathError{Op: s, Path: name, Err: syscall.ENOSPC}
				}
				return nil
			})
			r.take("/v1/succeeded", `{"url":"s3://b/k"}`)
			r.came(1)
			if s := r.status(); !strings.Contains(s.SpoolError, "no space left") || s.Queued != 1 || s.Spooled != 0 {
				t.Errorf("status %+v", s)
			}
			if _, note := r.noteText(); note == nil || note.Final == nil || !strings.Contains(note.SpoolError, "no space left") {
				t.Errorf("the note is %+v", note)
			}
			if !strings.Contains(r.log.String(), "no space left") {
				t.Errorf("the log does not tell: %s", r.log)
			}
			r.gateway.answers(nil)
			r.step(time.Second)
			r.came(2)
			if s := r.status(); s.Final != finalDelivered {
				t.Errorf("status %+v", s)
			}
		})
	}
}

// TestC45NoSpool: a folder that cannot be made, or not be written, is told of, and everything goes on from memory, with numbers
// that no earlier process has used.
func TestC45NoSpool(t *testing.T) {
	r := newRig(t)
	mustWrite(t, r.config.SpoolDir, "a file where the folder should be")
	r.start(nil)
	r.take("/v1/stage", `{"name":"a"}`)
	r.came(1)
	if s := r.status(); !strings.Contains(s.SpoolError, "not a directory") || s.Delivered != 1 {
		t.Errorf("status %+v", s)
	}
	if _, note := r.noteText(); note == nil || note.Final != nil || note.SpoolError == "" {
		t.Errorf("the note is %+v", note)
	}
	if got := r.gateway.reports()[0].Sequence; got <= begin.UnixMilli() {
		t.Errorf("the number is %d", got)
	}
	if status, _ := r.post("/v1/succeeded?wait=30", `{}`); status != http.StatusOK {
		t.Errorf("the success is answered with %d", status)
	}
}

// TestC45ReadOnlySpool: what an earlier container has left is delivered even so.
func TestC45ReadOnlySpool(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may write everywhere")
	}
	r := newRig(t)
	r.keep(&report.Report{Sequence: 1, Kind: report.Failed})
	if err := os.Chmod(r.config.SpoolDir, 0o500); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(r.config.SpoolDir, 0o700) })
	r.start(nil)
	r.came(1)
	if s := r.status(); s.SpoolError == "" || s.Final != finalDelivered {
		t.Errorf("status %+v", s)
	}
}

// TestC45SpoolRecovers: once there is room again nobody is told of a fault any more.
func TestC45SpoolRecovers(t *testing.T) {
	r := newRig(t)
	var full error = syscall.EROFS
	r.gateway.answers(always(http.StatusServiceUnavailable, report.Unavailable))
	r.start(func(string, string) error { return full })
	r.take("/v1/checkpoint", `1`)
	r.came(1)
	for i, wait := range []time.Duration{1, 3, 9} {
		r.step(wait * time.Second)
		r.came(i + 2)
	}
	eventually(t, "the fault is told", func() bool { return r.status().SpoolError != "" })
	r.step(time.Second) // the loop is at rest, so the hook may change
	full = nil
	r.step(17 * time.Second)
	r.came(5)
	eventually(t, "it is on disk", func() bool { s := r.status(); return s.SpoolError == "" && s.Spooled == 1 })
	if _, note := r.noteText(); note == nil || note.SpoolError != "" {
		t.Errorf("the note is %+v", note)
	}
}

// TestC45TwoProcessesOnOneSpool: the second one refuses to start, and says why; when the first has ended it may.
func TestC45TwoProcessesOnOneSpool(t *testing.T) {
	r := newRig(t).start(nil)
	_, err := New(r.config, r.clock, slog.New(slog.DiscardHandler))
	if !errors.Is(err, errSpoolInUse) || !strings.Contains(err.Error(), r.config.SpoolDir) {
		t.Errorf("got %v", err)
	}
	r.stop()
	<-r.ended
	s, err := openSpool(r.config.SpoolDir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s.close()
}

func TestSequence(t *testing.T) {
	dir := t.TempDir()
	open := func() *spool {
		t.Helper()
		s, err := openSpool(dir, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.close)
		return s
	}
	s := open()
	if first, err := s.firstSequence(); first != 1 || err != nil {
		t.Errorf("the first number is %d, %v", first, err)
	}
	for n := range int64(2 * sequenceBlock) {
		if err := s.reserve(n + 1); err != nil {
			t.Fatal(err)
		}
	}
	s.close()
	s = open()
	if first, err := s.firstSequence(); first <= 2*sequenceBlock || err != nil {
		t.Errorf("after a restart the first number is %d, %v, which has been used", first, err)
	}
	s.close()
	mustWrite(t, filepath.Join(dir, sequenceName), "junk")
	if _, err := open().firstSequence(); err == nil {
		t.Error("junk is taken for a number")
	}
}

func FuzzParseSequence(f *testing.F) {
	f.Add("00000000000000001000")
	f.Add("-0000000000000000001")
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := parseSequence(text); err == nil && (n < 0 || n > maxSequence) {
			t.Errorf("%q is %d", text, n)
		}
	})
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(`{"report":{"task_id":"u","attempt":1,"sequence":3,"kind":"failed","retry_count":0},"outcome":"late"}`))
	f.Add([]byte(`{"report":{"task_id":"u","attempt":1,"sequence":3,"kind":"checkpoint","checkpoint":[1]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		rec, err := parseRecord(data, "u", 1)
		if err != nil {
			return
		}
		text, err := json.Marshal(rec)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseRecord(text, "u", 1); err != nil {
			t.Errorf("what was read is not read again: %v", err)
		}
	})
}
