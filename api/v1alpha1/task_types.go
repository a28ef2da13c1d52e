package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
