package report

// Environment variables by which the operator tells the sidecar what it must know.
const (
	// EnvGatewayURL is the base URL of the gateway.
	EnvGatewayURL = "TASKWARDEN_GATEWAY_URL"
	// EnvGatewayAddress is host and port that are dialled in place of the URL's; may be empty.
	EnvGatewayAddress = "TASKWARDEN_GATEWAY_ADDRESS"
	// EnvGatewayCA has the certificates, in PEM, that the gateway's is signed by.
	EnvGatewayCA = "TASKWARDEN_GATEWAY_CA"
	// EnvTokenFile is the path of the token, which the kubelet replaces from time to time.
	EnvTokenFile = "TASKWARDEN_TOKEN_FILE"
	// EnvSpool is the folder of the spool.
	EnvSpool = "TASKWARDEN_SPOOL"
	// EnvCommandFile is where the sidecar puts the command for shell scripts.
	EnvCommandFile = "TASKWARDEN_COMMAND_FILE"
	// EnvNoteLimit is the longest note, in bytes.
	EnvNoteLimit = "TASKWARDEN_NOTE_LIMIT"
	// EnvGraceSeconds is the pod's grace, in seconds.
	EnvGraceSeconds = "TASKWARDEN_GRACE_SECONDS"
)

// DefaultListen is where the sidecar listens: within the pod alone.
const DefaultListen = "127.0.0.1:7788"
