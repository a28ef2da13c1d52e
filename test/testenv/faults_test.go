package testenv

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestParseCall(t *testing.T) {
	for _, tc := range []struct{ method, url, want string }{
		{"POST", "/apis/batch/v1/namespaces/ns/jobs", "create jobs"},
		{"PUT", "/apis/taskwarden.dev/v1alpha1/namespaces/ns/tasks/t/status", "update tasks/status t"},
		{"PATCH", "/api/v1/namespaces/ns/pods/p", "patch pods p"},
		{"DELETE", "/api/v1/namespaces/ns/pods/p", "delete pods p"},
		{"DELETE", "/api/v1/namespaces/ns/pods", "deletecollection pods"},
		{"GET", "/api/v1/namespaces/ns/pods?labelSelector=x", "list pods"},
		{"GET", "/api/v1/namespaces/ns/pods?watch=true", "watch pods"},
		{"GET", "/api/v1/namespaces/ns", "get namespaces ns"},
		{"GET", "/api/v1/nodes/n", "get nodes n"},
		{"GET", "/apis/batch/v1", ""},
		{"GET", "/version", ""},
	} {
		got, ok := parseCall(httptest.NewRequest(tc.method, tc.url, http.NoBody))
		if ok != (tc.want != "") || ok && got.String() != tc.want {
			t.Errorf("%s %s: %q, wanted %q", tc.method, tc.url, got, tc.want)
		}
	}
}

// world is a client whose requests meet faults on the way to a server that counts them.
func world(t *testing.T) (f *Faults, tr *transport, send func(method, path string) (int, error), served *int) {
	t.Helper()
	served = new(int)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method == http.MethodPost && string(body) != "body" {
			t.Errorf("the server got %q, %v", body, err)
		}
		*served++
		w.WriteHeader(http.StatusCreated)
	}))
	t.Cleanup(server.Close)
	f = newFaults()
	tr = newTransport(f, http.DefaultTransport)
	send = func(method, path string) (int, error) {
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader("body"))
		if err != nil {
			return 0, err
		}
		resp, err := tr.RoundTrip(r)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		return resp.StatusCode, nil
	}
	return f, tr, send, served
}

const jobs = "/apis/batch/v1/namespaces/ns/jobs"

func TestRefuse(t *testing.T) {
	f, _, send, served := world(t)
	f.Refuse("create jobs", 1, apierrors.NewConflict(schema.GroupResource{Resource: "jobs"}, "j", errors.New("x")))
	if code, err := send("POST", jobs); code != http.StatusConflict || err != nil || *served != 0 {
		t.Errorf("first: %d, %v, served %d", code, err, *served)
	}
	if code, err := send("POST", jobs); code != http.StatusCreated || err != nil || *served != 1 {
		t.Errorf("second: %d, %v, served %d", code, err, *served)
	}
	if n := f.Calls("create jobs"); n != 2 {
		t.Errorf("%d calls", n)
	}
	if n := f.Calls("write *"); n != 2 {
		t.Errorf("%d writes", n)
	}
	if n := f.Calls("* pods"); n != 0 {
		t.Errorf("%d calls about pods", n)
	}
}

func TestLoseAnswer(t *testing.T) {
	f, _, send, served := world(t)
	f.LoseAnswer("create jobs")
	if _, err := send("POST", jobs); !errors.Is(err, ErrConnection) || *served != 1 {
		t.Errorf("%v, served %d", err, *served)
	}
}

func TestMatchAndRemove(t *testing.T) {
	f, _, send, served := world(t)
	remove := f.On("write jobs", Fault{
		Match:  func(c Call) bool { return bytes.Equal(c.Body, []byte("body")) },
		Before: func(context.Context, Call) error { return ErrConnection },
	})
	if _, err := send("POST", jobs); err == nil {
		t.Error("the fault did not happen")
	}
	remove()
	if _, err := send("POST", jobs); err != nil || *served != 1 {
		t.Errorf("%v, served %d", err, *served)
	}
}

func TestHold(t *testing.T) {
	f, _, send, served := world(t)
	h := f.Hold("create jobs")
	done := make(chan error)
	go func() { _, err := send("POST", jobs); done <- err }()
	h.Wait(t)
	if *served != 0 {
		t.Error("it was sent although it is held")
	}
	h.Release()
	if err := <-done; err != nil || *served != 1 {
		t.Errorf("%v, served %d", err, *served)
	}
}

func TestKill(t *testing.T) {
	_, tr, send, served := world(t)
	tr.kill()
	if _, err := send("POST", jobs); !errors.Is(err, errKilled) || *served != 0 {
		t.Errorf("%v, served %d", err, *served)
	}
}

func TestFreezeWatch(t *testing.T) {
	f := newFaults()
	news, tell := io.Pipe()
	tr := newTransport(f, roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: news}, nil
	}))
	r := httptest.NewRequest("GET", "/api/v1/namespaces/ns/pods?watch=true", http.NoBody)
	resp, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	thaw := f.FreezeWatch("pods")
	got := make(chan string)
	go func() {
		p := make([]byte, 10)
		n, _ := resp.Body.Read(p)
		got <- string(p[:n])
	}()
	if _, err := tell.Write([]byte("news")); err != nil {
		t.Fatal(err)
	}
	select {
	case s := <-got:
		t.Fatalf("%q came through", s)
	case <-time.After(20 * time.Millisecond):
	}
	thaw()
	if s := <-got; s != "news" {
		t.Errorf("got %q", s)
	}
	f.CutWatch("pods")
	if n, err := resp.Body.Read(make([]byte, 10)); err == nil {
		t.Errorf("%d bytes from a watch that was cut", n)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return r(req) }
