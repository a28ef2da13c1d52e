package report

// Environment variables by which the operator tells a worker what it must know; the sidecar has EnvTaskUID and EnvAttempt as
// well. Package v1alpha1 documents them, under the same names. They stand here once more because programs with this package
// are to need the standard library alone.
const (
	EnvTaskName         = "TASKWARDEN_TASK_NAME"
	EnvTaskNamespace    = "TASKWARDEN_TASK_NAMESPACE"
	EnvTaskUID          = "TASKWARDEN_TASK_UID"
	EnvAttempt          = "TASKWARDEN_ATTEMPT"
	EnvInput            = "TASKWARDEN_INPUT"
	EnvCheckpoint       = "TASKWARDEN_CHECKPOINT"
	EnvReporter         = "TASKWARDEN_REPORTER"
	EnvHeartbeatSeconds = "TASKWARDEN_HEARTBEAT_SECONDS"
)

// Environment variables by which the operator tells the sidecar what it must know.
const (
	// EnvGatewayURL is the base URL of the gateway: reports are posted to GatewayPath below it. It must be https; http is taken for
	// loopback addresses alone, because the token goes with each report.
	EnvGatewayURL = "TASKWARDEN_GATEWAY_URL"
	// EnvGatewayAddress is host and port that are dialled in place of the URL's, so that reports do not need DNS; may be empty.
	// The certificate must still be that of the URL's host, which is dialled where this address fails.
	EnvGatewayAddress = "TASKWARDEN_GATEWAY_ADDRESS"
	// EnvGatewayCA has the certificates, in PEM, that the gateway's is signed by. Needed with https.
	EnvGatewayCA = "TASKWARDEN_GATEWAY_CA"
	// EnvTokenFile is the path of the token. It is read for each delivery, because the kubelet replaces it from time to time.
	EnvTokenFile = "TASKWARDEN_TOKEN_FILE"
	// EnvSpool is the folder of the spool, an absolute path: a volume of the pod that no other container mounts.
	EnvSpool = "TASKWARDEN_SPOOL"
	// EnvCommandFile is where the sidecar puts the command for shell scripts, that is, a copy of itself; may be empty.
	EnvCommandFile = "TASKWARDEN_COMMAND_FILE"
	// EnvNoteLimit is the longest note, in bytes, 1 to MaxNoteBytes, which is the default.
	EnvNoteLimit = "TASKWARDEN_NOTE_LIMIT"
	// EnvGraceSeconds is the pod's grace, in seconds. Default 180.
	EnvGraceSeconds = "TASKWARDEN_GRACE_SECONDS"
)

// GatewayPath is where the gateway takes reports, below EnvGatewayURL.
const GatewayPath = "/v1/reports"

// DefaultListen is where the sidecar listens: within the pod alone.
const DefaultListen = "127.0.0.1:7788"
