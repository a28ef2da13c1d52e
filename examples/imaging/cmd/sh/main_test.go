package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/taskwarden/taskwarden/examples/imaging/internal/sidecar"
)

func TestScripts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(file, []byte("echo file $0 \"$1\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string
		exit int
		out  string
	}{
		"loop":              {[]string{"-c", `i=1; while [ "$i" -le 3 ]; do printf %s "$i"; i=$((i + 1)); done`}, 0, "123"},
		"arguments":         {[]string{"-c", `echo "$#: $2"`, "name", "-a", "-b c"}, 0, "2: -b c\n"},
		"file":              {[]string{file, "a b"}, 0, "file " + file + " a b\n"},
		"exit code":         {[]string{"-c", "exit 7"}, 7, ""},
		"stops at an error": {[]string{"-c", "set -eu; false; echo on"}, 1, ""},
		"trap":              {[]string{"-c", "trap 'echo bye' EXIT; exit 3"}, 3, "bye\n"},
		"no such command":   {[]string{"-c", "no-such-command"}, 127, ""},
		"cat":               {[]string{"-c", `x=$(cat ` + file + `); echo "$x" | cat`}, 0, "echo file $0 \"$1\"\n"},
		"cat of nothing":    {[]string{"-c", `cat /nowhere || echo none`}, 0, "none\n"},
		"sleep":             {[]string{"-c", "sleep 0.01; sleep x || echo wrong"}, 0, "wrong\n"},
		"not a script":      {[]string{"-c", "if"}, 2, ""},
		"nothing":           {nil, 2, ""},
		"an option":         {[]string{"-x"}, 2, ""},
		"no such file":      {[]string{"/nowhere"}, 2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			exit := run(t.Context(), tc.args, strings.NewReader(""), &out, &errs)
			if exit != tc.exit || out.String() != tc.out {
				t.Errorf("exit %d, %q, want %d, %q; %s", exit, &out, tc.exit, tc.out, &errs)
			}
		})
	}
}

func TestStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	var out, errs bytes.Buffer
	if exit := run(ctx, []string{"-c", "sleep 60; echo on"}, nil, &out, &errs); exit != 143 || out.Len() > 0 {
		t.Errorf("exit %d, %s%s", exit, &out, &errs)
	}
}

// TestSample runs the script of the sample shell-reports, ten times as fast, before the sidecar that the operator puts into
// the pod: both attempts, of which the second goes on from the checkpoint of the first.
func TestSample(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the sidecar")
	}
	script := strings.NewReplacer("sleep 2", "sleep 0.2", "sleep 8", "sleep 0.8").Replace(sampleScript(t))
	attempt := func(number, checkpoint string, wantExit int) []sidecar.Report {
		t.Helper()
		s := sidecar.Start(t, int(number[0]-'0'), 50*time.Millisecond)
		for name, value := range s.Env {
			t.Setenv(name, value)
		}
		t.Setenv("TASKWARDEN_ATTEMPT", number)
		t.Setenv("TASKWARDEN_CHECKPOINT", checkpoint)
		var out, errs bytes.Buffer
		if exit := run(t.Context(), []string{"-c", script}, strings.NewReader(""), &out, &errs); exit != wantExit {
			t.Errorf("attempt %s: exit %d, %s%s", number, exit, &out, &errs)
		}
		if want := "the script of attempt " + number + " ends\n"; out.String() != want {
			t.Errorf("attempt %s: output %q, want %q", number, &out, want)
		}
		return s.Stop()
	}

	first := attempt("1", "", 1)
	if diff := cmp.Diff([]string{"stage render", "progress 25", "checkpoint 2"}, lines(first)); diff != "" {
		t.Fatalf("attempt 1 (-want +got):\n%s", diff)
	}
	// As the operator hands it over: without an end of line.
	checkpoint := filepath.Join(t.TempDir(), "checkpoint")
	if err := os.WriteFile(checkpoint, first[2].Checkpoint, 0o600); err != nil {
		t.Fatal(err)
	}
	second := attempt("2", checkpoint, 0)
	want := []string{"stage render", "progress 50", "checkpoint 3", "progress 75", "stage upload", "succeeded"}
	if diff := cmp.Diff(want, lines(second)); diff != "" {
		t.Fatalf("attempt 2 (-want +got):\n%s", diff)
	}
	var data map[string]int
	if err := json.Unmarshal(second[len(second)-1].Result.Data, &data); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"pages": 3, "from": 2}, data); diff != "" {
		t.Errorf("data of the result (-want +got):\n%s", diff)
	}
}

func lines(reports []sidecar.Report) (lines []string) {
	for _, r := range reports {
		lines = append(lines, r.String())
	}
	return lines
}

// sampleScript is the script of the sample: all lines under args that stand deeper.
func sampleScript(t *testing.T) string {
	t.Helper()
	sample, err := os.ReadFile("../../../tasks/shell-reports.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const begin = "            - |\n"
	_, rest, found := strings.Cut(string(sample), begin)
	if !found {
		t.Fatal("the sample has no script")
	}
	var script strings.Builder
	for line := range strings.Lines(rest) {
		text, deeper := strings.CutPrefix(line, strings.Repeat(" ", len(begin)-len("- |\n")+2))
		if !deeper && strings.TrimSpace(line) != "" {
			break
		}
		script.WriteString(text)
	}
	return script.String()
}
