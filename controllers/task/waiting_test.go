package task

import (
	"strings"
	"testing"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// stuck is one way in which a worker does not come to run.
type stuck struct {
	scene  func() *scene
	reason string
	text   string
}

func waysToBeStuck() map[string]stuck {
	pulling := func(reason, text string) func() *scene {
		return func() *scene { return pending().job(1).pod(1, waits4(reason, text)) }
	}
	noPod := func(text string) func() *scene {
		return func() *scene {
			s := pending().job(1)
			s.PodCreateError = text
			return s
		}
	}
	return map[string]stuck{
		"image":          {pulling("ImagePullBackOff", "Back-off pulling image \"no.such/reg:1\""), v1alpha1.ReasonImagePullFailed, "no.such/reg:1"},
		"image, at once": {pulling("ErrImagePull", "pull access denied for no.such/reg:1"), v1alpha1.ReasonImagePullFailed, "no.such/reg:1"},
		"image, silent":  {pulling("ErrImageNeverPull", ""), v1alpha1.ReasonImagePullFailed, "ErrImageNeverPull"},
		"image name":     {pulling("InvalidImageName", "couldn't parse image name \"bad name\""), v1alpha1.ReasonInvalidImageName, "bad name"},
		"secret":         {pulling("CreateContainerConfigError", "secret \"s\" not found"), v1alpha1.ReasonConfigError, "secret \"s\""},
		"runtime":        {pulling("RunContainerError", "failed to start"), v1alpha1.ReasonStartError, "failed to start"},
		"mount": {func() *scene {
			s := pending().job(1).pod(1, waits4("ContainerCreating", ""))
			s.MountError = "MountVolume.SetUp failed: configmap \"c\" not found"
			return s
		}, v1alpha1.ReasonMountFailed, "configmap \"c\""},
		"scheduler": {func() *scene {
			return pending().job(1).pod(1, unbound, func(p *PodFacts) { p.Unschedulable = "0/3 nodes are available" })
		}, v1alpha1.ReasonUnschedulable, "0/3 nodes"},
		"quota":   {noPod("pods \"demo-1-x\" is forbidden: exceeded quota: q, used: pods=4"), v1alpha1.ReasonQuotaExceeded, "quota: q"},
		"policy":  {noPod("pods \"demo-1-x\" is forbidden: violates PodSecurity"), v1alpha1.ReasonAdmissionDenied, "PodSecurity"},
		"account": {noPod("pods \"demo-1-x\" is forbidden: error looking up service account demo/gone"), v1alpha1.ReasonConfigError, "gone"},
		"webhook": {noPod("Internal error occurred: failed calling webhook"), v1alpha1.ReasonPodCreateFailed, "webhook"},
		"no pod":  {func() *scene { return pending().job(1) }, v1alpha1.ReasonWaitingForWorker, ""},
		"job": {func() *scene {
			return uncreated()
		}, v1alpha1.ReasonCreatePending, "leader changed"},
	}
}

// TestC17C18C21WhyItWaits: what keeps a worker from running shows in status and condition at once, does not flap, and is the
// reason when the start timeout ends the wait.
func TestC17C18C21WhyItWaits(t *testing.T) {
	for name, w := range waysToBeStuck() {
		t.Run(name, func(t *testing.T) {
			s := w.scene()
			plan := decide(s.Snapshot)
			checkPlan(t, s.Snapshot, plan)
			st := &plan.Task.Status
			if st.State != pendingState || st.Reason != w.reason || !strings.Contains(st.Message, w.text) {
				t.Errorf("while it waits: %s, %s, %q", st.State, st.Reason, st.Message)
			}
			if c := findCondition(plan.Task, v1alpha1.ConditionReconciling); c.Reason != w.reason || !strings.Contains(c.Message, w.text) {
				t.Errorf("condition Reconciling says %s, %q", c.Reason, c.Message)
			}
			s.Task = plan.Task
			late := decide(s.at(after(600)).Snapshot)
			checkPlan(t, s.Snapshot, late)
			want := w.reason
			if want == v1alpha1.ReasonWaitingForWorker || want == v1alpha1.ReasonCreatePending {
				want = v1alpha1.ReasonStartTimeout
			}
			got := outcomeOf(s.Snapshot, late)
			if got.Stopping != want && got.Reason != want {
				t.Errorf("after the start timeout: %+v, want %s", got, want)
			}
			message := late.Task.Status.Message
			if !strings.Contains(message, w.text) || !strings.Contains(message, "startTimeoutSeconds 600") {
				t.Errorf("its message has neither the cause nor the limit: %q", message)
			}
			if early := decide(s.at(after(600).Add(-1)).Snapshot); early.Task.Status.State != pendingState || !early.WakeAt.Equal(after(600)) && !early.Create {
				t.Errorf("a moment before: %s, next look %v", early.Task.Status.State, early.WakeAt)
			}
		})
	}
}

// TestC18ReasonOutlivesItsEvent: the Job controller's Event goes after an hour; what it said is still why there is no pod. Once
// there is one it is over, though the same word may stand for what keeps its containers from running.
func TestC18ReasonOutlivesItsEvent(t *testing.T) {
	for text, want := range map[string]string{
		"exceeded quota: q, used: pods=4":            v1alpha1.ReasonQuotaExceeded,
		"error looking up service account demo/gone": v1alpha1.ReasonConfigError,
	} {
		s := pending().job(1)
		s.PodCreateError = "pods \"demo-1-a\" is forbidden: " + text
		s.Task = decide(s.Snapshot).Task
		s.PodCreateError = ""
		if st := decide(s.Snapshot).Task.Status; st.Reason != want {
			t.Errorf("%s: %s: %s", text, st.Reason, st.Message)
		}
		s = s.pod(1)
		if st := decide(s.Snapshot).Task.Status; st.Reason != v1alpha1.ReasonWaitingForWorker {
			t.Errorf("%s, with a pod: %s: %s", text, st.Reason, st.Message)
		}
	}
}

// TestC18TextIsStable: a full quota whose counters change makes no writes.
func TestC18TextIsStable(t *testing.T) {
	s := pending().job(1)
	s.PodCreateError = "pods \"demo-1-a\" is forbidden: exceeded quota: q, used: pods=4"
	s.Task = decide(s.Snapshot).Task
	first := s.Task.Status.Message
	s.PodCreateError = "pods \"demo-1-b\" is forbidden: exceeded quota: q, used: pods=5"
	plan := decide(s.at(after(100)).Snapshot)
	if plan.Task.Status.Message != first {
		t.Errorf("the message changes from %q to %q", first, plan.Task.Status.Message)
	}
	if plan.Task.Status.Charged != 0 {
		t.Error("a wait for quota is charged")
	}
}

// TestContainerWaiting: a text of the kubelet that is not known here is shown all the same.
func TestContainerWaiting(t *testing.T) {
	s := pending().at(after(30)).job(1).pod(1, waits4("CrashLoopBackOff", "back-off 10s restarting failed container=proxy"))
	got := decide(s.Snapshot).Task.Status
	if got.Reason != v1alpha1.ReasonContainerWaiting || got.Message != "CrashLoopBackOff: back-off 10s restarting failed container=proxy" {
		t.Errorf("status says %s: %s", got.Reason, got.Message)
	}
	s.Task.Status = got
	plan := decide(s.at(after(700)).Snapshot)
	if fixed := findCondition(plan.Task, v1alpha1.ConditionTerminating); fixed == nil || fixed.Reason != v1alpha1.ReasonStartTimeout ||
		!strings.Contains(fixed.Message, "CrashLoopBackOff") {
		t.Errorf("at the start timeout: %+v", fixed)
	}
}

// TestMountFailedIsOver: once the pod's sandbox is up its volumes are mounted, whatever an old Event says.
func TestMountFailedIsOver(t *testing.T) {
	s := pending().at(after(30)).job(1).pod(1, waits4(containerCreating, ""))
	s.MountError = `secret "key" not found`
	s.Task = decide(s.Snapshot).Task
	if s.Task.Status.Reason != v1alpha1.ReasonMountFailed {
		t.Fatalf("status says %s", s.Task.Status.Reason)
	}
	s.worker(1).Pods[0].Prepared = true
	if got := decide(s.Snapshot).Task.Status; got.Reason != v1alpha1.ReasonWaitingForWorker {
		t.Errorf("status says %s: %s, though the mount is done", got.Reason, got.Message)
	}
}

// TestC17DoesNotFlap: between two tries the kubelet says nothing of the last.
func TestC17DoesNotFlap(t *testing.T) {
	s := pending().job(1).pod(1, waits4("CreateContainerConfigError", "secret \"s\" not found"))
	for _, waiting := range []Waiting{
		{"CreateContainerConfigError", "secret \"s\" not found"}, {"", ""}, {"ContainerCreating", ""},
		{"CreateContainerConfigError", "secret \"s\" not found (2)"},
	} {
		s.worker(1).Pods[0].Waiting = waiting
		s.Task = decide(s.Snapshot).Task
		if st := s.Task.Status; st.Reason != v1alpha1.ReasonConfigError || st.Message != "secret \"s\" not found" {
			t.Errorf("waiting for %q: %s, %q", waiting.Reason, st.Reason, st.Message)
		}
	}
	// The Secret came: it runs, and nothing of its wait stays.
	running(&s.worker(1).Pods[0])
	if st := decide(s.Snapshot).Task.Status; st.State != processingState || st.Reason != v1alpha1.ReasonWorkerRunning {
		t.Errorf("it runs, yet %s, %s", st.State, st.Reason)
	}
}

// TestC17ScheduledAtLast: a reason that no longer holds goes.
func TestC17ScheduledAtLast(t *testing.T) {
	s := pending().job(1).pod(1, unbound, func(p *PodFacts) { p.Unschedulable = "0/3 nodes are available" })
	s.Task = decide(s.Snapshot).Task
	p := &s.worker(1).Pods[0]
	p.NodeName, p.Unschedulable, p.Waiting = testNode, "", Waiting{Reason: "ContainerCreating"}
	if st := decide(s.Snapshot).Task.Status; st.Reason != v1alpha1.ReasonWaitingForWorker {
		t.Errorf("scheduled, yet it says %s, %q", st.Reason, st.Message)
	}
}

// TestC17StartTimeoutStopsThePod: the pod of a worker that could not start is removed, by the way that fits.
func TestC17StartTimeoutStopsThePod(t *testing.T) {
	fixed := func(reason, wake, stop string) outcome {
		return outcome{State: pendingState, Reason: reason, Attempt: 1, Stopping: reason, Stop: []string{stop}, Wake: wake}
	}
	runTable(t, map[string]testCase{
		"on a node": {
			reason: "the kubelet stops it",
			scene:  pending().job(1).pod(1, waits4("ImagePullBackOff", "x")).at(after(600)),
			want:   fixed("ImagePullFailed", "10m45s", "pod-1 by deadline"),
		},
		"on no node": {
			reason: "the Job goes",
			scene:  pending().job(1).pod(1, unbound, func(p *PodFacts) { p.Unschedulable = "no" }).at(after(600)),
			want:   fixed("Unschedulable", "15m0s", "job-1 by deletion of the Job"),
		},
		"no Job": {
			reason: "nothing to stop: the event fires at once, and is charged as any timeout",
			scene:  uncreated().at(after(600)),
			want:   outcome{State: retryingState, Reason: "StartTimeout", Attempt: 1, Charged: 1, Wake: "now"},
		},
		"the pod's own deadline came first": {
			reason: "a shorter deadline in the template ends the start, too",
			scene: pending().job(1, jobFailed).pod(1, over, podSays("DeadlineExceeded", "Pod was active too long"), func(p *PodFacts) {
				p.ExitUnknown = "The container could not be located when the pod was terminated"
			}),
			want: outcome{State: retryingState, Reason: "StartTimeout", Attempt: 1, Charged: 1, Wake: "now"},
		},
	})
}
