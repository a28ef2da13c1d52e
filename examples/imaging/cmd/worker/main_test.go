package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// With this set the test program is the worker, so that real signals reach a real process.
const beWorker = "TEST_BE_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(beWorker) != "" {
		main()
	}
	os.Exit(m.Run())
}

func TestSignals(t *testing.T) {
	cases := map[string]struct {
		reason  string
		args    []string
		signals []syscall.Signal
		exit    int // -1: killed
		stop    bool
	}{
		"SIGTERM":         {"ends it, with a stop mark", []string{"--sleep=1m"}, []syscall.Signal{syscall.SIGTERM}, 143, true},
		"SIGKILL":         {"leaves no stop mark", []string{"--sleep=1m"}, []syscall.Signal{syscall.SIGKILL}, -1, false},
		"SIGTERM ignored": {"only SIGKILL ends it", []string{"--sleep=1m", "--ignore-sigterm"}, []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}, -1, false},
		"own exit code":   {"as told", []string{"--sleep=1m", "--on-sigterm-exit=0"}, []syscall.Signal{syscall.SIGTERM}, 0, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cmd := exec.Command(os.Args[0], append(tc.args, "--marks="+dir)...)
			cmd.Env = append(os.Environ(), beWorker+"=1", "TASKWARDEN_TASK_UID=u", "TASKWARDEN_ATTEMPT=1",
				"TERMINATION_MESSAGE_PATH="+filepath.Join(t.TempDir(), "msg"))
			stderr, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cmd.Process.Kill() }() // mostly it has ended by itself
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			// The start mark says that the signal handler is in place.
			for deadline := time.Now().Add(20 * time.Second); !strings.Contains(marks(t, dir), `"start"`); {
				if time.Now().After(deadline) {
					t.Fatal("no start mark")
				}
				<-tick.C
			}
			for i, s := range tc.signals {
				if i > 0 {
					// The one before must have been seen, else this one would end a process that had not ignored it
					// yet.
					waitFor(t, stderr, `"SIGTERM"`)
				}
				if err := cmd.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := io.Copy(io.Discard, stderr); err != nil {
				t.Fatal(err)
			}
			err = cmd.Wait()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if got := cmd.ProcessState.ExitCode(); got != tc.exit {
				t.Errorf("%s: exit %d, want %d", tc.reason, got, tc.exit)
			}
			if got := strings.Contains(marks(t, dir), `"stop"`); got != tc.stop {
				t.Errorf("%s: stop mark %v, want %v", tc.reason, got, tc.stop)
			}
		})
	}
}

// waitFor reads until what has been read holds text.
func waitFor(t *testing.T, r io.Reader, text string) {
	t.Helper()
	var seen strings.Builder
	buf := make([]byte, 4096)
	for !strings.Contains(seen.String(), text) {
		n, err := r.Read(buf)
		if err != nil {
			t.Fatalf("no %s in %q: %v", text, seen.String(), err)
		}
		seen.Write(buf[:n])
	}
}

func marks(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "u-1-*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	return all.String()
}
