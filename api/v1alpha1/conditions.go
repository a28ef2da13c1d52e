package v1alpha1

// Types of the conditions of a Task. Polarity is given for each.
const (
	// ConditionSucceeded summarises a Task: Unknown while it goes on, True or False once it has ended.
	ConditionSucceeded = "Succeeded"
	// ConditionFinished is True in each terminal state, whatever the outcome: the one condition to wait for.
	ConditionFinished = "Finished"
	// ConditionReconciling is True while the Task has not ended, and absent afterwards; its reason and message say what it
	// waits for (abnormal-true, as kstatus reads it).
	ConditionReconciling = "Reconciling"
	// ConditionStalled is True when the Task has failed for good, and absent otherwise (abnormal-true, as kstatus reads it).
	ConditionStalled = "Stalled"
	// ConditionSuspended is True while spec.suspend keeps the Task from running.
	ConditionSuspended = "Suspended"
	// ConditionTerminating is True from the moment the operator has fixed the outcome of the current attempt (cancel,
	// timeout, suspend, disruption) until its worker has stopped. Its reason is that outcome.
	ConditionTerminating = "Terminating"
	// ConditionWorkerStopped says of the last attempt that was stopped whether its worker is known to have stopped:
	// Unknown names the node that could not be reached.
	ConditionWorkerStopped = "WorkerStopped"
	// ConditionDeadLettered is True for a failed Task that nothing but a retry by hand will run again; its reason says
	// why there is no further attempt.
	ConditionDeadLettered = "DeadLettered"
	// ConditionReportMismatch is True when the worker's word came after an outcome was stored and contradicts it.
	ConditionReportMismatch = "ReportMismatch"
	// ConditionResultUndelivered is True when the outcome of an attempt is known and something that its worker has reported with it
	// could not be delivered; the message says what.
	ConditionResultUndelivered = "ResultUndelivered"
)

// Reasons why a Task is where it is while it goes on. They stand in status.reason and in condition Reconciling.
const (
	// ReasonAccepted: the Task is stored, and the operator has not reported on it yet. It reports within 2 s.
	ReasonAccepted = "Accepted"
	// ReasonWaitingForWorker: the worker Job exists and its container does not run yet.
	ReasonWaitingForWorker = "WaitingForWorker"
	// ReasonContainerWaiting: a container of the pod, not always the worker's, waits; the message is the kubelet's text.
	ReasonContainerWaiting = "ContainerWaiting"
	// ReasonWorkerRunning: the worker container runs.
	ReasonWorkerRunning = "WorkerRunning"
	// ReasonAwaitingReport: the worker has exited, and its sidecar may still deliver a final report of it.
	ReasonAwaitingReport = "AwaitingReport"
	// ReasonCreatePending: the worker Job could not be created yet; the message has the API server's text.
	ReasonCreatePending = "CreatePending"
	// ReasonGatewayMissing: the worker needs a sidecar, and there is no gateway to which it could deliver.
	ReasonGatewayMissing = "GatewayMissing"
	// ReasonNameConflict: a Job of the needed name exists that is not this attempt's own, or is being deleted.
	ReasonNameConflict = "NameConflict"
	// ReasonWaitingForPodTermination: the next attempt waits because an earlier worker may still run.
	ReasonWaitingForPodTermination = "WaitingForPodTermination"
	// ReasonSuspended: spec.suspend is set. As the reason of an attempt: it was stopped for that.
	ReasonSuspended = "Suspended"
)

// Reasons for the end of an attempt. They stand in status.attempts, in status.reason of a Retrying or Failed Task, and
// (but for ReasonCompleted, ReasonCancelled, ReasonSuspended, ReasonOverallDeadlineExceeded, ReasonQueueTimeout,
// ReasonInvalidTemplate, ReasonInputTooLarge and ReasonPermanentFailure, after which no rule is asked) can be matched by spec.retry.rules. Those from
// ReasonImagePullFailed to ReasonPodCreateFailed also say what a Pending Task waits for, until its start timeout.
const (
	// ReasonCompleted: the worker exited with code 0.
	ReasonCompleted = "Completed"
	// ReasonNonZeroExitCode: the worker exited with another code than 0.
	ReasonNonZeroExitCode = "NonZeroExitCode"
	// ReasonOOMKilled: the worker was killed for want of memory.
	ReasonOOMKilled = "OOMKilled"
	// ReasonStartError: the container runtime could not start the worker's process.
	ReasonStartError = "StartError"
	// ReasonEvicted: the kubelet evicted the pod for going over its own limits (ephemeral storage, say).
	ReasonEvicted = "Evicted"
	// ReasonPodRejected: the kubelet refused the pod, or another container of it failed.
	ReasonPodRejected = "PodRejected"
	// ReasonOutcomeUnknown: the Job says that its pod failed, and the pod is gone and was never seen, so nobody knows how.
	ReasonOutcomeUnknown = "OutcomeUnknown"
	// ReasonJobDeleted: the worker Job was deleted by somebody else.
	ReasonJobDeleted = "JobDeleted"
	// ReasonPodDeleted: the worker pod was deleted by somebody else.
	ReasonPodDeleted = "PodDeleted"
	// ReasonWorkerLost: the node lost track of the worker.
	ReasonWorkerLost = "WorkerLost"
	// ReasonDisrupted: the pod was evicted, preempted or drained (pod condition DisruptionTarget).
	ReasonDisrupted = "Disrupted"
	// ReasonStartTimeout: spec.startTimeoutSeconds passed and nothing more precise is known.
	ReasonStartTimeout = "StartTimeout"
	// ReasonActiveDeadlineExceeded: spec.activeDeadlineSeconds passed.
	ReasonActiveDeadlineExceeded = "ActiveDeadlineExceeded"
	// ReasonOverallDeadlineExceeded: spec.overallDeadlineSeconds passed.
	ReasonOverallDeadlineExceeded = "OverallDeadlineExceeded"
	// ReasonHeartbeatTimeout: spec.heartbeatTimeoutSeconds passed without a word of the worker.
	ReasonHeartbeatTimeout = "HeartbeatTimeout"
	// ReasonNoProgress: spec.progressTimeoutSeconds passed and the worker lived, but did not advance.
	ReasonNoProgress = "NoProgress"
	// ReasonStageTimeout: the timeoutSeconds of a stage passed.
	ReasonStageTimeout = "StageTimeout"
	// ReasonWorkerFailed: the worker reported that it has failed.
	ReasonWorkerFailed = "WorkerFailed"
	// ReasonPermanentFailure: the worker reported that it has failed, and that another attempt would fail as well.
	ReasonPermanentFailure = "PermanentFailure"
	// ReasonQueueTimeout: spec.queueTimeoutSeconds passed.
	ReasonQueueTimeout = "QueueTimeout"
	// ReasonCancelled: spec.cancel is set.
	ReasonCancelled = "Cancelled"
	// ReasonInvalidTemplate: the API server refuses the worker Job for good (422).
	ReasonInvalidTemplate = "InvalidTemplate"
	// ReasonInputTooLarge: spec.input.value is over MaxInputBytes.
	ReasonInputTooLarge = "InputTooLarge"

	// ReasonImagePullFailed: an image cannot be pulled.
	ReasonImagePullFailed = "ImagePullFailed"
	// ReasonInvalidImageName: an image name cannot be parsed.
	ReasonInvalidImageName = "InvalidImageName"
	// ReasonConfigError: a container cannot be made, a Secret or ConfigMap it needs is missing, say.
	ReasonConfigError = "ConfigError"
	// ReasonMountFailed: a volume cannot be mounted.
	ReasonMountFailed = "MountFailed"
	// ReasonUnschedulable: the scheduler finds no node.
	ReasonUnschedulable = "Unschedulable"
	// ReasonQuotaExceeded: a ResourceQuota of the namespace has no room for the pod.
	ReasonQuotaExceeded = "QuotaExceeded"
	// ReasonAdmissionDenied: a policy of the cluster refuses the Job or its pod.
	ReasonAdmissionDenied = "AdmissionDenied"
	// ReasonPodCreateFailed: the Job controller could not create the pod for another reason.
	ReasonPodCreateFailed = "PodCreateFailed"
)

// Reasons of Events that are no reason of a state.
const (
	// ReasonStopFailed: an order to stop a worker failed, and is given again.
	ReasonStopFailed = "StopFailed"
	// ReasonClockSkew: the clock of a worker or of its node is far from the API server's.
	ReasonClockSkew = "ClockSkew"
	// ReasonRetryRequested: somebody asked for another attempt, and it follows. Also the reason in the history.
	ReasonRetryRequested = "RetryRequested"
	// ReasonRetryRefused: somebody asked for another attempt, and none follows.
	ReasonRetryRefused = "RetryRefused"
	// ReasonRepaired: the patrol has mended what the controller had missed; the message names the kind of mismatch.
	ReasonRepaired = "Repaired"
)

// Reasons of condition DeadLettered: why a failed Task is not tried again.
const (
	// ReasonRetryLimitReached: spec.retry.limit is used up.
	ReasonRetryLimitReached = "RetryLimitReached"
	// ReasonUnchargedLimitReached: spec.retry.unchargedLimit is used up.
	ReasonUnchargedLimitReached = "UnchargedLimitReached"
	// ReasonRetryRuleFail: a rule of spec.retry.rules says Fail.
	ReasonRetryRuleFail = "RetryRuleFail"
	// ReasonNotRetryable: the cause is of a kind that another attempt cannot mend.
	ReasonNotRetryable = "NotRetryable"
)
