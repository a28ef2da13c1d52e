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
	after := func(s *scene) *v1alpha1.Task { return decide(s.Snapshot).Task }
	begun := func(s *scene) [2]*v1alpha1.Task { return [2]*v1alpha1.Task{s.Task, after(s)} }
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
