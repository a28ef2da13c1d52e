package task

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/internal/report"
)

// cluster is one moment of the model: a Task, what belongs to it, one node, and the controller between two passes. What its
// pointers and slices lead to is never changed, so that the next moments can share it.
type cluster struct {
	now     time.Time
	version int // of the last write of the Task
	made    int // Jobs and pods, for their UIDs
	task    *v1alpha1.Task
	jobs    []*batchv1.Job
	pods    []*corev1.Pod
	served  []types.UID // Jobs that have had their pod
	// processes are the workers, whatever the API server knows of them.
	processes []process
	node      node
	sidecar   bool // whether the workers have one
	acked     []ack

	// shown is what the controller's caches hold.
	shown struct {
		task *v1alpha1.Task
		jobs []*batchv1.Job
		pods []*corev1.Pod
	}
	slow     bool    // the cluster leaves things undone while time passes
	held     [3]bool // watches that are silent: of Tasks, Jobs, pods
	ownWrite int     // version of the Task that the controller knows to have written
	queued   bool
	wakeAt   time.Time
	witness  []types.UID
	leads    string // the version that the leadership has asked for

	disturbed, wished int // how much of the budgets is used
	faults            []string
}

// process is the truth about the worker of one pod.
type process struct {
	pod     types.UID
	attempt int32
	live    bool
	started time.Time
	ended   time.Time
	code    int32
	own     bool // it ended by itself
	// said is its final word to its sidecar, sent that the sidecar has nothing more to deliver, mute that it has ended.
	said       v1alpha1.ReportOutcome
	sent, mute bool
	// stopAt is when it was told to end.
	stopAt time.Time
	// writtenOff: the Task says that nobody knows whether it has stopped.
	writtenOff bool
	// recorded: its success is stored where a pass can read it, before anything else was; onRecord: since before this pass.
	recorded, onRecord bool
}

// success tells whether it did its work.
func (p *process) success() bool {
	return p.said == v1alpha1.ReportSucceeded || p.said == "" && p.own && !p.live && p.code == 0
}

type node struct {
	down  bool // it is cut off; what runs on it runs on
	at    time.Time
	ready bool // as the control plane believes
	since time.Time
}

// ack is a final report that the gateway has acknowledged.
type ack struct {
	attempt int32
	outcome v1alpha1.ReportOutcome
}

const (
	watchTasks = iota
	watchJobs
	watchPods
)

// nodeMonitor is how long a dead node is called ready.
const nodeMonitor = 50 * time.Second

func (c *cluster) clone() *cluster {
	next := *c
	next.processes = slices.Clone(c.processes)
	return &next
}

// The controller.

// reconciler is the controller under test, as this moment has it.
func (c *cluster) reconciler(a *api) *Reconciler {
	r := &Reconciler{
		Client: cached{a}, Live: direct{a}, Recorder: &events.FakeRecorder{}, Clock: clocktesting.NewFakePassiveClock(c.now),
		Gateways: &Gateways{Namespace: "taskwarden", last: &Gateway{}, asked: c.now, Clock: clocktesting.NewFakePassiveClock(c.now)},
		witness:  newWitness(), readsOwnWrites: true,
	}
	for _, uid := range c.witness {
		r.witness.pods.Add(uid, struct{}{})
	}
	if c.leads != "" {
		r.leadership.since.Store(&c.leads)
	}
	return r
}

// silent is a context without a logger that would cost time.
var silent = logf.IntoContext(context.Background(), logr.Discard())

// pass is one pass of the controller, and the work queue's answer to it.
func (c *cluster) pass(d disturbance) *api {
	a := &api{c: c, disturbance: d}
	r := c.reconciler(a)
	c.queued, c.wakeAt = false, time.Time{}
	result, err := r.Reconcile(silent, ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "ns", Name: "demo"}})
	if since := r.leadership.since.Load(); since != nil {
		c.leads = *since
	}
	switch {
	case a.dead:
		c.restart()
	case err != nil:
		c.queued = true // after a while
	case result.RequeueAfter > 0:
		c.wakeAt = c.now.Add((result.RequeueAfter + time.Second - 2*time.Millisecond).Truncate(time.Second)) // the model's time has whole seconds
	}
	return a
}

// restart gives the controller a new process. Its caches begin with what the API server lists, which may be old.
func (c *cluster) restart() {
	c.ownWrite, c.leads, c.witness, c.wakeAt, c.queued = 0, "", nil, time.Time{}, true
}

// due tells whether a pass is due.
func (c *cluster) due() bool {
	return c.queued || !c.wakeAt.IsZero() && !c.wakeAt.After(c.now)
}

// queue notes whether the controller's own handlers of events ask for a pass.
type queue struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	c *cluster
}

func (q *queue) Add(reconcile.Request)                     { q.c.queued = true }
func (q *queue) AddAfter(reconcile.Request, time.Duration) { q.c.queued = true }
func (q *queue) Len() int                                  { return 0 }

// deliver shows the controller what has changed, through its own handlers.
func (c *cluster) deliver() {
	if c.shown.task == c.task && slices.Equal(c.shown.jobs, c.jobs) && slices.Equal(c.shown.pods, c.pods) {
		return
	}
	r, q := c.reconciler(&api{c: c}), &queue{c: c}
	if old := c.shown.task; !c.held[watchTasks] && old != c.task {
		c.shown.task = c.task
		if e := (event.UpdateEvent{ObjectOld: old, ObjectNew: c.task}); old == nil || c.task == nil || taskChanged.Update(e) {
			c.queued = true
		} else {
			reportHandler.Update(silent, e, q)
		}
	}
	if !c.held[watchJobs] {
		c.shown.jobs = show(c.shown.jobs, c.jobs, func(old, cur *batchv1.Job) {
			c.queued = c.queued || old == nil || cur == nil || jobChanged.Update(event.UpdateEvent{ObjectOld: old, ObjectNew: cur})
		})
	}
	if !c.held[watchPods] {
		h := r.podHandler(DefaultConcurrency)
		c.shown.pods = show(c.shown.pods, c.pods, func(old, cur *corev1.Pod) {
			switch {
			case old == nil:
				h.Create(silent, event.CreateEvent{Object: cur}, q)
			case cur == nil:
				h.Delete(silent, event.DeleteEvent{Object: old}, q)
				if !slices.Contains(c.witness, old.UID) && r.witness.stopped(old.UID) {
					c.witness = append(slices.Clone(c.witness), old.UID)
				}
			default:
				h.Update(silent, event.UpdateEvent{ObjectOld: old, ObjectNew: cur}, q)
			}
		})
	}
}

// show calls changed for each object that is not as it was.
func show[T any, P interface {
	*T
	client.Object
}](before, now []P, changed func(old, cur P)) []P {
	for _, old := range before {
		i := slices.IndexFunc(now, func(o P) bool { return o.GetUID() == old.GetUID() })
		if i < 0 {
			changed(old, nil)
		} else if now[i] != old {
			changed(old, now[i])
		}
	}
	for _, cur := range now {
		if !slices.ContainsFunc(before, func(o P) bool { return o.GetUID() == cur.GetUID() }) {
			changed(nil, cur)
		}
	}
	return now
}

// The Job controller and the garbage collector. Each function does one thing, and tells whether there was one to do.

func podsOf(c *cluster, job types.UID) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(c.pods), func(p *corev1.Pod) bool { return p.OwnerReferences[0].UID != job })
}

// createPod makes the pod of a Job. It does not replace one that somebody has taken away: who strips a pod of the Job controller's
// finalizer before that has counted it asks for a second worker, and nobody could prevent it.
func (c *cluster) createPod() bool {
	for _, job := range c.jobs {
		if job.DeletionTimestamp != nil || factsOfJob(job).Finished() || slices.Contains(c.served, job.UID) {
			continue
		}
		c.served = append(slices.Clone(c.served), job.UID)
		c.made++
		name := fmt.Sprintf("%s-%d", job.Name, c.made)
		template := job.Spec.Template
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID(name), Labels: template.Labels, CreationTimestamp: metav1.NewTime(c.now),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))},
		}, Spec: *template.Spec.DeepCopy()}
		if pod.Spec.TerminationGracePeriodSeconds == nil {
			pod.Spec.TerminationGracePeriodSeconds = ptr.To(int64(defaultPodGrace / time.Second))
		}
		pod.Status.Phase = corev1.PodPending
		_, _ = stripPod(pod)
		c.pods = append(slices.Clone(c.pods), pod)
		return true
	}
	return false
}

// finishJob counts a pod that is over.
func (c *cluster) finishJob() bool {
	for _, job := range c.jobs {
		if job.DeletionTimestamp != nil || factsOfJob(job).Finished() {
			continue
		}
		for _, pod := range podsOf(c, job.UID) {
			if !ended1(pod) {
				continue
			}
			condition := batchv1.JobCondition{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}
			if pod.Status.Phase == corev1.PodFailed {
				condition = batchv1.JobCondition{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: batchv1.JobReasonBackoffLimitExceeded}
				if len(pod.Status.Conditions) > 0 {
					condition.Reason = batchv1.JobReasonPodFailurePolicy
				}
			}
			c.changeJob(job, func(j *batchv1.Job) { j.Status.Conditions = append(j.Status.Conditions, condition) })
			return true
		}
	}
	return false
}

// collect deletes what has lost its owner, and what a deletion in the foreground takes along.
func (c *cluster) collect() bool {
	for _, job := range c.jobs {
		if c.task == nil && job.DeletionTimestamp == nil {
			c.deleteJob(job, metav1.DeletePropagationBackground)
			return true
		}
		if job.DeletionTimestamp != nil && len(podsOf(c, job.UID)) == 0 {
			c.jobs = replaced(c.jobs, job, nil)
			return true
		}
	}
	for _, pod := range c.pods {
		if job := c.jobByUID(pod.OwnerReferences[0].UID); pod.DeletionTimestamp == nil && (job == nil || job.DeletionTimestamp != nil) {
			c.deletePod(pod)
			return true
		}
	}
	return false
}

// reap lets a deleted pod go whose containers have ended, when its Job has counted it.
func (c *cluster) reap() bool {
	for _, pod := range c.pods {
		if pod.DeletionTimestamp == nil {
			continue
		}
		if pod.Spec.NodeName == "" && !ended1(pod) {
			c.changePod(pod, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }) // the pod garbage collector's doing
			return true
		}
		job := c.jobByUID(pod.OwnerReferences[0].UID)
		if ended1(pod) && (job == nil || job.DeletionTimestamp != nil || factsOfJob(job).Finished()) {
			c.erase(pod)
			return true
		}
	}
	return false
}

// erase takes a pod away. What runs of it on a node that is there is killed; on one that is cut off it runs on.
func (c *cluster) erase(pod *corev1.Pod) {
	c.pods = replaced(c.pods, pod, nil)
	if p := c.process(pod.UID); p != nil {
		if p.live && !c.node.down {
			c.end(p, 137, false)
		}
		p.mute = true
		p.recorded = p.recorded && p.said != "" // a pod's word has gone with it, a stored report has not
		p.onRecord = p.onRecord && p.said != ""
		if p.live && p.stopAt.IsZero() {
			p.stopAt = c.now
		}
	}
}

// The scheduler and the kubelet.

func (c *cluster) process(pod types.UID) *process {
	if i := slices.IndexFunc(c.processes, func(p process) bool { return p.pod == pod }); i >= 0 {
		return &c.processes[i]
	}
	return nil
}

func (c *cluster) pod(uid types.UID) *corev1.Pod {
	return find(c.pods, func(p *corev1.Pod) bool { return p.UID == uid })
}

// told notes that a worker is to end.
func (c *cluster) told(pod types.UID) {
	if p := c.process(pod); p != nil && p.live && p.stopAt.IsZero() {
		p.stopAt = c.now
	}
}

// overtime tells of a pod that its own deadline has passed.
func (c *cluster) overtime(pod *corev1.Pod) bool {
	f := factsOfPod(pod, "")
	return lifecycle.Passed(f.Deadline, c.now)
}

// bind gives a pod to the node.
func (c *cluster) bind() bool {
	for _, pod := range c.pods {
		if pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && !ended1(pod) {
			c.changePod(pod, func(p *corev1.Pod) { p.Spec.NodeName = testNode })
			return true
		}
	}
	return false
}

// run starts the worker of a pod, or ends a pod that is told to end before its worker has begun.
func (c *cluster) run() bool {
	for _, pod := range c.pods {
		if c.node.down || pod.Spec.NodeName == "" || ended1(pod) || c.process(pod.UID) != nil {
			continue
		}
		if pod.Status.StartTime == nil {
			pod = c.changePod(pod, func(p *corev1.Pod) { p.Status.StartTime = ptr.To(metav1.NewTime(c.now)) })
		}
		stop := pod.Spec.ActiveDeadlineSeconds != nil && *pod.Spec.ActiveDeadlineSeconds <= stopDeadlineSeconds
		if stop || pod.DeletionTimestamp != nil {
			c.changePod(pod, func(p *corev1.Pod) {
				p.Status.Phase = corev1.PodFailed
				if stop {
					p.Status.Reason = podDeadlineExceeded
				}
			})
			return true
		}
		c.processes = append(c.processes, process{pod: pod.UID, attempt: attemptOf(pod.Labels), live: true, started: c.now})
		c.sync(&c.processes[len(c.processes)-1])
		return true
	}
	return false
}

// obey ends a worker that is told to end, with the given code. That takes a second.
func (c *cluster) obey(code int32) bool {
	for i := range c.processes {
		p := &c.processes[i]
		if !p.live || c.node.down || p.stopAt.IsZero() {
			continue
		}
		c.now = c.now.Add(time.Second)
		c.end(p, code, false)
		return true
	}
	return false
}

// work ends a worker by itself.
func (c *cluster) work(code int32) bool {
	for i := range c.processes {
		if p := &c.processes[i]; p.live {
			c.end(p, code, true)
			return true
		}
	}
	return false
}

func (c *cluster) end(p *process, code int32, own bool) {
	p.live, p.code, p.own, p.ended = false, code, own, c.now
	c.sync(p)
}

// sync has the kubelet write what it knows of a pod.
func (c *cluster) sync(p *process) {
	pod := c.pod(p.pod)
	if pod == nil || c.node.down || ended1(pod) {
		return
	}
	state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(p.started)}}
	reason := "Error"
	if p.code == 0 {
		reason = "Completed"
	}
	if !p.live {
		state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: p.code, Reason: reason, StartedAt: metav1.NewTime(p.started), FinishedAt: metav1.NewTime(p.ended),
		}}
	}
	c.changePod(pod, func(pod *corev1.Pod) {
		pod.Status.Phase = corev1.PodRunning
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, State: state}}
		if c.sidecar {
			pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: v1alpha1.ReporterContainer, State: c.reporter(p)}}
		}
		switch {
		case p.live || c.sidecar && !p.mute:
		case c.overtime(pod):
			pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, podDeadlineExceeded
		case p.code == 0:
			pod.Status.Phase = corev1.PodSucceeded
		default:
			pod.Status.Phase = corev1.PodFailed
		}
	})
	if !c.sidecar && !p.live {
		c.noteRecord(p, pod)
	}
}

// reporter is the state of a sidecar. What it could not deliver it leaves in its termination message.
func (c *cluster) reporter(p *process) corev1.ContainerState {
	if !p.mute {
		return corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	}
	message := ""
	if p.said != "" && !p.sent {
		message = note(c.report(p))
	}
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: message}}
}

func (c *cluster) report(p *process) *report.Report {
	r := &report.Report{TaskID: "task-uid", Attempt: p.attempt, Sequence: 1, Kind: report.Succeeded, Result: &report.ResultPayload{}}
	if p.said == v1alpha1.ReportFailed {
		r.Kind, r.Result, r.Failure = report.Failed, nil, &report.FailurePayload{Message: "no"}
	}
	return r
}

// say has a live worker give its final word to its sidecar.
func (c *cluster) say(word v1alpha1.ReportOutcome) bool {
	for i := range c.processes {
		if p := &c.processes[i]; c.sidecar && p.live && p.said == "" {
			p.said = word
			return true
		}
	}
	return false
}

// send has a sidecar deliver the final word through the gateway, which acknowledges what it has stored.
func (c *cluster) send() bool {
	for i := range c.processes {
		p := &c.processes[i]
		if p.said == "" || p.sent || p.mute || c.node.down {
			continue
		}
		if c.task == nil {
			p.sent = true
			return true
		}
		t := c.task.DeepCopy()
		changed, err := lifecycle.Take(t, c.report(p), lifecycle.Origin{PodUID: p.pod, Source: v1alpha1.FromGateway}, time.Minute, c.now)
		var refused *lifecycle.ReportRefusedError
		if errors.As(err, &refused) && refused.Code == report.Unavailable {
			return false // it tries again
		}
		p.sent = true
		if changed {
			c.storeStatus(&t.Status)
		}
		if err == nil {
			c.acked = append(slices.Clone(c.acked), ack{p.attempt, p.said})
			p.recorded = p.recorded || p.said == v1alpha1.ReportSucceeded
		}
		return true
	}
	return false
}

// silence ends the sidecar of a worker that has ended.
func (c *cluster) silence() bool {
	for i := range c.processes {
		if p := &c.processes[i]; c.sidecar && !p.live && !p.mute && !c.node.down {
			p.mute = true
			c.sync(p)
			return true
		}
	}
	return false
}

// kill ends what runs of a pod that is gone.
func (c *cluster) kill() bool {
	for i := range c.processes {
		if p := &c.processes[i]; p.live && !c.node.down && c.pod(p.pod) == nil {
			c.end(p, 137, false)
			return true
		}
	}
	return false
}

// nodeDown cuts the node off.
func (c *cluster) nodeDown() bool {
	if c.node.down {
		return false
	}
	c.node.down, c.node.at = true, c.now
	return true
}

// nodeUp brings it back: its kubelet tells what has happened meanwhile.
func (c *cluster) nodeUp() bool {
	if !c.node.down {
		return false
	}
	c.node.down = false
	if !c.node.ready {
		c.node.ready, c.node.since = true, c.now
	}
	for i := range c.processes {
		p := &c.processes[i]
		c.sync(p)
		if p.live && !p.stopAt.IsZero() {
			p.stopAt = c.now
		}
	}
	return true
}

// Time.

// moments are those at which something is due.
func (c *cluster) moments() []time.Time {
	all := []time.Time{c.wakeAt}
	if c.node.down && c.node.ready {
		all = append(all, c.node.at.Add(nodeMonitor))
	}
	for i := range c.processes {
		p := &c.processes[i]
		if c.node.down {
			continue
		}
		if c.sidecar && !p.live && !p.mute {
			all = append(all, p.ended.Add(v1alpha1.MinReporterGraceSeconds*time.Second))
		}
		if !p.live {
			continue
		}
		if !p.stopAt.IsZero() {
			all = append(all, p.stopAt.Add(defaultPodGrace))
		} else if pod := c.pod(p.pod); pod != nil {
			all = append(all, factsOfPod(pod, "").Deadline)
		}
	}
	return slices.DeleteFunc(all, func(t time.Time) bool { return !t.After(c.now) })
}

// elapse goes to the next moment at which something is due. No worker outlives its grace on a node that is there.
func (c *cluster) elapse() bool {
	next := lifecycle.Earliest(c.moments()...)
	if next.IsZero() {
		return false
	}
	c.now = next
	if c.node.down && c.node.ready && !c.now.Before(c.node.at.Add(nodeMonitor)) {
		c.node.ready, c.node.since = false, c.now
	}
	for i := range c.processes {
		p := &c.processes[i]
		if c.node.down {
			continue
		}
		if c.sidecar && !p.live && !p.mute && !c.now.Before(p.ended.Add(v1alpha1.MinReporterGraceSeconds*time.Second)) {
			p.mute = true
			c.sync(p)
		}
		if !p.live {
			continue
		}
		if pod := c.pod(p.pod); pod != nil && c.overtime(pod) && p.stopAt.IsZero() {
			p.stopAt = c.now
		}
		if !p.stopAt.IsZero() && !c.now.Before(p.stopAt.Add(defaultPodGrace)) {
			c.end(p, 137, false)
		}
	}
	return true
}

// What must hold.

// noteRecord notes a success that nothing which is stored speaks against.
func (c *cluster) noteRecord(p *process, pod *corev1.Pod) {
	t := c.task
	if t == nil || !p.own || p.code != 0 || !lifecycle.Accepted(t) {
		return
	}
	w, f := t.Status.Worker, factsOfPod(pod, "")
	active := p.started.Add(time.Duration(lifecycle.ActiveSeconds(t)) * time.Second)
	switch {
	case lifecycle.Terminal(t.Status.State) || t.Status.Attempt != p.attempt || w == nil || w.PodUID != "" && w.PodUID != p.pod:
	case isTrue(t, v1alpha1.ConditionTerminating) || late(active, p.ended) || late(lifecycle.OverallDeadline(t), p.ended):
	case late(f.DeleteTime, p.ended) || f.Deleting || f.Disruption != nil || c.overtime(pod):
	default:
		p.recorded = true
	}
}

// changedStatus asks whether what a write tells of workers is true.
func (c *cluster) changedStatus(old *v1alpha1.Task) {
	for i := range c.processes {
		p := &c.processes[i]
		lost := findCondition(c.task, v1alpha1.ConditionWorkerStopped)
		if workerLost(c.task) && strings.Contains(lost.Message, fmt.Sprintf("attempt %d ", p.attempt)) {
			p.writtenOff = true
		}
	}
	for i := range c.task.Status.Attempts {
		a := &c.task.Status.Attempts[i]
		if before := attempt(old, a.Number); a.Outcome != "" && (before == nil || before.Outcome == "") {
			c.closed(a)
		}
	}
	if isTrue(c.task, v1alpha1.ConditionTerminating) && !isTrue(old, v1alpha1.ConditionTerminating) {
		c.ignores(c.task.Status.Attempt, findCondition(c.task, v1alpha1.ConditionTerminating).Reason)
		for i := range c.processes {
			c.processes[i].recorded = false // what came while the pass was under way came too late
		}
	}
	for _, a := range c.acked {
		if !keeps(c.task, a) {
			c.wrong("the acknowledged report of attempt %d, that it has %s, is not in status", a.attempt, a.outcome)
		}
	}
}

// closed asks whether the outcome of an attempt is what its worker has done.
func (c *cluster) closed(a *v1alpha1.AttemptStatus) {
	worked, failed := false, false
	silent := isTrue(c.task, v1alpha1.ConditionResultUndelivered) // its exit code is all that there is
	for i := range c.processes {
		if p := &c.processes[i]; p.attempt == a.Number {
			// Of a pod that is gone there is only the Job's word, which does not know a success from a worker that obeys well.
			worked = worked || p.success() || !p.live && p.code == 0 && (silent || c.pod(p.pod) == nil)
			failed = failed || p.said == v1alpha1.ReportFailed || !p.live && p.code != 0
			if p.live && !p.writtenOff && a.Outcome == string(lifecycle.Cancel) {
				c.wrong("attempt %d is closed as cancelled, and its worker runs", a.Number)
			}
		}
	}
	switch {
	case a.Outcome == string(lifecycle.Succeed):
		if !worked {
			c.wrong("attempt %d is closed as a success, and its worker had none", a.Number)
		}
	case (a.Reason == v1alpha1.ReasonNonZeroExitCode || a.Reason == v1alpha1.ReasonWorkerFailed) && !failed:
		c.wrong("attempt %d is closed with %s, and its worker has not failed", a.Number, a.Reason)
	default:
		c.ignores(a.Number, a.Reason)
	}
}

// ignores asks whether another outcome is put in the place of a success that was on record.
func (c *cluster) ignores(attempt int32, reason string) {
	for i := range c.processes {
		if p := &c.processes[i]; p.attempt == attempt && p.onRecord {
			c.wrong("attempt %d gets outcome %s, and the success of its worker was on record", attempt, reason)
		}
	}
}

// keeps tells whether a Task still says what was acknowledged.
func keeps(t *v1alpha1.Task, a ack) bool {
	entry := attempt(t, a.attempt)
	if entry == nil || entry.Outcome == "" {
		r := t.Status.Report
		return r != nil && r.Attempt == a.attempt && r.Outcome == a.outcome
	}
	return ptr.Deref(entry.Reported, false) && (entry.Outcome == string(lifecycle.Succeed)) == (a.outcome == v1alpha1.ReportSucceeded)
}

// check asks what must hold at every moment.
func (c *cluster) check() {
	var live []string
	for i := range c.processes {
		p := &c.processes[i]
		p.onRecord = p.recorded
		if p.live && (!p.writtenOff || c.task != nil && c.task.Spec.Retry.OnWorkerLost == v1alpha1.WaitForLostWorker) {
			live = append(live, string(p.pod))
		}
	}
	if len(live) > 1 {
		c.wrong("%d workers run at once: %v", len(live), live)
	}
}
