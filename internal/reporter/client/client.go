// Package client talks to the sidecar's API from within the worker's container. It imports the standard library alone, because
// workers are built with it.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/taskwarden/taskwarden/internal/report"
)

const (
	// tryTimeout bounds one request, beside what a final report asks to wait.
	tryTimeout = 10 * time.Second
	// firstPause and maxPause bound the wait between two tries.
	firstPause = 50 * time.Millisecond
	maxPause   = 500 * time.Millisecond
	maxAnswer  = 64 << 10
)

// Client talks to one sidecar. It is safe for concurrent use.
type Client struct {
	base string
	http *http.Client
	// Pause waits between two tries; a test may drive it. It returns the context's error where that ends first.
	Pause func(ctx context.Context, d time.Duration) error
}

// RefusedError says why the sidecar does not take a report: trying again would not help.
type RefusedError struct {
	Status int
	report.Answer
}

func (e *RefusedError) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("refused with %d %s", e.Status, http.StatusText(e.Status))
	}
	return e.Message
}

// New makes a client for the sidecar with the given base URL, which stands in TASKWARDEN_REPORTER.
func New(base string) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" || u.Host == "" {
		return nil, fmt.Errorf("%.80q is not the URL of a sidecar", base)
	}
	return &Client{
		base: u.Scheme + "://" + u.Host, Pause: Pause,
		http: &http.Client{Transport: &http.Transport{
			// No proxy, whatever the worker's environment says: the sidecar is on this machine.
			MaxIdleConnsPerHost: 2, IdleConnTimeout: 10 * time.Second, DisableCompression: true,
		}},
	}, nil
}

// Pause waits, or until the context ends, whose error it then returns.
func Pause(ctx context.Context, d time.Duration) error {
	timer, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-timer.Done()
	return ctx.Err()
}

// Post reports something, once; body may be nil. wait is how long a final report may wait for its delivery. It returns the HTTP
// status: 202 the sidecar has it, 200 the gateway has it. The error is a *RefusedError where the sidecar does not take it.
func (c *Client) Post(ctx context.Context, kind report.Kind, body any, wait time.Duration) (int, error) {
	text, err := encode(body)
	if err != nil {
		return 0, err
	}
	return c.post(ctx, kind, text, wait)
}

// PostPatiently is Post, but tries again for the given time while the sidecar cannot be reached: it may be restarting.
func (c *Client) PostPatiently(ctx context.Context, kind report.Kind, body any, wait, patience time.Duration) (int, error) {
	text, err := encode(body)
	if err != nil {
		return 0, err
	}
	trying, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		status, err := c.post(ctx, kind, text, wait)
		var refused *RefusedError
		if err == nil || errors.As(err, &refused) {
			return status, err
		}
		if c.Pause(trying, pause) != nil {
			return 0, fmt.Errorf("the sidecar cannot be reached: %w", err)
		}
	}
}

func encode(body any) ([]byte, error) {
	if body == nil {
		return nil, nil
	}
	return json.Marshal(body)
}

func (c *Client) post(ctx context.Context, kind report.Kind, body []byte, wait time.Duration) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout+wait)
	defer cancel()
	address := c.base + "/v1/" + string(kind)
	if wait > 0 {
		address += "?wait=" + strconv.Itoa(int(wait.Seconds()))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	// The same report may be taken twice, so a connection that turns out to be closed is no failure.
	req.Header["Idempotency-Key"] = nil
	return c.do(req)
}

// Ready tells whether the sidecar listens: nil where it does.
func (c *Client) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/healthz", http.NoBody)
	if err != nil {
		return err
	}
	_, err = c.do(req)
	return err
}

func (c *Client) do(req *http.Request) (int, error) {
	res, err := c.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return 0, err
	}
	switch {
	case res.StatusCode < 300:
		return res.StatusCode, nil
	case report.Permanent(res.StatusCode):
		refused := &RefusedError{Status: res.StatusCode}
		_ = json.Unmarshal(text, &refused.Answer) // what is no answer of a sidecar has its status to speak for it
		return 0, refused
	default:
		return 0, fmt.Errorf("the sidecar answers %d", res.StatusCode)
	}
}
