package task

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/internal/report"
)

func TestC15FinalReportEndsTheAttempt(t *testing.T) {
	succeeded := outcome{State: succeededState, Reason: "Completed", Attempt: 1, Wake: "now"}
	runTable(t, map[string]testCase{
		"success, the worker runs": {
			reason: "the report is the worker's word; its pod has its grace",
			scene:  processing(withSidecar, reportedSuccess(19)).runs(1, sidecarRuns),
			want:   succeeded,
		},
		"failure, the worker runs": {
			reason: "a failure that may be retried",
			scene:  processing(withSidecar, reportedFailure(19, false)).runs(1, sidecarRuns),
			want:   outcome{State: retryingState, Reason: "WorkerFailed", Attempt: 1, Charged: 1, Wake: "now"},
		},
		"failure for good": {
			reason: "another attempt would fail as well, says the worker",
			scene:  processing(withSidecar, reportedFailure(19, true)).runs(1, sidecarRuns),
			want:   outcome{State: failedState, Reason: "PermanentFailure", Attempt: 1, Charged: 1, Wake: "now"},
		},
		"success, then exit 1": {
			reason: "the report was first",
			scene:  processing(withSidecar, reportedSuccess(19)).runs(1, worked(1, after(19)), sidecarRuns),
			want:   succeeded,
		},
		"success before START": {
			reason: "a report for the current attempt that arrives before START is stored: the worker has run",
			scene:  pending(withSidecar, reportedSuccess(4)).job(1),
			want:   succeeded,
		},
		"success before START, pod seen waiting": {
			reason: "the pod's news are behind",
			scene:  pending(withSidecar, reportedSuccess(4)).job(1).pod(1),
			want:   succeeded,
		},
		"success before the first write": {
			reason: "the Job was made and not told of; its worker was faster",
			scene:  fresh(withSidecar, reportedSuccess(1)).at(after(1)).job(1).pod(1, running, sidecarRuns),
			want:   succeeded,
		},
		"success after the deadline, stored": {
			reason: "what is stored counts, whatever has passed since",
			scene:  processing(withSidecar, active(5), reportedSuccess(14)).at(after(20)).runs(1, sidecarRuns),
			want:   succeeded,
		},
	})
}

func TestResultOfAReport(t *testing.T) {
	s := processing(withSidecar, reportedSuccess(18)).runs(1, sidecarRuns)
	after := decide(s.Snapshot).Task.Status
	if after.Result == nil || after.Result.URL != "s3://bucket/key" || after.Message != "three pictures" || after.Report.Result != nil {
		t.Errorf("result %+v, message %q, left in the report: %+v", after.Result, after.Message, after.Report.Result)
	}
	if after.SyncLagMilliseconds == nil || *after.SyncLagMilliseconds != 2000 {
		t.Errorf("sync lag %v ms, want 2000: received at 18 s, decided at 20 s", ptr.Deref(after.SyncLagMilliseconds, -1))
	}
	if p := after.Progress; p == nil || ptr.Deref(p.Percent, 0) != 100 {
		t.Errorf("progress %+v, want 100 percent", p)
	}
}

// TestC43ExitWaitsForTheReport: an exit never overtakes a report that may be on its way.
func TestC43ExitWaitsForTheReport(t *testing.T) {
	running := outcome{State: processingState, Reason: "WorkerRunning", Attempt: 1}
	with := func(o outcome, reason, wake string) outcome { o.Reason, o.Wake = reason, wake; return o }
	exited := outcome{State: succeededState, Reason: "Completed", Attempt: 1, Wake: "now"}
	stopped := exited
	stopped.Stop = []string{"pod-1 by deadline"}
	graced := func(p *PodFacts) { p.Grace = 180 * time.Second }
	runTable(t, map[string]testCase{
		"just now": {
			reason: "most reports come within two seconds",
			scene:  processing(withSidecar).at(after(21)).runs(1, worked(0, after(20)), sidecarRuns, graced),
			want:   with(running, "WorkerRunning", "22s"),
		},
		"for a while": {
			reason: "then the status says what is waited for",
			scene:  processing(withSidecar).at(after(22)).runs(1, worked(0, after(20)), sidecarRuns, graced),
			want:   with(running, "AwaitingReport", "3m37s"),
		},
		"the node's clock is behind": {
			reason: "the wait is by the operator's clock",
			scene:  processing(withSidecar).at(after(1000)).runs(1, worked(1, after(760)), sidecarRuns, graced),
			want:   with(running, "AwaitingReport", "19m55s"),
		},
		"the node's clock is ahead": {
			reason: "the same",
			scene:  processing(withSidecar).at(after(22)).runs(1, worked(1, after(260)), sidecarRuns, graced),
			want:   with(running, "AwaitingReport", "3m37s"),
		},
		"a deadline passes meanwhile": {
			reason: "the worker has finished before it",
			scene:  processing(withSidecar, active(50), exitSeen(22)).at(after(100)).runs(1, worked(0, after(20)), sidecarRuns, graced),
			want:   with(running, "AwaitingReport", "3m37s"),
		},
		"cancel meanwhile": {
			reason: "there is nothing to stop any more, and the worker was first",
			scene:  processing(withSidecar, exitSeen(22)).with(cancel).at(after(100)).runs(1, worked(0, after(20)), sidecarRuns, graced),
			want:   with(running, "AwaitingReport", "3m37s"),
		},
		"the grace is over": {
			reason: "the exit is the last word, and what still runs has outstayed its grace",
			scene:  processing(withSidecar, exitSeen(22)).at(after(217)).runs(1, worked(0, after(20)), sidecarRuns, graced),
			want:   stopped,
		},
		"the sidecar has ended and left nothing": {
			reason: "there was no report",
			scene:  processing(withSidecar).at(after(21)).runs(1, worked(0, after(20)), sidecarEnded(""), graced),
			want:   exited,
		},
		"the sidecar has ended and has delivered": {
			reason: "what the gateway has answered for is not taken from a note; where it was stored, this pass meets a conflict",
			scene: processing(withSidecar).at(after(21)).runs(1, worked(1, after(20)), graced,
				sidecarEnded(string((&report.Note{Final: successOf(1), Delivered: true}).Encode(4096)))),
			want: outcome{State: retryingState, Reason: "NonZeroExitCode", Attempt: 1, Charged: 1, Wake: "now"},
		},
		"the pod is over": {
			reason: "with its sidecar, whatever was last seen of that",
			scene:  processing(withSidecar).at(after(21)).runs(1, worked(0, after(20)), sidecarRuns, over, graced),
			want:   exited,
		},
		"the sidecar crashes while the worker runs": {
			reason: "it is started again, and will deliver all of what its note has a part of",
			scene:  processing(withSidecar).at(after(21)).runs(1, sidecarEnded(note(successOf(1)))),
			want:   with(running, "WorkerRunning", "30m10s"),
		},
		"no sidecar is asked for": {
			reason: "an exit counts at once",
			scene:  processing().at(after(21)).runs(1, worked(0, after(20))),
			want:   exited,
		},
		"it never ran": {
			reason: "nothing can have been reported",
			scene: pending(withSidecar).at(after(21)).job(1).pod(1, sidecarRuns, func(p *PodFacts) {
				p.Exit = &Exit{Code: 128, Reason: "StartError", StartTime: time.Unix(0, 0), FinishTime: after(20)}
			}),
			want: outcome{State: retryingState, Reason: "StartError", Attempt: 1, Charged: 1, Wake: "now"},
		},
	})
}

// TestC43NoteOfTheSidecar: what the sidecar could not deliver it leaves in its termination message.
func TestC43NoteOfTheSidecar(t *testing.T) {
	failure := &report.Report{TaskID: "task-uid", Attempt: 1, Sequence: 4, Kind: report.Failed, Failure: &report.FailurePayload{Permanent: true, Message: "m"}}
	large := successOf(1)
	large.Result.Data = json.RawMessage(`"` + strings.Repeat("x", 5000) + `"`)
	other, earlier := successOf(1), successOf(3)
	other.TaskID = "another"
	for name, c := range map[string]struct {
		reason      string
		message     string
		code        int32
		state       v1alpha1.State
		why         string
		undelivered bool
	}{
		"success":            {"it is the worker's word", note(successOf(1)), 0, succeededState, "Completed", false},
		"success and exit 1": {"it was spoken before the exit", note(successOf(1)), 1, succeededState, "Completed", false},
		"failure and exit 0": {"the same", note(failure), 0, failedState, "PermanentFailure", false},
		"too large":          {"the outcome is right, and what is missing is said", note(large), 0, succeededState, "Completed", true},
		"another Task's":     {"it is not ours", note(other), 1, retryingState, "NonZeroExitCode", false},
		"another attempt's":  {"it is not this attempt's", note(earlier), 1, retryingState, "NonZeroExitCode", false},
		"cut":                {"half a note is none", note(successOf(1))[:100], 1, retryingState, "NonZeroExitCode", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := processing(withSidecar).at(after(25)).runs(1, worked(c.code, after(20)), sidecarEnded(c.message), over)
			plan := decide(s.Snapshot)
			checkPlan(t, s.Snapshot, plan)
			got := plan.Task.Status
			if got.State != c.state || got.Reason != c.why {
				t.Errorf("%s: %s, %s; want %s, %s", c.reason, got.State, got.Reason, c.state, c.why)
			}
			if isTrue(plan.Task, v1alpha1.ConditionResultUndelivered) != c.undelivered {
				t.Errorf("ResultUndelivered is %v", !c.undelivered)
			}
			if r := got.Report; r != nil && r.Source != v1alpha1.FromTerminationMessage {
				t.Errorf("the report is said to come by %s", r.Source)
			}
			mismatch := got.Report != nil && (got.Report.Outcome == v1alpha1.ReportSucceeded) != (c.code == 0)
			if isTrue(plan.Task, v1alpha1.ConditionReportMismatch) != mismatch {
				t.Errorf("ReportMismatch is %v", !mismatch)
			}
		})
	}
}

// TestC15Mismatch: what contradicts the outcome is kept, and changes nothing.
func TestC15Mismatch(t *testing.T) {
	base := func(r change) *scene {
		s := processing(withSidecar, limit(0), r).runs(1, sidecarRuns)
		s.Task = settle(t, s)
		s.Workers = nil
		return s
	}
	for name, c := range map[string]struct {
		scene *scene
		want  bool
	}{
		"success and exit 0":             {base(reportedSuccess(19)).runs(1, worked(0, after(21)), over), false},
		"success and exit 1":             {base(reportedSuccess(19)).runs(1, worked(1, after(21)), over), true},
		"failure and exit 0":             {base(reportedFailure(19, false)).runs(1, worked(0, after(21)), over), true},
		"failure and exit 1":             {base(reportedFailure(19, false)).runs(1, worked(1, after(21)), over), false},
		"success, stopped for its grace": {base(reportedSuccess(19)).runs(1, worked(143, after(90)), over, stopAsked), false},
		"success, deleted":               {base(reportedSuccess(19)).runs(1, worked(143, after(90)), over, deletedAt(after(80))), false},
	} {
		t.Run(name, func(t *testing.T) {
			before := c.scene.Task.Status.State
			plan := decide(c.scene.at(after(100)).Snapshot)
			if got := isTrue(plan.Task, v1alpha1.ConditionReportMismatch); got != c.want || plan.Task.Status.State != before {
				t.Errorf("ReportMismatch %v, want %v; state %s after %s", got, c.want, plan.Task.Status.State, before)
			}
		})
	}
}

// TestTimeoutsOfReports: silence, no progress and a stage that takes too long stop a worker, first its outcome is stored.
func TestTimeoutsOfReports(t *testing.T) {
	heard := func(at int) change {
		return func(t *v1alpha1.Task) {
			_, err := lifecycle.Take(t, &report.Report{TaskID: "task-uid", Attempt: 1, Sequence: 1, Kind: report.Heartbeat}, lifecycle.Origin{}, 0, after(at))
			must(err)
		}
	}
	percent := func(sequence int64, percent float64, at int) change {
		return func(t *v1alpha1.Task) {
			r := &report.Report{TaskID: "task-uid", Attempt: 1, Sequence: sequence, Kind: report.Progress, Progress: &report.ProgressPayload{Percent: percent}}
			_, err := lifecycle.Take(t, r, lifecycle.Origin{}, 0, after(at))
			must(err)
		}
	}
	waits := func(wake string) outcome {
		return outcome{State: processingState, Reason: "WorkerRunning", Attempt: 1, Wake: wake}
	}
	stops := func(reason string) outcome {
		return outcome{State: processingState, Reason: reason, Attempt: 1, Stopping: reason, Stop: []string{"pod-1 by deadline"}}
	}
	at := func(o outcome, wake string) outcome { o.Wake = wake; return o }
	runTable(t, map[string]testCase{
		"silent since its start": {
			reason: "the timeout counts from the start",
			scene:  processing(withSidecar, heartbeat(30)).at(after(39)).runs(1, sidecarRuns), want: waits("40s"),
		},
		"silent for too long": {
			reason: "then it is stopped",
			scene:  processing(withSidecar, heartbeat(30)).at(after(40)).runs(1, sidecarRuns),
			want:   at(stops("HeartbeatTimeout"), "1m25s"),
		},
		"heard of": {
			reason: "from the last report on",
			scene:  processing(withSidecar, heartbeat(30), heard(35)).at(after(40)).runs(1, sidecarRuns), want: waits("1m5s"),
		},
		"lives and does not advance": {
			reason: "heartbeats are no progress",
			scene:  processing(withSidecar, noProgress(60), heard(65)).at(after(70)).runs(1, sidecarRuns),
			want:   at(stops("NoProgress"), "1m55s"),
		},
		"advances": {
			reason: "a higher percent is progress",
			scene:  processing(withSidecar, noProgress(60), percent(1, 10, 60)).at(after(70)).runs(1, sidecarRuns), want: waits("2m0s"),
		},
		"says the same again": {
			reason: "the same percent is none",
			scene:  processing(withSidecar, noProgress(60), percent(1, 10, 20), percent(2, 10, 60)).at(after(80)).runs(1, sidecarRuns),
			want:   at(stops("NoProgress"), "2m5s"),
		},
		"in a stage": {
			reason: "its timeout counts from the report that it was entered",
			scene:  processing(withSidecar, inStage("resize", 20, 30)).at(after(49)).runs(1, sidecarRuns), want: waits("50s"),
		},
		"too long in a stage": {
			reason: "the stage is named",
			scene:  processing(withSidecar, inStage("resize", 20, 30)).at(after(50)).runs(1, sidecarRuns),
			want:   at(stops("StageTimeout"), "1m35s"),
		},
	})
}

// TestNextAttemptDoesNotWaitForASidecar: what drains does no work; a stuck one is stopped with the rest of its pod.
func TestNextAttemptDoesNotWaitForASidecar(t *testing.T) {
	runTable(t, map[string]testCase{
		"the backoff is over": {
			reason: "the worker has ended, its sidecar still delivers",
			scene:  retrying(withSidecar).at(after(30)).runs(1, worked(1, after(20)), sidecarRuns),
			want:   outcome{State: pendingState, Reason: "WaitingForWorker", Attempt: 2, Charged: 1, Create: true, Wake: "1m20s"},
		},
		"the finish grace is over": {
			reason: "nothing of it stays",
			scene:  ended(lifecycle.Succeed, withSidecar).at(after(80)).runs(1, worked(0, after(20)), sidecarRuns),
			want:   outcome{State: succeededState, Reason: "Completed", Attempt: 1, Stop: []string{"pod-1 by deadline"}, Wake: "2m5s"},
		},
		"the retention is over first": {
			reason: "a Job is not deleted under a sidecar that delivers",
			scene:  ended(lifecycle.Succeed, withSidecar, retention(0)).at(after(30)).runs(1, worked(0, after(20)), sidecarRuns),
			want:   outcome{State: succeededState, Reason: "Completed", Attempt: 1, Wake: "1m20s"},
		},
	})
}

func TestFactsOfSidecar(t *testing.T) {
	pod := podOf(corev1.PodRunning, containerEnded("worker", 0, "Completed", ""))
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{containerRuns(v1alpha1.ReporterContainer)}
	f := factsOfPod(pod, "worker")
	if f.MayRun || !f.Alive() || f.Sidecar == nil || !f.Sidecar.Running || f.Sidecar.Ended {
		t.Errorf("while it drains: may run %v, alive %v, %+v", f.MayRun, f.Alive(), f.Sidecar)
	}
	drained := pod.DeepCopy()
	drained.Status.InitContainerStatuses = []corev1.ContainerStatus{containerEnded(v1alpha1.ReporterContainer, 1, "Error", "its note")}
	f = factsOfPod(drained, "worker")
	if f.Alive() || !f.Sidecar.Ended || f.Sidecar.Message != "its note" || f.OtherFailure != "" {
		t.Errorf("when it has ended: alive %v, %+v, failure %q", f.Alive(), f.Sidecar, f.OtherFailure)
	}
	if !podChanged(pod, drained) {
		t.Error("nobody would look at what it has left")
	}
	first := podOf(corev1.PodPending, containerWaits("worker", "PodInitializing", ""))
	first.Status.InitContainerStatuses = []corev1.ContainerStatus{containerRuns(v1alpha1.ReporterContainer)}
	if f := factsOfPod(first, "worker"); !f.MayRun {
		t.Error("before the worker has run it may run")
	}
}

// TestC43Undelivered: what may be lost is said.
func TestC43Undelivered(t *testing.T) {
	graced := func(p *PodFacts) { p.Grace = 180 * time.Second }
	for name, c := range map[string]struct {
		scene  *scene
		reason string
	}{
		"delivered": {processing(withSidecar, reportedSuccess(19)).runs(1, worked(0, after(19)), sidecarRuns), ""},
		"no report": {processing(withSidecar).at(after(21)).runs(1, worked(0, after(20)), sidecarEnded("")), ""},
		"silent": {
			processing(withSidecar, exitSeen(22)).at(after(217)).runs(1, worked(0, after(20)), sidecarRuns, graced), "SidecarSilent",
		},
		"its disk was full": {
			processing(withSidecar).at(after(25)).runs(1, worked(0, after(20)), over,
				sidecarEnded(string((&report.Note{SpoolError: "no space left on device"}).Encode(4096)))), "SpoolFailed",
		},
	} {
		plan := decide(c.scene.Snapshot)
		got := ""
		if cond := findCondition(plan.Task, v1alpha1.ConditionResultUndelivered); cond != nil {
			got = cond.Reason
		}
		if got != c.reason || plan.Task.Status.State != succeededState {
			t.Errorf("%s: ResultUndelivered %q, want %q; state %s", name, got, c.reason, plan.Task.Status.State)
		}
	}
}

// TestC26FinishGraceIsByOneClock: a worker whose clock is late loses nothing of the grace of its pod.
func TestC26FinishGraceIsByOneClock(t *testing.T) {
	r := successOf(1)
	r.ActualFinishTime = after(400).UnixMilli()
	s := processing(withSidecar, active(3600), reports(r, 1000)).at(after(1000)).runs(1, sidecarRuns)
	s.Task = decide(s.Snapshot).Task
	if got := outcomeOf(s.Snapshot, decide(s.at(after(1059)).Snapshot)); got.Stop != nil {
		t.Errorf("stopped: %+v", got)
	}
	if got := outcomeOf(s.Snapshot, decide(s.at(after(1060)).Snapshot)); got.Stop == nil {
		t.Errorf("not stopped: %+v", got)
	}
	if lag := *s.Task.Status.SyncLagMilliseconds; lag != 600000 {
		t.Errorf("lag %d ms, want it from the worker's own finish", lag)
	}
}

// TestMismatchOfAStoppedWorker: a success in the note of a worker that was stopped changes nothing, and is kept.
func TestMismatchOfAStoppedWorker(t *testing.T) {
	s := processing(withSidecar, terminating(v1alpha1.ReasonHeartbeatTimeout, after(15))).at(after(30)).
		runs(1, worked(143, after(20)), stopAsked, over, sidecarEnded(note(successOf(1))))
	plan := decide(s.Snapshot)
	if !isTrue(plan.Task, v1alpha1.ConditionReportMismatch) || plan.Task.Status.Attempts[0].Reason != v1alpha1.ReasonHeartbeatTimeout {
		t.Errorf("conditions %+v, attempts %+v", plan.Task.Status.Conditions, plan.Task.Status.Attempts)
	}
}

// TestLateExitOfAStage: a worker that ended by itself after its stage's time is not stopped, and its exit is kept.
func TestLateExitOfAStage(t *testing.T) {
	s := processing(withSidecar, active(40), inStage("resize", 20, 10)).at(after(60)).runs(1, exits(3, after(55)), sidecarEnded(""))
	s.Task.Spec.ActiveDeadlineSeconds = nil
	s.Task.Spec.OverallDeadlineSeconds = ptr.To[int32](50)
	plan := decide(s.Snapshot)
	if a := plan.Task.Status.Attempts[0]; a.ExitCode == nil || *a.ExitCode != 3 || len(plan.Stop) > 0 && plan.Moved == false {
		t.Errorf("attempt %+v, stops %v", a, plan.Stop)
	}
}

// TestReportHandler: which writes of a status wake the controller, and how soon.
func TestReportHandler(t *testing.T) {
	base := func(changes ...change) *v1alpha1.Task {
		task := processing(changes...).Task
		task.ResourceVersion = "2"
		return task
	}
	const none = -1
	for name, c := range map[string]struct {
		before, after *v1alpha1.Task
		priority      int
	}{
		"a final report":         {base(), base(reportedSuccess(19)), endingPriority},
		"another stage":          {base(), base(inStage("resize", 20, 10)), 0},
		"the same, entered anew": {base(inStage("resize", 20, 10)), base(inStage("resize", 25, 10)), 0},
		"the same stage":         {base(inStage("resize", 20, 10)), base(inStage("resize", 20, 10)), none},
		"progress":               {base(), base(func(t *v1alpha1.Task) { t.Status.Progress = &v1alpha1.TaskProgress{Percent: ptr.To[int32](4)} }), none},
	} {
		q := noted{added: map[string]int{}}
		c.before.ResourceVersion = "1" // else it is taken for a resync
		reportHandler.Update(t.Context(), event.UpdateEvent{ObjectOld: c.before, ObjectNew: c.after}, q)
		got, ok := q.added[c.after.Name]
		if !ok {
			got = none
		}
		if got != c.priority {
			t.Errorf("%s: priority %d, want %d", name, got, c.priority)
		}
	}
}
