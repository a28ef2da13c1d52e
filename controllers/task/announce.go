package task

import (
	"errors"
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

var (
	transitionsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "task_transitions_total",
		Help: "Stored changes of state. Counted after the write: a crash between the two may lose one, none is counted twice.",
	}, []string{"from_status", "to_status", "event"})

	refusedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "task_events_refused_total",
		Help: "Events that the state table did not let pass.",
	}, []string{"status", "event"})

	syncLag = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "task_sync_lag_seconds",
		Help: "Time from the end of a worker's work, as it reported, else as the kubelet says (in whole seconds), to the decision that " +
			"stored the terminal state.",
		Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600},
	})
)

func init() { metrics.Registry.MustRegister(transitionsTotal, refusedTotal, syncLag) }

func countRefused(err error) {
	var refused *lifecycle.RefusedError
	if errors.As(err, &refused) {
		refusedTotal.WithLabelValues(string(refused.State), string(refused.Event)).Inc()
	}
}

// announce tells the world of what has been stored: a metric for each transition, an Event for each that a person would
// want to read. It is called only after the write has succeeded.
func (r *Reconciler) announce(before, after *v1alpha1.Task) {
	moves := newTransitions(before, after)
	if lag := after.Status.SyncLagMilliseconds; lag != nil && len(moves) > 0 && lifecycle.Terminal(after.Status.State) {
		syncLag.Observe(float64(*lag) / 1000)
	}
	for i, m := range moves {
		transitionsTotal.WithLabelValues(string(m.From), string(m.To), m.Event).Inc()
		r.tellMove(after, m, i == len(moves)-1)
	}
	if h := after.Status.LastHandledRetry; h != nil && h.Outcome == v1alpha1.RetryRefused && !equality.Semantic.DeepEqual(h, before.Status.LastHandledRetry) {
		r.tell(after, corev1.EventTypeWarning, v1alpha1.ReasonRetryRefused, "retry", h.Message)
	}
	if reason := after.Status.Reason; after.Status.State == v1alpha1.StatePending && reason != before.Status.Reason &&
		reason != v1alpha1.ReasonWaitingForWorker {
		r.tell(after, warning(reason), reason, "wait", after.Status.Message)
	}
}

// tellMove tells of a transition. A start whose end is stored by the same write is no news any more, nor is a retry that was due.
func (r *Reconciler) tellMove(t *v1alpha1.Task, m v1alpha1.Transition, last bool) {
	kind := corev1.EventTypeNormal
	switch lifecycle.Event(m.Event) {
	case "":
		return
	case lifecycle.Retry:
		if m.Reason != v1alpha1.ReasonRetryRequested {
			return
		}
	case lifecycle.Start:
		if !last {
			return
		}
	case lifecycle.Succeed, lifecycle.Cancel:
	case lifecycle.Fail, lifecycle.Timeout:
		kind = warning(m.Reason)
	}
	note := fmt.Sprintf("%s to %s, attempt %d", m.From, m.To, m.Attempt)
	if m.To == t.Status.State && t.Status.Message != "" {
		note += ": " + t.Status.Message
	}
	r.tell(t, kind, m.Reason, strings.ToLower(m.Event), note)
}

// warning is the type of an Event about something that went wrong, unless the user has asked for it.
func warning(reason string) string {
	if reason == v1alpha1.ReasonCancelled || reason == v1alpha1.ReasonSuspended {
		return corev1.EventTypeNormal
	}
	return corev1.EventTypeWarning
}

// tell writes a Kubernetes Event.
func (r *Reconciler) tell(t *v1alpha1.Task, kind, reason, action, note string) {
	r.Recorder.Eventf(t, nil, kind, reason, action, "%s", lifecycle.Truncate(note))
}

// newTransitions are the entries of the history that the write has added.
func newTransitions(before, after *v1alpha1.Task) []v1alpha1.Transition {
	h := after.Status.History
	first := len(h)
	for first > 0 {
		if n := len(before.Status.History); n > 0 && equality.Semantic.DeepEqual(h[first-1], before.Status.History[n-1]) {
			break
		}
		first--
	}
	return h[first:]
}
