// Package contract is what a worker and Taskwarden agree on: the environment that a worker is given, the message that
// it leaves, and the exit codes of the example workers. It uses the standard library alone, to show that a worker needs
// no package of Taskwarden's.
package contract

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
)

// Names of the environment variables that Taskwarden sets in the worker container.
const (
	EnvTaskName      = "TASKWARDEN_TASK_NAME"
	EnvTaskNamespace = "TASKWARDEN_TASK_NAMESPACE"
	EnvTaskUID       = "TASKWARDEN_TASK_UID"
	// EnvAttempt counts from 1.
	EnvAttempt = "TASKWARDEN_ATTEMPT"
	// EnvInput is the path of the file that holds spec.input.value.
	EnvInput = "TASKWARDEN_INPUT"
	// EnvReporter is the address of the sidecar. Set only where the Task has one.
	EnvReporter = "TASKWARDEN_REPORTER"
)

// EnvMessagePath moves the termination message elsewhere. It is ours, for tests and for runs outside a cluster.
const EnvMessagePath = "TERMINATION_MESSAGE_PATH"

// DefaultMessagePath is where Kubernetes reads a container's termination message unless the pod says otherwise.
const DefaultMessagePath = "/dev/termination-log"

// MaxMessageBytes is how much of a termination message the kubelet keeps for one container. Of a longer one it keeps
// the end, which is no JSON any more.
const MaxMessageBytes = 4096

// Exit codes of the example workers, for use in spec.retry.rules.
const (
	ExitOK = 0
	// ExitFailed: the work went wrong; another attempt may succeed.
	ExitFailed = 1
	// ExitBadInput: the input or the command line is wrong; another attempt cannot succeed.
	ExitBadInput = 2
	// ExitTerminated: stopped by SIGTERM (128 + 15).
	ExitTerminated = 143
)

// Env is who the worker works for. All fields are zero outside Taskwarden.
type Env struct {
	Name      string
	Namespace string
	UID       string
	Attempt   int
	InputPath string
}

// ReadEnv reads the environment through getenv. An attempt that is set but is no positive number is an error.
func ReadEnv(getenv func(string) string) (Env, error) {
	e := Env{
		Name:      getenv(EnvTaskName),
		Namespace: getenv(EnvTaskNamespace),
		UID:       getenv(EnvTaskUID),
		InputPath: getenv(EnvInput),
	}
	if s := getenv(EnvAttempt); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return Env{}, fmt.Errorf("%s: %q is not a number from 1 upwards", EnvAttempt, s)
		}
		e.Attempt = n
	}
	return e, nil
}

// Result is the termination message of a successful worker. Taskwarden copies url to status.result.url and data to
// status.result.data.
type Result struct {
	URL  string `json:"url,omitempty"`
	Data any    `json:"data,omitempty"`
}

// Encode gives the message for r, or an error if the kubelet would cut it.
func (r Result) Encode() ([]byte, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	if len(b) > MaxMessageBytes {
		return nil, fmt.Errorf("the result takes %d bytes, the limit is %d", len(b), MaxMessageBytes)
	}
	return b, nil
}

// MessagePath is where the termination message goes: the path from the environment or the default one.
func MessagePath(getenv func(string) string) string {
	if path := getenv(EnvMessagePath); path != "" {
		return path
	}
	return DefaultMessagePath
}

// WriteMessage leaves msg as the termination message.
func WriteMessage(getenv func(string) string, msg []byte) error {
	// The kubelet has made the file; it is written in place, since the folder around it is not ours to write in.
	if err := os.WriteFile(MessagePath(getenv), msg, 0o644); err != nil {
		return fmt.Errorf("write termination message: %w", err)
	}
	return nil
}
