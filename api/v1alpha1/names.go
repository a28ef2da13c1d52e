package v1alpha1

// Labels that the operator sets on the Jobs and pods of a Task. Labels of the Task itself are not copied: GitOps tools
// track objects by label and would prune what they did not apply.
const (
	// LabelTaskUID holds the UID of the Task. Caches select by it; ownership is always decided by owner UID.
	LabelTaskUID = "taskwarden.dev/task-uid"
	// LabelTask holds the name of the Task, cut and hashed where it is longer than a label value may be.
	LabelTask = "taskwarden.dev/task"
	// LabelAttempt holds the number of the attempt, from 1.
	LabelAttempt = "taskwarden.dev/attempt"
	// LabelManagedBy is the recommended label that names the tool in charge of an object.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	// ManagedBy is the value of LabelManagedBy.
	ManagedBy = "taskwarden"
)

// Annotations.
const (
	// AnnotationRetryRequestedAt on a failed Task asks for a retry by hand. Any new value is a new request (a time by
	// convention, at most 64 bytes are compared); the answer is in status.lastHandledRetry.
	AnnotationRetryRequestedAt = "taskwarden.dev/retry-requested-at"
	// AnnotationInput on a worker pod holds spec.input.value; the downward API hands it to the worker as a file.
	AnnotationInput = "taskwarden.dev/input"
	// AnnotationCheckpoint on a worker pod holds status.checkpoint.data; the downward API hands it to the worker as a file.
	AnnotationCheckpoint = "taskwarden.dev/checkpoint"
)

// Environment variables of the worker container.
const (
	// EnvTaskName is the name of the Task.
	EnvTaskName = "TASKWARDEN_TASK_NAME"
	// EnvTaskNamespace is the namespace of the Task.
	EnvTaskNamespace = "TASKWARDEN_TASK_NAMESPACE"
	// EnvTaskUID is the UID of the Task.
	EnvTaskUID = "TASKWARDEN_TASK_UID"
	// EnvAttempt is the number of the attempt, from 1.
	EnvAttempt = "TASKWARDEN_ATTEMPT"
	// EnvInput is the path of the file that holds spec.input.value as JSON; set only where there is an input.
	EnvInput = "TASKWARDEN_INPUT"
	// EnvCheckpoint is the path of the file that holds what an earlier attempt left as its checkpoint, as JSON; set only where there
	// is one.
	EnvCheckpoint = "TASKWARDEN_CHECKPOINT"
	// EnvReporter is the base URL of the sidecar's API; set only with reporter Sidecar.
	EnvReporter = "TASKWARDEN_REPORTER"
	// EnvCommand is the path of the program that reports from a shell script ("$TASKWARDEN_COMMAND report progress 40"); set only with
	// reporter Sidecar.
	EnvCommand = "TASKWARDEN_COMMAND"
	// EnvHeartbeatSeconds is spec.heartbeatTimeoutSeconds; set only where that is.
	EnvHeartbeatSeconds = "TASKWARDEN_HEARTBEAT_SECONDS"
)

// The sidecar of reporter Sidecar.
const (
	// ReporterContainer is its name, which no container of a template may have.
	ReporterContainer = "taskwarden-reporter"
	// TokenAudience is the audience of the token with which it reports.
	TokenAudience = "taskwarden"
	// MinReporterGraceSeconds is the least terminationGracePeriodSeconds of a pod with a sidecar: what a stopped worker has reported
	// is still to be delivered.
	MinReporterGraceSeconds = 180
)

// Limits of what a Task may carry.
const (
	// MaxInputBytes bounds spec.input.value as compact JSON.
	MaxInputBytes = 64 << 10
	// MaxMessageBytes bounds every message that is stored in status.
	MaxMessageBytes = 1 << 10
	// MaxAttempts bounds status.attempts; older entries are dropped.
	MaxAttempts = 10
	// MaxHistory bounds status.history; older entries are dropped.
	MaxHistory = 32
	// MaxKeptFailedJobs is how many Jobs of failed attempts stay as evidence.
	MaxKeptFailedJobs = 3
	// MaxAttemptLogURLBytes is the longest address of a log that is kept of each attempt.
	MaxAttemptLogURLBytes = 512
	// MaxRetryRequestBytes is how much of the retry annotation is compared and stored.
	MaxRetryRequestBytes = 64
)
