package task

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/test/builders"
)

const (
	pendingState    = v1alpha1.StatePending
	processingState = v1alpha1.StateProcessing
	succeededState  = v1alpha1.StateSucceeded
	failedState     = v1alpha1.StateFailed
	cancelledState  = v1alpha1.StateCancelled
	retryingState   = v1alpha1.StateRetrying
)

func TestFirstAttempt(t *testing.T) {
	runTable(t, map[string]testCase{
		"new": {
			reason: "a new Task is accepted and its Job asked for in one pass",
			scene:  fresh(),
			want:   outcome{State: pendingState, Reason: "WaitingForWorker", Attempt: 1, Create: true, Wake: "none"},
		},
		"accepted": {
			reason: "an accepted Task gets its Job",
			scene:  accepted(),
			want:   outcome{State: pendingState, Reason: "WaitingForWorker", Attempt: 1, Create: true, Wake: "none"},
		},
		"C02 job exists already": {
			reason: "the write that told of the Job was lost: the Job is adopted, no second one is made",
			scene:  accepted().job(1),
			want:   outcome{State: pendingState, Reason: "WaitingForWorker", Attempt: 1, Wake: "2s"},
		},
		"C02 answer was lost": {
			reason: "the try is recorded, its answer was lost, the Job exists: adopted, the attempt number unchanged",
			scene:  uncreated().job(1),
			want:   outcome{State: pendingState, Reason: "WaitingForWorker", Attempt: 1, Wake: "10m0s"},
		},
		"not created yet": {
			reason: "a creation that failed is tried again",
			scene:  uncreated(),
			want:   outcome{State: pendingState, Reason: "CreatePending", Attempt: 1, Create: true, Wake: "10m0s"},
		},
		"deleting": {
			reason: "a Task that goes is left to the garbage collector",
			scene: fresh().with(func(t *v1alpha1.Task) {
				t.DeletionTimestamp, t.Finalizers = ptr.To(metav1.NewTime(created)), []string{"example.com/other"}
			}),
			want: outcome{State: pendingState, Reason: "Accepted", Wake: "none"},
		},
		"deleting, with a worker": {
			reason: "while a finalizer of somebody else holds the Task its worker does not run on",
			scene:  processing(goes).runs(1),
			want:   outcome{State: processingState, Reason: "WorkerRunning", Attempt: 1, Stop: []string{"job-1 by deletion of the Job"}, Wake: "none"},
		},
		"deleting, its worker has ended": {
			reason: "what is left is evidence",
			scene:  processing(goes).runs(1, exits(0, after(20)), over),
			want:   outcome{State: processingState, Reason: "WorkerRunning", Attempt: 1, Wake: "none"},
		},
		"deleting, a pod without its Job": {
			reason: "nobody else would stop it",
			scene:  processing(goes).pod(1, running),
			want:   outcome{State: processingState, Reason: "WorkerRunning", Attempt: 1, Stop: []string{"pod-1 by deletion"}, Wake: "none"},
		},
		"deleting, its Job is to stay": {
			reason: "--cascade=orphan",
			scene:  processing(goes, func(t *v1alpha1.Task) { t.Finalizers = []string{metav1.FinalizerOrphanDependents} }).runs(1),
			want:   outcome{State: processingState, Reason: "WorkerRunning", Attempt: 1, Wake: "none"},
		},
		"input too large": {
			reason: "an input over the limit fails the Task for good, in the first pass",
			scene:  fresh(tooMuchInput),
			want:   outcome{State: failedState, Reason: "InputTooLarge", Attempt: 1, Wake: "now"},
		},
		"C22 overall deadline before the first attempt": {
			reason: "no attempt starts past the limit",
			scene:  accepted(overall(60)).at(after(60)),
			want:   outcome{State: failedState, Reason: "OverallDeadlineExceeded", Attempt: 1, Wake: "now"},
		},
	})
}

func tooMuchInput(t *v1alpha1.Task) {
	t.Spec.Input = builders.Task("x").Input(string(make([]byte, v1alpha1.MaxInputBytes))).Obj().Spec.Input
}

func TestC40BornCancelledOrSuspended(t *testing.T) {
	runTable(t, map[string]testCase{
		"born cancelled": {
			reason: "it is cancelled, without a worker",
			scene:  fresh(cancel),
			want:   outcome{State: cancelledState, Reason: "Cancelled", Attempt: 1, Wake: "now"},
		},
		"born cancelled, and a Job was made of which nothing is told yet": {
			reason: "the Job is removed again, and only then is the Task Cancelled",
			scene:  fresh(cancel).job(1),
			want: outcome{
				State: pendingState, Reason: "Cancelled", Attempt: 1, Stopping: "Cancelled",
				Stop: []string{"job-1 by deletion of the Job"}, Wake: "2s",
			},
		},
		"accepted, then cancelled": {
			reason: "it is cancelled, without a worker",
			scene:  accepted(cancel),
			want:   outcome{State: cancelledState, Reason: "Cancelled", Attempt: 1, Wake: "now"},
		},
		"born suspended": {
			reason: "no Job at all; only the user moves it",
			scene:  fresh(suspend),
			want:   outcome{State: pendingState, Reason: "Suspended", Attempt: 1, Wake: "none"},
		},
		"born suspended with an overall deadline": {
			reason: "the overall deadline goes on while it is suspended",
			scene:  fresh(suspend, overall(60)),
			want:   outcome{State: pendingState, Reason: "Suspended", Attempt: 1, Wake: "1m0s"},
		},
		"suspended past the overall deadline": {
			reason: "the overall deadline goes on while it is suspended",
			scene:  accepted(suspend, overall(60)).at(after(60)),
			want:   outcome{State: failedState, Reason: "OverallDeadlineExceeded", Attempt: 1, Wake: "now"},
		},
		"resumed": {
			reason: "a Task that is no longer suspended gets its Job",
			scene: accepted(func(t *v1alpha1.Task) {
				t.Status.Reason = v1alpha1.ReasonSuspended
			}),
			want: outcome{State: pendingState, Reason: "WaitingForWorker", Attempt: 1, Create: true, Wake: "none"},
		},
		"cancelled while the creation is in flight": {
			reason: "no Job was made: there is nothing to stop",
			scene:  uncreated().with(cancel),
			want:   outcome{State: cancelledState, Reason: "Cancelled", Attempt: 1, Wake: "now"},
		},
		"cancelled, and the creation went through": {
			reason: "the Job is removed again, and only then is the Task Cancelled",
			scene:  uncreated().job(1).with(cancel),
			want: outcome{
				State: pendingState, Reason: "Cancelled", Attempt: 1, Stopping: "Cancelled",
				Stop: []string{"job-1 by deletion of the Job"}, Wake: "5m5s",
			},
		},
	})
}

func TestC37CancelBeatsSuspend(t *testing.T) {
	runTable(t, map[string]testCase{
		"suspended at birth, then cancelled": {
			reason: "cancelled without being released to run",
			scene:  accepted(suspend, cancel),
			want:   outcome{State: cancelledState, Reason: "Cancelled", Attempt: 1, Wake: "now"},
		},
		"run, suspended, then cancelled": {
			reason: "a Task suspended between two attempts is cancelled at once",
			scene:  retrying(suspend, cancel),
			want:   outcome{State: cancelledState, Reason: "Cancelled", Attempt: 1, Charged: 1, Wake: "now"},
		},
		"suspended and cancelled while it runs": {
			reason: "the outcome that is fixed is the cancellation",
			scene:  processing().runs(1).with(suspend, cancel),
			want: outcome{
				State: processingState, Reason: "Cancelled", Attempt: 1, Stopping: "Cancelled",
				Stop: []string{"pod-1 by deadline"}, Wake: "1m5s",
			},
		},
		"cancelled while it is being suspended": {
			reason: "a fixed outcome can be raised, to cancel",
			scene:  processing(terminating(v1alpha1.ReasonSuspended, after(15))).runs(1, stopAsked).with(suspend, cancel),
			want:   outcome{State: processingState, Reason: "Cancelled", Attempt: 1, Stopping: "Cancelled", Wake: "1m0s"},
		},
		"resumed after the cancellation": {
			reason: "a cancelled Task stays cancelled",
			scene:  ended(lifecycle.Cancel, cancel),
			want:   outcome{State: cancelledState, Reason: "Cancelled", Attempt: 1, Wake: "none"},
		},
	})
}

func TestC35CancelWhileWaiting(t *testing.T) {
	runTable(t, map[string]testCase{
		"waiting for quota": {
			reason: "there is no pod: the Job is deleted, so that it cannot get one",
			scene:  pending().job(1).with(cancel),
			want: outcome{
				State: pendingState, Reason: "Cancelled", Attempt: 1, Stopping: "Cancelled",
				Stop: []string{"job-1 by deletion of the Job"}, Wake: "5m5s",
			},
		},
		"waiting for quota, the Job is going": {
			reason: "the order is not given twice",
			scene:  pending(terminating(v1alpha1.ReasonCancelled, after(5))).job(1, jobGoing).with(cancel),
			want:   outcome{State: pendingState, Reason: "Cancelled", Attempt: 1, Stopping: "Cancelled", Wake: "5m5s"},
		},
		"waiting for quota, the Job is gone": {
			reason: "no Job, no worker: Cancelled",
			scene:  pending(terminating(v1alpha1.ReasonCancelled, after(5))).with(cancel),
			want:   outcome{State: cancelledState, Reason: "Cancelled", Attempt: 1, Wake: "now"},
		},
		"unscheduled": {
			reason: "no node has the pod: the Job is deleted with it",
			scene:  pending().job(1).pod(1, unbound).with(cancel),
			want: outcome{
				State: pendingState, Reason: "Cancelled", Attempt: 1, Stopping: "Cancelled",
				Stop: []string{"job-1 by deletion of the Job"}, Wake: "5m5s",
			},
		},
		"pulling its image": {
			reason: "a kubelet has the pod: it is stopped by its deadline and leaves its evidence",
			scene:  pending().job(1).pod(1).with(cancel),
			want: outcome{
				State: pendingState, Reason: "Cancelled", Attempt: 1, Stopping: "Cancelled",
				Stop: []string{"pod-1 by deadline"}, Wake: "50s",
			},
		},
	})
}

// TestC35SuspendBeforeTheJob: an attempt of which nothing exists is taken back, not counted.
func TestC35SuspendBeforeTheJob(t *testing.T) {
	s := uncreated(suspend)
	plan := decide(s.Snapshot)
	checkPlan(t, s.Snapshot, plan)
	st := plan.Task.Status
	if st.State != pendingState || st.Reason != v1alpha1.ReasonSuspended || st.Uncharged != 0 || len(st.Attempts) != 0 || st.Worker != nil || plan.Create {
		t.Fatalf("suspended before its Job was made: %+v", st)
	}
	s.Task = plan.Task
	s.Task.Spec.Suspend = nil
	plan = decide(s.at(after(5000)).Snapshot)
	if !plan.Create || plan.Task.Status.Attempt != 1 || !plan.Task.Status.Worker.CreateTime.Time.Equal(after(5000)) {
		t.Errorf("resumed: create %t, %+v: the start timeout begins anew", plan.Create, plan.Task.Status)
	}
}

// TestC39CancelCountsFromItself: however long the grace of what is left, a cancelled Task waits for a lost worker no longer
// than workerLostTimeoutSeconds from its cancellation.
func TestC39CancelCountsFromItself(t *testing.T) {
	grace := func(t *v1alpha1.Task) { t.Spec.FinishGraceSeconds = ptr.To[int32](3600) }
	s := retrying(cancel, grace).at(after(25)).runs(1, exits(1, after(20)), stopAsked, deleting)
	s.Task = decide(s.Snapshot).Task
	for at, want := range map[int]v1alpha1.State{324: retryingState, 325: cancelledState} {
		if got := decide(s.at(after(at)).Snapshot).Task.Status.State; got != want {
			t.Errorf("%d s: %s, want %s", at, got, want)
		}
	}
}

// TestInputIsMeasuredInItsShortestForm: the API server answers <, > and & as six bytes each.
func TestInputIsMeasuredInItsShortestForm(t *testing.T) {
	escaped := func(n int) change {
		return func(t *v1alpha1.Task) {
			t.Spec.Input = &v1alpha1.TaskInput{Value: apiextensionsv1.JSON{Raw: []byte(`"` + strings.Repeat(`\u003c`, n) + `"`)}}
		}
	}
	if plan := decide(fresh(escaped(v1alpha1.MaxInputBytes - 2)).Snapshot); !plan.Create {
		t.Errorf("an input of the greatest size: %s", plan.Task.Status.Message)
	}
	plan := decide(accepted(escaped(v1alpha1.MaxInputBytes - 1)).Snapshot)
	if st := plan.Task.Status; st.Reason != v1alpha1.ReasonInputTooLarge || !strings.Contains(st.Message, "has 65537 bytes") {
		t.Errorf("one byte more: %s: %s", st.Reason, st.Message)
	}
	job := newJob(decide(fresh(escaped(3)).Snapshot).Task, nil)
	if got := job.Spec.Template.Annotations[v1alpha1.AnnotationInput]; got != `"<<<"` {
		t.Errorf("the worker gets %s", got)
	}
}

func TestC39CancelDuringBackoff(t *testing.T) {
	runTable(t, map[string]testCase{
		"in backoff": {
			reason: "Cancelled, no further Job",
			scene:  retrying(cancel),
			want:   outcome{State: cancelledState, Reason: "Cancelled", Attempt: 1, Charged: 1, Wake: "now"},
		},
		"as the timer fires": {
			reason: "cancel comes before the retry that is due",
			scene:  retrying(cancel).at(after(30)),
			want:   outcome{State: cancelledState, Reason: "Cancelled", Attempt: 1, Charged: 1, Wake: "now"},
		},
		"the retry's Job was made": {
			reason: "the retry had been decided: it is adopted, and the next pass stops it",
			scene:  retrying(cancel).at(after(30)).job(2),
			want:   outcome{State: pendingState, Reason: "WaitingForWorker", Attempt: 2, Charged: 1, Wake: "now"},
		},
		"an earlier worker still runs": {
			reason: "Cancelled is said only when no container runs",
			scene:  retrying(cancel).runs(1, exits(1, after(20))),
			want: outcome{
				State: retryingState, Reason: "NonZeroExitCode", Attempt: 1, Charged: 1,
				Stopping: "Cancelled", Stop: []string{"pod-1 by deadline"}, Wake: "1m5s",
			},
		},
		"an earlier worker still runs, past its grace": {
			reason: "two causes to stop it make one order",
			scene:  retrying(cancel).at(after(80)).runs(1, exits(1, after(20))),
			want: outcome{
				State: retryingState, Reason: "NonZeroExitCode", Attempt: 1, Charged: 1,
				Stopping: "Cancelled", Stop: []string{"pod-1 by deadline"}, Wake: "2m5s",
			},
		},
		"an earlier worker still runs, past the overall deadline": {
			reason: "cancel comes before the deadline, and waits without a loop",
			scene:  retrying(cancel, overall(60)).at(after(70)).runs(1, exits(1, after(20)), stopAsked),
			want:   outcome{State: retryingState, Reason: "NonZeroExitCode", Attempt: 1, Charged: 1, Stopping: "Cancelled", Wake: "1m55s"},
		},
		"an earlier worker has not been heard of": {
			reason: "the wait for a lost worker is over, whatever the next attempt would have waited for",
			scene: retrying(cancel, waitForLost).at(after(400)).
				runs(1, exits(1, after(20)), stopAsked, deleting),
			want: outcome{State: cancelledState, Reason: "Cancelled", Attempt: 1, Charged: 1, Wake: "now"},
		},
	})
}

func TestC29C33Backoff(t *testing.T) {
	runTable(t, map[string]testCase{
		"in backoff": {
			reason: "the wait ends at the stored time",
			scene:  retrying().at(after(25)).job(1, jobFailed).pod(1, exits(1, after(20)), over),
			want:   outcome{State: retryingState, Reason: "NonZeroExitCode", Attempt: 1, Charged: 1, Wake: "30s"},
		},
		"just before its end": {
			reason: "not a moment early",
			scene:  retrying().at(after(30).Add(-time.Millisecond)),
			want:   outcome{State: retryingState, Reason: "NonZeroExitCode", Attempt: 1, Charged: 1, Wake: "30s"},
		},
		"over": {
			reason: "the next attempt begins",
			scene:  retrying().at(after(30)),
			want:   outcome{State: pendingState, Reason: "WaitingForWorker", Attempt: 2, Charged: 1, Create: true, Wake: "none"},
		},
		"suspended": {
			reason: "the retry waits for the user",
			scene:  retrying(suspend).at(after(30)),
			want:   outcome{State: retryingState, Reason: "NonZeroExitCode", Attempt: 1, Charged: 1, Wake: "none"},
		},
		"C22 the next attempt would start too late": {
			reason: "no time is shown at which nothing will happen; the deadline wakes it",
			scene: stored(after(20), func(t *v1alpha1.Task) {
				overall(25)(t)
				accept(t)
				begin(t, created)
				start(t, started)
				finish(t, lifecycle.Fail, v1alpha1.ReasonNonZeroExitCode, ptr.To[int32](1), after(20))
			}, nil),
			want: outcome{State: retryingState, Reason: "NonZeroExitCode", Attempt: 1, Charged: 1, Wake: "25s"},
		},
		"C22 overall deadline in the backoff": {
			reason: "the overall deadline ends a Task in the middle of a wait",
			scene:  retrying(overall(25)).at(after(25)),
			want:   outcome{State: failedState, Reason: "OverallDeadlineExceeded", Attempt: 1, Charged: 1, Wake: "now"},
		},
	})
}

// TestEarlierWorker: a next attempt never starts while a container of an earlier one may run, except after
// workerLostTimeoutSeconds, and then only where the Task does not want to wait.
func TestEarlierWorker(t *testing.T) {
	// Attempt 1 exited at 20 s, another container of its pod goes on.
	lingering := func(changes ...change) *scene { return retrying(changes...).runs(1, exits(1, after(20))) }
	// Attempt 1 was stopped for its deadline, and nobody confirmed that it stopped.
	lost := func(changes ...change) *scene {
		return stored(after(400), func(t *v1alpha1.Task) {
			accept(t)
			begin(t, created)
			start(t, started)
			finish(t, lifecycle.Timeout, v1alpha1.ReasonActiveDeadlineExceeded, nil, after(400))
			setCondition(t, v1alpha1.ConditionWorkerStopped, metav1.ConditionUnknown, v1alpha1.ReasonWorkerLost, "node-a", after(400))
		}, changes).at(after(500))
	}
	waiting := func(wake string, stop ...string) outcome {
		return outcome{State: retryingState, Reason: "NonZeroExitCode", Attempt: 1, Charged: 1, Stop: stop, Wake: wake}
	}
	next := outcome{State: pendingState, Reason: "WaitingForWorker", Attempt: 2, Charged: 1, Create: true, Wake: "none"}
	runTable(t, map[string]testCase{
		"lingers within its grace": {
			reason: "the pod of a worker that ended may go on for finishGraceSeconds; the next attempt waits",
			scene:  lingering().at(after(40)),
			want:   waiting("1m20s"),
		},
		"lingers past its grace": {
			reason: "then it is stopped",
			scene:  lingering().at(after(80)),
			want:   waiting("2m5s", "pod-1 by deadline"),
		},
		"stop has been asked": {
			reason: "no loop while it stops",
			scene:  retrying().at(after(90)).runs(1, exits(1, after(20)), stopAsked),
			want:   waiting("2m5s"),
		},
		"stop has not worked": {
			reason: "deletion is the fallback",
			scene:  retrying().at(after(125)).runs(1, exits(1, after(20)), stopAsked),
			want:   waiting("6m20s", "pod-1 by deletion"),
		},
		"C07 node does not answer": {
			reason: "after workerLostTimeoutSeconds from the moment at which it should have gone, it is taken for lost",
			scene:  retrying().at(after(379)).runs(1, exits(1, after(20)), stopAsked, deleting),
			want:   waiting("6m20s"),
		},
		"C07 node has not answered": {
			reason: "the next attempt starts",
			scene:  retrying().at(after(380)).runs(1, exits(1, after(20)), stopAsked, deleting),
			want:   next,
		},
		"C07 node has not answered, and the Task wants to wait": {
			reason: "onWorkerLost Wait forbids even that",
			scene:  retrying(waitForLost).at(after(380)).runs(1, exits(1, after(20)), stopAsked, deleting),
			want:   waiting("none"),
		},
		"C07 lost worker, Replace": {
			reason: "its wait is over already",
			scene:  lost().runs(1, stopAsked, deleting),
			want:   next,
		},
		"C07 lost worker, Wait": {
			reason: "waits until the worker is known to have stopped, without a loop",
			scene:  lost(waitForLost).runs(1, stopAsked, deleting),
			want:   outcome{State: retryingState, Reason: "ActiveDeadlineExceeded", Attempt: 1, Charged: 1, Wake: "none"},
		},
		"C07 lost worker came back and stopped, Wait": {
			reason: "now it is known to have stopped",
			scene:  lost(waitForLost).job(1, jobFailed).pod(1, exits(137, after(450)), over),
			want:   next,
		},
		"C07 lost worker's pod is gone, Wait": {
			reason: "a pod object that is gone proves nothing: it is looked at again whether the node answers",
			scene:  lost(waitForLost),
			want:   outcome{State: retryingState, Reason: "ActiveDeadlineExceeded", Attempt: 1, Charged: 1, Wake: "8m50s"},
		},
		"C07 lost worker's pod is gone and its node answers, Wait": {
			reason: "its kubelet has ended what the API server no longer knows",
			scene: func() *scene {
				s := lost(waitForLost)
				s.NodeReady = true
				return s
			}(),
			want: next,
		},
		"a worker that nobody knows, beside a lost one": {
			reason: "the loss of one worker does not excuse another",
			scene:  lost().pod(2, running, func(p *PodFacts) { p.CreateTime = after(450) }, stopAsked, deleting),
			want:   outcome{State: retryingState, Reason: "ActiveDeadlineExceeded", Attempt: 1, Charged: 1, Wake: "12m30s"},
		},
		"retried by hand while its worker lingers": {
			reason: "a retry by hand does not start a second worker beside the first",
			scene: ended(lifecycle.Fail, askRetry("1")).at(after(40)).
				runs(1, exits(1, after(20))),
			want: outcome{State: pendingState, Reason: "WaitingForPodTermination", Attempt: 2, Wake: "1m20s"},
		},
		"retried by hand, waiting": {
			reason: "nor in the next pass",
			scene: stored(after(40), func(t *v1alpha1.Task) {
				*t = *ended(lifecycle.Fail).Task
				must(lifecycle.AgainByHand(t, lifecycle.Facts{AskedByHand: true}, after(40)))
				t.Status.Reason = v1alpha1.ReasonWaitingForPodTermination
			}, nil).runs(1, exits(1, after(20))),
			want: outcome{State: pendingState, Reason: "WaitingForPodTermination", Attempt: 2, Wake: "1m20s"},
		},
		"creation is tried again while an earlier worker shows up": {
			reason: "the guard holds for every path into a Job",
			scene: stored(after(40), func(t *v1alpha1.Task) {
				*t = *retrying().Task
				must(lifecycle.Again(t, lifecycle.Facts{BackoffOver: true}, after(30)))
				begin(t, after(30))
				t.Status.Worker.JobUID = ""
			}, nil).runs(1, exits(1, after(20))),
			want: outcome{State: pendingState, Reason: "WaitingForPodTermination", Attempt: 2, Charged: 1, Wake: "1m20s"},
		},
		"an older loss does not excuse the last worker": {
			reason: "attempt 1 was lost; attempt 2 ended by itself, and its pod still runs",
			scene: stored(after(500), func(t *v1alpha1.Task) {
				*t = *lost().Task
				must(lifecycle.Again(t, lifecycle.Facts{BackoffOver: true}, after(450)))
				begin(t, after(450))
				start(t, after(450))
			}, nil).job(2).pod(2, running, exits(1, after(490))),
			want: outcome{State: retryingState, Reason: "NonZeroExitCode", Attempt: 2, Charged: 2, Wake: "now"},
		},
	})
}

func TestOlderLossIsForgotten(t *testing.T) {
	s := stored(after(500), func(t *v1alpha1.Task) {
		accept(t)
		begin(t, created)
		start(t, started)
		finish(t, lifecycle.Timeout, v1alpha1.ReasonActiveDeadlineExceeded, nil, after(400))
		setCondition(t, v1alpha1.ConditionWorkerStopped, metav1.ConditionUnknown, v1alpha1.ReasonWorkerLost, "node-a", after(400))
		must(lifecycle.Again(t, lifecycle.Facts{BackoffOver: true}, after(450)))
		begin(t, after(450))
		start(t, after(450))
	}, nil).job(2).pod(2, running, exits(1, after(490)))
	s.Task = decide(s.Snapshot).Task
	s.at(after(530)) // the backoff is over, the pod is within its grace
	if plan := decide(s.Snapshot); plan.Create || plan.Task.Status.State != retryingState {
		t.Errorf("attempt 3 starts while the pod of attempt 2 runs")
	}
}

func TestPodPhaseUnknownMayRun(t *testing.T) {
	f := factsOfPod(&corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodUnknown}}, "")
	if !f.MayRun {
		t.Error("a pod that nobody has heard of may run")
	}
}

// TestC07LostWorkerComesToANode: a pod that had no node when its attempt was closed gets one, and goes while that node is dead. Its
// absence proves nothing until the node answers.
func TestC07LostWorkerComesToANode(t *testing.T) {
	s := stored(after(1000), func(t *v1alpha1.Task) {
		accept(t)
		begin(t, created)
		finish(t, lifecycle.Timeout, v1alpha1.ReasonStartTimeout, nil, after(900))
		setCondition(t, v1alpha1.ConditionWorkerStopped, metav1.ConditionUnknown, v1alpha1.ReasonWorkerLost, "no node", after(900))
	}, []change{waitForLost}).job(1, jobGoing).pod(1, running, stopAsked, deleting)
	s.Task = decide(s.Snapshot).Task
	if got := s.Task.Status.Attempts[0].NodeName; got != testNode {
		t.Errorf("the attempt's node is %q", got)
	}
	s.Workers[0].Pods = nil
	if plan := decide(s.at(after(1010)).Snapshot); plan.Create || plan.Task.Status.State != retryingState {
		t.Errorf("%s: attempt 2 starts while the worker of attempt 1 may run", plan.Task.Status.State)
	}
}
