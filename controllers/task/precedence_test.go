package task

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// cause is one reason to end an attempt, in a form that can be laid over others.
type cause struct {
	name    string
	outcome string // reason of what is decided, stored or fixed
	spec    change
	pod     func(*PodFacts)
	late    bool // the clock is past all deadlines
}

func overallDeadlineCause(reason string) cause {
	return cause{name: "overall deadline", outcome: reason, spec: overall(60), late: true}
}

// The causes in the order of the design, that of the worker's word and that of the operator's. Each fixture is such that the
// cause alone leads to its outcome, and none hides another.
var (
	runningCauses = []cause{
		{name: "final report", outcome: v1alpha1.ReasonWorkerFailed, spec: reportedFailure(30, false)},
		{name: "disruption", outcome: v1alpha1.ReasonDisrupted, pod: func(p *PodFacts) { disruptedAt(after(35))(p); deleting(p) }},
		{name: "exit before the deadline", outcome: v1alpha1.ReasonNonZeroExitCode, pod: exits(3, after(40))},
		{name: "cancel", outcome: v1alpha1.ReasonCancelled, spec: cancel},
		overallDeadlineCause(v1alpha1.ReasonOverallDeadlineExceeded),
		{name: "pod deleted", outcome: v1alpha1.ReasonPodDeleted, pod: deleting},
		{name: "active deadline", outcome: v1alpha1.ReasonActiveDeadlineExceeded, spec: active(50), late: true},
		{name: "stage timeout", outcome: v1alpha1.ReasonStageTimeout, spec: inStage("resize", 20, 30), late: true},
		{name: "heartbeat", outcome: v1alpha1.ReasonHeartbeatTimeout, spec: heartbeat(60), late: true},
		{name: "no progress", outcome: v1alpha1.ReasonNoProgress, spec: noProgress(60), late: true},
		{name: "suspend", outcome: v1alpha1.ReasonSuspended, spec: suspend},
	}
	startingCauses = []cause{
		{name: "disruption", outcome: v1alpha1.ReasonDisrupted, pod: func(p *PodFacts) { disruptedAt(after(35))(p); deleting(p) }},
		{name: "start error", outcome: v1alpha1.ReasonStartError, pod: func(p *PodFacts) {
			p.Exit = &Exit{Code: 128, Reason: "StartError", StartTime: time.Unix(0, 0), FinishTime: after(40)}
		}},
		{name: "cancel", outcome: v1alpha1.ReasonCancelled, spec: cancel},
		overallDeadlineCause(v1alpha1.ReasonOverallDeadlineExceeded),
		{name: "pod deleted", outcome: v1alpha1.ReasonPodDeleted, pod: deleting},
		{name: "start timeout", outcome: v1alpha1.ReasonStartTimeout, late: true, spec: func(t *v1alpha1.Task) {
			s := int32(50)
			t.Spec.StartTimeoutSeconds = &s
		}},
		{name: "suspend", outcome: v1alpha1.ReasonSuspended, spec: suspend},
	}
)

// TestPrecedence tries every set of causes that can be seen together: the first of the list decides.
func TestPrecedence(t *testing.T) {
	bases := map[string]struct {
		causes []cause
		scene  func() *scene
	}{
		"running":  {runningCauses, func() *scene { return processing().runs(1) }},
		"starting": {startingCauses, func() *scene { return pending().job(1).pod(1) }},
	}
	for base, b := range bases {
		for set := 1; set < 1<<len(b.causes); set++ {
			s, want := b.scene().at(after(50)), ""
			var names []string
			pod := &s.worker(1).Pods[0]
			for i, c := range b.causes {
				if set&(1<<i) == 0 {
					continue
				}
				names = append(names, c.name)
				if want == "" {
					want = c.outcome
				}
				if c.spec != nil {
					c.spec(s.Task)
				}
				if c.pod != nil {
					c.pod(pod)
				}
				if c.late {
					s.at(after(100))
				}
			}
			t.Run(base+": "+strings.Join(names, ", "), func(t *testing.T) {
				plan := decide(s.Snapshot)
				checkPlan(t, s.Snapshot, plan)
				got := outcomeOf(s.Snapshot, plan)
				if want == v1alpha1.ReasonDisrupted && pod.Exit == nil && isCancelled(s.Task) {
					want = v1alpha1.ReasonCancelled // an outcome that is fixed and not yet fired is raised to cancel
				}
				if got.Stopping != want && (got.Stopping != "" || got.Reason != want) {
					t.Errorf("decided %q, fixed %q, want %q", got.Reason, got.Stopping, want)
				}
			})
		}
	}
}

func isCancelled(t *v1alpha1.Task) bool { return t.Spec.Cancel != nil && *t.Spec.Cancel }

func TestPrecedenceWithoutCause(t *testing.T) {
	for name, s := range map[string]*scene{
		"running":  processing().runs(1).at(after(50)),
		"starting": pending().job(1).pod(1).at(after(50)),
	} {
		if got := outcomeOf(s.Snapshot, decide(s.Snapshot)); got.Stopping != "" || got.Attempt != 1 {
			t.Errorf("%s: nothing has happened, yet %+v", name, got)
		}
	}
}

// TestC20EdgeOfTheDeadline: what finished in time counts, whenever it is seen; what finished after it does not.
func TestC20EdgeOfTheDeadline(t *testing.T) {
	deadlines := map[string]struct {
		spec   change
		reason string
		at     int
	}{
		"active":  {active(50), v1alpha1.ReasonActiveDeadlineExceeded, 60},
		"overall": {overall(60), v1alpha1.ReasonOverallDeadlineExceeded, 60},
	}
	edges := []struct {
		exit   int // after the deadline
		code   int32
		inTime bool
	}{
		{-1, 0, true}, {0, 0, true}, {1, 0, false},
		{-1, 1, true}, {0, 1, true}, {1, 1, false},
	}
	for name, dl := range deadlines {
		for _, e := range edges {
			for _, look := range []int{max(e.exit, 0), 5, 3600, 1000000} {
				for _, state := range []string{"seen running before", "seen at its end only"} {
					t.Run(fmt.Sprintf("%s, exit %d at %+ds, seen at +%ds, %s", name, e.code, e.exit, look, state), func(t *testing.T) {
						s := processing(dl.spec, limit(0))
						if state != "seen running before" {
							s = pending(dl.spec, limit(0), func(t *v1alpha1.Task) { t.Spec.StartTimeoutSeconds = nil })
						}
						s.at(after(dl.at+look)).job(1).pod(1, exits(e.code, after(dl.at+e.exit)), over)
						plan := decide(s.Snapshot)
						checkPlan(t, s.Snapshot, plan)
						want := outcome{State: failedState, Reason: dl.reason, Attempt: 1, Charged: 1, Wake: "now"}
						switch {
						case e.inTime && e.code == 0:
							want.State, want.Reason, want.Charged = succeededState, v1alpha1.ReasonCompleted, 0
						case e.inTime:
							want.Reason = v1alpha1.ReasonNonZeroExitCode
						}
						if got := outcomeOf(s.Snapshot, plan); got.State != want.State || got.Reason != want.Reason || got.Charged != want.Charged {
							t.Errorf("got %+v, want %+v", got, want)
						}
						a := attempt(plan.Task, 1)
						if a.FinishTime == nil || !a.FinishTime.Time.Equal(after(dl.at+e.exit)) {
							t.Errorf("finish time %v, want the worker's own", a.FinishTime)
						}
						// One transition, one finish time, then frozen.
						s.Task = plan.Task
						again := decide(s.at(s.Now.Add(time.Hour)).Snapshot)
						checkPlan(t, s.Snapshot, again)
						if !again.Task.Status.CompletionTime.Equal(plan.Task.Status.CompletionTime) {
							t.Error("the completion time has moved")
						}
					})
				}
			}
		}
	}
}

// TestC19DeadlineByTheClock: a deadline passes while nothing else happens.
func TestC19DeadlineByTheClock(t *testing.T) {
	runTable(t, map[string]testCase{
		"a moment before": {
			reason: "the wake-up is the deadline itself",
			scene:  processing(active(50)).runs(1).at(after(60).Add(-time.Millisecond)),
			want:   outcome{State: processingState, Reason: "WorkerRunning", Attempt: 1, Wake: "1m0s"},
		},
		"at it": {
			reason: "the outcome is fixed, then the worker is stopped",
			scene:  processing(active(50)).runs(1).at(after(60)),
			want: outcome{
				State: processingState, Reason: "ActiveDeadlineExceeded", Attempt: 1, Stopping: "ActiveDeadlineExceeded",
				Stop: []string{"pod-1 by deadline"}, Wake: "1m45s",
			},
		},
		"long after, the operator was down": {
			reason: "the same, right after the start-up",
			scene:  processing(active(50)).runs(1).at(after(3600)),
			want: outcome{
				State: processingState, Reason: "ActiveDeadlineExceeded", Attempt: 1, Stopping: "ActiveDeadlineExceeded",
				Stop: []string{"pod-1 by deadline"}, Wake: "1h0m45s",
			},
		},
		"long after, the pod's own deadline has ended it": {
			reason: "the backstop counts as the deadline; it has stopped, so the event fires",
			scene: processing(active(50)).at(after(3600)).job(1, jobFailed).
				pod(1, exits(143, after(800)), over, podSays("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")),
			want: outcome{State: retryingState, Reason: "ActiveDeadlineExceeded", Attempt: 1, Charged: 1, Wake: "now"},
		},
		"the template's shorter deadline has ended it without an exit": {
			reason: "it is over: nobody waits for the longer deadline",
			scene: processing().at(after(100)).job(1, jobFailed).
				pod(1, over, podSays("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")),
			want: outcome{State: retryingState, Reason: "ActiveDeadlineExceeded", Attempt: 1, Charged: 1, Wake: "now"},
		},
		"C20 the pod's own deadline came after the exit": {
			reason: "another container overran; the worker had done its work in time",
			scene: processing(active(50)).at(after(3600)).job(1, jobFailed).
				pod(1, exits(0, after(40)), over, podSays("DeadlineExceeded", "Pod was active on the node longer than the specified deadline"),
					func(p *PodFacts) { p.Phase, p.Deadline = corev1.PodFailed, after(700) }),
			want: outcome{State: succeededState, Reason: "Completed", Attempt: 1, Wake: "now"},
		},
		"the pod's own deadline, and the worker made an exit 0 of its SIGTERM": {
			reason: "that is no success",
			scene: processing().at(after(100)).job(1, jobFailed).
				pod(1, exits(0, after(71)), over, podSays("DeadlineExceeded", "Pod was active on the node longer than the specified deadline"),
					func(p *PodFacts) { p.Phase, p.Deadline = corev1.PodFailed, after(70) }),
			want: outcome{State: retryingState, Reason: "ActiveDeadlineExceeded", Attempt: 1, Charged: 1, Wake: "now"},
		},
		"cancelled, and it has ended after the overall deadline": {
			reason: "what the user asked for comes before a deadline that passed as well",
			scene:  processing(cancel, overall(60)).at(after(70)).runs(1, exits(0, after(65)), over),
			want:   outcome{State: cancelledState, Reason: "Cancelled", Attempt: 1, Wake: "now"},
		},
		"C22 the overall deadline in the middle of an attempt": {
			reason: "no other attempt follows, whatever the budget",
			scene:  processing(overall(60), terminating(v1alpha1.ReasonOverallDeadlineExceeded, after(60))).at(after(70)).job(1, jobFailed).pod(1, exits(143, after(65)), over),
			want:   outcome{State: failedState, Reason: "OverallDeadlineExceeded", Attempt: 1, Charged: 1, Wake: "now"},
		},
	})
}

// TestJobAsSecondWitness: the pod is gone, the Job still says something.
func TestJobAsSecondWitness(t *testing.T) {
	success := outcome{State: succeededState, Reason: "Completed", Attempt: 1, Wake: "now"}
	runTable(t, map[string]testCase{
		"C05 complete, seen running before": {
			reason: "work that was done is not done again",
			scene:  processing().at(after(60)).job(1, completed),
			want:   success,
		},
		"C05 complete, never seen running": {
			reason: "the same; both transitions are in one write",
			scene:  pending().at(after(60)).job(1, completed),
			want:   success,
		},
		"C36 complete, then cancelled": {
			reason: "if it had truly succeeded first: Succeeded",
			scene:  processing().at(after(60)).job(1, completed).with(cancel),
			want:   success,
		},
		"C20 complete, looked at after the deadline": {
			reason: "an exit in time counts, and one that overran would have been stopped",
			scene:  processing(active(30)).at(after(3600)).job(1, completed),
			want:   success,
		},
		"C11 complete while the operator was down, past the start timeout": {
			reason: "the worker's word comes before any timeout",
			scene:  pending().at(after(3600)).job(1, completed),
			want:   success,
		},
		"failed": {
			reason: "the pod was known, and is gone",
			scene:  processing().at(after(60)).job(1, jobFailed),
			want:   outcome{State: retryingState, Reason: "PodDeleted", Attempt: 1, Charged: 1, Wake: "now"},
		},
		"failed, never seen": {
			reason: "nobody knows how it ended",
			scene:  pending().at(after(60)).job(1, jobFailed),
			want:   outcome{State: retryingState, Reason: "OutcomeUnknown", Attempt: 1, Charged: 1, Wake: "now"},
		},
		"C30 failed by a disruption": {
			reason: "the Job's podFailurePolicy keeps that evidence",
			scene:  processing().at(after(60)).job(1, disruptedJ),
			want:   outcome{State: retryingState, Reason: "Disrupted", Attempt: 1, Uncharged: 1, Wake: "now"},
		},
		"C30 failed by a disruption, cancelled": {
			reason: "a disruption comes before a cancellation, which the next pass finds",
			scene:  processing().at(after(60)).job(1, disruptedJ).with(cancel),
			want:   outcome{State: retryingState, Reason: "Disrupted", Attempt: 1, Uncharged: 1, Wake: "now"},
		},
		"another Job of that name": {
			reason: "the recorded Job is gone, whatever has taken its place; that one is stopped before the attempt is closed",
			scene:  processing().at(after(60)).job(1, func(j *JobFacts) { j.UID = "other" }),
			want: outcome{
				State: processingState, Reason: "JobDeleted", Attempt: 1, Stopping: "JobDeleted", Wake: "6m0s",
				Stop: []string{"other by deletion of the Job"},
			},
		},
	})
}

func TestStartAndEndTogether(t *testing.T) {
	s := pending().at(after(30)).job(1).pod(1, exits(0, after(25)), over)
	plan := decide(s.Snapshot)
	checkPlan(t, s.Snapshot, plan)
	var got []string
	for _, h := range plan.Task.Status.History {
		got = append(got, fmt.Sprintf("%s-%s-%s", h.From, h.Event, h.To))
	}
	want := "--Pending Pending-START-Processing Processing-SUCCEED-Succeeded"
	if strings.Join(got, " ") != want {
		t.Errorf("history %v, want %v", got, want)
	}
	if st := plan.Task.Status.StartTime; st == nil || !st.Time.Equal(started) {
		t.Errorf("start time %v, want %v", st, started)
	}
	if _, err := lifecycle.Next(v1alpha1.StatePending, lifecycle.Succeed, lifecycle.Facts{}); err == nil {
		t.Error("the table has a row from Pending to Succeeded: this test is out of date")
	}
}
