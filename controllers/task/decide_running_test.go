package task

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

func TestWorkersWord(t *testing.T) {
	retry := func(reason string) outcome {
		return outcome{State: retryingState, Reason: reason, Attempt: 1, Charged: 1, Wake: "now"}
	}
	runTable(t, map[string]testCase{
		"starts": {
			reason: "a running container is a start",
			scene:  pending().runs(1),
			want:   outcome{State: processingState, Reason: "WorkerRunning", Attempt: 1, Wake: "30m10s"},
		},
		"runs": {
			reason: "nothing to do but to watch the deadline",
			scene:  processing().runs(1),
			want:   outcome{State: processingState, Reason: "WorkerRunning", Attempt: 1, Wake: "30m10s"},
		},
		"runs, the overall deadline comes first": {
			reason: "no event tells of it",
			scene:  processing(overall(60)).runs(1),
			want:   outcome{State: processingState, Reason: "WorkerRunning", Attempt: 1, Wake: "1m0s"},
		},
		"waits, the overall deadline comes first": {
			reason: "nor before the start",
			scene:  pending(overall(60)).job(1).pod(1),
			want:   outcome{State: pendingState, Reason: "WaitingForWorker", Attempt: 1, Wake: "1m0s"},
		},
		"waits, its Job is young": {
			reason: "why it has no pod is asked when it should have one",
			scene:  pending().at(after(1)).job(1),
			want:   outcome{State: pendingState, Reason: "WaitingForWorker", Attempt: 1, Wake: "2s"},
		},
		"C21 a long wait before the start": {
			reason: "the active deadline counts from the worker's start, not from the Job's creation",
			scene: pending(active(60)).at(after(500)).job(1).pod(1, running, func(p *PodFacts) {
				p.RunningSince = after(495)
			}),
			want: outcome{State: processingState, Reason: "WorkerRunning", Attempt: 1, Wake: "9m15s"},
		},
		"C21 found running past the start timeout": {
			reason: "a worker that runs has started, however late it is seen",
			scene:  pending().at(after(700)).runs(1),
			want:   outcome{State: processingState, Reason: "WorkerRunning", Attempt: 1, Wake: "30m10s"},
		},
		"exits with 0": {
			reason: "success, at once",
			scene:  processing().runs(1, exits(0, after(20)), over),
			want:   outcome{State: succeededState, Reason: "Completed", Attempt: 1, Wake: "now"},
		},
		"exits with 0, another container goes on": {
			reason: "the worker's word ends the attempt at once; its pod has its grace",
			scene:  processing().runs(1, exits(0, after(20))),
			want:   outcome{State: succeededState, Reason: "Completed", Attempt: 1, Wake: "now"},
		},
		"exits with 1": {
			reason: "failure, at once",
			scene:  processing().runs(1, exits(1, after(20)), over),
			want:   retry("NonZeroExitCode"),
		},
		"C28 exits with 1 and no retry": {
			reason: "limit 0 is one run",
			scene:  processing(limit(0)).runs(1, exits(1, after(20)), over),
			want:   outcome{State: failedState, Reason: "NonZeroExitCode", Attempt: 1, Charged: 1, Wake: "now"},
		},
		"killed for memory": {
			reason: "the reason says so",
			scene:  processing().runs(1, exits(137, after(20)), over, func(p *PodFacts) { p.Exit.Reason = "OOMKilled" }),
			want:   retry("OOMKilled"),
		},
		"killed for memory, exits with 0": {
			reason: "it follows its exit code",
			scene:  processing().runs(1, exits(0, after(20)), over, func(p *PodFacts) { p.Exit.Reason = "OOMKilled" }),
			want:   outcome{State: succeededState, Reason: "Completed", Attempt: 1, Wake: "now"},
		},
		"cannot be started": {
			reason: "it never ran, so there is no START",
			scene: pending().job(1).pod(1, over, func(p *PodFacts) {
				p.Exit = &Exit{Code: 128, Reason: "StartError", Message: "exec: no such file", StartTime: time.Unix(0, 0), FinishTime: after(5)}
			}),
			want: retry("StartError"),
		},
		"evicted for its own usage": {
			reason: "the word Evicted alone is the user's fault, and charged",
			scene:  processing().runs(1, exits(137, after(20)), over, podSays("Evicted", "ephemeral local storage usage exceeds the limit")),
			want:   retry("Evicted"),
		},
		"evicted for its own usage, exits with 0": {
			reason: "what a worker makes of its SIGTERM is no success",
			scene:  processing().runs(1, exits(0, after(20)), over, podSays("Evicted", "ephemeral local storage usage exceeds the limit")),
			want:   retry("Evicted"),
		},
		"evicted for its own usage, exit unknown": {
			reason: "the kubelet's made-up exit does not make the eviction uncharged",
			scene: processing().runs(1, over, podSays("Evicted", "Usage of EmptyDir volume exceeds the limit"), func(p *PodFacts) {
				p.ExitUnknown = "The container could not be located when the pod was terminated"
			}),
			want: retry("Evicted"),
		},
		"rejected by the kubelet": {
			reason: "the pod never ran; its made-up exit is no loss of a worker",
			scene: pending().job(1).pod(1, over, podSays("NodeAffinity", "Pod was rejected"), func(p *PodFacts) {
				p.ExitUnknown = "The container could not be located when the pod was terminated"
			}),
			want: retry("PodRejected"),
		},
		"another container fails first": {
			reason: "an init container that fails ends the pod without a worker",
			scene:  pending().job(1).pod(1, over, func(p *PodFacts) { p.OtherFailure = "container setup exited with code 3 (Error)" }),
			want:   retry("PodRejected"),
		},
		"the node lost track": {
			reason: "an exit that the kubelet does not know is nobody's fault",
			scene:  processing().runs(1, over, func(p *PodFacts) { p.ExitUnknown = "The container could not be located" }),
			want:   outcome{State: retryingState, Reason: "WorkerLost", Attempt: 1, Uncharged: 1, Wake: "now"},
		},
		"pod succeeded without an exit": {
			reason: "the phase is the worker's word too",
			scene:  processing().runs(1, over, func(p *PodFacts) { p.Phase = corev1.PodSucceeded }),
			want:   outcome{State: succeededState, Reason: "Completed", Attempt: 1, Wake: "now"},
		},
	})
}

// TestNeverRanIsNoStart: what the runtime could not start has no START in its history, and no start time.
func TestNeverRanIsNoStart(t *testing.T) {
	for _, reason := range []string{"StartError", "ContainerCannotRun", "CreateContainerError"} {
		s := pending().job(1).pod(1, over, func(p *PodFacts) {
			p.Exit = &Exit{Code: 128, Reason: reason, StartTime: time.Unix(0, 0), FinishTime: after(5)}
		})
		st := decide(s.Snapshot).Task.Status
		if last := st.History[len(st.History)-1]; st.StartTime != nil || last.From != pendingState || st.Reason != v1alpha1.ReasonStartError {
			t.Errorf("%s: start time %v, reason %s, last transition %+v", reason, st.StartTime, st.Reason, last)
		}
	}
}

// TestSeenWhileStopping: a pod that comes to a node while it is being stopped may run there; the status names both.
func TestSeenWhileStopping(t *testing.T) {
	s := pending(terminating(v1alpha1.ReasonCancelled, after(5)), cancel).runs(1)
	w := decide(s.Snapshot).Task.Status.Worker
	if w.PodUID != podUID(1) || w.NodeName != testNode {
		t.Errorf("the status has pod %q on node %q", w.PodUID, w.NodeName)
	}
}

func TestC28LimitIsReached(t *testing.T) {
	s := processing(limit(0)).runs(1, exits(7, after(20)), over, func(p *PodFacts) { p.Exit.Message = "disk on fire" })
	plan := decide(s.Snapshot)
	for _, part := range []string{"Attempt 1 of 1", "code 7", "disk on fire"} {
		if !strings.Contains(plan.Task.Status.Message, part) {
			t.Errorf("message %q does not have %q", plan.Task.Status.Message, part)
		}
	}
	if c := findCondition(plan.Task, v1alpha1.ConditionDeadLettered); c == nil || c.Reason != v1alpha1.ReasonRetryLimitReached {
		t.Errorf("condition DeadLettered is %v", c)
	}
	s.Task = plan.Task
	if c := findCondition(decide(s.Snapshot).Task, v1alpha1.ConditionDeadLettered); c == nil || c.Reason != v1alpha1.ReasonRetryLimitReached {
		t.Errorf("condition DeadLettered is %v in the next pass", c)
	}
}

// TestLimitIsReachedAfterOtherAttempts: numbers go on over attempts that the limit does not pay for.
func TestLimitIsReachedAfterOtherAttempts(t *testing.T) {
	s := ended(lifecycle.Fail, askRetry("1"))
	s.Task = decide(s.Snapshot).Task
	s.Task.Status.Worker.JobUID = jobUID(2)
	s = s.runs(2, exits(7, after(20)), over)
	if got, want := decide(s.Snapshot).Task.Status.Message, "Attempt 2, 1 of 1 charged: "; !strings.HasPrefix(got, want) {
		t.Errorf("message %q, want it to begin with %q", got, want)
	}
}

// TestOverallDeadlineNamesWhatItCut: the deadline alone does not say what to mend.
func TestOverallDeadlineNamesWhatItCut(t *testing.T) {
	for name, tc := range map[string]struct {
		scene *scene
		want  string
	}{
		"a wait":           {uncreated(overall(60)), "; CreatePending: etcdserver: leader changed"},
		"a backoff":        {retrying(overall(60)), "; NonZeroExitCode: "},
		"a worker at work": {processing(overall(60)).runs(1), ""},
	} {
		st := decide(tc.scene.at(after(61)).Snapshot).Task.Status
		if st.Reason != v1alpha1.ReasonOverallDeadlineExceeded {
			t.Errorf("%s: reason %s", name, st.Reason)
		}
		if named := strings.Contains(st.Message, "; "); named != (tc.want != "") || !strings.Contains(st.Message, tc.want) {
			t.Errorf("%s: message %q, want %q in it", name, st.Message, tc.want)
		}
	}
}

func TestC01JobDeleted(t *testing.T) {
	closed := outcome{State: retryingState, Reason: "JobDeleted", Attempt: 1, Charged: 1, Wake: "now"}
	fixed := func(wake string, stop ...string) outcome {
		return outcome{State: processingState, Reason: "JobDeleted", Attempt: 1, Stopping: "JobDeleted", Stop: stop, Wake: wake}
	}
	runTable(t, map[string]testCase{
		"before it had a pod": {
			reason: "no pod, no worker: closed at once",
			scene:  pending(),
			want:   closed,
		},
		"no retry": {
			reason: "the same reason ends the Task",
			scene:  pending(limit(0)),
			want:   outcome{State: failedState, Reason: "JobDeleted", Attempt: 1, Charged: 1, Wake: "now"},
		},
		"with its pod": {
			reason: "nobody has seen the worker stop: that is waited for",
			scene:  processing(),
			want:   fixed("5m20s"),
		},
		"with its pod, which was seen to stop": {
			reason: "then there is nothing to wait for",
			scene:  seenToStop(processing()),
			want:   closed,
		},
		"orphan goes on": {
			reason: "the surviving pod is stopped first",
			scene:  processing().pod(1, running),
			want:   fixed("1m5s", "pod-1 by deadline"),
		},
		"orphan on no node": {
			reason: "what no kubelet has goes by deletion",
			scene:  pending().pod(1, unbound),
			want: outcome{
				State: pendingState, Reason: "JobDeleted", Attempt: 1, Stopping: "JobDeleted",
				Stop: []string{"pod-1 by deletion"}, Wake: "5m5s",
			},
		},
		"orphan of a Job whose UID was never stored": {
			reason: "the answer to the creation was lost, then the Job: its pod is stopped all the same, no second one is made",
			scene:  uncreated().pod(1),
			want: outcome{
				State: pendingState, Reason: "JobDeleted", Attempt: 1, Stopping: "JobDeleted",
				Stop: []string{"pod-1 by deadline"}, Wake: "50s",
			},
		},
		"orphan is stopping": {
			reason: "no second order within its grace",
			scene:  processing(terminating(v1alpha1.ReasonJobDeleted, after(15))).pod(1, running, stopAsked),
			want:   fixed("1m0s"),
		},
		"orphan has stopped": {
			reason: "the event fires",
			scene:  processing(terminating(v1alpha1.ReasonJobDeleted, after(15))).pod(1, exits(143, after(19)), over),
			want:   closed,
		},
		"orphan had done its work": {
			reason: "the worker's word counts, whatever became of its Job",
			scene:  processing().pod(1, exits(0, after(19)), over),
			want:   outcome{State: succeededState, Reason: "Completed", Attempt: 1, Wake: "now"},
		},
		"with its pod, which a node had": {
			reason: "a pod that was bound may have begun to run since it was last seen",
			scene: pending(terminating(v1alpha1.ReasonCancelled, after(5)), func(t *v1alpha1.Task) {
				t.Status.Worker.PodUID, t.Status.Worker.NodeName = podUID(1), testNode
			}).with(cancel),
			want: outcome{State: pendingState, Reason: "Cancelled", Attempt: 1, Stopping: "Cancelled", Wake: "5m5s"},
		},
		"C36 cancelled after it was deleted": {
			reason: "a missing child is a finished one",
			scene:  pending().with(cancel),
			want:   outcome{State: cancelledState, Reason: "Cancelled", Attempt: 1, Wake: "now"},
		},
	})
}

// seenToStop says that the vanished worker was seen to have stopped.
func seenToStop(s *scene) *scene { s.StopWitnessed = true; return s }

func nodeReady(s *scene) *scene { s.NodeReady = true; return s }

func TestC06PodDeleted(t *testing.T) {
	runTable(t, map[string]testCase{
		"with its grace": {
			reason: "the outcome is fixed; its own deletion stops it, nothing stronger is asked",
			scene:  processing().runs(1, deleting),
			want:   outcome{State: processingState, Reason: "PodDeleted", Attempt: 1, Stopping: "PodDeleted", Wake: "5m20s"},
		},
		"has stopped": {
			reason: "its exit is its own word",
			scene:  processing().runs(1, deleting, exits(143, after(20)), over),
			want:   outcome{State: retryingState, Reason: "NonZeroExitCode", Attempt: 1, Charged: 1, Wake: "now"},
		},
		"by force": {
			reason: "the object is gone, the worker may run: waited for, and the Job cannot make another pod",
			scene:  processing().job(1),
			want: outcome{
				State: processingState, Reason: "PodDeleted", Attempt: 1, Stopping: "PodDeleted",
				Stop: []string{"job-1 by deletion of the Job"}, Wake: "5m20s",
			},
		},
		"while its image was pulled": {
			reason: "an attempt that never began is closed too",
			scene: pending(func(t *v1alpha1.Task) { t.Status.Worker.PodUID = podUID(1) }).
				job(1, jobFailed),
			want: outcome{State: retryingState, Reason: "PodDeleted", Attempt: 1, Charged: 1, Wake: "now"},
		},
	})
}

// TestC01C06ExitOnSigterm: what a worker makes of the SIGTERM of a deletion is not its word on its work.
func TestC01C06ExitOnSigterm(t *testing.T) {
	deleted := func(reason string) outcome {
		return outcome{State: retryingState, Reason: reason, Attempt: 1, Charged: 1, Wake: "now"}
	}
	runTable(t, map[string]testCase{
		"exit 0 after the deletion": {
			reason: "its work was cut off, however calmly it took that",
			scene:  processing().runs(1, exits(0, after(19)), over, deletedAt(after(18))),
			want:   deleted("PodDeleted"),
		},
		"exit 143 after the deletion": {
			reason: "the deletion is the cause, the code only its trace",
			scene:  processing().runs(1, exits(143, after(19)), over, deletedAt(after(18))),
			want:   deleted("PodDeleted"),
		},
		"the Job is deleted": {
			reason: "and takes its pod along",
			scene:  processing().job(1, jobGoing).pod(1, running, exits(0, after(19)), over, deletedAt(after(18))),
			want:   deleted("JobDeleted"),
		},
		"exit 0 in that second": {
			reason: "times have whole seconds: in doubt the work was done",
			scene:  processing().runs(1, exits(0, after(18)), over, deletedAt(after(18))),
			want:   outcome{State: succeededState, Reason: "Completed", Attempt: 1, Wake: "now"},
		},
		"exit 0 before the deletion": {
			reason: "somebody tidies up",
			scene:  processing().runs(1, exits(0, after(15)), over, deletedAt(after(18))),
			want:   outcome{State: succeededState, Reason: "Completed", Attempt: 1, Wake: "now"},
		},
	})
}

func TestC30Disruption(t *testing.T) {
	free := outcome{State: retryingState, Reason: "Disrupted", Attempt: 1, Uncharged: 1, Wake: "now"}
	going := outcome{State: processingState, Reason: "WorkerRunning", Attempt: 1, Wake: "30m10s"}
	runTable(t, map[string]testCase{
		"announced, not done": {
			reason: "the condition is taken back when it does not happen",
			scene:  processing().runs(1, disruptedAt(after(15))),
			want:   going,
		},
		"evicted through the API, stopping": {
			reason: "the outcome is fixed while the worker stops",
			scene:  processing().runs(1, disruptedAt(after(15)), deleting),
			want:   outcome{State: processingState, Reason: "Disrupted", Attempt: 1, Stopping: "Disrupted", Wake: "5m20s"},
		},
		"evicted by the kubelet, stopping": {
			reason: "the kubelet does not delete the pod, it names its reason",
			scene:  processing().runs(1, disruptedAt(after(15)), podSays("Evicted", "The node was low on resource: memory")),
			want: outcome{
				State: processingState, Reason: "Disrupted", Attempt: 1, Stopping: "Disrupted",
				Stop: []string{"pod-1 by deadline"}, Wake: "1m5s",
			},
		},
		"exits 143 on SIGTERM": {
			reason: "a drain is not the user's failure",
			scene:  processing().runs(1, disruptedAt(after(15)), deleting, exits(143, after(18)), over),
			want:   free,
		},
		"exits 143, the pod's end is not reported yet": {
			reason: "nor for the moment in which the container has ended and the pod has not",
			scene:  processing().runs(1, disruptedAt(after(15)), podSays("Evicted", "low on memory"), exits(143, after(18))),
			want:   free,
		},
		"exits 143, neither deleted nor named": {
			reason: "nor where only the condition tells",
			scene:  processing().runs(1, disruptedAt(after(15)), exits(143, after(18))),
			want:   free,
		},
		"exits 0 on SIGTERM": {
			reason: "an exit 0 during a disruption is no success",
			scene:  processing().runs(1, disruptedAt(after(15)), deleting, exits(0, after(18)), over),
			want:   free,
		},
		"had exited with 0 before": {
			reason: "its work was done",
			scene:  processing().runs(1, disruptedAt(after(18)), deleting, exits(0, after(15)), over),
			want:   outcome{State: succeededState, Reason: "Completed", Attempt: 1, Wake: "now"},
		},
		"had exited with 0 in that second": {
			reason: "times have whole seconds: in doubt the work was done",
			scene:  processing().runs(1, disruptedAt(after(18)), deleting, exits(0, after(18)), over),
			want:   outcome{State: succeededState, Reason: "Completed", Attempt: 1, Wake: "now"},
		},
		"had exited with 1 before": {
			reason: "the design excepts an exit 0 only",
			scene:  processing().runs(1, disruptedAt(after(18)), deleting, exits(1, after(15)), over),
			want:   free,
		},
		"limit 0": {
			reason: "not charged, so the budget does not matter",
			scene:  processing(limit(0)).runs(1, disruptedAt(after(15)), deleting, exits(143, after(18)), over),
			want:   free,
		},
		"the cap of uncharged attempts": {
			reason: "no uncharged kind can loop for ever",
			scene: processing(func(t *v1alpha1.Task) { t.Spec.Retry.UnchargedLimit = ptr.To[int32](0) }).
				runs(1, disruptedAt(after(15)), deleting, exits(143, after(18)), over),
			want: outcome{State: failedState, Reason: "Disrupted", Attempt: 1, Uncharged: 1, Wake: "now"},
		},
		"evicted before it ran": {
			reason: "the same for a pod that waits",
			scene:  pending().job(1).pod(1, disruptedAt(after(3)), over, podSays("Evicted", "low on memory")),
			want:   free,
		},
	})
}

func TestC07NodeLost(t *testing.T) {
	fixed := func(wake string, stop ...string) outcome {
		return outcome{
			State: processingState, Reason: "ActiveDeadlineExceeded", Attempt: 1, Stopping: "ActiveDeadlineExceeded",
			Stop: stop, Wake: wake,
		}
	}
	closed := outcome{State: retryingState, Reason: "ActiveDeadlineExceeded", Attempt: 1, Charged: 1, Wake: "now"}
	base := func(changes ...change) *scene {
		return processing(append(changes, active(50), terminating(v1alpha1.ReasonActiveDeadlineExceeded, after(60)))...)
	}
	runTable(t, map[string]testCase{
		"stop has been asked": {
			reason: "the stop has the pod's grace and some slack",
			scene:  base().at(after(70)).runs(1, stopAsked),
			want:   fixed("1m45s"),
		},
		"stop has not worked": {
			reason: "deletion is the fallback",
			scene:  base().at(after(105)).runs(1, stopAsked),
			want:   fixed("6m0s", "pod-1 by deletion"),
		},
		"deletion has not worked": {
			reason: "nothing stronger is left; the wait goes on",
			scene:  base().at(after(200)).runs(1, stopAsked, deleting),
			want:   fixed("6m0s"),
		},
		"not heard of within workerLostTimeoutSeconds": {
			reason: "the event fires, the node is named, and the pod is still wanted gone",
			scene:  base().at(after(360)).runs(1, stopAsked, deleting),
			want:   closed,
		},
		"the pod object is gone": {
			reason: "that proves nothing while its node does not answer",
			scene:  base().at(after(200)).job(1, jobGoing),
			want:   fixed("6m0s"),
		},
		"the pod object is gone, the node answers": {
			reason: "its kubelet has the pod's grace to end what the API server no longer knows",
			scene:  nodeReady(base().at(after(119)).job(1, jobGoing)),
			want:   fixed("2m0s"),
		},
		"the pod object is gone, the node has answered for a grace": {
			reason: "then its word is taken",
			scene:  nodeReady(base().at(after(120)).job(1, jobGoing)),
			want:   closed,
		},
		"the pod object is gone, the node has just come back": {
			reason: "its kubelet has that time from the moment at which it answers",
			scene: func() *scene {
				s := nodeReady(base().at(after(200)).job(1, jobGoing))
				s.NodeReadySince = after(190)
				return s
			}(),
			want: fixed("4m10s"),
		},
		"the pod object is gone, and was seen to stop": {
			reason: "nothing to wait for",
			scene:  seenToStop(base().at(after(70))),
			want:   closed,
		},
	})
	for name, tc := range map[string]struct {
		scene *scene
		want  string
		says  string
	}{
		"stopped":     {base().at(after(70)).runs(1, exits(143, after(65)), over), "True", "has stopped"},
		"lost":        {base().at(after(360)).runs(1, stopAsked, deleting), "Unknown", testNode},
		"vanished":    {base().at(after(360)).job(1, jobGoing), "Unknown", testNode},
		"node's word": {nodeReady(base().at(after(360)).job(1, jobGoing)), "True", "node is ready"},
		"node back": {func() *scene {
			s := nodeReady(base().at(after(360)).job(1, jobGoing))
			s.NodeReadySince = after(350)
			return s
		}(), "Unknown", testNode},
	} {
		c := findCondition(decide(tc.scene.Snapshot).Task, v1alpha1.ConditionWorkerStopped)
		if c == nil || string(c.Status) != tc.want || !strings.Contains(c.Message, tc.says) {
			t.Errorf("%s: condition WorkerStopped is %v, want %s naming %q", name, c, tc.want, tc.says)
		}
	}
}

func TestFixedOutcome(t *testing.T) {
	fixed := func(reason string) *scene { return processing(terminating(reason, after(15))) }
	closes := map[string]outcome{
		v1alpha1.ReasonCancelled:               {State: cancelledState, Reason: "Cancelled", Attempt: 1, Wake: "now"},
		v1alpha1.ReasonSuspended:               {State: retryingState, Reason: "Suspended", Attempt: 1, Uncharged: 1, Wake: "now"},
		v1alpha1.ReasonDisrupted:               {State: retryingState, Reason: "Disrupted", Attempt: 1, Uncharged: 1, Wake: "now"},
		v1alpha1.ReasonWorkerLost:              {State: retryingState, Reason: "WorkerLost", Attempt: 1, Uncharged: 1, Wake: "now"},
		v1alpha1.ReasonJobDeleted:              {State: retryingState, Reason: "JobDeleted", Attempt: 1, Charged: 1, Wake: "now"},
		v1alpha1.ReasonPodDeleted:              {State: retryingState, Reason: "PodDeleted", Attempt: 1, Charged: 1, Wake: "now"},
		v1alpha1.ReasonActiveDeadlineExceeded:  {State: retryingState, Reason: "ActiveDeadlineExceeded", Attempt: 1, Charged: 1, Wake: "now"},
		v1alpha1.ReasonOverallDeadlineExceeded: {State: failedState, Reason: "OverallDeadlineExceeded", Attempt: 1, Charged: 1, Wake: "now"},
	}
	cases := map[string]testCase{}
	for reason, want := range closes {
		cases[reason+", exit 0 afterwards"] = testCase{
			reason: "the worker's word after an outcome is fixed changes nothing",
			scene:  fixed(reason).runs(1, exits(0, after(18)), over), want: want,
		}
		cases[reason+", stopped"] = testCase{
			reason: "the event fires when the worker has stopped",
			scene:  fixed(reason).runs(1, exits(143, after(18)), over), want: want,
		}
		cases[reason+", another container runs"] = testCase{
			reason: "stopped means all containers",
			scene:  fixed(reason).runs(1, exits(0, after(18)), stopAsked),
			want:   outcome{State: processingState, Reason: reason, Attempt: 1, Stopping: reason, Wake: "1m0s"},
		}
		raised := outcome{State: processingState, Reason: "Cancelled", Attempt: 1, Stopping: "Cancelled", Wake: "1m0s"}
		cases[reason+", cancelled"] = testCase{
			reason: "a fixed outcome can only be raised, to cancel, and keeps its time",
			scene:  fixed(reason).runs(1, stopAsked).with(cancel), want: raised,
		}
		cases[reason+", past every deadline and suspended"] = testCase{
			reason: "nothing else changes it",
			scene:  fixed(reason).runs(1, stopAsked).with(suspend, overall(16), active(1)),
			want:   outcome{State: processingState, Reason: reason, Attempt: 1, Stopping: reason, Wake: "1m0s"},
		}
	}
	runTable(t, cases)
	for code, want := range map[int32]bool{0: true, 1: false} {
		s := fixed(v1alpha1.ReasonActiveDeadlineExceeded).runs(1, exits(code, after(18)), over)
		if got := isTrue(decide(s.Snapshot).Task, v1alpha1.ConditionReportMismatch); got != want {
			t.Errorf("exit %d after the outcome was fixed: ReportMismatch is %v", code, got)
		}
	}
}

func TestSuspend(t *testing.T) {
	runTable(t, map[string]testCase{
		"running": {
			reason: "the worker is stopped first",
			scene:  processing().runs(1).with(suspend),
			want: outcome{
				State: processingState, Reason: "Suspended", Attempt: 1, Stopping: "Suspended",
				Stop: []string{"pod-1 by deadline"}, Wake: "1m5s",
			},
		},
		"waiting for a pod": {
			reason: "a Job without a pod goes",
			scene:  pending().job(1).with(suspend),
			want: outcome{
				State: pendingState, Reason: "Suspended", Attempt: 1, Stopping: "Suspended",
				Stop: []string{"job-1 by deletion of the Job"}, Wake: "5m5s",
			},
		},
		"resumed while it stops": {
			reason: "what is fixed stays: the attempt is closed, uncharged, and another follows",
			scene:  processing(terminating(v1alpha1.ReasonSuspended, after(15))).runs(1, exits(143, after(18)), over),
			want:   outcome{State: retryingState, Reason: "Suspended", Attempt: 1, Uncharged: 1, Wake: "now"},
		},
		"stopped, still suspended": {
			reason: "the retry waits for the user, with no backoff to come",
			scene: stored(after(20), func(t *v1alpha1.Task) {
				*t = *decide(processing(terminating(v1alpha1.ReasonSuspended, after(15))).runs(1, exits(143, after(18)), over).Snapshot).Task
			}, []change{suspend}),
			want: outcome{State: retryingState, Reason: "Suspended", Attempt: 1, Uncharged: 1, Wake: "none"},
		},
		"stopped, resumed": {
			reason: "the next attempt starts at once",
			scene: stored(after(20), func(t *v1alpha1.Task) {
				*t = *decide(processing(terminating(v1alpha1.ReasonSuspended, after(15))).runs(1, exits(143, after(18)), over).Snapshot).Task
			}, nil),
			want: outcome{State: pendingState, Reason: "WaitingForWorker", Attempt: 2, Uncharged: 1, Create: true, Wake: "none"},
		},
	})
}
