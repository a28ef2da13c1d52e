package task

import (
	"slices"
	"testing"

	"k8s.io/client-go/tools/events"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// TestAnnounce: what `kubectl describe` shows of a write. What the user asked for is no warning.
func TestAnnounce(t *testing.T) {
	decided := func(s *scene) *v1alpha1.Task { return decide(s.Snapshot).Task }
	begun := func(s *scene) [2]*v1alpha1.Task { return [2]*v1alpha1.Task{s.Task, decided(s)} }
	skewed := func(seconds int64) change {
		return func(t *v1alpha1.Task) {
			reportedSuccess(20)(t)
			t.Status.Report.ClockSkewSeconds = seconds
		}
	}
	cases := map[string]struct {
		write [2]*v1alpha1.Task
		want  []string
	}{
		"a worker starts": {begun(pending().runs(1)), []string{
			"Normal WorkerRunning Pending to Processing, attempt 1: The worker runs on node " + testNode,
		}},
		"it waits": {begun(pending().job(1).pod(1, unbound, func(p *PodFacts) { p.Unschedulable = "0/3 nodes" })), []string{
			"Warning Unschedulable 0/3 nodes",
		}},
		"it waits from the first": {begun(fresh().job(1).pod(1, unbound, func(p *PodFacts) { p.Unschedulable = "0/3 nodes" })), []string{
			"Warning Unschedulable 0/3 nodes",
		}},
		"it waits for its resumption": {begun(accepted(suspend)), []string{"Normal Suspended spec.suspend is set; no attempt starts"}},
		"cancelled":                   {begun(accepted(cancel)), []string{"Normal Cancelled Pending to Cancelled, attempt 1: spec.cancel is set"}},
		"retried by hand": {begun(ended(lifecycle.Fail, askRetry("1"))), []string{
			"Normal RetryRequested Failed to Pending, attempt 2: The worker Job is being created",
		}},
		"refused": {begun(ended(lifecycle.Succeed, askRetry("1"))), []string{
			"Warning RetryRefused Only a Failed Task can be retried by hand; this one is Succeeded",
		}},
		"C26 a clock that is off": {begun(processing(withSidecar, skewed(-600)).at(after(21)).runs(1)), []string{
			"Normal Completed Processing to Succeeded, attempt 1: three pictures",
			"Warning ClockSkew The clock of attempt 1's worker is 10m0s behind the API server's, by which everything is decided; it ran on node " + testNode,
		}},
		"C26 a clock that is a little off": {begun(processing(withSidecar, skewed(299)).at(after(21)).runs(1)), []string{
			"Normal Completed Processing to Succeeded, attempt 1: three pictures",
		}},
		"nothing new": {begun(ended(lifecycle.Succeed)), nil},
	}
	for name, tc := range cases {
		recorder := events.NewFakeRecorder(10)
		(&Reconciler{Recorder: recorder}).announce(tc.write[0], tc.write[1], 0)
		close(recorder.Events)
		var got []string
		for e := range recorder.Events {
			got = append(got, e)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s:\ngot  %q\nwant %q", name, got, tc.want)
		}
	}
}
