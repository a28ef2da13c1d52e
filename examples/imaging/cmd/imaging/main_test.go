package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/taskwarden/taskwarden/examples/imaging/internal/contract"
)

// a fixture is a run of the program in folders of its own.
type fixture struct {
	dir string
	env map[string]string
}

func newFixture(t *testing.T, input string) fixture {
	t.Helper()
	dir := t.TempDir()
	in := filepath.Join(dir, "input.json")
	if err := os.WriteFile(in, []byte(input), 0o644); err != nil {
		t.Fatal(err)
	}
	return fixture{dir: dir, env: map[string]string{
		contract.EnvTaskUID:     "u",
		contract.EnvAttempt:     "1",
		contract.EnvInput:       in,
		contract.EnvMessagePath: filepath.Join(dir, "msg"),
	}}
}

func (f fixture) run(ctx context.Context, args ...string) (exit int, message string) {
	exit = run(ctx, args, func(k string) string { return f.env[k] }, &bytes.Buffer{})
	b, _ := os.ReadFile(f.env[contract.EnvMessagePath]) // none is an empty one
	return exit, string(b)
}

func sampleInput(t *testing.T, out string) string {
	t.Helper()
	src, err := filepath.Abs("../../testdata/landscape.png")
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"source":%q,"sizes":[320,{"width":100,"height":100}],"watermark":"Task","format":"jpeg","outputDir":%q}`, src, out)
}

func TestSuccess(t *testing.T) {
	out := t.TempDir()
	f := newFixture(t, sampleInput(t, out))
	marks := t.TempDir()
	exit, msg := f.run(t.Context(), "--marks", marks)
	if exit != 0 {
		t.Fatalf("exit %d, %s", exit, msg)
	}
	var got struct {
		URL  string
		Data struct {
			Outputs []struct {
				Path          string
				Width, Height int
			}
		}
	}
	if err := json.Unmarshal([]byte(msg), &got); err != nil {
		t.Fatal(err)
	}
	if got.URL != "file://"+out+"/320x200.jpg" || len(got.Data.Outputs) != 2 || got.Data.Outputs[1].Path != out+"/100x100.jpg" {
		t.Errorf("message %s", msg)
	}
	files, _ := filepath.Glob(filepath.Join(marks, "u-1-*.jsonl"))
	if len(files) != 1 {
		t.Fatalf("marks files %v", files)
	}
	if b, _ := os.ReadFile(files[0]); strings.Count(string(b), "\n") != 2 || !strings.Contains(string(b), `"exit":0`) {
		t.Errorf("marks %s", b)
	}
}

func TestFailures(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	good := sampleInput(t, t.TempDir())
	stopped, cancel := context.WithCancel(t.Context())
	cancel()

	cases := map[string]struct {
		reason  string
		ctx     context.Context
		input   string
		env     map[string]string
		args    []string
		exit    int
		message string
	}{
		"bad input": {
			"named in one line",
			t.Context(), `{"sizes":[1]}`, nil, nil, 2, "input: source: missing; input: watermark: missing; input: format: missing; input: outputDir: missing",
		},
		"limit":        {"field and limit", t.Context(), strings.Replace(good, "320", "9000", 1), nil, nil, 2, "input: sizes[0]: 9000 pixels, want 64 to 8192"},
		"no variable":  {"started by hand", t.Context(), good, map[string]string{contract.EnvInput: ""}, nil, 2, "input: TASKWARDEN_INPUT is not set"},
		"bad attempt":  {"not from Taskwarden", t.Context(), good, map[string]string{contract.EnvAttempt: "x"}, nil, 2, `TASKWARDEN_ATTEMPT: "x" is not a number from 1 upwards`},
		"argument":     {"a flag without its dashes", t.Context(), good, nil, []string{"marks"}, 2, `unexpected argument "marks"`},
		"flag":         {"typing error", t.Context(), good, nil, []string{"--mark=x"}, 2, "flag provided but not defined: -mark"},
		"no file":      {"the volume, not the user, is at fault", t.Context(), good, map[string]string{contract.EnvInput: "/nowhere"}, nil, 1, "open /nowhere: no such file or directory"},
		"cannot write": {"another attempt may do better", t.Context(), sampleInput(t, file), nil, nil, 1, "outputDir: mkdir " + file + ": not a directory"},
		"no marks":     {"no start mark, no work", t.Context(), good, nil, []string{"--marks=/nowhere"}, 1, "marks: open /nowhere/"},
		"stopped":      {"SIGTERM", stopped, good, nil, nil, 143, "stopped by SIGTERM"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, tc.input)
			for k, v := range tc.env {
				f.env[k] = v
			}
			exit, msg := f.run(tc.ctx, tc.args...)
			if exit != tc.exit || !strings.HasPrefix(msg, tc.message) {
				t.Errorf("%s: exit %d %q, want %d %q", tc.reason, exit, msg, tc.exit, tc.message)
			}
		})
	}
}

// A result that nobody can read is no success.
func TestResultThatCannotBeLeft(t *testing.T) {
	f := newFixture(t, sampleInput(t, t.TempDir()))
	f.env[contract.EnvMessagePath] = f.dir
	if exit, _ := f.run(t.Context()); exit != contract.ExitFailed {
		t.Errorf("exit %d", exit)
	}
}

func TestHelp(t *testing.T) {
	var out bytes.Buffer
	if exit := run(t.Context(), []string{"--help"}, os.Getenv, &out); exit != 0 || !strings.Contains(out.String(), "exit codes") {
		t.Errorf("exit %d, %s", exit, &out)
	}
}
