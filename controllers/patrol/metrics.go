package patrol

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/taskwarden/taskwarden/controllers/task"
)

var (
	mismatchesTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "status_mismatch_detected_total",
		Help: "Mismatches between the status of a Task and what is that the patrol has found older than its threshold, and gone about to mend.",
	}, []string{"kind"})

	lastPass = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "patrol_last_pass_timestamp_seconds",
		Help: "When the patrol last came to the end of a pass, in Unix time; 0 before the first, and where this process does not lead.",
	})

	lastDuration = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "patrol_last_pass_duration_seconds",
		Help: "How long the last pass took that came to its end.",
	})
)

func init() {
	metrics.Registry.MustRegister(mismatchesTotal, lastPass, lastDuration)
	for _, kind := range task.MismatchKinds {
		mismatchesTotal.WithLabelValues(string(kind)) // at 0 from the start, so that the first one shows as an increase
	}
}
