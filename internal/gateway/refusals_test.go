package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/report"
)

// TestC68WhoMayReport tries every way to report for a Task that is not one's own.
func TestC68WhoMayReport(t *testing.T) {
	mine, other := processing("mine"), processing("other")
	success := reportOf(mine, report.Succeeded, 1)
	foreign := func(change func(*authenticationv1.TokenReviewStatus)) func(*world) string {
		return func(w *world) string {
			status := w.tokens[tokenOf("mine")]
			extra := map[string]authenticationv1.ExtraValue{}
			for k, v := range status.User.Extra {
				extra[k] = v
			}
			status.User.Extra = extra
			change(&status)
			w.tokens["a.b.c"] = status
			return "a.b.c"
		}
	}
	// worker gives a token of another Job and pod that claim to belong to the Task.
	worker := func(change func(*batchv1.Job, *corev1.Pod)) func(*world) string {
		return func(w *world) string {
			w.addWorker(mine, 7, "a.b.c", func(j *batchv1.Job, p *corev1.Pod) {
				j.Name, j.UID = "forged", "forged-job"
				p.Name, p.UID = "forged-pod", "forged-pod"
				p.OwnerReferences[0].Name, p.OwnerReferences[0].UID = j.Name, j.UID
				j.Labels[v1alpha1.LabelAttempt] = "1"
				change(j, p)
			})
			return "a.b.c"
		}
	}
	for name, c := range map[string]struct {
		token  func(*world) string
		report *report.Report
		code   report.Code
	}{
		"no such token":                {token: func(*world) string { return "a.b.c" }, code: report.Unauthenticated},
		"empty token":                  {token: func(*world) string { return "" }, code: report.Unauthenticated},
		"no token of an API server":    {token: func(*world) string { return "secret" }, code: report.Unauthenticated},
		"an enormous token":            {token: func(*world) string { return "a.b." + strings.Repeat("c", maxTokenBytes) }, code: report.Unauthenticated},
		"another audience":             {token: foreign(func(s *authenticationv1.TokenReviewStatus) { s.Audiences = []string{"other"} }), code: report.Unauthenticated},
		"an answer without audiences":  {token: foreign(func(s *authenticationv1.TokenReviewStatus) { s.Audiences = nil }), code: report.Unauthenticated},
		"expired":                      {token: foreign(func(s *authenticationv1.TokenReviewStatus) { s.Authenticated = false }), code: report.Unauthenticated},
		"a user":                       {token: foreign(func(s *authenticationv1.TokenReviewStatus) { s.User.Username = "admin" }), code: report.Forbidden},
		"not bound to a pod":           {token: foreign(func(s *authenticationv1.TokenReviewStatus) { s.User.Extra = nil }), code: report.Forbidden},
		"bound by name alone":          {token: foreign(func(s *authenticationv1.TokenReviewStatus) { delete(s.User.Extra, extraPodUID) }), code: report.Forbidden},
		"an earlier pod of that name":  {token: foreign(func(s *authenticationv1.TokenReviewStatus) { s.User.Extra[extraPodUID] = []string{"x"} }), code: report.Forbidden},
		"a pod that is gone":           {token: foreign(func(s *authenticationv1.TokenReviewStatus) { s.User.Extra[extraPodName] = []string{"x"} }), code: report.Forbidden},
		"another namespace":            {token: foreign(func(s *authenticationv1.TokenReviewStatus) { s.User.Username = "system:serviceaccount:b:c" }), code: report.Forbidden},
		"another Task's pod":           {token: func(*world) string { return tokenOf("other") }, code: report.Forbidden},
		"a Task that does not exist":   {token: func(*world) string { return tokenOf("other") }, report: reportOf(processing("none"), report.Succeeded, 1), code: report.Forbidden},
		"the attempt after its own":    {token: func(*world) string { return tokenOf("mine") }, report: reportOf(mine, report.Succeeded, 1, func(r *report.Report) { r.Attempt = 2 }), code: report.Forbidden},
		"a pod without a Job":          {token: worker(func(_ *batchv1.Job, p *corev1.Pod) { p.OwnerReferences = nil }), code: report.Forbidden},
		"a pod of no Job":              {token: worker(func(_ *batchv1.Job, p *corev1.Pod) { p.OwnerReferences[0].Kind = "ReplicaSet" }), code: report.Forbidden},
		"a Job of that name":           {token: worker(func(_ *batchv1.Job, p *corev1.Pod) { p.OwnerReferences[0].UID = "x" }), code: report.Forbidden},
		"a Job without a Task":         {token: worker(func(j *batchv1.Job, _ *corev1.Pod) { j.OwnerReferences = nil }), code: report.Forbidden},
		"a Job of another's Task":      {token: worker(func(j *batchv1.Job, _ *corev1.Pod) { j.OwnerReferences[0].APIVersion = "tekton.dev/v1" }), code: report.Forbidden},
		"a Job that only refers to it": {token: worker(func(j *batchv1.Job, _ *corev1.Pod) { j.OwnerReferences[0].Controller = nil }), code: report.Forbidden},
		"a Job without an attempt":     {token: worker(func(j *batchv1.Job, _ *corev1.Pod) { delete(j.Labels, v1alpha1.LabelAttempt) }), code: report.Forbidden},
		"a Job with attempt 0":         {token: worker(func(j *batchv1.Job, _ *corev1.Pod) { j.Labels[v1alpha1.LabelAttempt] = "0" }), code: report.Forbidden},
		"a Job that was forged":        {token: worker(func(*batchv1.Job, *corev1.Pod) {}), code: report.Forbidden},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, fakeClock(), nil, mine.DeepCopy(), other.DeepCopy())
			token := c.token(w)
			r := c.report
			if r == nil {
				r = success
			}
			got := w.send(r, token)
			w.want(got, statusOf[c.code], string(c.code))
			refusal := refusalOf(errForbidden)
			if c.code == report.Unauthenticated {
				refusal = refusalOf(errUnauthenticated)
			}
			if got.Answer != refusal.answer {
				t.Errorf("the answer tells more than others: %s", got.body)
			}
			if w.task("mine").ResourceVersion != "999" || w.task("other").ResourceVersion != "999" {
				t.Error("a Task was written")
			}
			if n := w.value("task_reports_refused_total", "code="+string(c.code)); n != 1 {
				t.Errorf("counted %v times", n)
			}
			if strings.Contains(w.log.String(), secret) {
				t.Errorf("a token is in the log:\n%s", w.log.String())
			}
		})
	}
}

// TestC69NothingOfAReportIsLogged: neither a token nor what a worker says gets into the log, whether it is taken or not.
func TestC69NothingOfAReportIsLogged(t *testing.T) {
	task := processing("mine")
	w := newWorld(t, clock.RealClock{}, func(o *Options) { o.WriteInterval = time.Millisecond }, task)
	for i, r := range []*report.Report{
		reportOf(task, report.Progress, 1, func(r *report.Report) { r.Progress.Message = secret }),
		reportOf(task, report.Checkpoint, 2, func(r *report.Report) { r.Checkpoint = []byte(`"` + secret + `"`) }),
		reportOf(task, report.Stage, 3, func(r *report.Report) { r.Stage.Name = secret }),
		reportOf(task, report.Failed, 4, func(r *report.Report) { r.Failure = &report.FailurePayload{Message: secret} }),
		reportOf(task, report.Succeeded, 5, func(r *report.Report) { r.Result = &report.ResultPayload{URL: "a:" + secret, Message: secret} }),
		reportOf(task, report.Kind(secret), 6),
		reportOf(task, report.Progress, 7, func(r *report.Report) { r.Progress.Message = secret }),
		reportOf(processing("other"), report.Failed, 8, func(r *report.Report) { r.Failure = &report.FailurePayload{Message: secret} }),
	} {
		if got := w.send(r, tokenOf("mine")); got.status == 0 {
			t.Errorf("%d is not answered", i)
		}
	}
	w.do(w.handler, newRequest(secret, tokenOf("mine")))
	if !strings.Contains(w.log.String(), "OutcomeRecorded") || strings.Contains(w.log.String(), secret) {
		t.Errorf("the log has\n%s", w.log.String())
	}
}

func TestC68TokenElsewhere(t *testing.T) {
	w := newWorld(t, fakeClock(), nil, processing("mine"))
	for name, change := range map[string]func(*http.Request){
		"nowhere": func(*http.Request) {},
		"in the URL": func(r *http.Request) {
			r.URL.RawQuery = "access_token=" + tokenOf("mine") + "&token=" + tokenOf("mine")
		},
		"in a cookie":       func(r *http.Request) { r.AddCookie(&http.Cookie{Name: "token", Value: tokenOf("mine")}) },
		"as basic":          func(r *http.Request) { r.SetBasicAuth("token", tokenOf("mine")) },
		"under other names": func(r *http.Request) { r.Header.Set("X-Token", tokenOf("mine")) },
		"without a scheme":  func(r *http.Request) { r.Header.Set("Authorization", tokenOf("mine")) },
	} {
		t.Run(name, func(t *testing.T) {
			req := newRequest(`{}`, "")
			req.Header.Del("Authorization")
			change(req)
			got := w.do(w.handler, req)
			w.want(got, http.StatusUnauthorized, "Unauthenticated")
			if got.header.Get("WWW-Authenticate") != "Bearer" {
				t.Error("the answer does not say how to authenticate")
			}
		})
	}
	if n := w.count("create TokenReview"); n != 0 {
		t.Errorf("the API server was asked %d times", n)
	}
	if strings.Contains(w.log.String(), secret) {
		t.Errorf("a token is in the log:\n%s", w.log.String())
	}
}

func TestC44BadRequests(t *testing.T) {
	task := processing("mine", func(t *v1alpha1.Task) { t.Spec.Stages = []v1alpha1.Stage{{Name: "download"}, {Name: "resize"}} })
	head := fmt.Sprintf(`{"task_id":%q,"attempt":1,"sequence":1,`, task.UID)
	long := strings.Repeat("x", report.MaxDataBytes)
	nested := strings.Repeat("[", 1<<20)
	for name, c := range map[string]struct {
		body   string
		change func(*http.Request)
		code   report.Code
		field  string
		limit  int
	}{
		"no body":                   {body: "", code: report.InvalidReport, field: "body"},
		"no JSON":                   {body: "{", code: report.InvalidReport, field: "body"},
		"a member that is unknown":  {body: head + `"kind":"heartbeat","state":"Succeeded"}`, code: report.InvalidReport, field: "body"},
		"nonsense for a percent":    {body: head + `"kind":"progress","progress":{"percent":"abc"}}`, code: report.InvalidReport, field: "body"},
		"NaN":                       {body: head + `"kind":"progress","progress":{"percent":NaN}}`, code: report.InvalidReport, field: "body"},
		"a stage that is not there": {body: head + `"kind":"stage","stage":{"name":"upload"}}`, code: report.InvalidReport, field: "stage.name"},
		"100 KiB of nesting":        {body: head + `"kind":"succeeded","result":{"data":` + nested[:100<<10], code: report.InvalidReport, field: "body"},
		"1 MiB of nesting":          {body: head + `"kind":"succeeded","result":{"data":` + nested, code: report.TooLarge, field: "body", limit: report.MaxBodyBytes},
		"1 MiB in chunks": {
			body: head + nested, change: func(r *http.Request) { r.ContentLength = -1 }, code: report.TooLarge, field: "body", limit: report.MaxBodyBytes,
		},
		"much data":    {body: head + `"kind":"succeeded","result":{"data":"` + long + `"}}`, code: report.TooLarge, field: "result.data", limit: report.MaxDataBytes},
		"checkpoint":   {body: head + `"kind":"checkpoint","checkpoint":"` + long + `"}`, code: report.TooLarge, field: "checkpoint", limit: report.MaxCheckpointBytes},
		"long message": {body: head + `"kind":"failed","failure":{"message":"` + long[:2000] + `"}}`, code: report.TooLarge, field: "failure.message", limit: report.MaxMessageBytes},
		"long URL":     {body: head + `"kind":"succeeded","execution_log_url":"a:` + long[:2100] + `"}`, code: report.TooLarge, field: "execution_log_url", limit: report.MaxURLBytes},
		"GET":          {body: "", change: func(r *http.Request) { r.Method = http.MethodGet }, code: report.MethodNotAllowed},
		"a form":       {body: "a=b", change: contentType("application/x-www-form-urlencoded"), code: report.UnsupportedMediaType},
		"no type":      {body: head + `"kind":"heartbeat"}`, change: contentType(""), code: report.UnsupportedMediaType},
		"compressed":   {body: "x", change: func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") }, code: report.UnsupportedMediaType},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, fakeClock(), nil, task.DeepCopy())
			req := newRequest(c.body, tokenOf("mine"))
			if c.change != nil {
				c.change(req)
			}
			got := w.do(w.handler, req)
			w.want(got, statusOf[c.code], string(c.code))
			if got.Field != c.field || got.Limit != c.limit {
				t.Errorf("the answer is about %q and %d, want %q and %d", got.Field, got.Limit, c.field, c.limit)
			}
			if w.task("mine").ResourceVersion != "999" {
				t.Error("the Task was written")
			}
			if n := w.value("task_reports_refused_total", "code="+string(c.code)); n != 1 {
				t.Errorf("counted %v times", n)
			}
		})
	}
}

func contentType(value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Content-Type", value) }
}

// TestStrangersBodiesAreNotRead: what nobody vouches for costs no memory.
func TestStrangersBodiesAreNotRead(t *testing.T) {
	w := newWorld(t, fakeClock(), nil, processing("mine"))
	body := &counting{Reader: strings.NewReader(strings.Repeat(" ", 100<<10))}
	req := newRequest("", "a.b.c")
	req.Body, req.ContentLength = io.NopCloser(body), 100<<10
	w.want(w.do(w.handler, req), http.StatusUnauthorized, "Unauthenticated")
	if body.n != 0 {
		t.Errorf("%d bytes were read", body.n)
	}
}

type counting struct {
	io.Reader
	n int
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += n
	return n, err
}

// TestSlowClients sends requests that never end to a real server.
func TestSlowClients(t *testing.T) {
	w := newWorld(t, clock.RealClock{}, func(o *Options) { o.BodyTimeout = 100 * time.Millisecond }, processing("mine"))
	server := httptest.NewUnstartedServer(w.handler)
	server.Config = NewServer(w.handler)
	server.Start()
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nAuthorization: Bearer %s\r\nContent-Length: 100\r\n\r\n{",
		report.GatewayPath, tokenOf("mine")); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusRequestTimeout {
		t.Errorf("answered with %d", response.StatusCode)
	}
	if n := w.value("task_reports_refused_total", "code=SlowRequest"); n != 1 {
		t.Errorf("counted %v times", n)
	}
}

// TestHeldRequestOutlivesBodyTimeout: the deadline of a body does not end the wait for a common write.
func TestHeldRequestOutlivesBodyTimeout(t *testing.T) {
	task := processing("mine")
	w := newWorld(t, clock.RealClock{}, func(o *Options) { o.BodyTimeout, o.WriteInterval = 50*time.Millisecond, 300*time.Millisecond }, task)
	server := httptest.NewUnstartedServer(w.handler)
	server.Config = NewServer(w.handler)
	server.Start()
	defer server.Close()
	for sequence := range int64(2) {
		body := fmt.Sprintf(`{"task_id":%q,"attempt":1,"sequence":%d,"kind":"progress","progress":{"percent":1}}`, task.UID, sequence+1)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+report.GatewayPath, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+tokenOf("mine"))
		response, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if _ = response.Body.Close(); response.StatusCode != http.StatusOK {
			t.Errorf("answered with %d", response.StatusCode)
		}
	}
}

func TestTooManyRequests(t *testing.T) {
	task := processing("mine")
	clk := fakeClock()
	w := newWorld(t, clk, func(o *Options) { o.MaxRequests = 4 }, task)
	w.want(w.send(reportOf(task, report.Progress, 1), tokenOf("mine")), 200, "Stored")
	var held []<-chan answer
	for i := range int64(3) {
		held = append(held, w.start(reportOf(task, report.Progress, 2+i), tokenOf("mine")))
	}
	eventually(t, func() bool { return w.held(task) == 3 })
	got := w.send(reportOf(task, report.Progress, 5), tokenOf("mine"))
	w.want(got, http.StatusTooManyRequests, "TooManyRequests")
	if got.header.Get("Retry-After") == "" {
		t.Error("the answer does not say when to try again")
	}
	w.want(w.send(reportOf(task, report.Succeeded, 6), tokenOf("mine")), 200, "Stored") // past all that waits
	for _, h := range held {
		w.want(drive(t, clk, h), http.StatusGone, "AttemptClosed")
	}
}

// held is how many reports of a Task wait for its next write.
func (w *world) held(task *v1alpha1.Task) int {
	w.gateway.news.mu.Lock()
	defer w.gateway.news.mu.Unlock()
	g := w.gateway.news.tasks[task.UID]
	if g == nil {
		return 0
	}
	return len(g.batch)
}

func eventually(t *testing.T, check func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for tick := time.Tick(time.Millisecond); !check(); {
		select {
		case <-tick:
		case <-deadline:
			t.Fatal("waited in vain")
		}
	}
}

// TestUnavailable fails each call to the API server in turn: the sender is told to try again, and not what was said.
func TestUnavailable(t *testing.T) {
	for what, kind := range map[string]report.Kind{
		"create TokenReview": report.Succeeded, "get Pod": report.Succeeded, "get Job": report.Succeeded, "get Task": report.Succeeded,
		"patch status": report.Succeeded, "news status": report.Progress,
	} {
		t.Run(what, func(t *testing.T) {
			task := processing("mine")
			w := newWorld(t, clock.RealClock{}, func(o *Options) { o.WriteInterval = time.Millisecond }, task)
			w.on(func(call string) error {
				if call == what {
					return apierrors.NewInternalError(errors.New("etcd-3.internal is gone"))
				}
				return nil
			})
			got := w.send(reportOf(task, kind, 1, retried(2)), tokenOf("mine"))
			w.want(got, http.StatusServiceUnavailable, "Unavailable")
			if got.header.Get("Retry-After") == "" || strings.Contains(got.body, "etcd") {
				t.Errorf("answered with %v %s", got.header, got.body)
			}
			if !strings.Contains(w.log.String(), "etcd") || strings.Contains(w.log.String(), secret) {
				t.Errorf("the log has\n%s", w.log.String())
			}
			if n := w.value("callback_retry_total"); n != 0 {
				t.Errorf("%v retries are counted of a report that comes again", n)
			}
			w.on(nil)
			w.want(w.send(reportOf(task, kind, 1, retried(2)), tokenOf("mine")), 200, "Stored")
			if n := w.value("callback_retry_total"); n != 2 {
				t.Errorf("%v retries are counted, want 2", n)
			}
		})
	}
}

// TestTokensAreCached counts how often the API server is asked about them.
func TestTokensAreCached(t *testing.T) {
	task := processing("mine")
	clk := fakeClock()
	w := newWorld(t, clk, nil, task)
	send := func(token string) { w.send(reportOf(task, report.Succeeded, 1), token) }
	for range 3 {
		send(tokenOf("mine"))
		send("a.b.c")
	}
	if n := w.count("create TokenReview"); n != 2 {
		t.Errorf("asked %d times about two tokens", n)
	}
	clk.Step(refusedFor + time.Second)
	send(tokenOf("mine"))
	send("a.b.c")
	if n := w.count("create TokenReview"); n != 3 {
		t.Errorf("asked %d times, want again about the refused one", n)
	}
	// A token that is no longer good is found out.
	w.tokens[tokenOf("mine")] = authenticationv1.TokenReviewStatus{}
	clk.Step(acceptedFor)
	w.want(w.send(reportOf(task, report.Succeeded, 1), tokenOf("mine")), http.StatusUnauthorized, "Unauthenticated")
	if n := w.count("get Pod"); n != 1 {
		t.Errorf("the pod was read %d times", n)
	}
	w.lint()
}

// TestOtherPaths: there is nothing else, and who looks for it does not keep a connection.
func TestOtherPaths(t *testing.T) {
	w := newWorld(t, fakeClock(), nil)
	for _, path := range []string{"/healthz", "/readyz", "/", "/v1/reports/", "/v1/reports/x", "/v1/../v1/reports/.."} {
		recorder := httptest.NewRecorder()
		w.handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, path, http.NoBody))
		if recorder.Code != http.StatusNotFound || recorder.Header().Get("Connection") != "close" {
			t.Errorf("%s: %d with %v", path, recorder.Code, recorder.Header())
		}
	}
	if n := w.value("task_reports_refused_total", "code=NotFound"); n != 6 {
		t.Errorf("%v requests were counted", n)
	}
}
