// Package marks lets a worker write down its own start and stop, as a truth that does not depend on what Kubernetes or
// Taskwarden say about it. Tests compare the two.
//
// Each run of a worker has a file of its own, named <task uid>-<attempt>-<random>.jsonl, with one JSON line for the
// start and one for the stop, each on disk before the worker goes on. The start is written before any work and the stop
// after all of it, so the process lives at least from the first to the last. A worker that is killed (SIGKILL, out of
// memory, lost node) leaves no stop line: such a file says when the worker began, not that it still runs.
package marks

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/taskwarden/taskwarden/examples/imaging/internal/contract"
)

// The two events of a run.
const (
	Start = "start"
	Stop  = "stop"
)

// Mark is one line of a marks file.
type Mark struct {
	Task    string `json:"task"` // UID
	Attempt int    `json:"attempt"`
	PID     int    `json:"pid"` // in a container, as the container sees it
	Host    string `json:"host,omitempty"`
	Event   string `json:"event"`
	// Time is RFC 3339 with nanoseconds, in UTC.
	Time time.Time `json:"time"`
	// Exit is the exit code that follows; only in a stop mark.
	Exit *int `json:"exit,omitempty"`
}

// File is the marks file of this run. A nil File writes nothing, so that callers need not ask whether marks are wanted.
type File struct {
	f    *os.File
	base Mark
	now  func() time.Time
}

// Begin makes the file in dir and writes the start mark. With an empty dir there are no marks.
func Begin(dir string, env contract.Env, now func() time.Time) (*File, error) {
	if dir == "" {
		return nil, nil
	}
	var random [6]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, fmt.Errorf("marks: %w", err)
	}
	name := fmt.Sprintf("%s-%d-%s.jsonl", safe(env.UID), env.Attempt, hex.EncodeToString(random[:]))
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, fmt.Errorf("marks: %w", err)
	}
	host, _ := os.Hostname() // the pod's name; a mark without it is still good
	m := &File{
		f:    f,
		base: Mark{Task: env.UID, Attempt: env.Attempt, PID: os.Getpid(), Host: host},
		now:  now,
	}
	if err := errors.Join(m.write(Start, nil), syncDir(dir)); err != nil {
		return nil, errors.Join(fmt.Errorf("marks: %w", err), f.Close())
	}
	return m, nil
}

// End writes the stop mark with the exit code that follows, and closes the file.
func (m *File) End(exit int) error {
	if m == nil {
		return nil
	}
	if err := errors.Join(m.write(Stop, &exit), m.f.Close()); err != nil {
		return fmt.Errorf("marks: %w", err)
	}
	return nil
}

func (m *File) write(event string, exit *int) error {
	mark := m.base
	mark.Event, mark.Exit, mark.Time = event, exit, m.now().UTC()
	line, err := json.Marshal(mark)
	if err != nil {
		return err
	}
	if _, err := m.f.Write(append(line, '\n')); err != nil {
		return err
	}
	return m.f.Sync()
}

// syncDir makes the new name itself survive a crash of the node.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// safe keeps a UID from the environment from naming another folder.
func safe(uid string) string {
	if uid == "" {
		return "none"
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-':
			return r
		}
		return '_'
	}, uid)
}

// Run does work between a start mark and a stop mark and gives its exit code. Without a start mark the work is not
// begun and the error says why: a worker that nobody can see would make the comparison worthless. A stop mark that
// cannot be written is only logged, since the work is done by then. A panic becomes ExitFailed and an error, since Go's
// own exit code for it, 2, is the one for bad input.
func Run(dir string, env contract.Env, now func() time.Time, log *slog.Logger, work func() int) (exit int, err error) {
	m, err := Begin(dir, env, now)
	if err != nil {
		return contract.ExitFailed, err
	}
	defer func() {
		if p := recover(); p != nil {
			log.Error("panic", "value", fmt.Sprint(p), "stack", string(debug.Stack()))
			exit, err = contract.ExitFailed, fmt.Errorf("panic: %v", p)
		}
		if err := m.End(exit); err != nil {
			log.Error("no stop mark", "error", err.Error())
		}
	}()
	return work(), nil
}
