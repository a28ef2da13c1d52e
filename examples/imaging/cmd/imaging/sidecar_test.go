package main

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/taskwarden/taskwarden/examples/imaging/internal/contract"
	"github.com/taskwarden/taskwarden/examples/imaging/internal/sidecar"
)

// listener is a sidecar's API that writes down what it is told.
type listener struct {
	mu   sync.Mutex
	told []string
}

func (l *listener) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, strings.TrimSpace(strings.TrimPrefix(req.URL.Path, "/v1/")+" "+string(body)))
	w.WriteHeader(http.StatusAccepted)
	_, _ = w.Write([]byte(`{"outcome":"Queued"}`))
}

func newListener(t *testing.T) (l *listener, address string) {
	l = &listener{}
	server := httptest.NewServer(l)
	t.Cleanup(server.Close)
	return l, server.URL
}

// TestTellsTheSidecar: each stage once and in its order, progress that only grows, and the same result as without a sidecar.
func TestTellsTheSidecar(t *testing.T) {
	out := t.TempDir()
	input := sampleInput(t, out)
	plain := newFixture(t, input)
	if exit, msg := plain.run(t.Context()); exit != contract.ExitOK {
		t.Fatalf("exit %d, %s", exit, msg)
	}
	_, left := plain.run(t.Context())

	l, address := newListener(t)
	f := newFixture(t, input)
	f.env[contract.EnvReporter] = address
	if exit, msg := f.run(t.Context()); exit != contract.ExitOK || msg != "" {
		t.Errorf("exit %d, message %q", exit, msg)
	}
	want := []string{
		`stage {"name":"download"}`, `progress {"percent":25,"message":"download: 1 of 1"}`,
		`stage {"name":"resize"}`, `progress {"percent":37.5,"message":"resize: 1 of 2"}`,
		`progress {"percent":50,"message":"resize: 2 of 2"}`,
		`stage {"name":"watermark"}`, `progress {"percent":62.5,"message":"watermark: 1 of 2"}`,
		`progress {"percent":75,"message":"watermark: 2 of 2"}`,
		`stage {"name":"upload"}`, `progress {"percent":87.5,"message":"upload: 1 of 2"}`,
		`progress {"percent":100,"message":"upload: 2 of 2"}`,
		"succeeded " + left,
	}
	if diff := cmp.Diff(want, l.told); diff != "" {
		t.Errorf("the sidecar is told (-want +got):\n%s", diff)
	}
}

// TestTellsTheSidecarOfFailures: a wrong input is permanent, and somebody who was told to stop reports no failure.
func TestTellsTheSidecarOfFailures(t *testing.T) {
	good := sampleInput(t, t.TempDir())
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		ctx   context.Context
		input string
		path  string // of the input, where it is another one
		exit  int
		last  string
	}{
		"bad input": {t.Context(), strings.Replace(good, "320", "9000", 1), "", 2,
			`failed {"message":"input: sizes[0]: 9000 pixels, want 64 to 8192","permanent":true}`},
		"no file": {t.Context(), good, "/nowhere", 1, `failed {"message":"open /nowhere: no such file or directory"}`},
		"stopped": {stopped, good, "", 143, `stage {"name":"resize"}`},
	} {
		t.Run(name, func(t *testing.T) {
			l, address := newListener(t)
			f := newFixture(t, tc.input)
			f.env[contract.EnvReporter] = address
			if tc.path != "" {
				f.env[contract.EnvInput] = tc.path
			}
			if exit, msg := f.run(tc.ctx); exit != tc.exit {
				t.Errorf("exit %d, message %q", exit, msg)
			}
			if len(l.told) == 0 || l.told[len(l.told)-1] != tc.last {
				t.Errorf("the sidecar is told %q, want %q at the end", l.told, tc.last)
			}
		})
	}
}

// TestWithTheRealSidecar runs the worker as in the sample reports-progress, in a shorter time, before the sidecar that the
// operator puts into the pod.
func TestWithTheRealSidecar(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the sidecar")
	}
	s := sidecar.Start(t, 1, 20*time.Millisecond)
	out := t.TempDir()
	f := newFixture(t, sampleInput(t, out))
	maps.Copy(f.env, s.Env)
	if exit, msg := f.run(t.Context(), "--pause=100ms"); exit != contract.ExitOK {
		t.Fatalf("exit %d, %s", exit, msg)
	}
	reports := s.Stop()

	var stages []string
	percent, steps := -1.0, 0
	for _, r := range reports {
		switch r.Kind {
		case "stage":
			stages = append(stages, r.Stage.Name)
		case "progress":
			if r.Progress.Percent <= percent {
				t.Errorf("%g percent after %g", r.Progress.Percent, percent)
			}
			percent, steps = r.Progress.Percent, steps+1
		}
		if r.TaskID != "u" || r.Attempt != 1 {
			t.Errorf("report %+v", r)
		}
	}
	if want := []string{"download", "resize", "watermark", "upload"}; !slices.Equal(stages, want) {
		t.Errorf("stages %q, want %q", stages, want)
	}
	if steps < 3 {
		t.Errorf("progress was reported %d times", steps)
	}
	last := reports[len(reports)-1]
	var data struct{ Outputs []struct{ Path string } }
	if err := json.Unmarshal(last.Result.Data, &data); err != nil || last.Kind != "succeeded" || len(data.Outputs) != 2 ||
		last.Result.URL != "file://"+out+"/320x200.jpg" {
		t.Errorf("the last report is %+v, %v", last, err)
	}
}
