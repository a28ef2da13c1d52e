package testenv

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// errKilled is what the rest of a killed operator sees.
var errKilled = errors.New("the operator was killed")

// transport carries the requests of one incarnation of the operator. Faults are injected here, below every client that the
// operator may use: cached and live reads, writes, watches and Events all pass.
type transport struct {
	faults *Faults
	next   http.RoundTripper
	dead   chan struct{}
	kill   func()
}

func newTransport(faults *Faults, next http.RoundTripper) *transport {
	t := &transport{faults: faults, next: next, dead: make(chan struct{})}
	t.kill = sync.OnceFunc(func() { close(t.dead) })
	return t
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	call, ok := parseCall(r)
	if !ok {
		return t.next.RoundTrip(r)
	}
	r, err := readBody(r, &call)
	if err != nil {
		return nil, err
	}
	met := t.faults.arrive(call)
	for _, f := range met {
		if f.Before == nil {
			continue
		}
		if err := f.Before(r.Context(), call); err != nil {
			return answer(r, err)
		}
	}
	if t.isDead() {
		return nil, errKilled
	}
	sent := r
	if call.Writes() {
		// Whoever is killed does not take back what is on its way: it is stored, and the audit log says so.
		sent = r.WithContext(context.WithoutCancel(r.Context()))
	}
	response, err := t.next.RoundTrip(sent)
	if err != nil {
		return nil, err
	}
	for _, f := range met {
		if f.After == nil {
			continue
		}
		if err := f.After(r.Context(), call, response.StatusCode); err != nil {
			_ = response.Body.Close() // the answer is lost on purpose
			return answer(r, err)
		}
	}
	if t.isDead() {
		_ = response.Body.Close() // nobody is left to read it
		return nil, errKilled
	}
	if call.Verb == "watch" {
		response.Body = t.watched(r, call.Resource, response.Body)
	}
	return response, nil
}

func (t *transport) isDead() bool {
	select {
	case <-t.dead:
		return true
	default:
		return false
	}
}

// readBody takes the body for the faults to look at and gives the request one that is as good as new.
func readBody(r *http.Request, c *Call) (*http.Request, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return r, nil
	}
	body, err := io.ReadAll(r.Body)
	if err := errors.Join(err, r.Body.Close()); err != nil {
		return nil, err
	}
	c.Body = body
	again := r.Clone(r.Context())
	again.Body = io.NopCloser(bytes.NewReader(body))
	again.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	return again, nil
}

// answer turns an injected error into what a server or a network would have given.
func answer(r *http.Request, err error) (*http.Response, error) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return nil, err
	}
	body := status.Status()
	body.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if body.Details != nil && body.Details.RetryAfterSeconds > 0 {
		header.Set("Retry-After", strconv.Itoa(int(body.Details.RetryAfterSeconds)))
	}
	code := int(body.Code)
	return &http.Response{
		Status: fmt.Sprintf("%d %s", code, http.StatusText(code)), StatusCode: code,
		Proto: r.Proto, ProtoMajor: r.ProtoMajor, ProtoMinor: r.ProtoMinor,
		Header: header, Body: io.NopCloser(bytes.NewReader(raw)), ContentLength: int64(len(raw)), Request: r,
	}, nil
}

// watched puts a gate into a watch stream.
func (t *transport) watched(r *http.Request, resource string, body io.ReadCloser) io.ReadCloser {
	w := &watchBody{ReadCloser: body, faults: t.faults, resource: resource, over: r.Context().Done(), closed: make(chan struct{})}
	w.close = sync.OnceFunc(func() { close(w.closed) })
	cut := t.faults.cutter(resource)
	go func() { // ends with the request: its body is closed, or its context is over
		select {
		case <-cut:
			_ = body.Close() // unblocks the reader, which sees a broken stream
		case <-t.dead:
			_ = body.Close()
		case <-w.closed:
		case <-r.Context().Done():
		}
	}()
	return w
}

// watchBody holds back what has arrived while the resource is frozen.
type watchBody struct {
	io.ReadCloser
	faults   *Faults
	resource string
	over     <-chan struct{} // the request
	closed   chan struct{}
	close    func()
}

// Read implements io.Reader.
func (w *watchBody) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if gate := w.faults.gate(w.resource); gate != nil {
		select {
		case <-gate:
		case <-w.closed:
			return 0, io.ErrUnexpectedEOF
		case <-w.over:
			return 0, io.ErrUnexpectedEOF
		}
	}
	return n, err
}

// Close implements io.Closer.
func (w *watchBody) Close() error {
	w.close()
	return w.ReadCloser.Close()
}
