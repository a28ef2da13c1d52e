package task

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/internal/report"
	"github.com/taskwarden/taskwarden/test/builders"
)

// The timeline of the fixtures: a Task is created and its first Job with it at created; a worker runs from started on.
var (
	created = time.Date(2030, time.January, 1, 0, 0, 0, 0, time.UTC)
	started = after(10)
)

const testNode = "node-a"

// after is a moment so many seconds after the Task's creation.
func after(seconds int) time.Time { return created.Add(time.Duration(seconds) * time.Second) }

// scene is a Snapshot that is being built.
type scene struct{ Snapshot }

// change alters the Task of a scene.
type change func(*v1alpha1.Task)

func cancel(t *v1alpha1.Task)  { t.Spec.Cancel = ptr.To(true) }
func suspend(t *v1alpha1.Task) { t.Spec.Suspend = ptr.To(true) }

func overall(seconds int32) change {
	return func(t *v1alpha1.Task) { t.Spec.OverallDeadlineSeconds = ptr.To(seconds) }
}

func active(seconds int32) change {
	return func(t *v1alpha1.Task) { t.Spec.ActiveDeadlineSeconds = ptr.To(seconds) }
}

func ttl(seconds int32) change {
	return func(t *v1alpha1.Task) { t.Spec.TTLSecondsAfterFinished = ptr.To(seconds) }
}

func retention(seconds int32) change {
	return func(t *v1alpha1.Task) { t.Spec.WorkerRetentionSeconds = ptr.To(seconds) }
}

func limit(n int32) change {
	return func(t *v1alpha1.Task) { t.Spec.Retry.Limit = ptr.To(n) }
}

func podGraceOf(seconds int64) change {
	return func(t *v1alpha1.Task) { t.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To(seconds) }
}

func waitForLost(t *v1alpha1.Task) { t.Spec.Retry.OnWorkerLost = v1alpha1.WaitForLostWorker }

func askRetry(value string) change {
	return func(t *v1alpha1.Task) {
		metav1.SetMetaDataAnnotation(&t.ObjectMeta, v1alpha1.AnnotationRetryRequestedAt, value)
	}
}

// terminating fixes the outcome of the current attempt.
func terminating(reason string, since time.Time) change {
	return func(t *v1alpha1.Task) {
		setCondition(t, v1alpha1.ConditionTerminating, metav1.ConditionTrue, reason, "fixed before", since)
	}
}

func withSidecar(t *v1alpha1.Task) { t.Spec.Reporter = v1alpha1.ReporterSidecar }

func heartbeat(seconds int32) change {
	return func(t *v1alpha1.Task) { t.Spec.HeartbeatTimeoutSeconds = ptr.To(seconds) }
}

func noProgress(seconds int32) change {
	return func(t *v1alpha1.Task) { t.Spec.ProgressTimeoutSeconds = ptr.To(seconds) }
}

// inStage has a running worker enter a stage with a timeout.
func inStage(name string, at int, timeout int32) change {
	return func(t *v1alpha1.Task) {
		t.Spec.Stages = []v1alpha1.Stage{{Name: "download"}, {Name: name, TimeoutSeconds: ptr.To(timeout)}}
		if t.Status.State == processingState {
			t.Status.Progress = &v1alpha1.TaskProgress{Stage: name, StageTime: ptr.To(metav1.NewMicroTime(after(at)))}
		}
	}
}

// exitSeen is when the operator began to wait for what the sidecar may deliver.
func exitSeen(at int) change {
	return func(t *v1alpha1.Task) { t.Status.Worker.ExitSeenTime = ptr.To(metav1.NewMicroTime(after(at))) }
}

// reports has the worker of an open attempt make its final report.
func reports(r *report.Report, at int) change {
	return func(t *v1alpha1.Task) {
		if s := t.Status.State; s == pendingState || s == processingState {
			r.Attempt = lifecycle.CurrentAttempt(t)
			_, _ = lifecycle.Take(t, r, lifecycle.Origin{PodUID: podUID(r.Attempt), Source: v1alpha1.FromGateway}, 0, after(at))
		}
	}
}

func reportedSuccess(at int) change { return reports(successOf(1), at) }

func reportedFailure(at int, permanent bool) change {
	return reports(&report.Report{
		TaskID: "task-uid", Attempt: 1, Sequence: 9, Kind: report.Failed,
		Failure: &report.FailurePayload{Message: "no such picture", Permanent: permanent},
	}, at)
}

// successOf is the report of a worker that has succeeded.
func successOf(attempt int32) *report.Report {
	return &report.Report{
		TaskID: "task-uid", Attempt: attempt, Sequence: 9, Kind: report.Succeeded,
		Result: &report.ResultPayload{URL: "s3://bucket/key", Message: "three pictures"},
	}
}

// note is the termination message of a sidecar that could not deliver a final report.
func note(r *report.Report) string {
	return string((&report.Note{Final: r}).Encode(report.MaxNoteBytes))
}

// fresh is a Task that nobody has looked at yet. Its backoff is 10 s without jitter.
func fresh(changes ...change) *scene {
	t := builders.Task("demo").Namespace("ns").Backoff(10*time.Second, 300*time.Second, "2").Obj()
	t.UID, t.ResourceVersion, t.Generation = "task-uid", "1", 1
	t.CreationTimestamp = metav1.NewTime(created)
	t.Status.State, t.Status.Reason = pendingState, v1alpha1.ReasonAccepted // the API server's default
	for _, c := range changes {
		c(t)
	}
	return (&scene{Snapshot{Task: t, MaxClockSkew: lifecycle.DefaultMaxClockSkew}}).at(created)
}

// must stops a fixture that the state machine does not allow.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// stored brings a fixture's Task to where the writes of earlier passes have left it; changes come after.
func stored(now time.Time, move func(*v1alpha1.Task), changes []change) *scene {
	s := fresh()
	move(s.Task)
	for _, c := range changes {
		c(s.Task)
	}
	s.Now = now
	p := Plan{Task: s.Task}
	d := decision{Snapshot: s.Snapshot, plan: &p, task: s.Task, now: now}
	d.setConditions()
	return s
}

func accept(t *v1alpha1.Task) {
	lifecycle.Accept(t, created)
	t.Status.Reason, t.Status.Message = v1alpha1.ReasonWaitingForWorker, "Accepted"
}

func begin(t *v1alpha1.Task, now time.Time) {
	n := t.Status.Attempt
	lifecycle.Begin(t, JobName(t.Name, n), now)
	t.Status.Worker.JobUID = jobUID(n)
	t.Status.Reason, t.Status.Message = v1alpha1.ReasonWaitingForWorker, "The worker Job was created"
}

func start(t *v1alpha1.Task, at time.Time) {
	must(lifecycle.Started(t, v1alpha1.WorkerStatus{
		PodName: string(podUID(t.Status.Attempt)), PodUID: podUID(t.Status.Attempt), NodeName: testNode,
		StartTime: ptr.To(metav1.NewMicroTime(at)),
	}, at))
	t.Status.Reason, t.Status.Message = v1alpha1.ReasonWorkerRunning, "The worker runs on node "+testNode
}

// finish closes the current attempt and the Task with it, or brings it to Retrying.
func finish(t *v1alpha1.Task, event lifecycle.Event, reason string, code *int32, at time.Time) {
	_, err := lifecycle.End(t, lifecycle.Ending{
		Event: event, Reason: reason, Message: "it ended", ExitCode: code, FinishTime: at,
	}, lifecycle.Facts{WorkerStopped: true}, at)
	must(err)
}

// accepted is Pending without a Job.
func accepted(changes ...change) *scene { return stored(created, accept, changes) }

// pending waits for the worker of its first Job.
func pending(changes ...change) *scene {
	return stored(after(5), func(t *v1alpha1.Task) { accept(t); begin(t, created) }, changes)
}

// uncreated is Pending, and its first Job could not be created yet.
func uncreated(changes ...change) *scene {
	return stored(after(5), func(t *v1alpha1.Task) {
		accept(t)
		begin(t, created)
		t.Status.Worker.JobUID = ""
		t.Status.Reason, t.Status.Message = v1alpha1.ReasonCreatePending, "etcdserver: leader changed"
	}, changes)
}

// processing has a worker that runs since started.
func processing(changes ...change) *scene {
	return stored(after(20), func(t *v1alpha1.Task) { accept(t); begin(t, created); start(t, started) }, changes)
}

// retrying has a first attempt that exited with 1 at 20 s; the next is due at 30 s.
func retrying(changes ...change) *scene {
	return stored(after(20), func(t *v1alpha1.Task) {
		accept(t)
		begin(t, created)
		start(t, started)
		finish(t, lifecycle.Fail, v1alpha1.ReasonNonZeroExitCode, ptr.To[int32](1), after(20))
	}, changes)
}

// ended is a Task that came to a terminal state at 20 s by the given event.
func ended(event lifecycle.Event, changes ...change) *scene {
	return stored(after(20), func(t *v1alpha1.Task) {
		t.Spec.Retry.Limit = ptr.To[int32](0)
		accept(t)
		begin(t, created)
		start(t, started)
		code, reason := ptr.To[int32](1), v1alpha1.ReasonNonZeroExitCode
		switch event {
		case lifecycle.Succeed:
			code, reason = ptr.To[int32](0), v1alpha1.ReasonCompleted
		case lifecycle.Cancel:
			code, reason = nil, v1alpha1.ReasonCancelled
		default:
		}
		finish(t, event, reason, code, after(20))
	}, changes)
}

func jobUID(attempt int32) types.UID { return types.UID(fmt.Sprintf("job-%d", attempt)) }
func podUID(attempt int32) types.UID { return types.UID(fmt.Sprintf("pod-%d", attempt)) }

// at sets the clock.
func (s *scene) at(now time.Time) *scene { s.Now = now; return s }

// with alters the Task as a user would, after all else.
func (s *scene) with(changes ...change) *scene {
	for _, c := range changes {
		c(s.Task)
	}
	return s
}

// worker is the given attempt's worker, made where there is none.
func (s *scene) worker(attempt int32) *Worker {
	for i := range s.Workers {
		if s.Workers[i].Attempt == attempt {
			return &s.Workers[i]
		}
	}
	s.Workers = append(s.Workers, Worker{Attempt: attempt})
	return &s.Workers[len(s.Workers)-1]
}

// job adds the Job of an attempt.
func (s *scene) job(attempt int32, changes ...func(*JobFacts)) *scene {
	j := &JobFacts{Name: JobName(s.Task.Name, attempt), UID: jobUID(attempt), CreateTime: created}
	for _, c := range changes {
		c(j)
	}
	s.worker(attempt).Job = j
	return s
}

// pod adds a pod to an attempt. Without changes it waits on its node for its containers.
func (s *scene) pod(attempt int32, changes ...func(*PodFacts)) *scene {
	p := PodFacts{
		Name: string(podUID(attempt)), UID: podUID(attempt), NodeName: testNode, CreateTime: after(1), StartTime: after(1),
		Phase: corev1.PodPending, Grace: defaultPodGrace, MayRun: true,
	}
	for _, c := range changes {
		c(&p)
	}
	w := s.worker(attempt)
	w.Pods = append(w.Pods, p)
	return s
}

// runs adds Job and pod of an attempt whose worker runs; changes concern the pod.
func (s *scene) runs(attempt int32, changes ...func(*PodFacts)) *scene {
	return s.job(attempt).pod(attempt, append([]func(*PodFacts){running}, changes...)...)
}

func running(p *PodFacts) {
	p.Phase, p.RunningSince = corev1.PodRunning, started
}

// exits ends the worker container; the pod goes on.
func exits(code int32, at time.Time) func(*PodFacts) {
	return func(p *PodFacts) {
		p.RunningSince = time.Time{}
		p.Exit = &Exit{Code: code, Reason: "Error", StartTime: started, FinishTime: at}
		if code == 0 {
			p.Exit.Reason = "Completed"
		}
	}
}

// over ends the pod.
func over(p *PodFacts) {
	p.MayRun, p.RunningSince = false, time.Time{}
	p.Phase = corev1.PodFailed
	if p.Exit != nil && p.Exit.Code == 0 {
		p.Phase = corev1.PodSucceeded
	}
}

func podSays(reason, message string) func(*PodFacts) {
	return func(p *PodFacts) { p.Reason, p.Message = reason, message }
}

func waits4(reason, message string) func(*PodFacts) {
	return func(p *PodFacts) { p.Waiting = Waiting{Reason: reason, Message: message} }
}

func disruptedAt(at time.Time) func(*PodFacts) {
	return func(p *PodFacts) {
		p.Disruption = &Disruption{Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting", Time: at}
	}
}

func sidecarRuns(p *PodFacts) { p.Sidecar = &SidecarFacts{Running: true} }

func sidecarEnded(message string) func(*PodFacts) {
	return func(p *PodFacts) { p.Sidecar = &SidecarFacts{Ended: true, Message: message} }
}

// worked ends the worker container, and all others of the template: only the sidecar goes on.
func worked(code int32, at time.Time) func(*PodFacts) {
	return func(p *PodFacts) { exits(code, at)(p); p.MayRun = false }
}

func deleting(p *PodFacts) { p.Deleting = true }

func deletedAt(at time.Time) func(*PodFacts) {
	return func(p *PodFacts) { p.Deleting, p.DeleteTime = true, at }
}

func stopAsked(p *PodFacts) { p.StopAsked = true }
func unbound(p *PodFacts)   { p.NodeName, p.StartTime = "", time.Time{} }
func completed(j *JobFacts) { j.Complete = true }
func jobFailed(j *JobFacts) {
	j.Failed, j.Message = true, "Job has reached the specified backoff limit"
}
func jobGoing(j *JobFacts)   { j.Deleting = true }
func disruptedJ(j *JobFacts) { j.Failed, j.Disrupted, j.Message = true, true, "Pod matched a rule" }

// outcome is what a table test compares: all that a plan does, in words.
type outcome struct {
	State      v1alpha1.State
	Reason     string
	Attempt    int32
	Charged    int32
	Uncharged  int32
	Stopping   string // the reason of condition Terminating, where it is True
	Create     bool
	Stop       []string
	DeleteJobs []string
	DeleteTask bool
	Wake       string // after the creation; "now", "none"
}

func outcomeOf(s Snapshot, p Plan) outcome {
	st := &p.Task.Status
	o := outcome{
		State: st.State, Reason: st.Reason, Attempt: st.Attempt, Charged: st.Charged, Uncharged: st.Uncharged,
		Create: p.Create, DeleteTask: p.DeleteTask,
	}
	if isTrue(p.Task, v1alpha1.ConditionTerminating) {
		o.Stopping = findCondition(p.Task, v1alpha1.ConditionTerminating).Reason
	}
	for _, stop := range p.Stop {
		o.Stop = append(o.Stop, fmt.Sprintf("%s by %s", stop.UID, map[StopBy]string{
			StopByDeadline: "deadline", StopByDeletingPod: "deletion", StopByDeletingJob: "deletion of the Job",
		}[stop.By]))
	}
	for _, j := range p.DeleteJobs {
		o.DeleteJobs = append(o.DeleteJobs, string(j.UID))
	}
	switch {
	case p.WakeAt.IsZero():
		o.Wake = "none"
	case p.WakeAt.Equal(s.Now):
		o.Wake = "now"
	default:
		o.Wake = p.WakeAt.Sub(created).String()
	}
	return o
}

// testCase is one row of a table over decide.
type testCase struct {
	reason string
	scene  *scene
	want   outcome
}

func runTable(t *testing.T, cases map[string]testCase) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			plan := decide(tc.scene.Snapshot)
			if diff := cmp.Diff(tc.want, outcomeOf(tc.scene.Snapshot, plan)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			for _, err := range plan.Refused {
				t.Errorf("an event was refused: %v", err)
			}
			checkPlan(t, tc.scene.Snapshot, plan)
		})
	}
}
