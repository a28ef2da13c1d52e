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
	"strings"
	"syscall"
	"time"

	"github.com/taskwarden/taskwarden/examples/imaging/internal/contract"
	"github.com/taskwarden/taskwarden/examples/imaging/internal/marks"
	"github.com/taskwarden/taskwarden/examples/imaging/internal/picture"
)

const usage = `usage: imaging [--marks DIR]

Makes copies of a picture in other sizes, with a text on each. The input is JSON in the file that TASKWARDEN_INPUT names;
the result, or the error, is the container's termination message.

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
		if err := contract.WriteMessage(getenv, message(err)); err != nil {
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
		if err := work(ctx, env, getenv, log); err != nil {
			return fail(exitCode(err), err)
		}
		log.Info("done")
		return contract.ExitOK
	})
	if err != nil {
		return fail(exit, err)
	}
	return exit
}

func work(ctx context.Context, env contract.Env, getenv func(string) string, log *slog.Logger) error {
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
	result, err := picture.Process(ctx, in, log)
	if err != nil {
		return err
	}
	msg, err := result.Encode()
	if err != nil {
		return err
	}
	return contract.WriteMessage(getenv, msg)
}

func exitCode(err error) int {
	var input *picture.InputError
	switch {
	case errors.As(err, &input):
		return contract.ExitBadInput
	case errors.Is(err, context.Canceled):
		return contract.ExitTerminated
	}
	return contract.ExitFailed
}

// message is err as a termination message: plain text, unless that would by chance be JSON.
func message(err error) []byte {
	// Errors that were joined stand on a line each; a status message is one line.
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if errors.Is(err, context.Canceled) {
		text = "stopped by SIGTERM"
	}
	if len(text) > contract.MaxMessageBytes {
		text = text[:contract.MaxMessageBytes]
	}
	if json.Valid([]byte(text)) {
		return []byte("error: " + text)
	}
	return []byte(text)
}
