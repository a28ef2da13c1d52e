package task

import (
	"fmt"
	"math"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// stopDeadlineSeconds is what a pod's activeDeadlineSeconds is lowered to in order to stop it: the kubelet then ends the
// containers with the pod's grace and keeps logs and exit codes.
const stopDeadlineSeconds = 1

// defaultPodGrace is the API's default of terminationGracePeriodSeconds.
const defaultPodGrace = 30 * time.Second

// maxPodGrace is the longest grace that is reckoned with: a stop that takes longer than a day is as good as none.
const maxPodGrace = 24 * time.Hour

func factsOfJob(job *batchv1.Job) *JobFacts {
	f := &JobFacts{
		Name: job.Name, UID: job.UID, CreateTime: job.CreationTimestamp.Time,
		Deleting: job.DeletionTimestamp != nil,
	}
	for _, c := range job.Status.Conditions {
		if c.Status != corev1.ConditionTrue {
			continue
		}
		switch c.Type {
		case batchv1.JobComplete, batchv1.JobSuccessCriteriaMet:
			f.Complete = true
		case batchv1.JobSuspended:
			// neither end
		case batchv1.JobFailed, batchv1.JobFailureTarget:
			f.Failed = true
			f.Message = c.Message
			f.Disrupted = c.Reason == batchv1.JobReasonPodFailurePolicy
		}
	}
	return f
}

// containerCreating is what the kubelet says while it prepares a container: pulling, mounting.
const containerCreating = "ContainerCreating"

// factsOfPod reads a pod whose worker container has the given name; without a name, where the Task is not known, it is the first
// one.
func factsOfPod(pod *corev1.Pod, workerContainer string) PodFacts {
	f := PodFacts{
		Name: pod.Name, UID: pod.UID, NodeName: pod.Spec.NodeName, CreateTime: pod.CreationTimestamp.Time,
		Phase: pod.Status.Phase, Reason: pod.Status.Reason, Message: pod.Status.Message,
		Deleting:  pod.DeletionTimestamp != nil,
		StopAsked: pod.Spec.ActiveDeadlineSeconds != nil && *pod.Spec.ActiveDeadlineSeconds <= stopDeadlineSeconds,
		Grace:     defaultPodGrace,
	}
	if at := pod.DeletionTimestamp; at != nil {
		// The API server stores when the grace ends.
		f.DeleteTime = at.Add(-graceOf(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)))
	}
	if pod.Status.StartTime != nil {
		f.StartTime = pod.Status.StartTime.Time
		if s := pod.Spec.ActiveDeadlineSeconds; s != nil {
			f.Deadline = f.StartTime.Add(time.Duration(*s) * time.Second)
		}
	}
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		f.Grace = graceOf(*s)
	}
	if workerContainer == "" && len(pod.Spec.Containers) > 0 {
		workerContainer = pod.Spec.Containers[0].Name
	}
	readConditions(&f, pod.Status.Conditions)
	readContainers(&f, pod, workerContainer)
	return f
}

func readConditions(f *PodFacts, conditions []corev1.PodCondition) {
	for _, c := range conditions {
		switch {
		case c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue:
			f.Disruption = &Disruption{Reason: c.Reason, Message: c.Message, Time: c.LastTransitionTime.Time}
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue:
			f.AssignTime = c.LastTransitionTime.Time
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable:
			f.Unschedulable = c.Message
		case c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue:
			f.Prepared = true
		}
	}
}

func readContainers(f *PodFacts, pod *corev1.Pod, workerContainer string) {
	running := false
	for i := range pod.Status.InitContainerStatuses {
		s := &pod.Status.InitContainerStatuses[i]
		f.noteWaiting(s, false)
		if s.Name == v1alpha1.ReporterContainer {
			f.Sidecar = factsOfSidecar(&s.State)
			continue
		}
		running = running || s.State.Running != nil
		if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
			f.OtherFailure = describeExit(s.Name, t)
		}
	}
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		running = running || s.State.Running != nil
		f.noteWaiting(s, s.Name == workerContainer)
		if s.Name == workerContainer {
			f.readWorker(&s.State)
		}
	}
	for i := range pod.Status.EphemeralContainerStatuses {
		running = running || pod.Status.EphemeralContainerStatuses[i].State.Running != nil
	}
	f.MayRun = running || !f.finished() && !allTerminated(pod)
}

func factsOfSidecar(s *corev1.ContainerState) *SidecarFacts {
	f := &SidecarFacts{Running: s.Running != nil}
	if t := s.Terminated; t != nil {
		f.Ended, f.Message = true, t.Message
	}
	return f
}

// readWorker reads the state of the worker container.
func (p *PodFacts) readWorker(s *corev1.ContainerState) {
	if s.Running != nil {
		p.RunningSince = s.Running.StartedAt.Time
	}
	t := s.Terminated
	switch {
	case t == nil:
	case t.Reason == "ContainerStatusUnknown":
		p.ExitUnknown = t.Message
	default:
		p.Exit = &Exit{
			Code: t.ExitCode, Reason: t.Reason, Message: t.Message,
			StartTime: t.StartedAt.Time, FinishTime: t.FinishedAt.Time,
		}
	}
}

// allTerminated tells whether each container of the template has ended, which the kubelet shows before the pod's phase does.
// The pod's restart policy is Never, so none comes back.
func allTerminated(pod *corev1.Pod) bool {
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].State.Terminated == nil {
			return false
		}
	}
	return len(pod.Spec.Containers) > 0 && len(pod.Status.ContainerStatuses) == len(pod.Spec.Containers)
}

// noteWaiting keeps the most telling reason: of a container that truly waits for something, the worker before others.
func (p *PodFacts) noteWaiting(s *corev1.ContainerStatus, worker bool) {
	w := s.State.Waiting
	if w == nil || w.Reason == "" || w.Reason == "PodInitializing" || w.Reason == containerCreating && p.Waiting.Reason != "" {
		return
	}
	if worker || p.Waiting.Reason == "" || p.Waiting.Reason == containerCreating {
		p.Waiting = Waiting{Reason: w.Reason, Message: w.Message}
	}
}

func describeExit(container string, t *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("container %s exited with code %d (%s)", container, t.ExitCode, t.Reason)
	if t.Message != "" {
		text += ": " + t.Message
	}
	return text
}

// attemptOf reads the attempt number that the operator put on a Job, and the Job controller copied to its pod.
func attemptOf(labels map[string]string) int32 {
	n, err := strconv.ParseInt(labels[v1alpha1.LabelAttempt], 10, 32)
	if err != nil || n < 1 {
		return 0
	}
	return int32(n)
}

// podGrace is the grace of the pods made from a Task's template: its own, but with a sidecar long enough to deliver.
func podGrace(t *v1alpha1.Task) time.Duration {
	grace := graceOf(ptr.Deref(t.Spec.Template.Spec.TerminationGracePeriodSeconds, int64(defaultPodGrace/time.Second)))
	if hasSidecar(t) {
		return max(grace, v1alpha1.MinReporterGraceSeconds*time.Second)
	}
	return grace
}

// graceOf bounds what the API does not.
func graceOf(seconds int64) time.Duration {
	return min(time.Duration(min(max(seconds, 0), math.MaxInt32))*time.Second, maxPodGrace)
}
