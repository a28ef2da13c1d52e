package reporter

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/taskwarden/taskwarden/internal/report"
)

// TestAPI: what the worker may say, and what it is told. No answer of these changes anything.
func TestAPI(t *testing.T) {
	r := newRig(t)
	r.gateway.answers(always(http.StatusServiceUnavailable, report.Unavailable))
	r.start(nil)
	long := strings.Repeat("x", report.MaxDataBytes)
	for name, c := range map[string]struct {
		method, path, contentType, body string
		status                          int
		code                            report.Code
		field                           string
		limit                           int
	}{
		"heartbeat":             {path: "/v1/heartbeat", status: 202},
		"heartbeat with {}":     {path: "/v1/heartbeat", body: "{}", status: 202},
		"heartbeat with a body": {path: "/v1/heartbeat", body: `{"a":1}`, status: 400, code: report.InvalidReport, field: "body"},
		"progress": {path: "/v1/progress", body: `{"percent":12.5,"message":"m","estimated_remaining_seconds":3}`,
			status: 202},
		"C47 progress over 100": {path: "/v1/progress", body: `{"percent":250}`, status: 202},
		"C47 progress below 0":  {path: "/v1/progress", body: `{"percent":-5}`, status: 202},
		"C47 progress NaN": {path: "/v1/progress", body: `{"percent":NaN}`, status: 400, code: report.InvalidReport,
			field: "body"},
		"C47 progress of text": {path: "/v1/progress", body: `{"percent":"abc"}`, status: 400, code: report.InvalidReport,
			field: "body"},
		"C47 progress of nothing": {path: "/v1/progress", body: `{"message":"m"}`, status: 400, code: report.InvalidReport,
			field: "percent"},
		"C47 progress of null": {path: "/v1/progress", body: `{"percent":null}`, status: 400, code: report.InvalidReport,
			field: "percent"},
		"C47 no progress": {path: "/v1/progress", status: 400, code: report.InvalidReport, field: "body"},
		"long message": {path: "/v1/progress", body: `{"percent":1,"message":"` + long[:1025] + `"}`, status: 413,
			code: report.TooLarge, field: "message", limit: report.MaxMessageBytes},
		"stage":            {path: "/v1/stage", body: `{"name":"resize"}`, status: 202},
		"stage of nothing": {path: "/v1/stage", body: `{}`, status: 400, code: report.InvalidReport, field: "name"},
		"long stage": {path: "/v1/stage", body: `{"name":"` + long[:64] + `"}`, status: 413, code: report.TooLarge, field: "name",
			limit: report.MaxStageBytes},
		"a member that is not known": {path: "/v1/stage", body: `{"name":"a","percent":1}`, status: 400, code: report.InvalidReport,
			field: "body"},
		"two values": {path: "/v1/stage", body: `{"name":"a"}{}`, status: 400, code: report.InvalidReport,
			field: "body"},
		"checkpoint":         {path: "/v1/checkpoint", body: `[1, {"a": null}]`, status: 202},
		"checkpoint of text": {path: "/v1/checkpoint", body: `"page 7"`, status: 202},
		"no checkpoint":      {path: "/v1/checkpoint", status: 400, code: report.InvalidReport, field: "checkpoint"},
		"checkpoint of null": {path: "/v1/checkpoint", body: " null ", status: 400, code: report.InvalidReport,
			field: "checkpoint"},
		"checkpoint not JSON": {path: "/v1/checkpoint", body: "page 7", status: 400, code: report.InvalidReport,
			field: "body"},
		"large checkpoint": {path: "/v1/checkpoint", body: `"` + long + `"`, status: 413, code: report.TooLarge, field: "checkpoint",
			limit: report.MaxCheckpointBytes},
		"C44 large data": {path: "/v1/succeeded", body: `{"data":"` + long + `"}`, status: 413, code: report.TooLarge, field: "data",
			limit: report.MaxDataBytes},
		"C44 a body of 1.5 MB": {path: "/v1/succeeded", body: strings.Repeat(" ", 1500000), status: 413, code: report.TooLarge,
			field: "body",
			limit: report.MaxBodyBytes},
		"a mebibyte of brackets": {path: "/v1/checkpoint", body: strings.Repeat("[", 1<<20), status: 413, code: report.TooLarge,
			field: "body",
			limit: report.MaxBodyBytes},
		"100 KiB of brackets": {path: "/v1/checkpoint", body: strings.Repeat("[", 100<<10), status: 400, code: report.InvalidReport,
			field: "body"},
		"relative URL": {path: "/v1/succeeded", body: `{"url":"/a"}`, status: 400, code: report.InvalidReport, field: "url"},
		"relative log URL": {path: "/v1/failed", body: `{"execution_log_url":"a"}`, status: 400, code: report.InvalidReport,
			field: "execution_log_url"},
		"a failure with data": {path: "/v1/failed", body: `{"data":1}`, status: 400, code: report.InvalidReport, field: "body"},
		"wrong method":        {method: http.MethodGet, path: "/v1/progress", status: 405, code: report.MethodNotAllowed},
		"wrong type": {path: "/v1/stage", contentType: "text/plain", body: `{"name":"a"}`, status: 415,
			code: report.UnsupportedMediaType},
		"no type": {path: "/v1/stage", contentType: "-", body: `{"name":"resize"}`, status: 415,
			code: report.UnsupportedMediaType},
		"what curl says by itself": {path: "/v1/stage", contentType: "application/x-www-form-urlencoded",
			body: `{"name":"resize"}`, status: 415, code: report.UnsupportedMediaType},
		"no type and no body":   {path: "/v1/heartbeat", contentType: "-", status: 202},
		"a type without a body": {path: "/v1/heartbeat", contentType: "application/x-www-form-urlencoded", status: 202},
		"type with a charset": {path: "/v1/stage", contentType: "application/json; charset=utf-8", body: `{"name":"resize"}`,
			status: 202},
		"nothing there": {path: "/v1/cancelled", status: 404, code: report.InvalidReport},
		"status posted": {path: "/v1/status", status: 405, code: report.MethodNotAllowed},
		"health":        {method: http.MethodGet, path: "/healthz", status: 200},
	} {
		t.Run(name, func(t *testing.T) {
			if c.method == "" {
				c.method = http.MethodPost
			}
			req := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
			switch c.contentType {
			case "":
				req.Header.Set("Content-Type", "application/json")
			case "-":
			default:
				req.Header.Set("Content-Type", c.contentType)
			}
			w := httptest.NewRecorder()
			newAPI(r.reporter).ServeHTTP(w, local(req))
			var a report.Answer
			if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
				t.Fatalf("the answer is not JSON: %v: %s", err, w.Body)
			}
			if w.Code != c.status || a.Code != c.code || a.Field != c.field || a.Limit != c.limit {
				t.Errorf("got %d %+v", w.Code, a)
			}
			if c.limit > 0 && !strings.Contains(a.Message, fmt.Sprint(c.limit)) {
				t.Errorf("the message does not name the limit: %s", a.Message)
			}
			if c.status == http.StatusUnsupportedMediaType && !strings.Contains(a.Message, "-H 'Content-Type: application/json'") {
				t.Errorf("the message does not say what to do: %s", a.Message)
			}
		})
	}
	if s := r.status(); s.Final != "" {
		t.Errorf("status %+v", s)
	}
}

// local makes a request to a sidecar that listens on port 7788 of the loopback address.
func local(req *http.Request) *http.Request {
	req.Host = report.DefaultListen
	address := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7788}
	return req.WithContext(context.WithValue(req.Context(), http.LocalAddrContextKey, address))
}

// TestC68NoPageReports: a worker may show pages of strangers in a browser, and none of them finishes its Task. What the
// worker's own programs send is taken under each name of this machine.
func TestC68NoPageReports(t *testing.T) {
	r := newRig(t).start(nil)
	address := strings.TrimPrefix(r.base, "http://")
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		host, header, value string
		status              int
	}{
		"the worker":                    {host: address, status: 202},
		"the worker, by name":           {host: "localhost:" + port, status: 202},
		"the worker, by IPv6":           {host: "[::1]:" + port, status: 202},
		"the worker, in JavaScript":     {host: address, header: "Sec-Fetch-Mode", value: "cors", status: 202},
		"a page":                        {host: address, header: "Origin", value: "https://attacker.example", status: 403},
		"a page on this machine":        {host: address, header: "Origin", value: "http://" + address, status: 403},
		"a page in a sandbox":           {host: address, header: "Origin", value: "null", status: 403},
		"an empty origin":               {host: address, header: "Origin", value: "", status: 403},
		"a form of a page":              {host: address, header: "Sec-Fetch-Site", value: "cross-site", status: 403},
		"a page of the same site":       {host: address, header: "Sec-Fetch-Site", value: "same-origin", status: 403},
		"a name bound to this machine":  {host: "rebound.attacker.example:" + port, status: 403},
		"a name that looks like ours":   {host: "localhost.attacker.example:" + port, status: 403},
		"an address that is not ours":   {host: "10.0.0.1:" + port, status: 403},
		"another port":                  {host: "127.0.0.1:1", status: 403},
		"no port":                       {host: "127.0.0.1", status: 403},
		"a port without a host":         {host: ":" + port, status: 403},
		"what is not a host and a port": {host: "::1:" + port, status: 403},
	} {
		t.Run(name, func(t *testing.T) {
			for _, target := range []string{"POST /v1/stage", "GET /v1/status", "GET /healthz"} {
				method, path, _ := strings.Cut(target, " ")
				body := ""
				if method == http.MethodPost {
					body = `{"name":"a"}`
				}
				req, err := http.NewRequestWithContext(t.Context(), method, r.base+path, strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				req.Host = c.host
				req.Header.Set("Content-Type", "application/json")
				if c.header != "" {
					req.Header[c.header] = []string{c.value}
				}
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				var a report.Answer
				err = json.NewDecoder(res.Body).Decode(&a)
				_ = res.Body.Close()
				if c.status == http.StatusForbidden && (res.StatusCode != c.status || a.Code != report.Forbidden || a.Message == "") {
					t.Errorf("%s: got %d %+v, %v", target, res.StatusCode, a, err)
				}
				if c.status != http.StatusForbidden && res.StatusCode >= 300 {
					t.Errorf("%s: got %d %+v, %v", target, res.StatusCode, a, err)
				}
			}
		})
	}
	if s := r.status(); s.Final != "" {
		t.Errorf("status %+v", s)
	}
}

// TestFinalBodies: how much or how little a worker may say in the end.
func TestFinalBodies(t *testing.T) {
	for body, want := range map[string]string{
		``:                         `{"kind":"succeeded"}`,
		`{}`:                       `{"kind":"succeeded"}`,
		`{"data":null}`:            `{"kind":"succeeded"}`,
		`{"data":false}`:           `{"kind":"succeeded","result":{"data":false}}`,
		`{"data":{"a":[1,  2]}}`:   `{"kind":"succeeded","result":{"data":{"a":[1,2]}}}`,
		`{"url":"a:b"}`:            `{"kind":"succeeded","result":{"url":"a:b"}}`,
		`{"execution_log_url":""}`: `{"kind":"succeeded"}`,
	} {
		rep, err := readSucceeded([]byte(body))
		if err == nil {
			err = rep.CheckPayload()
		}
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		text, err := json.Marshal(rep)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Replace(strings.Replace(string(text), `"task_id":"","attempt":0,"sequence":0,`, "", 1), `,"retry_count":0`,
			"", 1)
		if got != want {
			t.Errorf("%s becomes %s, want %s", body, got, want)
		}
	}
}

// TestStatusAndHealth: what GET /v1/status says is what its documentation names.
func TestStatusAndHealth(t *testing.T) {
	r := newRig(t).start(nil)
	r.take("/v1/stage", `{"name":"a"}`)
	r.came(1)
	res, err := http.Get(r.base + "/v1/status")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	want := `{"queued":0,"spooled":0,"delivered":1,"set_aside":0,"retries":0,"delivered_retries":0}` + "\n"
	if err != nil || string(text) != want {
		t.Errorf("got %s, want %s, %v", text, want, err)
	}
}

// unfinished is a request whose body does not end.
func unfinished(conn net.Conn) string {
	return "POST /v1/stage HTTP/1.1\r\nHost: " + conn.RemoteAddr().String() + "\r\nContent-Length: 100\r\n\r\n{"
}

// TestUnfinishedBodiesHarmNobody: a body without an end ties nobody else up.
func TestUnfinishedBodiesHarmNobody(t *testing.T) {
	r := newRig(t).start(nil)
	for range maxConnections / 2 {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(r.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := io.WriteString(conn, unfinished(conn)); err != nil {
			t.Fatal(err)
		}
	}
	r.take("/v1/stage", `{"name":"a"}`)
	r.came(1)
}

// TestSlowBody: a body that does not come in time is answered, where the client still listens.
func TestSlowBody(t *testing.T) {
	r := newRig(t).start(nil)
	server := httptest.NewUnstartedServer(newAPI(r.reporter))
	server.Config.ReadTimeout = 50 * time.Millisecond
	server.Start()
	t.Cleanup(server.Close)
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, unfinished(conn)); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusRequestTimeout {
		t.Errorf("got %d", res.StatusCode)
	}
}

func FuzzAPI(f *testing.F) {
	for path := range reads {
		f.Add(path, []byte(`{"percent":1,"name":"a","data":[1],"message":"m"}`))
		f.Add(path, []byte(`{"name":"a"}`))
	}
	f.Fuzz(func(t *testing.T, path string, body []byte) {
		read, ok := reads[path]
		if !ok {
			return
		}
		rep, err := read(body)
		if err != nil || rep.CheckPayload() != nil {
			return
		}
		rep.TaskID, rep.Attempt, rep.Sequence = "u", 1, 1
		text, err := json.Marshal(rep)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := report.Parse(text); err != nil {
			t.Errorf("what the worker may say is refused by the gateway: %v: %s", err, text)
		}
	})
}
