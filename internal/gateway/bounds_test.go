package gateway

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/utils/clock"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/report"
)

// slowRequest is one whose body has begun, and ends when the test ends it.
func slowRequest(t *testing.T, token string) (*http.Request, *io.PipeWriter) {
	t.Helper()
	reader, writer := io.Pipe()
	req := newRequest("", token)
	req.Body, req.ContentLength = reader, -1
	t.Cleanup(func() { _ = writer.Close() })
	return req, writer
}

// free tells whether all memory for reports is.
func (w *world) free() bool {
	limit := w.gateway.options.MaxBodyMemory
	if !w.gateway.memory.TryAcquire(limit) {
		return false
	}
	w.gateway.memory.Release(limit)
	return true
}

// TestSlowBodiesOfOneTask: however many requests one pod leaves open, others are served.
func TestSlowBodiesOfOneTask(t *testing.T) {
	mine, other := processing("mine"), processing("other")
	w := newWorld(t, clock.RealClock{}, nil, mine, other)
	const number = 200
	var mu sync.Mutex
	refused, ended := 0, sync.WaitGroup{}
	var writers []*io.PipeWriter
	for range number {
		req, writer := slowRequest(t, tokenOf("mine"))
		writers = append(writers, writer)
		ended.Go(func() {
			if got := w.do(w.handler, req); got.status == http.StatusTooManyRequests {
				mu.Lock()
				defer mu.Unlock()
				refused++
			}
		})
	}
	eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return refused == number-maxPerPod })
	w.want(w.send(reportOf(other, report.Succeeded, 9), tokenOf("other")), 200, "Stored")
	for _, writer := range writers {
		_ = writer.Close()
	}
	ended.Wait()
	w.want(w.send(reportOf(mine, report.Succeeded, 9), tokenOf("mine")), 200, "Stored")
}

// TestSlowBodiesOfManyTasks: a body that does not come takes no memory, whatever it was announced with.
func TestSlowBodiesOfManyTasks(t *testing.T) {
	const number = 50
	tasks := []*v1alpha1.Task{processing("mine")}
	for i := range number {
		tasks = append(tasks, processing(fmt.Sprint("t", i)))
	}
	w := newWorld(t, clock.RealClock{}, func(o *Options) { o.MaxBodyMemory = 2 * report.MaxBodyBytes }, tasks...)
	var ended sync.WaitGroup
	var writers []*io.PipeWriter
	for i, task := range tasks[1:] {
		req, writer := slowRequest(t, tokenOf(task.Name))
		req.ContentLength = []int64{-1, report.MaxBodyBytes}[i%2]
		writers = append(writers, writer)
		ended.Go(func() { w.do(w.handler, req) })
		if _, err := writer.Write([]byte("{")); err != nil { // until it is read
			t.Fatal(err)
		}
	}
	w.want(w.send(reportOf(tasks[0], report.Succeeded, 1), tokenOf("mine")), 200, "Stored")
	for _, writer := range writers {
		_ = writer.Close()
	}
	ended.Wait()
	if !w.free() {
		t.Error("memory was not given back")
	}
}

// TestBodyMemory: bodies have so much together and not more, and it is given back whatever becomes of them.
func TestBodyMemory(t *testing.T) {
	task := processing("mine")
	w := newWorld(t, fakeClock(), func(o *Options) { o.MaxBodyMemory = 2 * report.MaxBodyBytes }, task)
	full := `{"task_id":"mine-uid","attempt":1,"sequence":1,"kind":"heartbeat"}`
	full += strings.Repeat(" ", report.MaxBodyBytes-len(full))
	for range 3 { // more than there is
		w.do(w.handler, newRequest(full, tokenOf("mine")))
		w.do(w.handler, newRequest(full[1:], tokenOf("mine")))
		w.do(w.handler, newRequest(strings.Repeat("x", report.MaxBodyBytes), tokenOf("mine")))
		chunked := newRequest(full+" ", tokenOf("mine"))
		chunked.ContentLength = -1
		w.want(w.do(w.handler, chunked), http.StatusRequestEntityTooLarge, "TooLarge")
		broken := newRequest("", tokenOf("mine"))
		broken.Body, broken.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader(full[:1000]), failing{})), -1
		w.want(w.do(w.handler, broken), http.StatusBadRequest, "InvalidReport")
		if !w.free() {
			t.Fatal("memory was not given back")
		}
	}
	if !w.gateway.memory.TryAcquire(report.MaxBodyBytes + 1) {
		t.Fatal("memory was not given back")
	}
	w.want(w.do(w.handler, newRequest(full, tokenOf("mine"))), http.StatusTooManyRequests, "TooManyRequests")
	w.gateway.memory.Release(report.MaxBodyBytes + 1)
	w.want(w.send(reportOf(task, report.Succeeded, 2), tokenOf("mine")), 200, "Stored")
	if !w.free() {
		t.Error("memory was not given back")
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the connection is gone") }

// TestAnnouncedAsTooLarge: nothing is read of such a body, and nobody is asked about its sender.
func TestAnnouncedAsTooLarge(t *testing.T) {
	w := newWorld(t, fakeClock(), nil, processing("mine"))
	body := &counting{Reader: strings.NewReader("{}")}
	req := newRequest("", tokenOf("mine"))
	req.Body, req.ContentLength = io.NopCloser(body), report.MaxBodyBytes+1
	w.want(w.do(w.handler, req), http.StatusRequestEntityTooLarge, "TooLarge")
	if body.n != 0 || w.count("create TokenReview") != 0 {
		t.Errorf("%d bytes were read, and %d tokens asked about", body.n, w.count("create TokenReview"))
	}
}

// TestFootprint: what waits counts as what it is, not as it was written.
func TestFootprint(t *testing.T) {
	wide := `{"task_id":"u","attempt":1,"sequence":1,"kind":"checkpoint","checkpoint":[` + strings.Repeat(" ", 100<<10) + `1]}`
	r, err := report.Parse([]byte(wide))
	if err != nil {
		t.Fatal(err)
	}
	if n := footprint(r); n > 1<<10 || cap(r.Checkpoint) > 64 {
		t.Errorf("%d bytes are counted and %d kept", n, cap(r.Checkpoint))
	}
	for _, kind := range report.Kinds {
		r := reportOf(processing("mine"), kind, 1, func(r *report.Report) {
			switch kind {
			case report.Checkpoint:
				r.Checkpoint = json.RawMessage(`"` + strings.Repeat("x", report.MaxCheckpointBytes-2) + `"`)
			case report.Progress:
				r.Progress.Message = strings.Repeat("x", report.MaxMessageBytes)
			case report.Failed:
				r.Failure = &report.FailurePayload{Message: strings.Repeat("x", report.MaxMessageBytes)}
			case report.Succeeded:
				r.Result = &report.ResultPayload{Data: json.RawMessage(`"` + strings.Repeat("x", report.MaxDataBytes-2) + `"`)}
			default:
			}
		})
		body, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if n := footprint(r); n < int64(len(body))-200 {
			t.Errorf("%s: %d bytes are counted of %d", kind, n, len(body))
		}
	}
}

// TestJunkTokens: however many tokens strangers send, and however slowly the API server answers about them, workers whose tokens
// are known are served, and those which must be asked about again.
func TestJunkTokens(t *testing.T) {
	task := processing("mine")
	clk := fakeClock()
	w := newWorld(t, clk, func(o *Options) { o.MaxRequests = 4 }, task)
	w.want(w.send(reportOf(task, report.Progress, 1), tokenOf("mine")), 200, "Stored")
	gate := make(chan struct{})
	var mu sync.Mutex
	running, most, answered := 0, 0, 0
	w.on(func(what string) error {
		if what != "create TokenReview" {
			return nil
		}
		mu.Lock()
		running++
		most = max(most, running)
		mu.Unlock()
		<-gate
		return nil
	})
	const junk = maxReviews + maxWaiting + 50
	var ended sync.WaitGroup
	for i := range junk {
		ended.Go(func() {
			w.send(reportOf(task, report.Succeeded, 1), fmt.Sprintf("junk.%d.x", i))
			mu.Lock()
			defer mu.Unlock()
			answered++
		})
	}
	eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return running >= maxReviews && answered >= 50 })
	w.want(w.send(reportOf(task, report.Succeeded, 2), tokenOf("mine")), 200, "Stored")
	// Those that wait give up, before any of those that are asked about has an answer.
	eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return answered == junk-maxReviews })
	if most != maxReviews {
		t.Errorf("%d tokens were asked about at once, the limit is %d", most, maxReviews)
	}
	// While all places for new tokens are taken, a token that was accepted before is asked about again at once.
	clk.Step(acceptedFor + 1)
	again := w.start(reportOf(task, report.Succeeded, 2), tokenOf("mine"))
	eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return running == maxReviews+1 })
	close(gate)
	w.want(<-again, 200, "Ignored")
	ended.Wait()
}

// TestJunkPushesNoTokenOut: refused tokens have a place of their own.
func TestJunkPushesNoTokenOut(t *testing.T) {
	task := processing("mine")
	w := newWorld(t, fakeClock(), nil, task)
	w.want(w.send(reportOf(task, report.Succeeded, 1), tokenOf("mine")), 200, "Stored")
	for i := range maxTokens + 1 {
		if _, err := w.gateway.tokens.identify(t.Context(), fmt.Sprintf("junk.%d.x", i)); !errors.Is(err, errUnauthenticated) {
			t.Fatal(err)
		}
	}
	before := w.count("create TokenReview")
	w.want(w.send(reportOf(task, report.Succeeded, 1), tokenOf("mine")), 200, "Ignored")
	if n := w.count("create TokenReview") - before; n != 0 {
		t.Errorf("the token was asked about again")
	}
}

// TestTokenThatCannotBeChecked: of a token that may be a worker's, the API server's error is not the token's fault, and the next
// try may be answered otherwise. One that is not even made for this is refused for good.
func TestTokenThatCannotBeChecked(t *testing.T) {
	token := func(claims string) string {
		return "header." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + "." + secret
	}
	const pod = `"kubernetes.io":{"namespace":"ns","pod":{"name":"p","uid":"u"}}`
	for name, c := range map[string]struct {
		token  string
		status int
		code   string
		asked  int
	}{
		"a worker's":          {token: token(`{"aud":["taskwarden"],` + pod + `}`), status: 503, code: "Unavailable", asked: 2},
		"for somebody else":   {token: token(`{"aud":["vault"],` + pod + `}`), status: 401, code: "Unauthenticated", asked: 1},
		"of no pod":           {token: token(`{"aud":["taskwarden"],"kubernetes.io":{}}`), status: 401, code: "Unauthenticated", asked: 1},
		"not JSON":            {token: token(`{"aud":["taskwarden"]`), status: 401, code: "Unauthenticated", asked: 1},
		"not base64":          {token: "a.!.c", status: 401, code: "Unauthenticated", asked: 1},
		"an audience as text": {token: token(`{"aud":"taskwarden",` + pod + `}`), status: 401, code: "Unauthenticated", asked: 1},
	} {
		t.Run(name, func(t *testing.T) {
			task := processing("mine")
			w := newWorld(t, fakeClock(), nil, task)
			w.tokens[c.token] = authenticationv1.TokenReviewStatus{Error: "the webhook cannot be reached"}
			for range 2 {
				got := w.send(reportOf(task, report.Succeeded, 1), c.token)
				w.want(got, c.status, c.code)
				if strings.Contains(got.body, "webhook") || strings.Contains(w.log.String(), secret) {
					t.Errorf("answered with %s, and logged\n%s", got.body, w.log.String())
				}
			}
			if n := w.count("create TokenReview"); n != c.asked {
				t.Errorf("asked %d times, want %d", n, c.asked)
			}
			w.tokens[c.token] = w.tokens[tokenOf("mine")]
			if c.status == 503 {
				w.want(w.send(reportOf(task, report.Succeeded, 1), c.token), 200, "Stored")
			}
			if strings.Contains(w.log.String(), "\"error\"") {
				t.Errorf("what strangers can bring about is logged as an error:\n%s", w.log.String())
			}
		})
	}
}

// TestConnectionsOfOneAddress: what an address opens beyond its share is closed, until it has closed one itself.
func TestConnectionsOfOneAddress(t *testing.T) {
	inner, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newPerAddress(inner, 2)
	server := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: readHeaderTimeout}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	dial := func() net.Conn {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	served := func(conn net.Conn) bool {
		_, _ = fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: g\r\n\r\n")
		n, _ := conn.Read(make([]byte, 1))
		return n == 1
	}
	one, two := dial(), dial()
	if !served(one) || !served(two) {
		t.Fatal("the first two are not served")
	}
	if served(dial()) {
		t.Error("a third one is served")
	}
	_ = one.Close()
	eventually(t, func() bool { return served(dial()) })
}

// TestFinalPatch: the patch tests that the Task is as it was read, writes what has changed, and nothing else.
func TestFinalPatch(t *testing.T) {
	before := processing("mine")
	stored := &v1alpha1.FinalReport{Attempt: 1, Sequence: 3, Outcome: v1alpha1.ReportFailed, Source: v1alpha1.FromGateway}
	for name, c := range map[string]struct {
		before *v1alpha1.Task
		change func(*v1alpha1.Task)
		want   []string
	}{
		"a report":   {before: before, change: func(t *v1alpha1.Task) { t.Status.Report = stored }, want: []string{"add /status/report"}},
		"a mismatch": {before: before, change: terminating, want: []string{"add /status/conditions"}},
		"no status": {
			before: &v1alpha1.Task{}, change: func(t *v1alpha1.Task) { t.Status.Report = stored }, want: []string{"add /status"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			was := c.before.DeepCopy()
			was.UID, was.ResourceVersion = "u", "7"
			is := was.DeepCopy()
			c.change(is)
			patch, err := finalPatch(was, is)
			if err != nil {
				t.Fatal(err)
			}
			ops := operationsOf(t, patch, is)
			var got []string
			for _, o := range ops {
				got = append(got, o.Op+" "+o.Path)
			}
			want := append([]string{"test /metadata/uid", "test /metadata/resourceVersion"}, c.want...)
			if fmt.Sprint(got) != fmt.Sprint(want) || ops[0].Value != "u" || ops[1].Value != "7" {
				t.Errorf("got %v with %v, want %v", got, ops, want)
			}
		})
	}
}
