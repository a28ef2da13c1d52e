package reporter

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/taskwarden/taskwarden/internal/report"
)

const (
	// requestTimeout bounds one delivery.
	requestTimeout = 10 * time.Second
	// dialTimeout bounds one dial, so that there is time for the second address within a delivery.
	dialTimeout = 3 * time.Second
	// maxRetryAfter bounds what the gateway may ask for: its Retry-After is a wish, and the pod's grace runs.
	maxRetryAfter = 60 * time.Second
	maxTokenBytes = 64 << 10
	maxAnswer     = 16 << 10
)

// delivery is what became of one request.
type delivery struct {
	// status is that of the answer; 0 where none came.
	status int
	// answer is the body, as far as it is one of the gateway's.
	answer report.Answer
	// retryAfter is how long the gateway wants to be left alone, 0 to maxRetryAfter.
	retryAfter time.Duration
	// err says why no answer came.
	err error
}

// taken tells whether the gateway has the report. What else answers with 2xx, a page to log in for example, does not say what
// has become of it.
func (d *delivery) taken() bool { return d.status >= 200 && d.status < 300 && d.answer.Outcome != "" }

// answered tells whether the gateway is there, whatever it has said.
func (d *delivery) answered() bool { return d.status != 0 }

// reason is the delivery in a few words, without anything of the report's body.
func (d *delivery) reason() string {
	switch {
	case d.err != nil:
		return d.err.Error()
	case d.answer.Code != "":
		return fmt.Sprintf("%d %s", d.status, d.answer.Code)
	default:
		return fmt.Sprintf("%d %s", d.status, http.StatusText(d.status))
	}
}

// gateway is the other end.
type gateway struct {
	url       string
	tokenFile string
	client    *http.Client
	clock     clock.PassiveClock
}

// newGateway makes a client that keeps one connection. HTTP/1.1, because reports go one after the other, and because a request
// that times out then closes its connection: the next one does not wait for a gateway that has vanished.
func newGateway(c *Config, clk clock.PassiveClock) *gateway {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &gateway{
		url: c.GatewayURL, tokenFile: c.TokenFile, clock: clk,
		client: &http.Client{
			Timeout: requestTimeout,
			Transport: &http.Transport{
				DialContext:            dialFirst(c.GatewayAddress),
				TLSClientConfig:        &tls.Config{RootCAs: c.RootCAs, MinVersion: tls.VersionTLS12},
				TLSHandshakeTimeout:    dialTimeout,
				MaxIdleConns:           1,
				MaxIdleConnsPerHost:    1,
				IdleConnTimeout:        90 * time.Second,
				MaxResponseHeaderBytes: maxAnswer,
				DisableCompression:     true,
				Protocols:              protocols,
				ReadBufferSize:         4 << 10,
				WriteBufferSize:        4 << 10,
			},
			// A redirect would carry the token to somebody else.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// dialFirst dials the given address, and that of the URL where it fails or where there is none.
func dialFirst(address string) func(ctx context.Context, network, urlAddress string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: dialTimeout}
	return func(ctx context.Context, network, urlAddress string) (net.Conn, error) {
		if address == "" {
			return dialer.DialContext(ctx, network, urlAddress)
		}
		conn, err := dialer.DialContext(ctx, network, address)
		if err == nil {
			return conn, nil
		}
		conn, second := dialer.DialContext(ctx, network, urlAddress)
		if second != nil {
			return nil, errors.Join(err, second)
		}
		return conn, nil
	}
}

// send delivers a report once.
func (g *gateway) send(ctx context.Context, r *report.Report) delivery {
	token, err := readToken(g.tokenFile)
	if err != nil {
		return delivery{err: err}
	}
	body, err := json.Marshal(r)
	if err != nil {
		return delivery{err: err}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url, bytes.NewReader(body))
	if err != nil {
		return delivery{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("User-Agent", "taskwarden-reporter")
	// Not sent; it tells the transport that the same report may be sent again, should the kept connection turn out to be closed.
	req.Header["Idempotency-Key"] = nil
	res, err := g.client.Do(req)
	if err != nil {
		return delivery{err: err}
	}
	defer func() { _ = res.Body.Close() }()
	d := delivery{status: res.StatusCode, retryAfter: retryAfter(res.Header.Get("Retry-After"), g.clock.Now())}
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err == nil {
		// What is not JSON comes from a proxy on the way, and its status counts all the same.
		_ = json.Unmarshal(text, &d.answer)
	}
	return d
}

func readToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("the token cannot be read: %w", err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxTokenBytes))
	if err != nil {
		return "", fmt.Errorf("the token cannot be read: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("%s does not hold a token", path)
	}
	return token, nil
}

// retryAfter reads the header: seconds, or a date. What is absent or wrong is 0.
func retryAfter(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	if value == "" {
		return 0
	}
	if seconds, err := strconv.ParseFloat(value, 64); err == nil {
		if math.IsNaN(seconds) || seconds <= 0 {
			return 0
		}
		return time.Duration(min(seconds, maxRetryAfter.Seconds()) * float64(time.Second))
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return max(0, min(at.Sub(now), maxRetryAfter))
}
