// Package sidecar runs the real sidecar for tests of the example workers, before a gateway that writes down what it gets.
package sidecar

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Report is one as the gateway gets it.
type Report struct {
	TaskID     string          `json:"task_id"`
	Attempt    int             `json:"attempt"`
	Kind       string          `json:"kind"`
	Checkpoint json.RawMessage `json:"checkpoint"`
	Progress   struct {
		Percent float64 `json:"percent"`
		Message string  `json:"message"`
	} `json:"progress"`
	Stage struct {
		Name string `json:"name"`
	} `json:"stage"`
	Result struct {
		URL  string          `json:"url"`
		Data json.RawMessage `json:"data"`
	} `json:"result"`
	Failure struct {
		Message   string `json:"message"`
		Permanent bool   `json:"permanent"`
	} `json:"failure"`
}

// String is the report in a line.
func (r Report) String() string {
	switch r.Kind {
	case "stage":
		return "stage " + r.Stage.Name
	case "progress":
		return fmt.Sprintf("progress %g", r.Progress.Percent)
	case "checkpoint":
		return "checkpoint " + string(r.Checkpoint)
	case "failed":
		return fmt.Sprintf("failed %s (permanent: %t)", r.Failure.Message, r.Failure.Permanent)
	}
	return r.Kind
}

// Sidecar is a running one.
type Sidecar struct {
	// Env is what the operator adds to the worker's environment.
	Env map[string]string

	t       testing.TB
	process *exec.Cmd
	mu      sync.Mutex
	reports []Report
	written time.Time
}

// Start starts a sidecar for one attempt of Task u. Like the operator's, its gateway takes the next report only when an
// interval has passed since the one before, unless it is final.
func Start(t testing.TB, attempt int, interval time.Duration) *Sidecar {
	t.Helper()
	s := &Sidecar{t: t}
	gateway := httptest.NewTLSServer(s.gateway(interval))
	t.Cleanup(gateway.Close)
	dir := t.TempDir()
	program, token, note, command := filepath.Join(dir, "taskwarden-reporter"), filepath.Join(dir, "token"),
		filepath.Join(dir, "note"), filepath.Join(dir, "command")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/taskwarden-reporter")
	build.Dir, build.Env = repository(), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for path, content := range map[string]string{token: "token", note: ""} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	listen := freeAddress(t)
	// Not the test's context, which ends before the clean-up in which the sidecar is told to stop.
	s.process = exec.CommandContext(context.WithoutCancel(t.Context()), program, "serve")
	s.process.Stderr = os.Stderr
	s.process.Env = []string{
		"TASKWARDEN_TASK_UID=u", "TASKWARDEN_ATTEMPT=" + strconv.Itoa(attempt), "TASKWARDEN_LISTEN=" + listen,
		"TASKWARDEN_GATEWAY_URL=" + gateway.URL, "TASKWARDEN_GATEWAY_CA=" + string(pem.EncodeToMemory(&pem.Block{
			Type: "CERTIFICATE", Bytes: gateway.Certificate().Raw})),
		"TASKWARDEN_TOKEN_FILE=" + token, "TASKWARDEN_SPOOL=" + filepath.Join(dir, "spool"), "TASKWARDEN_NOTE_FILE=" + note,
		"TASKWARDEN_COMMAND_FILE=" + command,
	}
	if err := s.process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.process.Process.Kill() })
	ready := exec.CommandContext(t.Context(), program, "ready")
	ready.Env = s.process.Env
	if out, err := ready.CombinedOutput(); err != nil {
		t.Fatalf("the sidecar does not start: %v: %s", err, out)
	}
	s.Env = map[string]string{"TASKWARDEN_REPORTER": "http://" + listen, "TASKWARDEN_COMMAND": command}
	return s
}

// Stop ends the sidecar as the kubelet does after the worker's end, and gives all reports that the gateway has.
func (s *Sidecar) Stop() []Report {
	s.t.Helper()
	if err := s.process.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	if err := s.process.Wait(); err != nil {
		s.t.Errorf("the sidecar ends: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reports
}

func (s *Sidecar) gateway(interval time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var r Report
		if err := json.NewDecoder(req.Body).Decode(&r); err != nil || req.URL.Path != "/v1/reports" ||
			req.Header.Get("Authorization") != "Bearer token" {
			s.t.Errorf("%s %v: %v", req.URL, req.Header, err)
		}
		final := r.Kind == "succeeded" || r.Kind == "failed"
		s.mu.Lock()
		due := s.written.Add(interval)
		s.mu.Unlock()
		if !final {
			time.Sleep(time.Until(due))
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if !final {
			s.written = time.Now()
		}
		s.reports = append(s.reports, r)
		_, _ = w.Write([]byte(`{"outcome":"Stored"}`))
	})
}

// repository is its root: the sidecar is another module's.
func repository() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "..", "..")
}

func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
