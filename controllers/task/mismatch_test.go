package task

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// TestMismatches: what a pass would mend has a kind, and a date where there is one; healthy Tasks have no mismatch.
func TestMismatches(t *testing.T) {
	none := MismatchKind("")
	cases := map[string]struct {
		scene *scene
		kind  MismatchKind
		since time.Time
	}{
		"healthy: waits for its worker":  {pending().job(1).pod(1).at(after(60)), none, undated},
		"healthy: runs":                  {processing().runs(1).at(after(1000)), none, undated},
		"healthy: waits for its backoff": {retrying().job(1, jobFailed).pod(1, exits(1, after(20)), over).at(after(29)), none, undated},
		"healthy: suspended":             {accepted(suspend).at(after(9000)), none, undated},
		"healthy: is being stopped": {
			processing(terminating(v1alpha1.ReasonActiveDeadlineExceeded, after(50))).runs(1, stopAsked).at(after(60)), none, undated,
		},
		"healthy: its Job is tried again": {uncreated().at(after(500)), none, undated},
		"healthy: ended, within grace":    {ended(lifecycle.Succeed).job(1).pod(1, worked(0, after(20)), sidecarRuns).at(after(60)), none, undated},
		"healthy: ended, before its TTL":  {ended(lifecycle.Succeed, ttl(3600)).at(after(1000)), none, undated},
		"healthy: its Job is new":         {fresh().job(1).at(created.Add(time.Second)), none, undated},

		"its worker has exited":   {processing().job(1).pod(1, exits(0, after(100)), over).at(after(900)), FinishedWorker, after(100)},
		"its worker has reported": {processing(reportedSuccess(90)).runs(1).at(after(900)), FinishedWorker, after(90)},
		"only its Job knows":      {pending().job(1, completed).at(after(900)), FinishedWorker, undated},
		"its sidecar was waited for": {
			processing(withSidecar, exitSeen(30)).job(1).pod(1, worked(0, after(20)), sidecarEnded("")).at(after(900)), FinishedWorker, undated,
		},
		"what was stopped has ended": {
			processing(terminating(v1alpha1.ReasonCancelled, after(50))).job(1).pod(1, exits(143, after(60)), over).at(after(900)),
			FinishedWorker, after(60),
		},
		"its Job is gone":        {processing().at(after(900)), MissingWorker, undated},
		"its pod is gone":        {processing().job(1).at(after(900)), MissingWorker, undated},
		"its pod was rejected":   {pending().job(1).pod(1, podSays("OutOfcpu", "no"), over).at(after(500)), FinishedWorker, undated},
		"unknown attempt":        {processing().runs(1).job(7).at(after(900)), OrphanWorker, created},
		"closed attempt":         {retrying().runs(1).at(after(25)), none, undated},
		"closed attempt, late":   {retrying().with(suspend).runs(1).at(after(900)), OrphanWorker, after(80)},
		"its Task is going":      {ended(lifecycle.Fail, goes).runs(1).at(after(900)), OrphanWorker, created},
		"outlives its Task":      {ended(lifecycle.Succeed).runs(1).at(after(900)), WorkerOfFinishedTask, after(80)},
		"outlives its stop":      {ended(lifecycle.Succeed).runs(1, stopAsked).at(after(900)), WorkerOfFinishedTask, undated},
		"no heartbeat":           {processing(withSidecar, heartbeat(60)).runs(1, sidecarRuns).at(after(900)), SilentHeartbeat, after(70)},
		"no progress":            {processing(withSidecar, noProgress(60)).runs(1, sidecarRuns).at(after(900)), OverdueWakeUp, after(70)},
		"stage":                  {processing(withSidecar, inStage("render", 20, 60)).runs(1, sidecarRuns).at(after(900)), OverdueWakeUp, after(80)},
		"active deadline":        {processing(active(60)).runs(1).at(after(900)), OverdueWakeUp, after(70)},
		"overall deadline":       {processing(overall(60)).runs(1).at(after(900)), OverdueWakeUp, after(60)},
		"overall deadline, idle": {retrying(overall(60)).with(suspend).at(after(900)), OverdueWakeUp, after(60)},
		"start timeout":          {pending().job(1).pod(1).at(after(900)), OverdueWakeUp, after(600)},
		"start timeout, no Job":  {uncreated().at(after(900)), OverdueWakeUp, after(600)},
		"backoff":                {retrying().at(after(900)), OverdueWakeUp, after(30)},
		"backoff, has waited":    {retrying().with(waitedFor(v1alpha1.ReasonWaitingForPodTermination)).at(after(900)), OverdueWakeUp, undated},
		"backoff, was suspended": {retrying().with(waitedFor(v1alpha1.ReasonSuspended)).at(after(900)), OverdueWakeUp, undated},
		"never looked at":        {fresh().at(after(900)), OverdueWakeUp, created},
		"accepted, not begun":    {accepted().at(after(900)), OverdueWakeUp, undated},
		"lost, waited for":       {processing(terminating(v1alpha1.ReasonCancelled, after(50))).runs(1, stopAsked).at(after(9000)), OverdueWakeUp, undated},
		"stop not ordered":       {processing(terminating(v1alpha1.ReasonCancelled, after(50))).runs(1).at(after(60)), OverdueWakeUp, undated},
		"TTL":                    {ended(lifecycle.Succeed, ttl(60)).at(after(900)), OverdueWakeUp, after(80)},
		"retention":              {ended(lifecycle.Succeed, retention(60)).job(1, completed).at(after(900)), OverdueWakeUp, undated},
		"its worker runs":        {pending().runs(1).at(after(500)), UnseenStart, started},
		"cancel":                 {processing(cancel).runs(1).at(after(900)), UnseenRequest, undated},
		"cancel, idle":           {accepted(cancel).at(after(900)), UnseenRequest, undated},
		"cancel, stopping":       {processing(cancel, terminating(v1alpha1.ReasonSuspended, after(50))).runs(1, stopAsked).at(after(60)), UnseenRequest, undated},
		"suspend":                {processing(suspend).runs(1).at(after(900)), UnseenRequest, undated},
		"retry by hand":          {ended(lifecycle.Fail, askRetry("1")).at(after(900)), UnseenRequest, undated},
		"retry, to be refused":   {processing(askRetry("1")).runs(1).at(after(900)), UnseenRequest, undated},
	}
	for name, tc := range cases {
		plan := decide(tc.scene.Snapshot)
		var kind MismatchKind
		var since time.Time
		if m := mismatchOf(tc.scene.Snapshot, &plan); m != nil {
			kind, since = m.Kind, m.Since
		}
		if diff := cmp.Diff(tc.kind, kind); diff != "" || !since.Equal(tc.since) {
			t.Errorf("%s: %q since %s, wanted is %q since %s", name, kind, since.Sub(created), tc.kind, tc.since.Sub(created))
		}
	}
}

// waitedFor is what condition Reconciling says.
func waitedFor(reason string) change {
	return func(t *v1alpha1.Task) { findCondition(t, v1alpha1.ConditionReconciling).Reason = reason }
}
