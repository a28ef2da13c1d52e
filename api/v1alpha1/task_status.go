package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// State is where a Task is. New values may be added; clients must bear values they do not know.
// +kubebuilder:validation:MaxLength=32
type State string

const (
	// StatePending: accepted, no worker running yet.
	StatePending State = "Pending"
	// StateProcessing: bound to a running worker.
	StateProcessing State = "Processing"
	// StateSucceeded: the worker did its work. Final.
	StateSucceeded State = "Succeeded"
	// StateFailed: no further attempt. Final, but for a retry by hand.
	StateFailed State = "Failed"
	// StateCancelled: cancelled, and the worker has stopped. Final.
	StateCancelled State = "Cancelled"
	// StateRetrying: an attempt has ended, another will follow.
	StateRetrying State = "Retrying"
)

// TaskStatus is what is true of a Task. Only the operator writes it.
type TaskStatus struct {
	// observedGeneration is the generation of the spec that this status speaks of.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// state is where the Task is. The API server refuses every change that is not in the state table.
	// +optional
	State State `json:"state,omitempty"`

	// reason is one word for why the Task is there, a documented constant.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`

	// message is the same for people. At most 1 KiB.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`

	// attempt is the number of the current or last attempt, from 1.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Attempt int32 `json:"attempt,omitempty"`

	// charged is how many attempts of this run have ended that spec.retry.limit pays for. A retry by hand sets it to 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Charged int32 `json:"charged,omitempty"`

	// uncharged is how many attempts of this run have ended that spec.retry.unchargedLimit pays for. A retry by hand sets
	// it to 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Uncharged int32 `json:"uncharged,omitempty"`

	// runStartTime is when the overall deadline began to count: the creation, or the last retry by hand.
	// +optional
	RunStartTime *metav1.MicroTime `json:"runStartTime,omitempty"`

	// startTime is when a worker ran for the first time. Set once.
	// +optional
	StartTime *metav1.MicroTime `json:"startTime,omitempty"`

	// completionTime is when the Task came to its terminal state, by the operator's clock. A retry by hand clears it.
	// +optional
	CompletionTime *metav1.MicroTime `json:"completionTime,omitempty"`

	// nextRetryTime is when the next attempt may start, in state Retrying.
	// +optional
	NextRetryTime *metav1.MicroTime `json:"nextRetryTime,omitempty"`

	// progress is how far the current worker is, or the last one was.
	// +optional
	// +structType=atomic
	Progress *TaskProgress `json:"progress,omitempty"`

	// checkpoint is what a worker has left for the next attempt; that attempt finds it in a file, whose path is in
	// TASKWARDEN_CHECKPOINT.
	// +optional
	// +structType=atomic
	Checkpoint *TaskCheckpoint `json:"checkpoint,omitempty"`

	// report is the final report of the current attempt's worker, or of the last one's.
	// +optional
	// +structType=atomic
	Report *FinalReport `json:"report,omitempty"`

	// result is what the last worker left.
	// +optional
	Result *TaskResult `json:"result,omitempty"`

	// syncLagMilliseconds is the time from the end of the last worker's work (as it reported, else as the kubelet says) to the
	// decision that stored the terminal state; never below 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SyncLagMilliseconds *int64 `json:"syncLagMilliseconds,omitempty"`

	// worker is the worker of the current attempt, or of the last one.
	// +optional
	// +structType=atomic
	Worker *WorkerStatus `json:"worker,omitempty"`

	// attempts are the last 10 attempts, oldest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Attempts []AttemptStatus `json:"attempts,omitempty"`

	// history are the last 32 transitions, oldest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	History []Transition `json:"history,omitempty"`

	// resources are the requests and limits that a retry rule has set for all further attempts.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`

	// lastHandledRetry is the answer to the last request for a retry by hand.
	// +optional
	LastHandledRetry *HandledRetry `json:"lastHandledRetry,omitempty"`

	// conditions of the Task.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// TaskResult is what a worker leaves.
type TaskResult struct {
	// url is where the result is. At most 2 KiB.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	URL string `json:"url,omitempty"`

	// data is the result itself, any JSON value, at most 16 KiB.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	Data *apiextensionsv1.JSON `json:"data,omitempty"`

	// logURL is where the worker's log is. At most 2 KiB.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	LogURL string `json:"logURL,omitempty"`
}

// TaskProgress is how far a worker is.
type TaskProgress struct {
	// percent of the work that is done, as the worker says, else by the weights of its stages. 0 to 100; 100 once the Task has
	// succeeded.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Percent *int32 `json:"percent,omitempty"`
	// stage that the worker is in.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Stage string `json:"stage,omitempty"`
	// message for people. At most 1 KiB.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// estimatedRemainingSeconds is how long the attempt will still take: as the worker says, else reckoned from its pace so far.
	// +optional
	// +kubebuilder:validation:Minimum=0
	EstimatedRemainingSeconds *int64 `json:"estimatedRemainingSeconds,omitempty"`
	// updateTime is when the last report of progress or of a stage was received.
	// +optional
	UpdateTime *metav1.MicroTime `json:"updateTime,omitempty"`
	// furthestBasisPoints is the highest percent that the worker has reported, in hundredths of a percent: it advances when that
	// grows.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	FurthestBasisPoints *int32 `json:"furthestBasisPoints,omitempty"`
	// advanceTime is when the worker advanced last: progressTimeoutSeconds counts from it, else from the worker's start.
	// +optional
	AdvanceTime *metav1.MicroTime `json:"advanceTime,omitempty"`
	// stageTime is when the worker entered its stage.
	// +optional
	StageTime *metav1.MicroTime `json:"stageTime,omitempty"`
}

// TaskCheckpoint is what a worker has left for the next attempt.
type TaskCheckpoint struct {
	// data is any JSON value, at most 16 KiB.
	// +required
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	Data apiextensionsv1.JSON `json:"data,omitempty,omitzero"`
	// attempt that left it.
	// +required
	// +kubebuilder:validation:Minimum=1
	Attempt int32 `json:"attempt,omitempty"`
	// updateTime is when it was received.
	// +required
	UpdateTime metav1.MicroTime `json:"updateTime,omitempty,omitzero"`
}

// ReportOutcome is what a final report says.
// +kubebuilder:validation:Enum=Succeeded;Failed
type ReportOutcome string

const (
	// ReportSucceeded: the work is done.
	ReportSucceeded ReportOutcome = "Succeeded"
	// ReportFailed: the work has failed.
	ReportFailed ReportOutcome = "Failed"
)

// ReportSource is the way by which a final report has come.
// +kubebuilder:validation:Enum=Gateway;TerminationMessage
type ReportSource string

const (
	// FromGateway: the sidecar has delivered it.
	FromGateway ReportSource = "Gateway"
	// FromTerminationMessage: the operator has read it from the sidecar's termination message.
	FromTerminationMessage ReportSource = "TerminationMessage"
)

// FinalReport is a worker's last word. The first one that is stored for an attempt counts.
type FinalReport struct {
	// attempt that it ends.
	// +required
	// +kubebuilder:validation:Minimum=1
	Attempt int32 `json:"attempt,omitempty"`
	// podUID is the UID of the pod that it came from.
	// +optional
	PodUID types.UID `json:"podUID,omitempty"`
	// sequence is the number of the report within its attempt.
	// +required
	// +kubebuilder:validation:Minimum=1
	Sequence int64 `json:"sequence,omitempty"`
	// outcome is Succeeded or Failed.
	// +required
	Outcome ReportOutcome `json:"outcome,omitempty"`
	// permanent says of a failure that another attempt would fail as well.
	// +optional
	Permanent *bool `json:"permanent,omitempty"`
	// source is the way by which it has come.
	// +required
	Source ReportSource `json:"source,omitempty"`
	// receivedTime is when it was received: decisions use this time, not the worker's.
	// +required
	ReceivedTime metav1.MicroTime `json:"receivedTime,omitempty,omitzero"`
	// finishTime is when the worker finished, as it says, but neither before the Task's creation nor after receivedTime.
	// +optional
	FinishTime *metav1.MicroTime `json:"finishTime,omitempty"`
	// clockSkewSeconds is how far the worker's clock is ahead of the API server's at least, below 0 if it is behind, as the finish time
	// that it gave has shown. Unset where that shows less than 5 s.
	// +optional
	ClockSkewSeconds int64 `json:"clockSkewSeconds,omitempty"`
	// message for people. At most 1 KiB.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// result is what the worker left; it is moved to status.result when the attempt ends the Task.
	// +optional
	Result *TaskResult `json:"result,omitempty"`
}

// WorkerStatus names the objects of an attempt, by UID, so that their absence can be proven.
type WorkerStatus struct {
	// jobName is the name of the Job.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	JobName string `json:"jobName,omitempty"`
	// jobUID is the UID of the Job.
	// +optional
	JobUID types.UID `json:"jobUID,omitempty"`
	// podName is the name of the pod.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PodName string `json:"podName,omitempty"`
	// podUID is the UID of the pod.
	// +optional
	PodUID types.UID `json:"podUID,omitempty"`
	// nodeName is the node that the pod is bound to.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName,omitempty"`
	// createTime is when the operator created, or first tried to create, the Job: spec.startTimeoutSeconds counts from it.
	// +optional
	CreateTime *metav1.MicroTime `json:"createTime,omitempty"`
	// startTime is when the container began to run, as the kubelet says: spec.activeDeadlineSeconds counts from it.
	// +optional
	StartTime *metav1.MicroTime `json:"startTime,omitempty"`
	// heartbeatTime is when the last report of any kind was received: spec.heartbeatTimeoutSeconds counts from it, else from
	// startTime. Heartbeats alone are stored only each third of that timeout.
	// +optional
	HeartbeatTime *metav1.MicroTime `json:"heartbeatTime,omitempty"`
	// sequence is the highest number of a report that is stored.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Sequence int64 `json:"sequence,omitempty"`
	// exitSeenTime is when the operator began to wait, after the worker's exit, for what its sidecar may still deliver.
	// +optional
	ExitSeenTime *metav1.MicroTime `json:"exitSeenTime,omitempty"`
}

// AttemptStatus is one run of the worker.
type AttemptStatus struct {
	// number of the attempt, from 1.
	// +required
	// +kubebuilder:validation:Minimum=1
	Number int32 `json:"number,omitempty"`
	// jobName is the name of its Job.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	JobName string `json:"jobName,omitempty"`
	// podName is the name of its pod.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PodName string `json:"podName,omitempty"`
	// nodeName is the node it ran on.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName,omitempty"`
	// startTime is when the worker began to run; unset where it never did.
	// +optional
	StartTime *metav1.MicroTime `json:"startTime,omitempty"`
	// finishTime is when the worker ended, as the kubelet says, or its final report was received, else when the operator closed the
	// attempt.
	// +optional
	FinishTime *metav1.MicroTime `json:"finishTime,omitempty"`
	// outcome is the event that closed the attempt: SUCCEED, FAIL, TIMEOUT or CANCEL.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	Outcome string `json:"outcome,omitempty"`
	// reason for the end.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`
	// message for people. At most 1 KiB.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// exitCode of the worker, where it is known. Of a worker that has reported it is known only later.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`
	// reported tells that the worker's final report has ended it.
	// +optional
	Reported *bool `json:"reported,omitempty"`
	// logURL is where the log of a worker is that has reported it, if that has at most 512 bytes.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	LogURL string `json:"logURL,omitempty"`
	// charged tells whether spec.retry.limit paid for it.
	// +optional
	Charged *bool `json:"charged,omitempty"`
	// percent of the work that was done, as far as it was reported.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Percent *int32 `json:"percent,omitempty"`
}

// Transition is one stored change of state.
type Transition struct {
	// time of the decision, by the operator's clock.
	// +required
	Time metav1.MicroTime `json:"time,omitempty,omitzero"`
	// from is the state before; empty for the first entry.
	// +optional
	From State `json:"from,omitempty"`
	// event that caused it; empty for the first entry.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	Event string `json:"event,omitempty"`
	// to is the state after.
	// +required
	To State `json:"to,omitempty"`
	// attempt that it concerns.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Attempt int32 `json:"attempt,omitempty"`
	// reason for the event.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`
	// actor that decided: controller, user, or patrol where that has mended what the controller had missed.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Actor string `json:"actor,omitempty"`
}

// HandledRetry is the answer to a request for a retry by hand.
type HandledRetry struct {
	// requestedAt is the value of the annotation that was answered, its first 64 bytes.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	RequestedAt string `json:"requestedAt,omitempty"`
	// outcome is Accepted, or Refused with message saying why.
	// +required
	Outcome RetryOutcome `json:"outcome,omitempty"`
	// message says why a request was refused.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// RetryOutcome is the answer to a request for a retry by hand.
// +kubebuilder:validation:Enum=Accepted;Refused
type RetryOutcome string

const (
	// RetryAccepted: the Task runs again.
	RetryAccepted RetryOutcome = "Accepted"
	// RetryRefused: nothing has changed.
	RetryRefused RetryOutcome = "Refused"
)
