package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/taskwarden/taskwarden/internal/report"
)

// sidecar is a sidecar's API that writes down what it is told.
type sidecar struct {
	*httptest.Server
	mu     sync.Mutex
	told   []string
	answer func(path string) (int, report.Answer)
}

func newSidecar(t *testing.T) *sidecar {
	s := &sidecar{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.told = append(s.told, strings.TrimSpace(strings.TrimPrefix(req.URL.Path, "/v1/")+" "+string(body)))
		status, answer := http.StatusAccepted, report.Answer{Outcome: report.Queued}
		if s.answer != nil {
			status, answer = s.answer(req.URL.Path)
		}
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *sidecar) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.told...)
}

// options are those of a worker in a container; env is its environment as NAME=value.
func options(t *testing.T, env ...string) Options {
	message := filepath.Join(t.TempDir(), "termination-log")
	if err := os.WriteFile(message, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	vars := map[string]string{report.EnvTaskName: "thumbnails", report.EnvTaskNamespace: "media", report.EnvTaskUID: "uid", report.EnvAttempt: "2"}
	for _, pair := range env {
		name, value, _ := strings.Cut(pair, "=")
		vars[name] = value
	}
	return Options{
		MessageFile: message, HeartbeatInterval: -1, Log: slog.New(slog.DiscardHandler),
		Getenv: func(name string) string { return vars[name] },
	}
}

func file(t *testing.T, content string) string {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func messageIn(t *testing.T, o *Options) string {
	text, err := os.ReadFile(o.MessageFile)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestOutcomes: what a worker returns, with and without a sidecar.
func TestOutcomes(t *testing.T) {
	long := strings.Repeat("ä", 600)
	for name, c := range map[string]struct {
		do      Func
		code    int
		told    []string // by the sidecar
		message string   // without one
	}{
		"success": {
			do:   func(context.Context, *Task) error { return nil },
			told: []string{`succeeded {}`},
		},
		"a result": {
			do: func(_ context.Context, t *Task) error {
				if err := t.SetLogURL("https://l/1"); err != nil {
					return err
				}
				return t.SetResult(Result{URL: "s3://b/k", Data: map[string]int{"pages": 12}, Message: "done"})
			},
			told:    []string{`succeeded {"url":"s3://b/k","data":{"pages":12},"message":"done","execution_log_url":"https://l/1"}`},
			message: `{"url":"s3://b/k","data":{"pages":12},"logURL":"https://l/1","message":"done"}`,
		},
		"failure": {
			do:      func(context.Context, *Task) error { return errors.New("no disk") },
			code:    ExitFailed,
			told:    []string{`failed {"message":"no disk"}`},
			message: "no disk",
		},
		"permanent failure": {
			do:      func(context.Context, *Task) error { return fmt.Errorf("page 3: %w", Permanent(io.ErrUnexpectedEOF)) },
			code:    ExitPermanent,
			told:    []string{`failed {"message":"page 3: unexpected EOF","permanent":true}`},
			message: "page 3: unexpected EOF",
		},
		"panic": {
			do:      func(context.Context, *Task) error { panic("nil map") },
			code:    ExitFailed,
			told:    []string{`failed {"message":"panic: nil map"}`},
			message: "panic: nil map",
		},
		"a long error": {
			do:      func(context.Context, *Task) error { return errors.New(long) },
			code:    ExitFailed,
			told:    []string{`failed {"message":"` + long[:1024] + `"}`},
			message: long[:1024],
		},
		"reports": {
			do: func(_ context.Context, t *Task) error {
				t.Stage("resize")
				t.Progress(40, WithMessage("page 4"), WithRemaining(1500*time.Millisecond))
				return t.SaveCheckpoint(map[string]int{"page": 4})
			},
			told: []string{
				`stage {"name":"resize"}`, `progress {"percent":40,"message":"page 4","estimated_remaining_seconds":2}`,
				`checkpoint {"page":4}`, `succeeded {}`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			if code := Run(t.Context(), c.do, o); code != c.code {
				t.Errorf("without a sidecar the exit code is %d, want %d", code, c.code)
			}
			if got := messageIn(t, &o); got != c.message {
				t.Errorf("the termination message is %q, want %q", got, c.message)
			}
			s := newSidecar(t)
			o = options(t, report.EnvReporter+"="+s.URL)
			if code := Run(t.Context(), c.do, o); code != c.code {
				t.Errorf("with a sidecar the exit code is %d, want %d", code, c.code)
			}
			if diff := cmp.Diff(c.told, s.all()); diff != "" {
				t.Errorf("the sidecar is told (-want +got):\n%s", diff)
			}
			if got := messageIn(t, &o); got != "" {
				t.Errorf("with a sidecar the termination message is %q", got)
			}
		})
	}
}

func TestTaskKnowsWhatItIsFor(t *testing.T) {
	o := options(t, report.EnvInput+"="+file(t, `{"pages":12}`), report.EnvCheckpoint+"="+file(t, `7`))
	code := Run(t.Context(), func(_ context.Context, task *Task) error {
		var input struct{ Pages int }
		if err := task.Input(&input); err != nil || input.Pages != 12 {
			t.Errorf("the input is %+v, %v", input, err)
		}
		var page int
		if found, err := task.Checkpoint(&page); err != nil || !found || page != 7 {
			t.Errorf("the checkpoint is %v %d, %v", found, page, err)
		}
		if task.Name != "thumbnails" || task.Namespace != "media" || task.UID != "uid" || task.Attempt != 2 {
			t.Errorf("the task is %+v", task)
		}
		return nil
	}, o)
	if code != ExitSucceeded {
		t.Errorf("exit code %d", code)
	}
	Run(t.Context(), func(_ context.Context, task *Task) error {
		var v any
		if err := task.Input(&v); !errors.Is(err, ErrNoInput) {
			t.Errorf("without an input: %v", err)
		}
		if found, err := task.Checkpoint(&v); found || err != nil {
			t.Errorf("without a checkpoint: %v, %v", found, err)
		}
		return nil
	}, options(t))
	code = Run(t.Context(), func(_ context.Context, task *Task) error {
		var pages int
		return task.Input(&pages)
	}, options(t, report.EnvInput+"="+file(t, `"twelve"`)))
	if code != ExitPermanent {
		t.Errorf("input of another type: exit code %d, want that of a permanent failure", code)
	}
}

// TestC44ResultLimits: what cannot be handed over is refused when it is set, while the worker can still do something about it.
func TestC44ResultLimits(t *testing.T) {
	s := newSidecar(t)
	for name, c := range map[string]struct {
		sidecar string
		result  Result
		want    string
	}{
		"data over the limit":       {sidecar: s.URL, result: Result{Data: strings.Repeat("x", 20000)}, want: "16384"},
		"data beside a sidecar":     {sidecar: s.URL, result: Result{Data: strings.Repeat("x", 16000)}},
		"data in the message":       {result: Result{Data: strings.Repeat("x", 4000)}},
		"data too much for it":      {result: Result{Data: strings.Repeat("x", 4096)}, want: "4096"},
		"a relative URL":            {result: Result{URL: "/a"}, want: "result.url"},
		"what is no JSON":           {result: Result{Data: make(chan int)}, want: "unsupported type"},
		"a message over the limits": {result: Result{Message: strings.Repeat("x", 1025)}, want: "1024"},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t, report.EnvReporter+"="+c.sidecar)
			Run(t.Context(), func(_ context.Context, task *Task) error {
				err := task.SetResult(c.result)
				if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %q", err, c.want)
				}
				return nil
			}, o)
		})
	}
	Run(t.Context(), func(_ context.Context, task *Task) error {
		if err := task.SetLogURL("log"); err == nil {
			t.Error("a relative log URL is taken")
		}
		return nil
	}, options(t))
}

// TestStopped: a worker that is told to stop reports no failure, because a drained node is none. Its checkpoint is still taken.
func TestStopped(t *testing.T) {
	s := newSidecar(t)
	ctx, stop := context.WithCancel(t.Context())
	o := options(t, report.EnvReporter+"="+s.URL)
	code := Run(ctx, func(ctx context.Context, task *Task) error {
		stop()
		<-ctx.Done()
		task.Progress(50)
		if err := task.SaveCheckpoint(7); err != nil {
			t.Error(err)
		}
		return ctx.Err()
	}, o)
	if code != ExitStopped {
		t.Errorf("exit code %d", code)
	}
	if diff := cmp.Diff([]string{"checkpoint 7"}, s.all()); diff != "" {
		t.Errorf("the sidecar is told (-want +got):\n%s", diff)
	}

	ctx, stop = context.WithCancel(t.Context())
	if code := Run(ctx, func(context.Context, *Task) error { stop(); return nil }, o); code != ExitSucceeded {
		t.Errorf("a worker that is done in time exits with %d", code)
	}
	ctx, stop = context.WithCancel(t.Context())
	if code := Run(ctx, func(context.Context, *Task) error { stop(); return Permanent(io.EOF) }, o); code != ExitPermanent {
		t.Errorf("a worker that cannot do it exits with %d", code)
	}
}

// TestC27ClosedAttempt: where the operator has given the attempt up, the worker is told to stop.
func TestC27ClosedAttempt(t *testing.T) {
	s := newSidecar(t)
	s.answer = func(string) (int, report.Answer) { return http.StatusGone, report.Answer{Code: report.AttemptClosed} }
	code := Run(t.Context(), func(ctx context.Context, task *Task) error {
		task.Progress(1)
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), ErrAttemptClosed) {
			t.Errorf("the cause is %v", context.Cause(ctx))
		}
		return ctx.Err()
	}, options(t, report.EnvReporter+"="+s.URL))
	if code != ExitStopped {
		t.Errorf("exit code %d", code)
	}
	if diff := cmp.Diff([]string{`progress {"percent":1}`}, s.all()); diff != "" {
		t.Errorf("the sidecar is told (-want +got):\n%s", diff)
	}
}

// TestHeartbeats: they come by themselves, as often as the Task's timeout asks for, and end with the work.
func TestHeartbeats(t *testing.T) {
	for name, c := range map[string]struct {
		set     time.Duration
		seconds string
		want    time.Duration
	}{
		"default":             {want: 10 * time.Second},
		"the Task's":          {seconds: "60", want: 20 * time.Second},
		"the program's":       {set: time.Second, seconds: "60", want: time.Second},
		"a wrong environment": {seconds: "x", want: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSidecar(t)
			o := options(t, report.EnvReporter+"="+s.URL, report.EnvHeartbeatSeconds+"="+c.seconds)
			o.HeartbeatInterval = c.set
			beat, beaten := make(chan struct{}), make(chan time.Duration)
			o.pause = func(ctx context.Context, d time.Duration) error {
				select {
				case beaten <- d:
				case <-ctx.Done():
				}
				select {
				case <-beat:
				case <-ctx.Done():
				}
				return ctx.Err()
			}
			Run(t.Context(), func(context.Context, *Task) error {
				for range 3 {
					if got := <-beaten; got != c.want {
						t.Errorf("the interval is %s, want %s", got, c.want)
					}
					beat <- struct{}{}
				}
				<-beaten
				return nil
			}, o)
			if diff := cmp.Diff([]string{"heartbeat", "heartbeat", "heartbeat", "succeeded {}"}, s.all()); diff != "" {
				t.Errorf("the sidecar is told (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRefusals: a sidecar that does not take something is told of, and is no reason to lose the result.
func TestRefusals(t *testing.T) {
	s := newSidecar(t)
	s.answer = func(string) (int, report.Answer) {
		return http.StatusRequestEntityTooLarge, report.Answer{Code: report.TooLarge, Field: "checkpoint", Limit: 16384,
			Message: "checkpoint: has 20002 bytes, the limit is 16384"}
	}
	o := options(t, report.EnvReporter+"="+s.URL)
	code := Run(t.Context(), func(_ context.Context, task *Task) error {
		task.Progress(1)
		task.Stage("a")
		if err := task.SaveCheckpoint(strings.Repeat("x", 20000)); err == nil || !strings.Contains(err.Error(), "16384") {
			t.Errorf("got %v", err)
		}
		return task.SetResult(Result{URL: "s3://b/k"})
	}, o)
	if code != ExitSucceeded || messageIn(t, &o) != `{"url":"s3://b/k"}` {
		t.Errorf("exit code %d, termination message %s", code, messageIn(t, &o))
	}
	// What nobody has, and what the message has no room for, is no success.
	code = Run(t.Context(), func(_ context.Context, task *Task) error {
		return task.SetResult(Result{Data: strings.Repeat("x", 10000)})
	}, o)
	if code != ExitFailed {
		t.Errorf("a result that is lost ends with exit code %d", code)
	}
}

// TestDoesNotGiveUp: a sidecar that cannot take something right now is asked again, and the work goes on.
func TestDoesNotGiveUp(t *testing.T) {
	s := newSidecar(t)
	asked := 0
	s.answer = func(string) (int, report.Answer) {
		asked++
		if asked%2 == 1 {
			return http.StatusServiceUnavailable, report.Answer{Code: report.Unavailable}
		}
		return http.StatusAccepted, report.Answer{Outcome: report.Queued}
	}
	o := options(t, report.EnvReporter+"="+s.URL)
	code := Run(t.Context(), func(ctx context.Context, task *Task) error {
		task.Stage("a")
		return errors.Join(ctx.Err(), task.SaveCheckpoint(1))
	}, o)
	want := []string{`stage {"name":"a"}`, `stage {"name":"a"}`, "checkpoint 1", "checkpoint 1", "succeeded {}", "succeeded {}"}
	if diff := cmp.Diff(want, s.all()); diff != "" || code != ExitSucceeded || messageIn(t, &o) != "" {
		t.Errorf("exit code %d, termination message %q, told (-want +got):\n%s", code, messageIn(t, &o), diff)
	}
}

func TestWrongEnvironment(t *testing.T) {
	for _, wrong := range []string{report.EnvAttempt + "=x", report.EnvAttempt + "=0", report.EnvReporter + "=ftp://a"} {
		o := options(t, wrong)
		code := Run(t.Context(), func(context.Context, *Task) error { t.Error("the work begins"); return nil }, o)
		name, _, _ := strings.Cut(wrong, "=")
		if code != ExitFailed || !strings.Contains(messageIn(t, &o), name) {
			t.Errorf("%s: exit code %d, %s", wrong, code, messageIn(t, &o))
		}
	}
}

func TestPermanent(t *testing.T) {
	if Permanent(nil) != nil {
		t.Error("Permanent(nil) is not nil")
	}
	err := fmt.Errorf("page 3: %w", Permanent(io.EOF))
	if !IsPermanent(err) || !errors.Is(err, io.EOF) || IsPermanent(io.EOF) || IsPermanent(nil) {
		t.Error("IsPermanent is wrong")
	}
}

// TestStandardLibraryAlone: whoever builds a worker with this package takes nothing else in.
func TestStandardLibraryAlone(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Fields(string(out)) {
		host, _, _ := strings.Cut(name, "/")
		if strings.Contains(host, ".") && !strings.HasPrefix(name, "github.com/taskwarden/taskwarden/") {
			t.Errorf("it imports %s", name)
		}
	}
}
