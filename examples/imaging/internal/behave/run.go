package behave

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"time"

	"github.com/taskwarden/taskwarden/examples/imaging/internal/contract"
	"github.com/taskwarden/taskwarden/examples/imaging/internal/marks"
)

// Main is the whole program, and gives its exit code. SIGTERM arrives through term.
func Main(args []string, getenv func(string) string, stderr io.Writer, now func() time.Time, term <-chan os.Signal) int {
	log := slog.New(slog.NewJSONHandler(stderr, nil))
	leave := func(msg []byte) {
		if len(msg) == 0 {
			return
		}
		if err := contract.WriteMessage(getenv, msg); err != nil {
			log.Error("no message left", "error", err.Error())
		}
	}
	fail := func(exit int, err error) int {
		log.Error("failed", "error", err.Error(), "exit", exit)
		leave([]byte(err.Error()))
		return exit
	}

	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, errHelp):
		return contract.ExitOK
	case err != nil:
		return fail(contract.ExitBadInput, err)
	}
	env, err := contract.ReadEnv(getenv)
	if err != nil {
		return fail(contract.ExitBadInput, err)
	}
	if o.FailUntilAttempt > 0 && env.Attempt == 0 {
		return fail(contract.ExitBadInput, fmt.Errorf("--fail-until-attempt: %s is not set", contract.EnvAttempt))
	}
	log = log.With("task", env.Name, "namespace", env.Namespace, "uid", env.UID, "attempt", env.Attempt)

	exit, err := marks.Run(o.MarksDir, env, now, log, func() int {
		log.Info("started")
		exit, word := o.reporting(reporter{getenv(envCommand)}, env.Attempt, log, term)
		if o.Message != nil {
			leave(o.Message)
		} else if exit != contract.ExitOK {
			leave([]byte(word))
		}
		log.Info("ended", "exit", exit, "why", word)
		return exit
	})
	if err != nil {
		return fail(exit, err)
	}
	return exit
}

// reporting is run with the reports before and after it. One that fails is a failure of the work.
func (o Options) reporting(r reporter, attempt int, log *slog.Logger, term <-chan os.Signal) (exit int, why string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := r.sayAll(ctx, o.Reports); err != nil {
		return contract.ExitFailed, err.Error()
	}
	if o.ProgressEvery > 0 {
		go r.advance(ctx, o.ProgressEvery, o.Sleep)
	}
	exit, why = o.run(attempt, log, term)
	if why == stoppedWord {
		return exit, why
	}
	cancel() // no progress after the end
	if err := r.sayAll(context.Background(), o.Finals); err != nil {
		return contract.ExitFailed, err.Error()
	}
	return exit, why
}

// stoppedWord is why a worker has ended that SIGTERM has stopped.
const stoppedWord = "stopped by SIGTERM"

// run works until the work or SIGTERM ends it, and gives the exit code and a word on why.
func (o Options) run(attempt int, log *slog.Logger, term <-chan os.Signal) (exit int, why string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.work(ctx)
	}()
	for {
		select {
		case <-done:
			return o.end(attempt)
		case <-term:
			log.Info("SIGTERM", "ignored", o.IgnoreSIGTERM, "grace", o.TermGrace.String())
			if !o.IgnoreSIGTERM {
				return o.terminate(attempt, done)
			}
		}
	}
}

// terminate works on for the grace and then ends.
func (o Options) terminate(attempt int, done <-chan struct{}) (exit int, why string) {
	if o.TermGrace > 0 {
		grace := time.NewTimer(o.TermGrace)
		defer grace.Stop()
		select {
		case <-done:
			return o.end(attempt)
		case <-grace.C:
		}
	}
	return o.OnSIGTERMExit, stoppedWord
}

func (o Options) end(attempt int) (exit int, why string) {
	switch {
	case attempt < o.FailUntilAttempt:
		return contract.ExitFailed, fmt.Sprintf("attempt %d fails, as every one before attempt %d", attempt, o.FailUntilAttempt)
	case o.Exit != contract.ExitOK:
		return o.Exit, fmt.Sprintf("exit %d, as told", o.Exit)
	}
	return contract.ExitOK, "done"
}

// work takes the memory and sleeps.
func (o Options) work(ctx context.Context) {
	memory := allocate(ctx, o.Allocate)
	defer runtime.KeepAlive(memory)
	if o.Sleep == 0 {
		return
	}
	sleep := time.NewTimer(o.Sleep)
	defer sleep.Stop()
	select {
	case <-ctx.Done():
	case <-sleep.C:
	}
}

// allocate takes size bytes and writes to each page of them: the kernel counts a page only once it has been touched.
func allocate(ctx context.Context, size int64) [][]byte {
	const chunk, page = 1 << 20, 4096
	var memory [][]byte
	for size > 0 && ctx.Err() == nil {
		b := make([]byte, min(size, chunk))
		for i := 0; i < len(b); i += page {
			b[i] = 1
		}
		memory = append(memory, b)
		size -= int64(len(b))
	}
	return memory
}
