package task

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// podOf is a pod as a kubelet reports it: bound, with the given phase and the states of its containers.
func podOf(phase corev1.PodPhase, containers ...corev1.ContainerStatus) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "demo-1-x", UID: "pod-1", CreationTimestamp: metav1.NewTime(created)},
		Spec:       corev1.PodSpec{NodeName: testNode, TerminationGracePeriodSeconds: ptr.To[int64](30)},
		Status: corev1.PodStatus{
			Phase: phase, StartTime: ptr.To(metav1.NewTime(after(1))), ContainerStatuses: containers,
		},
	}
	for _, c := range containers {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: c.Name})
	}
	return p
}

func containerRuns(name string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{
		Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(started)},
	}}
}

func containerEnded(name string, code int32, reason, message string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: code, Reason: reason, Message: message,
		StartedAt: metav1.NewTime(started), FinishedAt: metav1.NewTime(after(20)),
	}}}
}

func containerWaits(name, reason, message string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message},
	}}
}

// containerLost is what the kubelet writes of a container that it cannot find.
func containerLost(name string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: 137, Reason: "ContainerStatusUnknown", Message: "The container could not be located when the pod was terminated",
	}}}
}

func TestFactsOfPod(t *testing.T) {
	disruption := corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI",
		Message: "Eviction API: evicting", LastTransitionTime: metav1.NewTime(after(18)),
	}
	cases := map[string]struct {
		reason string
		pod    *corev1.Pod
		worker string
		want   PodFacts // beside what all pods of podOf have in common
	}{
		"runs": {
			reason: "the start is the container's own",
			pod:    podOf(corev1.PodRunning, containerRuns("worker")),
			want:   PodFacts{RunningSince: started, MayRun: true},
		},
		"exited": {
			reason: "the exit with its message and times",
			pod:    podOf(corev1.PodSucceeded, containerEnded("worker", 0, "Completed", "done")),
			want:   PodFacts{Exit: &Exit{Code: 0, Reason: "Completed", Message: "done", StartTime: started, FinishTime: after(20)}},
		},
		"exited, the phase is late": {
			reason: "all its containers have ended, and none comes back; the phase only follows",
			pod:    podOf(corev1.PodRunning, containerEnded("worker", 1, "Error", "")),
			want:   PodFacts{Exit: &Exit{Code: 1, Reason: "Error", StartTime: started, FinishTime: after(20)}},
		},
		"OOMKilled": {
			reason: "137 with its reason",
			pod:    podOf(corev1.PodFailed, containerEnded("worker", 137, "OOMKilled", "")),
			want:   PodFacts{Exit: &Exit{Code: 137, Reason: "OOMKilled", StartTime: started, FinishTime: after(20)}},
		},
		"StartError": {
			reason: "128, and a start in 1970",
			pod: podOf(corev1.PodFailed, func() corev1.ContainerStatus {
				s := containerEnded("worker", 128, "StartError", "exec: \"nope\": executable file not found in $PATH")
				s.State.Terminated.StartedAt = metav1.NewTime(time.Unix(0, 0).UTC())
				return s
			}()),
			want: PodFacts{Exit: &Exit{
				Code: 128, Reason: "StartError", Message: "exec: \"nope\": executable file not found in $PATH",
				StartTime: time.Unix(0, 0).UTC(), FinishTime: after(20),
			}},
		},
		"evicted for its own usage": {
			reason: "no disruption, and an exit that the kubelet made up",
			pod: func() *corev1.Pod {
				p := podOf(corev1.PodFailed, containerLost("worker"))
				p.Status.Reason, p.Status.Message = "Evicted", "Usage of EmptyDir volume \"tmp\" exceeds the limit \"50Mi\"."
				return p
			}(),
			want: PodFacts{
				Reason: "Evicted", Message: "Usage of EmptyDir volume \"tmp\" exceeds the limit \"50Mi\".",
				ExitUnknown: "The container could not be located when the pod was terminated",
			},
		},
		"drained": {
			reason: "the condition with its time",
			pod: func() *corev1.Pod {
				p := podOf(corev1.PodFailed, containerEnded("worker", 143, "Error", ""))
				p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ptr.To(metav1.NewTime(after(48))), ptr.To[int64](30)
				p.Status.Conditions = []corev1.PodCondition{disruption}
				return p
			}(),
			want: PodFacts{
				Deleting: true, DeleteTime: after(18),
				Exit:       &Exit{Code: 143, Reason: "Error", StartTime: started, FinishTime: after(20)},
				Disruption: &Disruption{Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting", Time: after(18)},
			},
		},
		"a disruption that was taken back": {
			reason: "a condition that is False says nothing",
			pod: func() *corev1.Pod {
				p := podOf(corev1.PodRunning, containerRuns("worker"))
				c := disruption
				c.Status = corev1.ConditionFalse
				p.Status.Conditions = []corev1.PodCondition{c}
				return p
			}(),
			want: PodFacts{RunningSince: started, MayRun: true},
		},
		"init container failed": {
			reason: "the failure of another container is told",
			pod: func() *corev1.Pod {
				p := podOf(corev1.PodFailed, containerWaits("worker", "PodInitializing", ""))
				p.Status.InitContainerStatuses = []corev1.ContainerStatus{containerEnded("setup", 3, "Error", "no disk")}
				return p
			}(),
			want: PodFacts{OtherFailure: "container setup exited with code 3 (Error): no disk"},
		},
		"native sidecar runs on": {
			reason: "the worker has ended, the pod has not stopped",
			pod: func() *corev1.Pod {
				p := podOf(corev1.PodRunning, containerEnded("worker", 0, "Completed", ""))
				p.Status.InitContainerStatuses = []corev1.ContainerStatus{containerRuns("sidecar")}
				return p
			}(),
			want: PodFacts{Exit: &Exit{Reason: "Completed", StartTime: started, FinishTime: after(20)}, MayRun: true},
		},
		"failed by the pod collector, a container still shown running": {
			reason: "the phase of a pod whose kubelet is silent proves nothing",
			pod:    podOf(corev1.PodFailed, containerRuns("worker")),
			want:   PodFacts{RunningSince: started, MayRun: true},
		},
		"a debugger still runs": {
			reason: "an ephemeral container is a container",
			pod: func() *corev1.Pod {
				p := podOf(corev1.PodSucceeded, containerEnded("worker", 0, "Completed", ""))
				p.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{containerRuns("debugger")}
				return p
			}(),
			want: PodFacts{Exit: &Exit{Reason: "Completed", StartTime: started, FinishTime: after(20)}, MayRun: true},
		},
		"unschedulable": {
			reason: "the scheduler's text",
			pod: func() *corev1.Pod {
				p := podOf(corev1.PodPending)
				p.Spec.NodeName, p.Status.StartTime = "", nil
				p.Status.Conditions = []corev1.PodCondition{{
					Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes are available",
				}}
				return p
			}(),
			want: PodFacts{Unschedulable: "0/3 nodes are available", MayRun: true},
		},
		"the worker's wait is more telling than others'": {
			reason: "the worker before another container",
			pod:    podOf(corev1.PodPending, containerWaits("proxy", "ErrImagePull", "proxy"), containerWaits("worker", "ImagePullBackOff", "worker")),
			worker: "worker",
			want:   PodFacts{Waiting: Waiting{Reason: "ImagePullBackOff", Message: "worker"}, MayRun: true},
		},
		"another's error is more telling than the worker's waiting for it": {
			reason: "ContainerCreating and PodInitializing say nothing",
			pod:    podOf(corev1.PodPending, containerWaits("proxy", "ErrImagePull", "proxy"), containerWaits("worker", "ContainerCreating", "")),
			worker: "worker",
			want:   PodFacts{Waiting: Waiting{Reason: "ErrImagePull", Message: "proxy"}, MayRun: true},
		},
		"a named worker that is not the first": {
			reason: "its exit counts, the other's does not",
			pod:    podOf(corev1.PodRunning, containerEnded("first", 0, "Completed", ""), containerRuns("second")),
			worker: "second",
			want:   PodFacts{RunningSince: started, MayRun: true},
		},
		"stop asked": {
			reason: "told by the lowered deadline, which also gives the moment",
			pod: func() *corev1.Pod {
				p := podOf(corev1.PodRunning, containerRuns("worker"))
				p.Spec.ActiveDeadlineSeconds = ptr.To[int64](1)
				return p
			}(),
			want: PodFacts{RunningSince: started, MayRun: true, StopAsked: true, Deadline: after(2)},
		},
		"a deadline of its own": {
			reason: "a backstop is no stop",
			pod: func() *corev1.Pod {
				p := podOf(corev1.PodRunning, containerRuns("worker"))
				p.Spec.ActiveDeadlineSeconds = ptr.To[int64](100)
				return p
			}(),
			want: PodFacts{RunningSince: started, MayRun: true, Deadline: after(101)},
		},
		"grace out of all bounds": {
			reason: "a duration does not overflow",
			pod: func() *corev1.Pod {
				p := podOf(corev1.PodRunning, containerRuns("worker"))
				p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1 << 60)
				return p
			}(),
			want: PodFacts{RunningSince: started, MayRun: true, Grace: maxPodGrace},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := tc.want
			w.Name, w.UID, w.NodeName, w.CreateTime, w.Phase = "demo-1-x", "pod-1", testNode, created, tc.pod.Status.Phase
			if w.Grace == 0 {
				w.Grace = 30 * time.Second
			}
			if w.StartTime = after(1); tc.pod.Spec.NodeName == "" {
				w.NodeName, w.StartTime = "", time.Time{}
			}
			if diff := cmp.Diff(w, factsOfPod(tc.pod, tc.worker)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			// What the caches keep of a pod is enough.
			stripped, err := stripPod(tc.pod.DeepCopy())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(factsOfPod(tc.pod, tc.worker), factsOfPod(stripped.(*corev1.Pod), tc.worker)); diff != "" {
				t.Errorf("stripped of a fact (-whole +stripped):\n%s", diff)
			}
		})
	}
}

// TestPodChanged: an update that a decision could see is not taken for none. The Task's worker need not be the first container.
func TestPodChanged(t *testing.T) {
	before := podOf(corev1.PodRunning, containerRuns("first"), containerRuns("second"))
	cases := map[string]struct {
		after *corev1.Pod
		want  bool
	}{
		"nothing":                   {before.DeepCopy(), false},
		"the first container ended": {podOf(corev1.PodRunning, containerEnded("first", 0, "Completed", ""), containerRuns("second")), true},
		"another container ended":   {podOf(corev1.PodRunning, containerRuns("first"), containerEnded("second", 0, "Completed", "")), true},
		"readiness": {func() *corev1.Pod {
			p := before.DeepCopy()
			p.ResourceVersion = "2"
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			return p
		}(), false},
	}
	for name, tc := range cases {
		if got := podChanged(before, tc.after); got != tc.want {
			t.Errorf("%s: changed is %v", name, got)
		}
	}
}

func TestFactsOfJob(t *testing.T) {
	job := func(conditions ...batchv1.JobCondition) *batchv1.Job {
		return &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Name: "demo-1", UID: "job-1", CreationTimestamp: metav1.NewTime(created)},
			Status:     batchv1.JobStatus{Conditions: conditions},
		}
	}
	is := func(kind batchv1.JobConditionType, status corev1.ConditionStatus, reason string) batchv1.JobCondition {
		return batchv1.JobCondition{Type: kind, Status: status, Reason: reason, Message: "said so"}
	}
	cases := map[string]struct {
		job  *batchv1.Job
		want JobFacts
	}{
		"new":      {job(), JobFacts{}},
		"complete": {job(is(batchv1.JobComplete, "True", "CompletionsReached")), JobFacts{Complete: true}},
		"about to be complete": {
			job(is(batchv1.JobSuccessCriteriaMet, "True", "CompletionsReached")), JobFacts{Complete: true},
		},
		"failed":        {job(is(batchv1.JobFailed, "True", "BackoffLimitExceeded")), JobFacts{Failed: true, Message: "said so"}},
		"about to fail": {job(is(batchv1.JobFailureTarget, "True", "BackoffLimitExceeded")), JobFacts{Failed: true, Message: "said so"}},
		"disrupted":     {job(is(batchv1.JobFailed, "True", "PodFailurePolicy")), JobFacts{Failed: true, Disrupted: true, Message: "said so"}},
		"not failed":    {job(is(batchv1.JobFailed, "False", "PodFailurePolicy")), JobFacts{}},
		"suspended":     {job(is(batchv1.JobSuspended, "True", "JobSuspended")), JobFacts{}},
		"twice disrupted": {
			job(is(batchv1.JobFailureTarget, "True", "PodFailurePolicy"), is(batchv1.JobFailed, "True", "PodFailurePolicy")),
			JobFacts{Failed: true, Disrupted: true, Message: "said so"},
		},
	}
	for name, tc := range cases {
		tc.want.Name, tc.want.UID, tc.want.CreateTime = "demo-1", "job-1", created
		if diff := cmp.Diff(&tc.want, factsOfJob(tc.job)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestAttemptOf(t *testing.T) {
	for label, want := range map[string]int32{"1": 1, "42": 42, "0": 0, "-1": 0, "": 0, "x": 0, "99999999999": 0} {
		if got := attemptOf(map[string]string{"taskwarden.dev/attempt": label}); got != want {
			t.Errorf("%q is attempt %d, want %d", label, got, want)
		}
	}
}
