package task

import (
	"errors"
	"fmt"
	"strings"
	"time"

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
// nodeAhead is how far the clock of the worker's node is ahead.
func (r *Reconciler) announce(before, after *v1alpha1.Task, nodeAhead time.Duration) {
	moves := newTransitions(before, after)
	if lag := after.Status.SyncLagMilliseconds; lag != nil && len(moves) > 0 && lifecycle.Terminal(after.Status.State) {
		syncLag.Observe(float64(*lag) / 1000)
	}
	for i, m := range moves {
		transitionsTotal.WithLabelValues(string(m.From), string(m.To), m.Event).Inc()
		r.tellMove(after, m, i == len(moves)-1)
		r.tellSkew(after, m, nodeAhead)
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

// tellSkew warns of a clock that is far off, when an attempt ends: once, whatever its start and its report have shown.
func (r *Reconciler) tellSkew(t *v1alpha1.Task, m v1alpha1.Transition, ahead time.Duration) {
	if e := lifecycle.Event(m.Event); e == "" || e == lifecycle.Start || e == lifecycle.Retry {
		return
	}
	if report := t.Status.Report; report != nil && report.Attempt == m.Attempt && report.ClockSkewSeconds != 0 {
		ahead = time.Duration(report.ClockSkewSeconds) * time.Second
	}
	if ahead.Abs() < clockSkewWarning {
		return
	}
	where := "ahead of"
	if ahead < 0 {
		where = "behind"
	}
	note := fmt.Sprintf("The clock of attempt %d's worker is %s %s the API server's, by which everything is decided", m.Attempt, ahead.Abs().Round(time.Second), where)
	if a := attempt(t, m.Attempt); a != nil && a.NodeName != "" {
		note += "; it ran on node " + a.NodeName
	}
	r.tell(t, corev1.EventTypeWarning, v1alpha1.ReasonClockSkew, "clock", note)
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
