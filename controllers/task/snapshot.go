package task

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// Snapshot is all that a decision looks at.
type Snapshot struct {
	// Task as the API server stores it.
	Task *v1alpha1.Task
	// Now is the API server's clock at the beginning of the pass.
	Now time.Time
	// MaxClockSkew is how far a worker's finish time may be off.
	MaxClockSkew time.Duration
	// Workers are the Jobs and pods that belong to the Task, in the order of their attempts. That one which the status
	// names as current is missing here only if a live read has proven it absent.
	Workers []Worker
	// PodCreateError is why the Job controller could not create the pod of the current attempt; empty where it could, or
	// has had no time to.
	PodCreateError string
	// MountError is why the kubelet could not mount the volumes of the current attempt's pod.
	MountError string
	// NodeReady tells that the node of a vanished worker answers, so that its kubelet is believed to have stopped it.
	NodeReady bool
	// NodeReadySince is when it began to answer.
	NodeReadySince time.Time
	// StopWitnessed tells of the current attempt's vanished pod that its containers were seen to have stopped.
	StopWitnessed bool
}

// Worker is one attempt's Job and its pods.
type Worker struct {
	Attempt int32
	Job     *JobFacts // nil: there is none
	Pods    []PodFacts
	// GoneJob is the UID of the Job that made the pods, where it has gone before the status could name it.
	GoneJob types.UID
}

// JobFacts are what the decisions need of a Job.
type JobFacts struct {
	Name       string
	UID        types.UID
	CreateTime time.Time
	Deleting   bool
	Complete   bool
	Failed     bool
	// Disrupted: its podFailurePolicy saw a pod with DisruptionTarget, evidence that outlives the pod.
	Disrupted bool
	// Message of its Failed condition.
	Message string
}

// Finished tells whether the Job will make no more pods.
func (j *JobFacts) Finished() bool { return j.Complete || j.Failed }

// PodFacts are what the decisions need of a pod.
type PodFacts struct {
	Name       string
	UID        types.UID
	NodeName   string
	CreateTime time.Time
	// AssignTime is when it got its node, by the API server's clock; zero where that is not known.
	AssignTime time.Time
	StartTime  time.Time
	// ClockAhead is how far the clock of its node is ahead of the API server's at least, below 0 if it is behind; 0 where that does not
	// show. The times that the kubelet has told have been moved accordingly.
	ClockAhead time.Duration
	// Deadline is when the kubelet ends the pod for its activeDeadlineSeconds.
	Deadline time.Time
	Phase    corev1.PodPhase
	// Reason and Message are the pod's own (Evicted, DeadlineExceeded, OutOfcpu, ...).
	Reason, Message string
	Deleting        bool
	// DeleteTime is when its deletion was asked for; zero where it was not.
	DeleteTime time.Time
	// StopAsked: activeDeadlineSeconds has been lowered to the stopping value.
	StopAsked bool
	Grace     time.Duration
	// Disruption is set where the pod has condition DisruptionTarget.
	Disruption *Disruption
	// Unschedulable is the scheduler's text.
	Unschedulable string
	// RunningSince is when the worker container began to run; zero where it does not run.
	RunningSince time.Time
	// Exit of the worker container; nil where it has not ended.
	Exit *Exit
	// ExitUnknown is the kubelet's text where it has lost track of the worker container: the exit that it then reports (137,
	// ContainerStatusUnknown) is made up, and says nothing of the worker.
	ExitUnknown string
	// Prepared tells that its volumes are mounted and its sandbox is up: what happens now is the containers' own.
	Prepared bool
	// Waiting says why a container of the pod does not run yet.
	Waiting Waiting
	// OtherFailure describes another container (an init container, say) that failed before the worker could run.
	OtherFailure string
	// MayRun tells that a container of the pod's own runs, or may yet. The sidecar, which does no work, does not count.
	MayRun bool
	// Sidecar is what is known of the pod's reporter; nil where it has none, or has not got to it yet.
	Sidecar *SidecarFacts
}

// SidecarFacts are what the decisions need of a pod's reporter.
type SidecarFacts struct {
	// Running tells that it runs.
	Running bool
	// Ended tells that it has ended; while the worker runs it is started again.
	Ended bool
	// Message is the termination message that it has left.
	Message string
}

// Alive tells whether any container of the pod may run, its sidecar included.
func (p *PodFacts) Alive() bool {
	return p.MayRun || p.Sidecar != nil && p.Sidecar.Running && !p.finished()
}

// finished tells whether the pod says that it is over.
func (p *PodFacts) finished() bool {
	return p.Phase == corev1.PodSucceeded || p.Phase == corev1.PodFailed
}

// Disruption is the pod condition DisruptionTarget.
type Disruption struct {
	Reason, Message string
	Time            time.Time
}

// Exit is how the worker container ended.
type Exit struct {
	Code                  int32
	Reason, Message       string
	StartTime, FinishTime time.Time
}

// Waiting is why a container does not run yet.
type Waiting struct {
	Reason, Message string
}

// MayRun tells whether a container of this attempt runs, or may yet.
func (w *Worker) MayRun() bool {
	if w == nil {
		return false
	}
	for i := range w.Pods {
		if w.Pods[i].MayRun {
			return true
		}
	}
	// A Job without a pod may get one at any moment, until it is gone.
	return len(w.Pods) == 0 && w.Job != nil && !w.Job.Finished()
}

// Alive tells whether anything of this attempt runs, or may yet: also a sidecar that has still to deliver.
func (w *Worker) Alive() bool {
	if w.MayRun() {
		return true
	}
	for i := range w.Pods {
		if w.Pods[i].Alive() {
			return true
		}
	}
	return false
}

// createTime is when the first object of the attempt was made.
func (w *Worker) createTime() time.Time {
	if w.Job != nil {
		return w.Job.CreateTime
	}
	return w.Pods[0].CreateTime
}

// node is that of the attempt's pod.
func (w *Worker) node() string {
	for i := range w.Pods {
		if w.Pods[i].NodeName != "" {
			return w.Pods[i].NodeName
		}
	}
	return ""
}

// Pod is the attempt's pod: the recorded one, else the oldest. A Job makes a second one only where somebody has taken the
// first away.
func (w *Worker) Pod(recorded types.UID) *PodFacts {
	if w == nil {
		return nil
	}
	for i := range w.Pods {
		if recorded == "" || w.Pods[i].UID == recorded {
			return &w.Pods[i]
		}
	}
	return nil
}
