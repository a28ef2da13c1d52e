package task

import (
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// TestStopOfSeveralPods: a Job makes a second pod only where somebody has taken the first away; both are stopped.
func TestStopOfSeveralPods(t *testing.T) {
	second := func(changes ...func(*PodFacts)) func(*PodFacts) {
		return func(p *PodFacts) {
			p.Name, p.UID = "pod-1b", "pod-1b"
			for _, c := range changes {
				c(p)
			}
		}
	}
	runTable(t, map[string]testCase{
		"both on nodes": {
			reason: "each gets its order",
			scene:  processing().runs(1).pod(1, running, second()).with(cancel),
			want: outcome{
				State: processingState, Reason: "Cancelled", Attempt: 1, Stopping: "Cancelled",
				Stop: []string{"pod-1 by deadline", "pod-1b by deadline"}, Wake: "1m5s",
			},
		},
		"one has stopped": {
			reason: "Cancelled only when no container runs",
			scene: processing(terminating(v1alpha1.ReasonCancelled, after(15))).runs(1, exits(143, after(18)), over).
				pod(1, running, second(stopAsked)).with(cancel),
			want: outcome{State: processingState, Reason: "Cancelled", Attempt: 1, Stopping: "Cancelled", Wake: "1m0s"},
		},
	})
}

func TestStopGrace(t *testing.T) {
	for _, grace := range []time.Duration{0, 30 * time.Second, 200 * time.Second} {
		overdue := after(60).Add(grace + stopSlack)
		for _, tc := range []struct {
			at   time.Time
			want int
		}{{overdue.Add(-time.Millisecond), 0}, {overdue, 1}} {
			s := processing(terminating(v1alpha1.ReasonCancelled, after(60)), cancel).at(tc.at).
				runs(1, stopAsked, func(p *PodFacts) { p.Grace = grace })
			plan := decide(s.Snapshot)
			checkPlan(t, s.Snapshot, plan)
			if len(plan.Stop) != tc.want {
				t.Errorf("grace %s: %d orders at %s", grace, len(plan.Stop), tc.at.Sub(created))
			}
		}
	}
}

// TestAWorkerInItsGraceIsNotLost: workerLostTimeoutSeconds (300 here) is for a worker that is unheard of. One that has longer
// than that to stop is waited for, until the stop and the deletion after it have both had their time.
func TestAWorkerInItsGraceIsNotLost(t *testing.T) {
	cancelling := func(at int, changes ...change) *scene {
		changes = append(changes, terminating(v1alpha1.ReasonCancelled, after(20)), cancel)
		return processing(changes...).at(after(at)).runs(1, stopAsked, deleting)
	}
	going := func(wake string) outcome {
		return outcome{State: processingState, Reason: "Cancelled", Attempt: 1, Stopping: "Cancelled", Wake: wake}
	}
	over := outcome{State: cancelledState, Reason: "Cancelled", Attempt: 1, Wake: "now"}
	runTable(t, map[string]testCase{
		"a grace of 600 s":        {reason: "it uses its grace", scene: cancelling(320, podGraceOf(600)), want: going("20m50s")},
		"a grace of 600 s, over":  {reason: "now it is lost", scene: cancelling(1250, podGraceOf(600)), want: over},
		"the default grace":       {reason: "the timeout is longer", scene: cancelling(319), want: going("5m20s")},
		"the default grace, over": {reason: "the timeout is over", scene: cancelling(320), want: over},
		"a very short lost timeout": {
			reason: "the default grace is longer",
			scene:  cancelling(109, func(t *v1alpha1.Task) { t.Spec.WorkerLostTimeoutSeconds = ptr.To[int32](1) }),
			want:   going("1m50s"),
		},
	})
	// The next attempt waits as long for what is left of an earlier one.
	s := retrying(podGraceOf(600)).at(after(1249)).runs(1, exits(1, after(20)), stopAsked, deleting)
	if plan := decide(s.Snapshot); plan.Create {
		t.Error("the next attempt starts while the earlier worker is in its grace")
	}
	if plan := decide(s.at(after(1310)).Snapshot); !plan.Create {
		t.Error("the next attempt waits for ever")
	}
}

// TestStopUnknown: a pass over an old copy of the Task may see an attempt that has begun since.
func TestStopUnknown(t *testing.T) {
	s := ended(lifecycle.Fail).at(after(100)).runs(2)
	if plan := decide(s.Snapshot); len(plan.Stop) == 0 || !plan.StopUnknown {
		t.Errorf("attempt 2 of a Task that ended with attempt 1: stop %v, unknown %t", plan.Stop, plan.StopUnknown)
	}
	if plan := decide(ended(lifecycle.Fail).at(after(100)).runs(1).Snapshot); len(plan.Stop) == 0 || plan.StopUnknown {
		t.Errorf("attempt 1: stop %v, unknown %t", plan.Stop, plan.StopUnknown)
	}
}

// TestLeftovers: pods of ended attempts have finishGraceSeconds to end by themselves; then they are stopped.
func TestLeftovers(t *testing.T) {
	done := func(wake string, stop ...string) outcome {
		return outcome{State: succeededState, Reason: "Completed", Attempt: 1, Stop: stop, Wake: wake}
	}
	keep := retention(100000)
	runTable(t, map[string]testCase{
		"within the grace": {
			reason: "a pod may flush its logs",
			scene:  ended(lifecycle.Succeed, keep).at(after(79)).runs(1, exits(0, after(20))),
			want:   done("1m20s"),
		},
		"past it": {
			reason: "invariant 5: no pod of a finished Task runs after its grace",
			scene:  ended(lifecycle.Succeed, keep).at(after(80)).runs(1, exits(0, after(20))),
			want:   done("2m5s", "pod-1 by deadline"),
		},
		"long past it, the operator was down": {
			reason: "the stop by deadline has its time all the same, and is not asked for in a loop",
			scene:  ended(lifecycle.Succeed, keep).at(after(5000)).runs(1, exits(0, after(20))),
			want:   done("1h23m35s", "pod-1 by deadline"),
		},
		"stopping": {
			reason: "within the pod's grace",
			scene:  ended(lifecycle.Succeed, keep).at(after(100)).runs(1, exits(0, after(20)), stopAsked),
			want:   done("2m5s"),
		},
		"stop has not worked": {
			reason: "deletion is the fallback",
			scene:  ended(lifecycle.Succeed, keep).at(after(125)).runs(1, exits(0, after(20)), stopAsked),
			want:   done("27h47m0s", "pod-1 by deletion"),
		},
		"grace 0": {
			reason: "0 means at once",
			scene: ended(lifecycle.Succeed, keep, func(t *v1alpha1.Task) {
				zero := int32(0)
				t.Spec.FinishGraceSeconds = &zero
			}).at(after(21)).runs(1, exits(0, after(20))),
			want: done("1m5s", "pod-1 by deadline"),
		},
		"a Job that has lost its pod": {
			reason: "it is deleted at once: it could only make another pod",
			scene:  ended(lifecycle.Cancel, cancel).at(after(21)).job(1),
			want: outcome{
				State: cancelledState, Reason: "Cancelled", Attempt: 1, Stop: []string{"job-1 by deletion of the Job"}, Wake: "none",
			},
		},
		"a successful attempt's Job that has lost its pod": {
			reason: "the same where the worker had ended by itself",
			scene:  ended(lifecycle.Succeed, keep).at(after(21)).job(1),
			want:   done("27h47m0s", "job-1 by deletion of the Job"),
		},
		"the worker of a lost attempt": {
			reason: "it had its wait; it is stopped wherever it shows up",
			scene: stored(after(400), func(t *v1alpha1.Task) {
				t.Spec.Retry.Limit = new(int32)
				accept(t)
				begin(t, created)
				start(t, started)
				finish(t, lifecycle.Timeout, v1alpha1.ReasonActiveDeadlineExceeded, nil, after(400))
			}, nil).runs(1),
			want: outcome{
				State: failedState, Reason: "ActiveDeadlineExceeded", Attempt: 1, Charged: 1,
				Stop: []string{"pod-1 by deadline"}, Wake: "7m25s",
			},
		},
		"a worker that nobody knows": {
			reason: "it is stopped, and deleted where that does not work",
			scene:  ended(lifecycle.Succeed, keep).at(after(5000)).runs(7, stopAsked),
			want:   done("none", "pod-7 by deletion"),
		},
	})
}
