// Package worker is for workers that are written in Go: programs that run in the pod of a Task and do its work. It needs the
// standard library alone.
//
//	func main() {
//		worker.Main(func(ctx context.Context, t *worker.Task) error {
//			var input struct{ Source string }
//			if err := t.Input(&input); err != nil {
//				return err
//			}
//			t.Stage("render")
//			for page := range 10 {
//				if err := render(ctx, input.Source, page); err != nil {
//					return err
//				}
//				t.Progress(float64(page+1) * 10)
//			}
//			return t.SetResult(worker.Result{URL: "s3://results/report.pdf"})
//		})
//	}
//
// The function returns nil when the work is done. An error fails the attempt, and the Task's retry policy says what follows;
// an error from [Permanent] says that no further attempt would help. The context is cancelled when the worker is to stop.
//
// With reporter: Sidecar in the Task, everything is reported as it happens, and heartbeats are sent by themselves. Without it
// the same program works as well: result or error go to the termination message, and progress, stages and checkpoints go
// nowhere.
//
// The exit codes are [ExitSucceeded], [ExitFailed], [ExitPermanent] and [ExitStopped].
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"github.com/taskwarden/taskwarden/internal/report"
	"github.com/taskwarden/taskwarden/internal/reporter/client"
)

// The exit codes of a worker.
const (
	// ExitSucceeded: the work is done.
	ExitSucceeded = 0
	// ExitFailed: the work has failed, or its result could not be handed over.
	ExitFailed = 1
	// ExitPermanent: it has failed, and another attempt would fail as well. Without a sidecar a rule of the retry policy can say
	// so: exitCodes: [2] with action: Fail.
	ExitPermanent = 2
	// ExitStopped: the worker was told to stop before its work was done, by a signal or because its attempt is over.
	ExitStopped = 143
)

const (
	defaultHeartbeat   = 10 * time.Second
	defaultMessageFile = "/dev/termination-log"
	// patience is how long a stage, a checkpoint or a final report is tried while the sidecar cannot be reached: its container may
	// be restarting.
	patience      = 5 * time.Second
	finalPatience = 30 * time.Second
)

// ErrAttemptClosed is the cause of the context's end where the operator has closed the attempt: it was cancelled, has timed
// out, or the Task is gone. Nothing that the worker does is looked at any more.
var ErrAttemptClosed = errors.New("the attempt is over")

// errStopped is the cause of the context's end after a signal.
var errStopped = errors.New("the worker was told to stop")

// Func does the work of one attempt.
type Func func(ctx context.Context, t *Task) error

// Options change how [Run] works. The zero value is what [Main] uses.
type Options struct {
	// HeartbeatInterval is the time from one heartbeat to the next. 0 is a third of the Task's heartbeatTimeoutSeconds, or 10
	// seconds where it has none. Below 0 there are no heartbeats: then progress, stages and checkpoints alone say that the worker
	// lives.
	HeartbeatInterval time.Duration
	// MessageFile is the container's terminationMessagePath. Default /dev/termination-log.
	MessageFile string
	// Getenv reads the environment. Default os.Getenv.
	Getenv func(string) string
	// Log is told what could not be reported. Default slog.Default().
	Log *slog.Logger

	// pause waits between two heartbeats; a test drives it.
	pause func(context.Context, time.Duration) error
}

// Main runs the function, reports how it ended and exits with one of the exit codes of this package. Its context is cancelled
// at SIGTERM and SIGINT.
func Main(do Func) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	code := Run(ctx, do, Options{})
	stop()
	os.Exit(code)
}

// Run is Main for programs that have signals and exit codes of their own: it runs the function, reports how it ended, and
// returns the exit code. With a sidecar it returns only after that has the final report. When ctx is done the worker is told to
// stop.
func Run(ctx context.Context, do Func, o Options) int {
	o = withDefaults(o)
	t, err := newTask(&o)
	if err != nil {
		o.Log.Error("this is not the environment of a worker", "error", err)
		writeMessage(&o, []byte(err.Error()))
		return ExitFailed
	}
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t.ctx, t.cancel = working, cancel
	stopHeartbeats := t.beat(working)
	err = call(working, do, t)
	stopHeartbeats()
	return t.finish(context.WithoutCancel(ctx), stopCause(working), err)
}

func withDefaults(o Options) Options {
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.MessageFile == "" {
		o.MessageFile = defaultMessageFile
	}
	if o.pause == nil {
		o.pause = client.Pause
	}
	if o.HeartbeatInterval == 0 {
		o.HeartbeatInterval = defaultHeartbeat
		if n, err := strconv.Atoi(o.Getenv(report.EnvHeartbeatSeconds)); err == nil && n > 0 {
			o.HeartbeatInterval = time.Duration(n) * time.Second / 3
		}
	}
	return o
}

// call makes an error of a panic, which would else exit with the code for a permanent failure.
func call(ctx context.Context, do Func, t *Task) (err error) {
	defer func() {
		if p := recover(); p != nil {
			t.options.Log.Error("the worker has panicked", "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return do(ctx, t)
}

// stopCause says why the worker was told to stop; nil where it was not.
func stopCause(ctx context.Context) error {
	switch {
	case ctx.Err() == nil:
		return nil
	case errors.Is(context.Cause(ctx), ErrAttemptClosed):
		return ErrAttemptClosed
	default:
		return errStopped
	}
}

// beat sends heartbeats until the returned function is called.
func (t *Task) beat(ctx context.Context) (stop func()) {
	if t.sidecar == nil || t.options.HeartbeatInterval < 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for t.options.pause(ctx, t.options.HeartbeatInterval) == nil {
			t.tell(ctx, report.Heartbeat, nil)
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// permanentError is an error after which no further attempt helps.
type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Permanent says of an error that another attempt would end in it as well: the Task then fails without a retry, whatever its
// retry policy says. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

// IsPermanent tells whether an error is, or wraps, one from [Permanent].
func IsPermanent(err error) bool {
	var p *permanentError
	return errors.As(err, &p)
}
