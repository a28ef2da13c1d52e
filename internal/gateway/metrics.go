package gateway

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"

	"github.com/taskwarden/taskwarden/internal/report"
)

// metrics are those of one Gateway. All labels have a fixed set of values.
type metrics struct {
	reports        *prometheus.CounterVec
	refused        *prometheus.CounterVec
	retries        prometheus.Counter
	seconds        *prometheus.HistogramVec
	skew           prometheus.Histogram
	tokenReviews   *prometheus.CounterVec
	tokenCacheHits prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		reports: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "task_reports_total",
			Help: "Reports of workers that were taken: Stored in the status, or Ignored because nothing of them has to be.",
		}, []string{"kind", "outcome"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "task_reports_refused_total",
			Help: "Requests that were refused, by the code in the answer; NotFound for other paths than that of the endpoint.",
		}, []string{"code"}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "callback_retry_total",
			Help: "Deliveries of reports that have failed before the report arrived, as the sidecars count them.",
		}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "task_report_seconds",
			Help:    "Time from a request to its answer, for reports that were taken. What is not final waits for others.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2, 3, 5, 10, 30},
		}, []string{"final"}),
		skew: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "task_worker_clock_skew_seconds",
			Help:    "Distance between a worker's finish time and the receipt, for final reports that came at the first try.",
			Buckets: []float64{.1, .5, 1, 2, 5, 15, 60, 300, 900, 3600},
		}),
		tokenReviews: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "task_report_token_reviews_total",
			Help: "Tokens that the API server was asked about, by its answer.",
		}, []string{"result"}),
		tokenCacheHits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "task_report_token_cache_hits_total",
			Help: "Tokens about which the API server was not asked again.",
		}),
	}
	r.MustRegister(m.reports, m.refused, m.retries, m.seconds, m.skew, m.tokenReviews, m.tokenCacheHits)
	for _, kind := range report.Kinds {
		for _, o := range []report.Outcome{report.Stored, report.Ignored} {
			m.reports.WithLabelValues(string(kind), string(o))
		}
	}
	m.refused.WithLabelValues(notFound)
	for code := range statusOf {
		m.refused.WithLabelValues(string(code))
	}
	for _, final := range []string{"true", "false"} {
		m.seconds.WithLabelValues(final)
	}
	return m
}

const (
	// maxCounted bounds the memory of the retry counter.
	maxCounted = 8192
	// countedFor is how long a delivery whose answer was lost is known again.
	countedFor = time.Hour
	// maxRetriesCounted bounds what one report can add: a worker may say what it likes.
	maxRetriesCounted = 100_000
)

// retryCounter counts each failed delivery once. A report carries how many of its deliveries have failed, so what it adds is
// that number less what it has added before: a report can arrive twice where its answer was lost, and says so with a higher
// number. What it has added before is remembered here. Where the first one came to another replica, or before a restart, it is
// not known; then the delivery before this one is taken for the one that was stored, which is right unless several answers in a
// row were lost.
type retryCounter struct {
	metrics *metrics

	mu      sync.Mutex
	counted *cache.LRUExpireCache // of int, by reportKey
}

type reportKey struct {
	pod      types.UID
	sequence int64
}

func newRetryCounter(m *metrics, clk clock.Clock) *retryCounter {
	return &retryCounter{metrics: m, counted: cache.NewLRUExpireCacheWithClock(maxCounted, clk)}
}

// count takes a delivery that will not come again, unless its answer is lost.
func (c *retryCounter) count(d *delivery, o outcome) {
	if o.err != nil && !report.Permanent(statusOf[refusalOf(o.err).answer.Code]) {
		return
	}
	said := min(d.report.RetryCount, maxRetriesCounted)
	key := reportKey{pod: d.worker.PodUID, sequence: d.report.Sequence}
	c.mu.Lock()
	defer c.mu.Unlock()
	before := 0
	if known, ok := c.counted.Get(key); ok {
		before, _ = known.(int)
	} else if o.again {
		before = max(0, said-1)
	}
	if said > before {
		c.metrics.retries.Add(float64(said - before))
		// One that came at the first try is not worth the room: if its answer is lost, it comes again as the second.
		c.counted.Add(key, said, countedFor)
	}
}
