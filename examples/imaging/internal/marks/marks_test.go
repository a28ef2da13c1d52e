package marks

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/taskwarden/taskwarden/examples/imaging/internal/contract"
)

var (
	env   = contract.Env{UID: "0f1e-22", Attempt: 2}
	quiet = slog.New(slog.DiscardHandler)
	t0    = time.Date(2030, 1, 2, 3, 4, 5, 678, time.UTC)
)

// clock advances a second at each look.
func clock() func() time.Time {
	t := t0.Add(-time.Second)
	return func() time.Time { t = t.Add(time.Second); return t.In(time.FixedZone("elsewhere", 3600)) }
}

func read(t *testing.T, dir string) []Mark {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files %v, error %v; want one file", files, err)
	}
	raw, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasSuffix(raw, []byte("\n")) {
		t.Errorf("last line has no end: %q", raw)
	}
	var marks []Mark
	for line := range bytes.Lines(raw) {
		var m Mark
		if err := json.Unmarshal(line, &m); err != nil {
			t.Fatal(err)
		}
		marks = append(marks, m)
	}
	return marks
}

func TestRun(t *testing.T) {
	dir := t.TempDir()
	exit, err := Run(dir, env, clock(), quiet, func() int {
		if got := read(t, dir); len(got) != 1 || got[0].Event != Start {
			t.Errorf("during the work the file holds %v, want the start", got)
		}
		return 3
	})
	if exit != 3 || err != nil {
		t.Errorf("exit %d, error %v", exit, err)
	}
	three := 3
	want := []Mark{
		{Task: "0f1e-22", Attempt: 2, PID: os.Getpid(), Event: Start, Time: t0},
		{Task: "0f1e-22", Attempt: 2, PID: os.Getpid(), Event: Stop, Time: t0.Add(time.Second), Exit: &three},
	}
	if diff := cmp.Diff(want, read(t, dir), cmpopts.IgnoreFields(Mark{}, "Host")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// Readers in other languages rely on these names.
func TestLine(t *testing.T) {
	dir := t.TempDir()
	if _, err := Run(dir, env, clock(), quiet, func() int { return 0 }); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "0f1e-22-2-*.jsonl"))
	if len(files) != 1 {
		t.Fatalf("files %v", files)
	}
	raw, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	start, stop, _ := strings.Cut(string(raw), "\n")
	for _, want := range []string{`"task":"0f1e-22"`, `"attempt":2`, `"event":"start"`, `"time":"2030-01-02T03:04:05.000000678Z"`} {
		if !strings.Contains(start, want) {
			t.Errorf("start %s lacks %s", start, want)
		}
	}
	if strings.Contains(start, "exit") {
		t.Errorf("start has an exit code: %s", start)
	}
	for _, want := range []string{`"event":"stop"`, `"exit":0`} {
		if !strings.Contains(stop, want) {
			t.Errorf("stop %s lacks %s", stop, want)
		}
	}
}

func TestPanicIsNotBadInput(t *testing.T) {
	dir := t.TempDir()
	exit, err := Run(dir, env, clock(), quiet, func() int { panic("no") })
	if exit != contract.ExitFailed || err == nil {
		t.Errorf("exit %d, error %v", exit, err)
	}
	if got := read(t, dir); len(got) != 2 || *got[1].Exit != contract.ExitFailed {
		t.Errorf("marks %v", got)
	}
}

func TestNoStartMarkNoWork(t *testing.T) {
	exit, err := Run(filepath.Join(t.TempDir(), "absent"), env, clock(), quiet, func() int {
		t.Error("worked without a start mark")
		return 0
	})
	if exit != contract.ExitFailed || err == nil {
		t.Errorf("exit %d, error %v", exit, err)
	}
}

func TestWithoutFolderNoMarks(t *testing.T) {
	if exit, err := Run("", env, clock(), quiet, func() int { return 7 }); exit != 7 || err != nil {
		t.Errorf("exit %d, error %v", exit, err)
	}
}

func TestEachRunHasItsOwnFile(t *testing.T) {
	dir := t.TempDir()
	for range 3 {
		if _, err := Run(dir, env, clock(), quiet, func() int { return 0 }); err != nil {
			t.Fatal(err)
		}
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "*.jsonl")); len(files) != 3 {
		t.Errorf("files %v, want 3", files)
	}
}

func TestUIDCannotLeaveTheFolder(t *testing.T) {
	dir := t.TempDir()
	if _, err := Run(dir, contract.Env{UID: "../../x"}, clock(), quiet, func() int { return 0 }); err != nil {
		t.Fatal(err)
	}
	if got := read(t, dir); got[0].Task != "../../x" {
		t.Errorf("marks %v", got)
	}
}
