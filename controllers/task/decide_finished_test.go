package task

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

func TestC04C05FinishedStaysFinished(t *testing.T) {
	runTable(t, map[string]testCase{
		"succeeded, Job kept": {
			reason: "the Job of a success stays for its retention",
			scene:  ended(lifecycle.Succeed).at(after(319)).job(1, completed).pod(1, exits(0, after(20)), over),
			want:   outcome{State: succeededState, Reason: "Completed", Attempt: 1, Wake: "5m20s"},
		},
		"succeeded, retention over": {
			reason: "then it is deleted",
			scene:  ended(lifecycle.Succeed).at(after(320)).job(1, completed).pod(1, exits(0, after(20)), over),
			want:   outcome{State: succeededState, Reason: "Completed", Attempt: 1, DeleteJobs: []string{"job-1"}, Wake: "none"},
		},
		"succeeded, retention 0": {
			reason: "0 means at once, but never in the pass that stores the outcome",
			scene:  ended(lifecycle.Succeed, retention(0)).at(after(20)).job(1).pod(1, exits(0, after(20)), over),
			want:   outcome{State: succeededState, Reason: "Completed", Attempt: 1, DeleteJobs: []string{"job-1"}, Wake: "none"},
		},
		"succeeded, retention over, pod lingers": {
			reason: "a Job is not deleted under a container that runs; its pod is stopped first",
			scene:  ended(lifecycle.Succeed, retention(0)).at(after(30)).runs(1, exits(0, after(20))),
			want:   outcome{State: succeededState, Reason: "Completed", Attempt: 1, Wake: "1m20s"},
		},
		"succeeded, Job is going": {
			reason: "the deletion is not asked for twice",
			scene:  ended(lifecycle.Succeed).at(after(400)).job(1, completed, jobGoing),
			want:   outcome{State: succeededState, Reason: "Completed", Attempt: 1, Wake: "none"},
		},
		"succeeded, Job gone": {
			reason: "a finished Task whose Job is gone owes nothing, least of all another run",
			scene:  ended(lifecycle.Succeed).at(after(100000)),
			want:   outcome{State: succeededState, Reason: "Completed", Attempt: 1, Wake: "none"},
		},
		"failed, Job gone": {
			reason: "the same for a failed one",
			scene:  ended(lifecycle.Fail).at(after(100000)),
			want:   outcome{State: failedState, Reason: "NonZeroExitCode", Attempt: 1, Charged: 1, Wake: "none"},
		},
		"failed, Job stays": {
			reason: "the Job of a failure is evidence",
			scene:  ended(lifecycle.Fail).at(after(100000)).job(1, jobFailed).pod(1, exits(1, after(20)), over),
			want:   outcome{State: failedState, Reason: "NonZeroExitCode", Attempt: 1, Charged: 1, Wake: "none"},
		},
		"cancelled, Job gone": {
			reason: "and for a cancelled one",
			scene:  ended(lifecycle.Cancel, cancel).at(after(100000)),
			want:   outcome{State: cancelledState, Reason: "Cancelled", Attempt: 1, Wake: "none"},
		},
		"succeeded, suspended and cancelled later": {
			reason: "what the user asks for afterwards changes nothing",
			scene:  ended(lifecycle.Succeed).at(after(100000)).with(suspend, cancel),
			want:   outcome{State: succeededState, Reason: "Completed", Attempt: 1, Wake: "none"},
		},
		"failed, cancelled later": {
			reason: "a failed Task stays failed",
			scene:  ended(lifecycle.Fail).at(after(100000)).with(cancel),
			want:   outcome{State: failedState, Reason: "NonZeroExitCode", Attempt: 1, Charged: 1, Wake: "none"},
		},
		"a Job shows up for a finished Task": {
			reason: "a worker of a finished Task is stopped",
			scene:  ended(lifecycle.Cancel, cancel).at(after(100)).job(2),
			want: outcome{
				State: cancelledState, Reason: "Cancelled", Attempt: 1,
				Stop: []string{"job-2 by deletion of the Job"}, Wake: "none",
			},
		},
	})
}

func TestC58TTL(t *testing.T) {
	runTable(t, map[string]testCase{
		"not yet": {
			reason: "counted from the completion",
			scene:  ended(lifecycle.Fail, ttl(60)).at(after(79)),
			want:   outcome{State: failedState, Reason: "NonZeroExitCode", Attempt: 1, Charged: 1, Wake: "1m20s"},
		},
		"over": {
			reason: "the Task is deleted",
			scene:  ended(lifecycle.Succeed, ttl(60)).at(after(80)),
			want:   outcome{State: succeededState, Reason: "Completed", Attempt: 1, DeleteTask: true, Wake: "none"},
		},
		"0": {
			reason: "0 means at once",
			scene:  ended(lifecycle.Cancel, ttl(0)).at(after(20)),
			want:   outcome{State: cancelledState, Reason: "Cancelled", Attempt: 1, DeleteTask: true, Wake: "none"},
		},
		"0, as it ends": {
			reason: "not in the pass that stores the outcome",
			scene:  processing(ttl(0)).runs(1, exits(0, after(20)), over),
			want:   outcome{State: succeededState, Reason: "Completed", Attempt: 1, Wake: "now"},
		},
		"none": {
			reason: "without a TTL the Task stays",
			scene:  ended(lifecycle.Succeed).at(after(10000000)),
			want:   outcome{State: succeededState, Reason: "Completed", Attempt: 1, Wake: "none"},
		},
		"retry asked for": {
			reason: "a Task whose request is unanswered is not deleted: it is retried",
			scene:  ended(lifecycle.Fail, ttl(60), askRetry("1")).at(after(1000)),
			want:   outcome{State: pendingState, Reason: "WaitingForWorker", Attempt: 2, Create: true, Wake: "none"},
		},
		"retry asked for, refused": {
			reason: "a refusal is stored before the Task goes",
			scene:  ended(lifecycle.Succeed, ttl(60), askRetry("1")).at(after(1000)),
			want:   outcome{State: succeededState, Reason: "Completed", Attempt: 1, Wake: "now"},
		},
		"retry asked for, answered": {
			reason: "an answered request holds nothing up",
			scene: ended(lifecycle.Succeed, ttl(60), askRetry("1"), func(t *v1alpha1.Task) {
				t.Status.LastHandledRetry = &v1alpha1.HandledRetry{RequestedAt: "1", Outcome: v1alpha1.RetryRefused}
			}).at(after(1000)),
			want: outcome{State: succeededState, Reason: "Completed", Attempt: 1, DeleteTask: true, Wake: "none"},
		},
	})
}

func TestRetryByHand(t *testing.T) {
	const yes, no = v1alpha1.RetryAccepted, v1alpha1.RetryRefused
	cases := map[string]struct {
		reason  string
		scene   *scene
		answer  v1alpha1.RetryOutcome
		says    string
		state   v1alpha1.State
		attempt int32
	}{
		"failed":            {"the only state from which a Task runs again", ended(lifecycle.Fail), yes, "", pendingState, 2},
		"failed, cancelled": {"not a cancelled one", ended(lifecycle.Fail, cancel), no, "spec.cancel", failedState, 1},
		"failed, suspended": {"it waits for the user to resume it", ended(lifecycle.Fail, suspend), yes, "", pendingState, 2},
		"succeeded":         {"final", ended(lifecycle.Succeed), no, "Succeeded", succeededState, 1},
		"cancelled":         {"final", ended(lifecycle.Cancel, cancel), no, "Cancelled", cancelledState, 1},
		"new":               {"it has not failed", fresh(), no, "Pending", pendingState, 1},
		"pending":           {"it has not failed", pending().job(1), no, "Pending", pendingState, 1},
		"processing":        {"it has not failed", processing().runs(1), no, "Processing", processingState, 1},
		"retrying":          {"it will be retried anyway", retrying(), no, "Retrying", retryingState, 1},
		"processing, at its end": {
			"the answer is about the state in which the request was found",
			processing(limit(0)).runs(1, exits(1, after(20)), over), no, "Processing", failedState, 1,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.scene.with(askRetry("2030-01-01T00:00:00Z"))
			plan := decide(tc.scene.Snapshot)
			checkPlan(t, tc.scene.Snapshot, plan)
			got := plan.Task.Status.LastHandledRetry
			if got == nil || got.RequestedAt != "2030-01-01T00:00:00Z" || got.Outcome != tc.answer || !strings.Contains(got.Message, tc.says) {
				t.Errorf("%s: answer %+v, want %s naming %q", tc.reason, got, tc.answer, tc.says)
			}
			if s := &plan.Task.Status; s.State != tc.state || s.Attempt != tc.attempt {
				t.Errorf("%s: state %s, attempt %d, want %s, %d", tc.reason, s.State, s.Attempt, tc.state, tc.attempt)
			}
			// The same request is answered once; a new one again.
			tc.scene.Task = plan.Task
			again := decide(tc.scene.Snapshot)
			if diff := cmp.Diff(got, again.Task.Status.LastHandledRetry); diff != "" {
				t.Errorf("answered again (-first +second):\n%s", diff)
			}
		})
	}
}

func TestRetryByHandRenewsTheBudget(t *testing.T) {
	s := ended(lifecycle.Fail, overall(60), askRetry("1")).at(after(5000)).job(1, jobFailed).pod(1, exits(1, after(20)), over)
	got := decide(s.Snapshot)
	st := &got.Task.Status
	if st.Charged != 0 || st.CompletionTime != nil || st.Attempt != 2 || !got.Create {
		t.Errorf("charged %d, completion %v, attempt %d, create %v", st.Charged, st.CompletionTime, st.Attempt, got.Create)
	}
	if want := after(5060); !lifecycle.OverallDeadline(got.Task).Equal(want) {
		t.Errorf("overall deadline %v, want %v", lifecycle.OverallDeadline(got.Task), want)
	}
	if isTrue(got.Task, v1alpha1.ConditionDeadLettered) || isTrue(got.Task, v1alpha1.ConditionFinished) {
		t.Errorf("conditions of its end stay: %v", st.Conditions)
	}
	checkPlan(t, s.Snapshot, got)
}

func TestRetryRequestIsBounded(t *testing.T) {
	long := strings.Repeat("é", 200)
	s := ended(lifecycle.Fail, askRetry(long))
	plan := decide(s.Snapshot)
	got := plan.Task.Status.LastHandledRetry
	if got == nil || got.Outcome != v1alpha1.RetryAccepted || len([]rune(got.RequestedAt)) > v1alpha1.MaxRetryRequestBytes {
		t.Fatalf("answer %+v", got)
	}
	s.Task = plan.Task
	s.Task.Status.State = v1alpha1.StateFailed
	if again := decide(s.Snapshot); again.Task.Status.Attempt != plan.Task.Status.Attempt {
		t.Error("a long request is answered for ever")
	}
}

// manyAttempts is Retrying after n failed attempts whose Jobs are all there.
func manyAttempts(n int32) *scene {
	now := after(20)
	s := stored(now, func(t *v1alpha1.Task) {
		t.Spec.Retry.Limit = ptr.To[int32](100)
		accept(t)
		for i := range n {
			if i > 0 {
				must(lifecycle.Again(t, lifecycle.Facts{BackoffOver: true}, now))
			}
			begin(t, now)
			start(t, now)
			finish(t, lifecycle.Fail, v1alpha1.ReasonNonZeroExitCode, ptr.To[int32](1), now)
		}
	}, nil)
	for i := range n {
		s.job(i+1, jobFailed).pod(i+1, exits(1, now), over)
	}
	return s
}

func TestPruneFailedJobs(t *testing.T) {
	cases := map[string]struct {
		reason string
		scene  *scene
		want   []string
	}{
		"three":                  {"the last three failed Jobs stay", manyAttempts(3), nil},
		"four":                   {"the oldest goes", manyAttempts(4), []string{"job-1"}},
		"more than are recorded": {"attempts that the status no longer lists are old ones", manyAttempts(15), jobs(12, 1)},
		"a worker still runs": {
			"no Job is deleted under a container that runs",
			func() *scene {
				s := manyAttempts(4)
				s.worker(1).Pods[0].MayRun, s.worker(1).Pods[0].Phase = true, corev1.PodRunning
				return s
			}(),
			nil,
		},
		"the next one runs": {
			"the current attempt does not count as a failed one",
			func() *scene {
				s := manyAttempts(4)
				t := s.Task
				must(lifecycle.Again(t, lifecycle.Facts{BackoffOver: true}, s.Now))
				begin(t, s.Now)
				start(t, s.Now)
				return s.runs(5)
			}(),
			[]string{"job-1"},
		},
		"then one succeeds": {
			"nor does the success",
			func() *scene {
				s := manyAttempts(3)
				t := s.Task
				must(lifecycle.Again(t, lifecycle.Facts{BackoffOver: true}, s.Now))
				begin(t, s.Now)
				start(t, s.Now)
				finish(t, lifecycle.Succeed, v1alpha1.ReasonCompleted, ptr.To[int32](0), s.Now)
				return s.job(4, completed)
			}(),
			nil,
		},
		"already going": {
			"the deletion is not asked for twice",
			func() *scene {
				s := manyAttempts(4)
				s.worker(1).Job.Deleting = true
				return s
			}(),
			nil,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			plan := decide(tc.scene.Snapshot)
			checkPlan(t, tc.scene.Snapshot, plan)
			if diff := cmp.Diff(tc.want, outcomeOf(tc.scene.Snapshot, plan).DeleteJobs); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func jobs(from, to int32) []string {
	var uids []string
	for i := from; i >= to; i-- {
		uids = append(uids, string(jobUID(i)))
	}
	return uids
}
