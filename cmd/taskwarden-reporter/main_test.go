package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/taskwarden/taskwarden/internal/report"
	"github.com/taskwarden/taskwarden/internal/reporter"
)

// build builds the program once, as the image has it.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "taskwarden-reporter")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "taskwarden-reporter")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.New(string(out))
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := build(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

func program(t *testing.T) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// api is a sidecar's API that writes down what it is told.
type api struct {
	*httptest.Server
	mu     sync.Mutex
	told   []string
	status int
	answer report.Answer
}

func newAPI(t *testing.T) *api {
	a := &api{status: http.StatusAccepted, answer: report.Answer{Outcome: report.Queued}}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.told = append(a.told, strings.TrimSpace(req.URL.String()+" "+string(body)))
		w.WriteHeader(a.status)
		_ = json.NewEncoder(w).Encode(a.answer)
	}))
	t.Cleanup(a.Close)
	return a
}

// runProgram runs the built program, and returns its exit code and what it has printed.
func runProgram(t *testing.T, stdin string, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program(t), args...)
	cmd.Env = env // nothing else, as in an empty image
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func TestReport(t *testing.T) {
	a := newAPI(t)
	file := filepath.Join(t.TempDir(), "data.json")
	if err := os.WriteFile(file, []byte("{\"pages\": 12}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args  []string
		stdin string
		want  string
	}{
		"heartbeat":           {args: []string{"heartbeat"}, want: `/v1/heartbeat`},
		"progress":            {args: []string{"progress", "40"}, want: `/v1/progress {"percent":40}`},
		"progress in percent": {args: []string{"progress", "40%"}, want: `/v1/progress {"percent":40}`},
		"progress below 0":    {args: []string{"progress", "-5"}, want: `/v1/progress {"percent":-5}`},
		"progress with all": {
			args: []string{"progress", "40.5", "--message", "page 4", "--remaining", "30"},
			want: `/v1/progress {"percent":40.5,"message":"page 4","estimated_remaining_seconds":30}`,
		},
		"flags first": {
			args: []string{"progress", "--message=m", "--remaining=0", "40"},
			want: `/v1/progress {"percent":40,"message":"m","estimated_remaining_seconds":0}`,
		},
		"stage":                {args: []string{"stage", "resize"}, want: `/v1/stage {"name":"resize"}`},
		"stage behind --":      {args: []string{"stage", "--", "-a"}, want: `/v1/stage {"name":"-a"}`},
		"checkpoint":           {args: []string{"checkpoint", `{"page": 7}`}, want: `/v1/checkpoint {"page":7}`},
		"checkpoint of a file": {args: []string{"checkpoint", "@" + file}, want: `/v1/checkpoint {"pages":12}`},
		"checkpoint of stdin":  {args: []string{"checkpoint", "-"}, stdin: "[1]\n", want: `/v1/checkpoint [1]`},
		"succeeded":            {args: []string{"succeeded"}, want: `/v1/succeeded {}`},
		"succeeded with all": {
			args: []string{"succeeded", "--url", "s3://b/k", "--data", "@" + file, "--log-url", "https://l/1", "--message", "done",
				"--wait", "30"},
			want: `/v1/succeeded?wait=30 {"url":"s3://b/k","data":{"pages":12},"message":"done","execution_log_url":"https://l/1"}`,
		},
		"failed": {args: []string{"failed"}, want: `/v1/failed {}`},
		"failed with all": {
			args: []string{"failed", "--message", "no source", "--permanent", "--log-url", "https://l/1"},
			want: `/v1/failed {"message":"no source","permanent":true,"execution_log_url":"https://l/1"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			a.told = nil
			code, out, errs := runProgram(t, c.stdin, []string{"TASKWARDEN_REPORTER=" + a.URL, "HTTP_PROXY=http://127.0.0.1:1"},
				append([]string{"report"}, c.args...)...)
			if code != exitTaken || out != "" {
				t.Errorf("exit code %d, %s%s", code, out, errs)
			}
			if diff := cmp.Diff([]string{c.want}, a.told); diff != "" {
				t.Errorf("the sidecar is told (-want +got):\n%s", diff)
			}
		})
	}
}

// TestReportRefuses: wrong usage has exit code 2, and the message says what is wrong.
func TestReportRefuses(t *testing.T) {
	a := newAPI(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"report"}, "Usage:"},
		{[]string{"report", "cancelled"}, "cancelled"},
		{[]string{"report", "progress"}, "PERCENT is missing"},
		{[]string{"report", "progress", "abc"}, "PERCENT"},
		{[]string{"report", "progress", "NaN"}, "PERCENT"},
		{[]string{"report", "progress", "1", "2"}, `"2" is too much`},
		{[]string{"report", "progress", "1", "--url", "a"}, "url"},
		{[]string{"report", "progress", "1", "--remaining", "x"}, "remaining"},
		{[]string{"report", "stage"}, "NAME is missing"},
		{[]string{"report", "checkpoint", "page 7"}, "not JSON"},
		{[]string{"report", "checkpoint", "@/does/not/exist"}, "no such file"},
		{[]string{"report", "heartbeat", "now"}, "too much"},
		{[]string{"report", "succeeded", "--data", ""}, "not JSON"},
		{[]string{"report", "succeeded", "--data", strings.Repeat(" ", report.MaxBodyBytes+1)}, "16384"},
		{[]string{"report", "succeeded", "--wait", "31"}, "0 to 30"},
		{[]string{"cancel"}, "cancel"},
		{nil, "Usage:"},
		{[]string{"serve", "now"}, "no arguments"},
		{[]string{"serve"}, report.EnvAttempt},
	} {
		code, _, errs := runHere(c.args, a.URL)
		if code != exitRefused || !strings.Contains(errs, c.want) {
			t.Errorf("%.80q: exit code %d, want %q in %s", c.args, code, c.want, errs)
		}
	}
	if len(a.told) > 0 {
		t.Errorf("the sidecar is told %q", a.told)
	}
	if code, _, errs := runHere([]string{"report", "heartbeat"}, ""); code != exitRefused || !strings.Contains(errs,
		"TASKWARDEN_REPORTER is not set") {
		t.Errorf("without a sidecar: exit code %d, %s", code, errs)
	}
	a.status, a.answer = http.StatusRequestEntityTooLarge, report.Answer{Code: report.TooLarge, Field: "url", Limit: 2048,
		Message: "url: has 3000 bytes, the limit is 2048"}
	code, _, errs := runHere([]string{"report", "succeeded", "--url", "a:b"}, a.URL)
	if code != exitRefused || !strings.Contains(errs, "url") || !strings.Contains(errs, "2048") {
		t.Errorf("refused: exit code %d, %s", code, errs)
	}
}

// runHere runs the command within this process.
func runHere(args []string, sidecar string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(args, strings.NewReader(""), &out, &errs, func(name string) string {
		if name == report.EnvReporter {
			return sidecar
		}
		return ""
	})
	return code, out.String(), errs.String()
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"help"}, {"report", "--help"}, {"report", "help"}, {"report", "progress",
		"--help"}, {"report", "stage", "-h"}} {
		if code, out, _ := runHere(args, ""); code != exitTaken || !strings.Contains(out, "Usage:") ||
			!strings.Contains(strings.ToLower(out), "exit codes") {
			t.Errorf("%q: exit code %d, %s", args, code, out)
		}
	}
}

// TestUnreachable: the command tries for some seconds, and then its exit code says that it has not.
func TestUnreachable(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 5 seconds")
	}
	if code, _, errs := runHere([]string{"report", "heartbeat"}, "http://127.0.0.1:1"); code != exitUnreachable ||
		!strings.Contains(errs, "cannot be reached") {
		t.Errorf("exit code %d, %s", code, errs)
	}
}

// TestReachesASidecarThatRestarts: it listens again before the command gives up.
func TestReachesASidecarThatRestarts(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	done := make(chan int)
	go func() {
		code, _, _ := runHere([]string{"report", "heartbeat"}, "http://"+address)
		done <- code
	}()
	if listener, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", address); err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
	})}
	t.Cleanup(func() { _ = server.Close() })
	go func() { _ = server.Serve(listener) }()
	if code := <-done; code != exitTaken {
		t.Errorf("exit code %d", code)
	}
}

// TestServe: the program as the operator starts it, from the wait of `ready` to the end after SIGTERM; kill -9 in between.
func TestServe(t *testing.T) {
	var mu sync.Mutex
	var kinds []string
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		r, err := report.Parse(body)
		if err != nil {
			t.Errorf("%v: %s", err, body)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		kinds = append(kinds, string(r.Kind))
		_ = json.NewEncoder(w).Encode(report.Answer{Outcome: report.Stored})
	}))
	t.Cleanup(gateway.Close)
	dir := t.TempDir()
	listen := freeAddress(t)
	command := filepath.Join(dir, "bin", "taskwarden")
	if err := errors.Join(os.Mkdir(filepath.Dir(command), 0o755), os.WriteFile(filepath.Join(dir, "token"), []byte("t"), 0o600),
		os.WriteFile(filepath.Join(dir, "note"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	env := []string{
		report.EnvTaskUID + "=u", report.EnvAttempt + "=1", report.EnvGatewayURL + "=" + gateway.URL,
		report.EnvTokenFile + "=" + filepath.Join(dir, "token"), report.EnvSpool + "=" + filepath.Join(dir, "spool"),
		reporter.EnvListen + "=" + listen, reporter.EnvNoteFile + "=" + filepath.Join(dir,
			"note"), report.EnvCommandFile + "=" + command,
	}
	start := func() *exec.Cmd {
		t.Helper()
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program(t), "serve")
		cmd.Env, cmd.Stderr = env, os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		if code, _, errs := runProgram(t, "", env, "ready"); code != exitTaken {
			t.Fatalf("not ready: %s", errs)
		}
		return cmd
	}
	first := start()
	info, err := os.Stat(command)
	if err != nil || info.Mode() != 0o755 {
		t.Fatalf("the command is not in its place: %v, %v", info, err)
	}
	worker := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), command, append([]string{"report"}, args...)...)
		cmd.Env = []string{"TASKWARDEN_REPORTER=http://" + listen}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
	worker("stage", "resize")
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	second := start()
	worker("succeeded", "--url", "s3://b/k", "--wait", "10")
	if err := second.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := second.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if got := kinds[len(kinds)-1]; got != "succeeded" {
		t.Errorf("got %q", kinds)
	}
	text, err := os.ReadFile(filepath.Join(dir, "note"))
	if note := report.ParseNote(string(text)); err != nil || note == nil || !note.Delivered {
		t.Errorf("the note is %s, %v", text, err)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// TestSmall: the sidecar is small, as far as a file can tell: few MB, and no package that would make it large.
func TestSmall(t *testing.T) {
	info, err := os.Stat(program(t))
	if err != nil || info.Size() > 10<<20 {
		t.Errorf("the program has %d bytes, want at most 10 MiB; %v", info.Size(), err)
	}
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	small := []string{"k8s.io/utils/clock", "golang.org/x/net/netutil"}
	for _, name := range strings.Fields(string(out)) {
		host, _, _ := strings.Cut(name, "/")
		ours := strings.HasPrefix(name, "github.com/taskwarden/taskwarden/")
		if strings.Contains(host, ".") && !ours && !slices.Contains(small, name) {
			t.Errorf("it imports %s", name)
		}
		if ours && strings.Contains(name, "/api/") {
			t.Errorf("it imports %s", name)
		}
	}
}

// FuzzParse: whatever a script passes, the command neither crashes nor tells a report that was not meant.
func FuzzParse(f *testing.F) {
	f.Add("progress", "40", "--message", "m")
	f.Add("succeeded", "--data", "{}", "--")
	f.Add("stage", "--", "-a", "")
	f.Fuzz(func(t *testing.T, kind, a, b, c string) {
		cmd := &reportCommand{stdin: strings.NewReader("")}
		for _, arg := range []string{a, b, c} {
			if strings.HasPrefix(arg, "@") {
				return // a file of the machine
			}
		}
		if told, err := cmd.parse(report.Kind(kind), []string{a, b, c}); err == nil && told.kind != report.Kind(kind) {
			t.Errorf("got %+v", told)
		}
	})
}
