// Command imaging is an example worker for Taskwarden that does real work: it makes copies of a picture in other sizes,
// with a text on each. See the README of this module.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/taskwarden/taskwarden/examples/imaging/internal/contract"
	"github.com/taskwarden/taskwarden/examples/imaging/internal/marks"
	"github.com/taskwarden/taskwarden/examples/imaging/internal/picture"
	"github.com/taskwarden/taskwarden/worker"
)

const usage = `usage: imaging [--marks DIR] [--pause DURATION]

Makes copies of a picture in other sizes, with a text on each. The input is JSON in the file that TASKWARDEN_INPUT names;
the result, or the error, is the container's termination message. Where TASKWARDEN_REPORTER names a sidecar, that is told
instead, and stages and progress as well.

exit codes: 0 done, 1 the work failed, 2 bad input or flags, 143 stopped by SIGTERM

`

func main() {
	// A context of its own signal: as process 1 of a container the program would otherwise not even notice SIGTERM.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	exit := run(ctx, os.Args[1:], os.Getenv, os.Stderr)
	stop()
	os.Exit(exit)
}

func run(ctx context.Context, args []string, getenv func(string) string, stderr io.Writer) int {
	log := slog.New(slog.NewJSONHandler(stderr, nil))
	// fail tells both readers of an error: the log, and Taskwarden through the termination message.
	fail := func(exit int, err error) int {
		log.Error("failed", "error", err.Error(), "exit", exit)
		if err := contract.WriteMessage(getenv, []byte(message(err))); err != nil {
			log.Error("no message left", "error", err.Error())
		}
		return exit
	}

	flags := flag.NewFlagSet("imaging", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	marksDir := flags.String("marks", "", "write a start mark and a stop mark into a file in this `folder`")
	pause := flags.Duration("pause", 0, "wait this `duration` after each step, so that people can watch")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return contract.ExitOK
	case err != nil:
		return fail(contract.ExitBadInput, err)
	case flags.NArg() > 0:
		return fail(contract.ExitBadInput, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	env, err := contract.ReadEnv(getenv)
	if err != nil {
		return fail(contract.ExitBadInput, err)
	}
	log = log.With("task", env.Name, "namespace", env.Namespace, "uid", env.UID, "attempt", env.Attempt)

	exit, err := marks.Run(*marksDir, env, time.Now, log, func() int {
		return attempt(ctx, getenv, log, func(ctx context.Context, t *worker.Task) error {
			return work(ctx, t, env, log, *pause)
		})
	})
	if err != nil {
		return fail(exit, err)
	}
	return exit
}

// attempt runs the work as a worker of Taskwarden, with a sidecar or without one, and gives the exit code. These are the
// codes of the package worker, too.
func attempt(ctx context.Context, getenv func(string) string, log *slog.Logger, do worker.Func) int {
	// The kubelet has made the file of the message. Started by hand, the program makes it itself.
	unwritable := contract.WriteMessage(getenv, nil)
	exit := worker.Run(ctx, func(ctx context.Context, t *worker.Task) error {
		err := do(ctx, t)
		if err == nil && getenv(contract.EnvReporter) == "" {
			err = unwritable // a result that nobody can read is no success
		}
		return verdict(err)
	}, worker.Options{Getenv: getenv, MessageFile: contract.MessagePath(getenv), Log: log})
	if exit == worker.ExitStopped && ctx.Err() != nil {
		// To the package this is no failure, so it leaves no word on it.
		if err := contract.WriteMessage(getenv, []byte("stopped by SIGTERM")); err != nil {
			log.Error("no message left", "error", err.Error())
		}
	}
	return exit
}

func work(ctx context.Context, t *worker.Task, env contract.Env, log *slog.Logger, pause time.Duration) error {
	// Not by t.Input, which would take what it does not know: this input is read strictly.
	if env.InputPath == "" {
		return &picture.InputError{Problem: contract.EnvInput + " is not set"}
	}
	f, err := os.Open(env.InputPath)
	if err != nil {
		return err
	}
	defer f.Close()
	in, err := picture.Decode(f)
	if err != nil {
		return err
	}
	result, err := picture.Process(ctx, in, log, &narrator{ctx, t, pause})
	if err != nil {
		return err
	}
	if err := t.SetResult(worker.Result{URL: result.URL, Data: result.Data}); err != nil {
		return err
	}
	log.Info("done")
	return nil
}

// narrator reports how far the work is. No checkpoint is among it: the pictures of an attempt are gone with its pod, so the
// next one has nothing to go on from.
type narrator struct {
	ctx   context.Context
	task  *worker.Task
	pause time.Duration
}

func (n *narrator) Enter(stage string) { n.task.Stage(stage) }

// Done counts every stage as the same share of the work, as the operator does where spec.stages have no weights: what the two
// say of the progress fits together.
func (n *narrator) Done(stage string, done, all int) {
	before := float64(slices.Index(picture.Stages, stage))
	percent := 100 * (before + float64(done)/float64(all)) / float64(len(picture.Stages))
	n.task.Progress(percent, worker.WithMessage(fmt.Sprintf("%s: %d of %d", stage, done, all)))
	if n.pause > 0 {
		select {
		case <-n.ctx.Done():
		case <-time.After(n.pause):
		}
	}
}

// verdict says an error in one line of text, and whether another attempt would end in it as well.
func verdict(err error) error {
	if err == nil {
		return nil
	}
	told := errors.New(message(err))
	var input *picture.InputError
	if errors.As(err, &input) {
		return worker.Permanent(told)
	}
	return told
}

// message is err as a termination message: plain text, unless that would by chance be JSON.
func message(err error) string {
	// Errors that were joined stand on a line each; a status message is one line.
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if len(text) > contract.MaxMessageBytes {
		text = text[:contract.MaxMessageBytes]
	}
	if json.Valid([]byte(text)) {
		return "error: " + text
	}
	return text
}
