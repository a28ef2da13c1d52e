package reporter

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"github.com/taskwarden/taskwarden/internal/report"
)

// begin is when every test begins.
var begin = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// gatewayAnswer is what a test's gateway says.
type gatewayAnswer struct {
	status     int
	code       report.Code
	retryAfter string
	foreign    bool // it is not the gateway that answers
}

// received is a report that has come to the gateway, and when.
type received struct {
	report.Report
	at    time.Duration // since begin
	token string
}

// testGateway is a gateway whose answers the test decides.
type testGateway struct {
	*httptest.Server
	mu     sync.Mutex
	answer func(r *report.Report) gatewayAnswer
	got    []received
}

func newTestGateway(t *testing.T, clk *testingclock.FakeClock) *testGateway {
	g := &testGateway{}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return // the sidecar has given up
		}
		r, err := report.Parse(body)
		if err != nil || req.URL.Path != "/v1/reports" || req.Method != http.MethodPost {
			t.Errorf("%s %s: %v: %s", req.Method, req.URL.Path, err, body)
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		g.mu.Lock()
		g.got = append(g.got, received{*r, clk.Now().Sub(begin), req.Header.Get("Authorization")})
		answer := g.answer
		g.mu.Unlock()
		a := gatewayAnswer{status: http.StatusOK}
		if answer != nil {
			a = answer(r)
		}
		if a.retryAfter != "" {
			w.Header().Set("Retry-After", a.retryAfter)
		}
		w.WriteHeader(a.status)
		switch {
		case a.foreign:
			_, _ = io.WriteString(w, "<html>no</html>")
		case a.status == http.StatusOK:
			_ = json.NewEncoder(w).Encode(report.Answer{Outcome: report.Stored})
		default:
			_ = json.NewEncoder(w).Encode(report.Answer{Code: a.code, Message: "no"})
		}
	}))
	t.Cleanup(g.Close)
	return g
}

// answers sets what the gateway says from now on; nil for 200.
func (g *testGateway) answers(f func(r *report.Report) gatewayAnswer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answer = f
}

func always(status int, code report.Code) func(*report.Report) gatewayAnswer {
	return func(*report.Report) gatewayAnswer { return gatewayAnswer{status: status, code: code} }
}

func (g *testGateway) reports() []received {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]received(nil), g.got...)
}

// kinds are what has come, in order.
func (g *testGateway) kinds() string {
	var kinds []string
	for _, r := range g.reports() {
		kinds = append(kinds, string(r.Kind))
	}
	return strings.Join(kinds, " ")
}

// rig is a sidecar with all that is around it.
type rig struct {
	t       *testing.T
	clock   *testingclock.FakeClock
	gateway *testGateway
	config  *Config
	log     *lockedBuffer

	reporter *Reporter
	base     string
	stop     context.CancelFunc
	ended    chan struct{}
	err      error
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

const secret = "token-that-nobody-may-see"

// newRig prepares a sidecar that has not been started.
func newRig(t *testing.T) *rig {
	t.Helper()
	dir := t.TempDir()
	clk := testingclock.NewFakeClock(begin)
	g := newTestGateway(t, clk)
	token := filepath.Join(dir, "token")
	mustWrite(t, token, secret+"\n")
	mustWrite(t, filepath.Join(dir, "note"), "")
	return &rig{t: t, clock: clk, gateway: g, log: &lockedBuffer{}, config: &Config{
		TaskUID: "uid", Attempt: 2, GatewayURL: g.URL + "/v1/reports", TokenFile: token, SpoolDir: filepath.Join(dir, "spool"),
		Listen: "127.0.0.1:0", NoteFile: filepath.Join(dir, "note"), NoteLimit: report.MaxNoteBytes, Grace: 180 * time.Second,
	}}
}

func mustWrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// start starts the sidecar, with a fault in its spool where there is one.
func (r *rig) start(fault func(step, name string) error) *rig {
	r.t.Helper()
	rep, err := New(r.config, r.clock, slog.New(slog.NewJSONHandler(r.log, nil)))
	if err != nil {
		r.t.Fatal(err)
	}
	rep.jitter = func() float64 { return 0 }
	if fault != nil {
		rep.spool.fault = fault
	}
	r.reporter = rep
	// The test's own context ends before kill can clear the queue, and then the sidecar would drain it.
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	r.stop, r.ended = cancel, make(chan struct{})
	address := make(chan net.Addr, 1)
	go func() {
		defer close(r.ended)
		r.err = rep.Run(ctx, func(a net.Addr) { address <- a })
	}()
	select {
	case a := <-address:
		r.base = "http://" + a.String()
	case <-r.ended:
		r.t.Fatal(r.err)
	}
	r.t.Cleanup(r.kill)
	return r
}

// kill ends the sidecar without a delivery.
func (r *rig) kill() {
	r.reporter.mu.Lock()
	r.reporter.queue = queue{}
	if r.reporter.final != nil {
		r.reporter.final.outcome = finalDelivered
	}
	r.reporter.awake()
	r.reporter.mu.Unlock()
	r.stop()
	<-r.ended
}

// killed is a sidecar that has not been started, and finds what kill -9 would leave of this one at this moment.
func (r *rig) killed() *rig {
	r.t.Helper()
	dir := r.t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "spool"), os.DirFS(r.config.SpoolDir)); err != nil {
		r.t.Fatal(err)
	}
	r.kill()
	config := *r.config
	config.SpoolDir, config.NoteFile = filepath.Join(dir, "spool"), filepath.Join(dir, "note")
	mustWrite(r.t, config.NoteFile, "")
	return &rig{t: r.t, clock: r.clock, gateway: r.gateway, log: r.log, config: &config}
}

// post reports something, and returns the status and the answer.
func (r *rig) post(path, body string) (int, report.Answer) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.base+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var a report.Answer
	if err := json.NewDecoder(res.Body).Decode(&a); err != nil {
		r.t.Fatalf("the answer %d is not JSON: %v", res.StatusCode, err)
	}
	return res.StatusCode, a
}

// take reports something that must be taken.
func (r *rig) take(path, body string) {
	r.t.Helper()
	if status, a := r.post(path, body); status != http.StatusAccepted || a.Outcome != report.Queued {
		r.t.Fatalf("%s %s: got %d %+v, want 202", path, body, status, a)
	}
}

func (r *rig) status() Status {
	r.t.Helper()
	res, err := http.Get(r.base + "/v1/status")
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var s Status
	if err := json.NewDecoder(res.Body).Decode(&s); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// noteText is the termination message, and what it says.
func (r *rig) noteText() (string, *report.Note) {
	r.t.Helper()
	text, err := os.ReadFile(r.config.NoteFile)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(text), report.ParseNote(string(text))
}

// spooled are the names of the files in the spool, but for the lock and the sequence.
func (r *rig) spooled() string {
	entries, err := os.ReadDir(r.config.SpoolDir)
	if err != nil {
		r.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.Name() != lockName && e.Name() != sequenceName {
			names = append(names, e.Name())
		}
	}
	return strings.Join(names, " ")
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-deadline.C:
			t.Fatalf("not within 10 s: %s", what)
		case <-tick.C:
		}
	}
}

// came waits until the gateway has got n requests, and the sidecar is done with the last one.
func (r *rig) came(n int) {
	r.t.Helper()
	eventually(r.t, "the gateway has got its requests", func() bool { return len(r.gateway.reports()) >= n && !r.busy() })
	if got := len(r.gateway.reports()); got != n {
		r.t.Fatalf("the gateway has got %d requests, want %d: %s", got, n, r.gateway.kinds())
	}
}

// busy tells whether the sidecar has something to do before the clock goes on.
func (r *rig) busy() bool {
	r.reporter.mu.Lock()
	defer r.reporter.mu.Unlock()
	if r.reporter.inFlight != nil || len(r.reporter.wake) > 0 {
		return true
	}
	if final := r.reporter.final; final != nil && r.reporter.queue.final == nil {
		select {
		case <-final.done:
		default:
			return true // it is being kept, or noted as delivered
		}
	}
	it, wake := r.reporter.queue.next(r.clock.Now())
	return it != nil || !wake.IsZero() && !r.clock.HasWaiters()
}

// over tells whether the sidecar has ended.
func (r *rig) over() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// step lets time pass.
func (r *rig) step(d time.Duration) {
	r.t.Helper()
	eventually(r.t, "the sidecar waits for the clock", func() bool { return !r.busy() && r.clock.HasWaiters() })
	r.clock.Step(d)
}
