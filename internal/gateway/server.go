package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/internal/report"
)

// Defaults of Options.
const (
	DefaultMaxRequests    = 1000
	DefaultMaxBodyMemory  = 24 << 20
	DefaultMaxWrites      = 2
	DefaultWriteInterval  = 2 * time.Second
	DefaultBodyTimeout    = 10 * time.Second
	DefaultRequestTimeout = 8 * time.Second
)

// What a connection may cost before there is a request to judge.
const (
	maxConnections    = 4000
	maxHeaderBytes    = 16 << 10
	readHeaderTimeout = 5 * time.Second
	idleTimeout       = 2 * time.Minute
)

const (
	// maxSkewed bounds the memory of clocks that are off.
	maxSkewed = 1024
	// skewRemembered is how long a report may take to come again without its time. Later its worker's clock is not told of.
	skewRemembered = 10 * time.Minute
)

// Options of a Gateway. Zero values mean the defaults.
type Options struct {
	// Client asks the API server, without a cache, for tokens, bindings and final reports. Required.
	Client client.Client
	// NewsClient reads and writes for all other reports; a rate limit of its own keeps these from holding up final ones.
	// Default: Client.
	NewsClient client.Client
	// Clock is what times are taken from and waited for by: the API server's. Default: the machine's.
	Clock clock.Clock
	// MaxClockSkew is how far a worker's clock may be from Clock. Default 15 minutes.
	MaxClockSkew time.Duration
	// MaxRequests is how many requests are handled at once; more are refused with 429. A quarter of them is kept for final
	// reports. Default 1000.
	MaxRequests int
	// MaxBodyMemory is how many bytes of bodies and of reports that wait to be written there may be together; more are refused
	// with 429. Half of it is kept from those that wait. Default 24 MiB.
	MaxBodyMemory int64
	// MaxWrites is how many writes of what is not final run at once. Default 2.
	MaxWrites int64
	// WriteInterval is the least time between two writes to one Task of what is not final. Default 2 seconds.
	WriteInterval time.Duration
	// BodyTimeout is how long a body may take to arrive. Default 10 seconds.
	BodyTimeout time.Duration
	// RequestTimeout is how long a report may take after that; then it is answered with 429 or 503. It is below the time for which
	// sidecars wait. Default 8 seconds.
	RequestTimeout time.Duration
	// Registerer takes the metrics. Default: one that nobody reads.
	Registerer prometheus.Registerer
	// Log is where refusals and failures are told. It never gets a token or a body.
	Log logr.Logger
}

func (o *Options) setDefaults() {
	if o.NewsClient == nil {
		o.NewsClient = o.Client
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	orDefault(&o.MaxClockSkew, lifecycle.DefaultMaxClockSkew)
	orDefault(&o.MaxRequests, DefaultMaxRequests)
	orDefault(&o.MaxBodyMemory, DefaultMaxBodyMemory)
	orDefault(&o.MaxWrites, DefaultMaxWrites)
	orDefault(&o.WriteInterval, DefaultWriteInterval)
	orDefault(&o.BodyTimeout, DefaultBodyTimeout)
	orDefault(&o.RequestTimeout, DefaultRequestTimeout)
}

func orDefault[T comparable](value *T, otherwise T) {
	var zero T
	if *value == zero {
		*value = otherwise
	}
}

// Gateway takes reports.
type Gateway struct {
	options Options
	metrics *metrics
	retries *retryCounter
	tokens  *authenticator
	workers *binder
	news    *coalescer
	skewed  *cache.LRUExpireCache // of time.Duration, by the UID of a pod: clocks whose finish time was refused

	slots     *semaphore.Weighted // requests at once of senders that are known
	newsSlots *semaphore.Weighted // those of them that are not final
	pods      *shares[types.UID]  // those of them of each pod
	memory    *semaphore.Weighted // bytes of reports
}

// New makes a Gateway. Its metrics are registered at once, so a registerer takes one Gateway only.
func New(o Options) *Gateway {
	o.setDefaults()
	o.MaxBodyMemory = max(o.MaxBodyMemory, 2*report.MaxBodyBytes)
	m := newMetrics(o.Registerer)
	g := &Gateway{
		options: o,
		metrics: m,
		retries: newRetryCounter(m, o.Clock),
		tokens:  newAuthenticator(o.Client, o.Clock, m),
		workers: newBinder(o.Client, o.Clock),
		news:    newCoalescer(&o),
		skewed:  cache.NewLRUExpireCacheWithClock(maxSkewed, o.Clock),
	}
	g.pods = newShares[types.UID](maxPerPod)
	requests := int64(o.MaxRequests)
	g.slots = semaphore.NewWeighted(requests)
	g.newsSlots = semaphore.NewWeighted(max(1, requests*3/4))
	g.memory = semaphore.NewWeighted(o.MaxBodyMemory)
	return g
}

// notFound counts requests for other paths.
const notFound = "NotFound"

// Handler serves the report endpoint and nothing else: whoever wants another path is a stranger, whose connection is closed.
func (g *Gateway) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != report.GatewayPath {
			g.metrics.refused.WithLabelValues(notFound).Inc()
			closeAfter(w)
			http.NotFound(w, req)
			return
		}
		g.serveReport(w, req)
	})
}

// NewServer is an HTTP server for a handler that bounds what a client can cost. It speaks HTTP/1.1 alone: a worker has one
// request under way at a time, and what HTTP/2 adds is memory for each connection and ways to attack.
func NewServer(handler http.Handler) *http.Server {
	s := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readHeaderTimeout + DefaultBodyTimeout,
		WriteTimeout:      DefaultBodyTimeout + DefaultRequestTimeout + 10*time.Second,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		Protocols:         &http.Protocols{},
	}
	s.Protocols.SetHTTP1(true)
	return s
}

// GetCertificate gives a TLS server its certificate.
type GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// Listen opens the port of the gateway, with TLS.
func Listen(ctx context.Context, address string, certificate GetCertificate) (net.Listener, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return tls.NewListener(netutil.LimitListener(newPerAddress(l, maxPerAddress), maxConnections), &tls.Config{
		MinVersion: tls.VersionTLS12, GetCertificate: certificate, NextProtos: []string{"http/1.1"},
	}), nil
}

// admit checks what can be known of a request without reading it or asking anybody, and gives its token.
func admit(req *http.Request) (token string, err error) {
	if req.Method != http.MethodPost {
		return "", refuse(report.MethodNotAllowed, "reports are sent with POST")
	}
	// A token elsewhere, in the URL say, ends up in the logs of whatever is on the way. It is not looked for.
	kind, token, found := strings.Cut(req.Header.Get("Authorization"), " ")
	if !found || !strings.EqualFold(kind, "Bearer") || !looksLikeToken(token) {
		return "", errUnauthenticated
	}
	media, _, err := mime.ParseMediaType(req.Header.Get("Content-Type"))
	if err != nil || media != "application/json" || req.Header.Get("Content-Encoding") != "" {
		return "", refuse(report.UnsupportedMediaType, "the body must be application/json, not compressed")
	}
	if req.ContentLength > report.MaxBodyBytes {
		return "", bodyTooLarge()
	}
	return token, nil
}

func bodyTooLarge() error {
	return &refusal{answer: report.Answer{
		Code: report.TooLarge, Message: "body: has more bytes than the limit", Field: "body", Limit: report.MaxBodyBytes,
	}}
}

// readBody reads a body within its bounds.
func (g *Gateway) readBody(w http.ResponseWriter, req *http.Request, held *reservation) ([]byte, error) {
	// A recorder in a test has no connection, hence no deadline.
	control := http.NewResponseController(w)
	deadline := clock.RealClock{}.Now().Add(g.options.BodyTimeout) // the connection knows no other clock
	if err := control.SetReadDeadline(deadline); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, unavailable(err)
	}
	body, err := io.ReadAll(metered{Reader: http.MaxBytesReader(w, req.Body, report.MaxBodyBytes), held: held})
	var large *http.MaxBytesError
	var refused *refusal
	switch {
	case errors.As(err, &refused):
		return nil, err
	case errors.As(err, &large):
		return nil, bodyTooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, refuse(report.SlowRequest, "the body did not come in time")
	case err != nil:
		return nil, refuse(report.InvalidReport, "the body could not be read")
	}
	// The deadline would otherwise end the request while its report waits to be written.
	if err := control.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, unavailable(err)
	}
	return body, nil
}
