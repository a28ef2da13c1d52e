package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TaskSpec is what a user asks for. All fields are immutable once the Task exists, except priority, suspend, cancel and
// ttlSecondsAfterFinished (the rules for that, one a field, are generated: hack/gen).
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.cancel) || !oldSelf.cancel || (has(self.cancel) && self.cancel)",fieldPath=".cancel",message="cancel cannot be taken back"
// +kubebuilder:validation:XValidation:rule="!has(self.workerContainer) || self.template.spec.containers.exists(c, c.name == self.workerContainer)",fieldPath=".workerContainer",message="must be the name of a container in template.spec.containers"
// +kubebuilder:validation:XValidation:rule="!has(self.heartbeatTimeoutSeconds) || self.reporter == 'Sidecar' && self.heartbeatTimeoutSeconds <= self.activeDeadlineSeconds",fieldPath=".heartbeatTimeoutSeconds",message="needs reporter Sidecar, and must not exceed activeDeadlineSeconds"
// +kubebuilder:validation:XValidation:rule="!has(self.progressTimeoutSeconds) || self.reporter == 'Sidecar' && self.progressTimeoutSeconds <= self.activeDeadlineSeconds",fieldPath=".progressTimeoutSeconds",message="needs reporter Sidecar, and must not exceed activeDeadlineSeconds"
// +kubebuilder:validation:XValidation:rule="!has(self.stages) || self.reporter == 'Sidecar' && self.stages.all(s, !has(s.timeoutSeconds) || s.timeoutSeconds <= self.activeDeadlineSeconds)",fieldPath=".stages",message="needs reporter Sidecar, and no timeoutSeconds may exceed activeDeadlineSeconds"
// +kubebuilder:validation:XValidation:rule="self.reporter != 'Sidecar' || !has(self.template.spec.hostNetwork) || !self.template.spec.hostNetwork",fieldPath=".template.spec.hostNetwork",message="must not be set with reporter Sidecar: workers of one node would talk to each other's sidecars"
// +kubebuilder:validation:XValidation:rule="!has(self.overallDeadlineSeconds) || !has(self.activeDeadlineSeconds) || self.activeDeadlineSeconds <= self.overallDeadlineSeconds",fieldPath=".activeDeadlineSeconds",message="must not exceed overallDeadlineSeconds; where activeDeadlineSeconds is left out it is 1800"
type TaskSpec struct {
	// template is the pod template of the worker. Its restartPolicy is Never (the default here; any other value is
	// refused): an exit must be an end. The worker container is the first one, or the one that workerContainer names.
	// +required
	Template corev1.PodTemplateSpec `json:"template,omitempty,omitzero"`

	// workerContainer names the container of the template whose exit ends an attempt. Default: the first container.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	WorkerContainer string `json:"workerContainer,omitempty"`

	// input is handed to the worker as a file, whose path is in TASKWARDEN_INPUT.
	// +optional
	// +structType=atomic
	Input *TaskInput `json:"input,omitempty"`

	// priority orders the Tasks that wait in one queue, higher first. Without a queue every Task starts at once and the
	// priority has no effect. Mutable. Default 0; -1000000000 to 1000000000.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=-1000000000
	// +kubebuilder:validation:Maximum=1000000000
	Priority *int32 `json:"priority,omitempty"`

	// suspend keeps the Task from running: no attempt starts, and a running one is stopped and not charged. The overall
	// deadline goes on, the queue timeout stops. Mutable. Default false.
	// +optional
	Suspend *bool `json:"suspend,omitempty"`

	// cancel stops the Task for good. The state becomes Cancelled when the worker has stopped. It cannot be taken back.
	// Mutable. Default false.
	// +optional
	Cancel *bool `json:"cancel,omitempty"`

	// startTimeoutSeconds bounds the time from the creation of an attempt's Job to a running worker. Image pulls, missing
	// Secrets, quota and scheduling end here. In seconds, 1 to 31536000. Default 600.
	// +optional
	// +kubebuilder:default=600
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=31536000
	StartTimeoutSeconds *int32 `json:"startTimeoutSeconds,omitempty"`

	// queueTimeoutSeconds bounds the time in the queue, from creation to the first attempt, not counting time suspended.
	// Without a queue every Task starts at once and this has no effect. In seconds, 1 to 31536000. Default: no bound.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=31536000
	QueueTimeoutSeconds *int32 `json:"queueTimeoutSeconds,omitempty"`

	// activeDeadlineSeconds bounds one attempt, from its running worker on. In seconds, 1 to 31536000. Default 1800.
	// +optional
	// +kubebuilder:default=1800
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=31536000
	ActiveDeadlineSeconds *int32 `json:"activeDeadlineSeconds,omitempty"`

	// overallDeadlineSeconds bounds all attempts and the waits between them, from the creation of the Task, or from a
	// retry by hand. In seconds, 1 to 31536000, not below activeDeadlineSeconds. Default: no bound.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=31536000
	OverallDeadlineSeconds *int32 `json:"overallDeadlineSeconds,omitempty"`

	// reporter says how the worker reports. Sidecar puts a small container of the operator's own beside it, to which it talks on
	// localhost, and gives its pod a grace of at least 180 seconds. None: the worker's exit code and termination message are its only
	// word. Default None.
	// +optional
	// +kubebuilder:default=None
	Reporter Reporter `json:"reporter,omitempty"`

	// heartbeatTimeoutSeconds bounds the silence of a running worker: after so long without any report it is stopped, and its
	// attempt ends as HeartbeatTimeout. Needs reporter Sidecar. In seconds, 10 to 31536000, not above activeDeadlineSeconds.
	// Default: no bound.
	// +optional
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=31536000
	HeartbeatTimeoutSeconds *int32 `json:"heartbeatTimeoutSeconds,omitempty"`

	// progressTimeoutSeconds bounds how long a worker may live without advancing: its percent does not exceed what it had reported
	// before, by a hundredth of a percent at least, nor does it enter another stage, nor leave another checkpoint. Its attempt then ends as NoProgress. Needs reporter Sidecar. In seconds, 10 to 31536000,
	// not above activeDeadlineSeconds. Default: no bound.
	// +optional
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=31536000
	ProgressTimeoutSeconds *int32 `json:"progressTimeoutSeconds,omitempty"`

	// stages are the parts of the work that the worker reports as it enters them, in this order; it may skip some. Needs reporter
	// Sidecar. At most 20.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=20
	Stages []Stage `json:"stages,omitempty"`

	// retry says what follows an attempt that did not succeed.
	// +optional
	// +kubebuilder:default={}
	Retry *RetryPolicy `json:"retry,omitempty"`

	// finishGraceSeconds is how long the pod of a worker that has ended may go on by itself (other containers of it, say)
	// before it is stopped. In seconds, 0 (stopped at once) to 86400. Default 60.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	FinishGraceSeconds *int32 `json:"finishGraceSeconds,omitempty"`

	// workerLostTimeoutSeconds is how long a worker that was told to stop may stay unheard of before its attempt is closed
	// all the same, with condition WorkerStopped Unknown; never less than twice the pod's terminationGracePeriodSeconds and
	// 30 seconds, in which it is stopped in two ways. In seconds, 1 to 86400. Default 300.
	// +optional
	// +kubebuilder:default=300
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	WorkerLostTimeoutSeconds *int32 `json:"workerLostTimeoutSeconds,omitempty"`

	// workerRetentionSeconds is how long the Job of a successful attempt stays after the Task has finished. Jobs of other
	// attempts stay until the Task goes, at most the last three. In seconds, 0 (deleted at once) to 31536000. Default 300.
	// +optional
	// +kubebuilder:default=300
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	WorkerRetentionSeconds *int32 `json:"workerRetentionSeconds,omitempty"`

	// ttlSecondsAfterFinished is how long a finished Task stays before it is deleted with all that belongs to it. Leave it
	// out where a GitOps tool owns the Task, which would create it, and so run it, again. Mutable. In seconds, 0 (deleted
	// at once) to 31536000. Default: it stays.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
}

// TaskInput wraps the free-form input of a Task.
type TaskInput struct {
	// value is any JSON value, at most 64 KiB as compact JSON.
	// +required
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	Value apiextensionsv1.JSON `json:"value,omitempty,omitzero"`
}

// Reporter says how a worker reports.
// +kubebuilder:validation:Enum=None;Sidecar
type Reporter string

const (
	// ReporterNone: the worker's exit code and termination message are its only word.
	ReporterNone Reporter = "None"
	// ReporterSidecar: a sidecar takes the worker's reports and delivers them.
	ReporterSidecar Reporter = "Sidecar"
)

// Stage is a part of the work.
type Stage struct {
	// name of the stage, as the worker reports it: at most 63 lower case letters, digits and dashes.
	// +required
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// timeoutSeconds bounds the stage, from the report that it was entered on; the attempt then ends as StageTimeout. In seconds, 1
	// to 31536000, not above activeDeadlineSeconds. Default: no bound.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=31536000
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`

	// weight is the stage's share of the work: while the worker reports stages and no percent, progress is the weight of the stages
	// before the current one over that of all. 0 to 1000. Default 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Weight *int32 `json:"weight,omitempty"`
}

// RetryPolicy says whether, when and how a failed attempt is followed by another.
type RetryPolicy struct {
	// limit is how many charged attempts may follow the first: at most limit + 1 run. 0 means no retry; 0 to 100.
	// Default 2.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Limit *int32 `json:"limit,omitempty"`

	// unchargedLimit is how many attempts may end uncharged (disruptions, suspends, rules that say RetryUncharged) before
	// the Task fails. 0 to 1000. Default 10.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	UnchargedLimit *int32 `json:"unchargedLimit,omitempty"`

	// backoff is the wait before the next attempt.
	// +optional
	// +kubebuilder:default={}
	Backoff *Backoff `json:"backoff,omitempty"`

	// rules are asked in order about an attempt that failed or timed out; the first that matches decides. Without a match the
	// action is Retry, or RetryUncharged for reasons Disrupted and WorkerLost. At most 20.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	Rules []RetryRule `json:"rules,omitempty"`

	// onWorkerLost says whether a next attempt may start although the earlier worker is not known to have stopped.
	// Replace: after workerLostTimeoutSeconds. Wait: never, the Task waits until the worker is known to have stopped.
	// Default Replace.
	// +optional
	// +kubebuilder:default=Replace
	OnWorkerLost WorkerLostPolicy `json:"onWorkerLost,omitempty"`
}

// WorkerLostPolicy is what follows a worker that is not known to have stopped.
// +kubebuilder:validation:Enum=Replace;Wait
type WorkerLostPolicy string

const (
	// ReplaceLostWorker starts the next attempt after workerLostTimeoutSeconds.
	ReplaceLostWorker WorkerLostPolicy = "Replace"
	// WaitForLostWorker never starts an attempt while an earlier worker may run.
	WaitForLostWorker WorkerLostPolicy = "Wait"
)

// Backoff is an exponential wait: initialSeconds * factor^(n-1) before the retry after the n-th charged failure, at most
// maxSeconds, plus or minus up to jitterPercent of it.
//
// +kubebuilder:validation:XValidation:rule="!has(self.initialSeconds) || !has(self.maxSeconds) || self.initialSeconds <= self.maxSeconds",fieldPath=".maxSeconds",message="must not be below initialSeconds; where maxSeconds is left out it is 300"
type Backoff struct {
	// initialSeconds is the wait before the first retry. In seconds, 1 to 86400. Default 10.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	InitialSeconds *int32 `json:"initialSeconds,omitempty"`

	// factor multiplies the wait from one retry to the next. A decimal number as text, "1" to "100" with at most two
	// decimals. Default "2".
	// +optional
	// +kubebuilder:default="2"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=6
	// +kubebuilder:validation:Pattern=`^(100(\.00?)?|[1-9][0-9]?(\.[0-9]{1,2})?)$`
	Factor string `json:"factor,omitempty"`

	// maxSeconds caps the wait, jitter included. In seconds, not below initialSeconds, 1 to 86400. Default 300.
	// +optional
	// +kubebuilder:default=300
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	MaxSeconds *int32 `json:"maxSeconds,omitempty"`

	// jitterPercent spreads the wait at random by up to this share of it in both directions. 0 to 100. Default 10.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	JitterPercent *int32 `json:"jitterPercent,omitempty"`
}

// RetryRule matches the end of an attempt by exit code or by reason, exactly one of them. A rule that can never match,
// because all that it names already stands in earlier rules, is refused (generated: hack/gen).
//
// +kubebuilder:validation:XValidation:rule="has(self.exitCodes) != has(self.reasons)",message="must have exactly one of exitCodes and reasons"
// +kubebuilder:validation:XValidation:rule="self.action != 'Fail' || !has(self.resources)",fieldPath=".resources",message="must not be set with action Fail: no attempt follows"
// +kubebuilder:validation:XValidation:rule="!has(self.resources) || !has(self.resources.claims)",fieldPath=".resources.claims",message="must not be set: only requests and limits are replaced"
type RetryRule struct {
	// exitCodes match the exit code of a worker that ended by itself, 1 to 255. Set this or reasons.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=255
	ExitCodes []int32 `json:"exitCodes,omitempty"`

	// reasons match the reason of the attempt. Set this or exitCodes.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=20
	Reasons []RetryReason `json:"reasons,omitempty"`

	// action is what follows.
	// +required
	Action RetryAction `json:"action,omitempty"`

	// resources replace, name by name, requests and limits of the worker container in all further attempts. Not with
	// action Fail.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
}

// RetryReason is a reason of an attempt that a rule can match.
// +kubebuilder:validation:Enum=NonZeroExitCode;OOMKilled;StartError;Evicted;PodRejected;OutcomeUnknown;JobDeleted;PodDeleted;WorkerLost;Disrupted;StartTimeout;ActiveDeadlineExceeded;ImagePullFailed;InvalidImageName;ConfigError;MountFailed;Unschedulable;QuotaExceeded;AdmissionDenied;PodCreateFailed;WorkerFailed;HeartbeatTimeout;NoProgress;StageTimeout
type RetryReason string

// RetryAction is what a rule decides.
// +kubebuilder:validation:Enum=Retry;Fail;RetryUncharged
type RetryAction string

const (
	// ActionRetry makes another attempt while the budget lasts.
	ActionRetry RetryAction = "Retry"
	// ActionFail ends the Task.
	ActionFail RetryAction = "Fail"
	// ActionRetryUncharged makes another attempt that the budget does not pay for, up to unchargedLimit.
	ActionRetryUncharged RetryAction = "RetryUncharged"
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
	// actor that decided: controller or user.
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

// Task is one asynchronous piece of work that runs as worker Jobs until it has succeeded, failed or been cancelled.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=twt,categories=taskwarden
// +kubebuilder:selectablefield:JSONPath=`.status.state`
// +kubebuilder:selectablefield:JSONPath=`.status.reason`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.reason`
// +kubebuilder:printcolumn:name="Attempt",type=integer,JSONPath=`.status.attempt`
// +kubebuilder:printcolumn:name="Progress",type=integer,JSONPath=`.status.progress.percent`
// +kubebuilder:printcolumn:name="Stage",type=string,JSONPath=`.status.progress.stage`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.worker.nodeName`,priority=1
// +kubebuilder:printcolumn:name="Started",type=date,JSONPath=`.status.startTime`,priority=1
// +kubebuilder:printcolumn:name="Finished",type=date,JSONPath=`.status.completionTime`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
type Task struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what is asked for.
	// +required
	Spec TaskSpec `json:"spec,omitempty,omitzero"`

	// status is what is true. A Task is Pending from its creation, also while no operator has looked at it.
	// +optional
	// +structType=atomic
	// +kubebuilder:default={state: Pending, reason: Accepted, conditions: {{type: "Succeeded", status: "Unknown", reason: "Accepted", message: "The operator has not reported yet", lastTransitionTime: "1970-01-01T00:00:00Z"}, {type: "Finished", status: "False", reason: "Accepted", message: "The operator has not reported yet", lastTransitionTime: "1970-01-01T00:00:00Z"}, {type: "Reconciling", status: "True", reason: "Accepted", message: "The operator has not reported yet", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status TaskStatus `json:"status,omitempty,omitzero"`
}

// TaskList is a list of Tasks.
//
// +kubebuilder:object:root=true
type TaskList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Task `json:"items"`
}
