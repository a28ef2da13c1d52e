// Command sh is a shell for the example image, which has no other: it runs a script by the interpreter of mvdan.cc/sh. Beside
// what that brings, it knows sleep and cat; every other command is a program.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

const usage = `usage: sh -c SCRIPT [NAME [ARGUMENT...]]
       sh FILE [ARGUMENT...]`

const (
	exitUsage      = 2
	exitTerminated = 143
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	exit := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(exit)
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	script, params, err := parse(args)
	if err != nil {
		fmt.Fprintln(stderr, "sh:", err)
		return exitUsage
	}
	// "--": what follows are arguments of the script, also where they look like options.
	shell, err := interp.New(interp.StdIO(stdin, stdout, stderr), interp.Params(append([]string{"--"}, params...)...),
		interp.ExecHandlers(ownCommands))
	if err == nil {
		err = shell.Run(ctx, script)
	}
	var status interp.ExitStatus
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "sh: stopped by SIGTERM")
		return exitTerminated
	case errors.As(err, &status):
		return int(status)
	}
	fmt.Fprintln(stderr, "sh:", err)
	return 1
}

// parse reads the script, and says which arguments are left for it.
func parse(args []string) (script *syntax.File, params []string, err error) {
	var source io.Reader
	name := "sh"
	switch {
	case len(args) > 1 && args[0] == "-c":
		source, params = strings.NewReader(args[1]), args[2:]
		if len(params) > 0 {
			name, params = params[0], params[1:]
		}
	case len(args) > 0 && !strings.HasPrefix(args[0], "-"):
		f, err := os.Open(args[0])
		if err != nil {
			return nil, nil, err
		}
		defer f.Close()
		source, name, params = f, args[0], args[1:]
	default:
		return nil, nil, errors.New(usage)
	}
	script, err = syntax.NewParser(syntax.Variant(syntax.LangPOSIX)).Parse(source, name)
	return script, params, err
}

// ownCommands are those that an image has as programs where it has a shell.
func ownCommands(programs interp.ExecHandlerFunc) interp.ExecHandlerFunc {
	return func(ctx context.Context, args []string) error {
		var err error
		switch args[0] {
		case "sleep":
			err = sleep(ctx, args[1:])
		case "cat":
			err = cat(interp.HandlerCtx(ctx), args[1:])
		default:
			return programs(ctx, args)
		}
		if err != nil && ctx.Err() == nil {
			fmt.Fprintf(interp.HandlerCtx(ctx).Stderr, "%s: %v\n", args[0], err)
			return interp.ExitStatus(1)
		}
		return err
	}
}

func sleep(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("want a number of seconds")
	}
	seconds, err := strconv.ParseFloat(args[0], 64)
	if err != nil {
		return err
	}
	timer := time.NewTimer(time.Duration(seconds * float64(time.Second)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func cat(shell interp.HandlerContext, paths []string) error {
	if len(paths) == 0 {
		_, err := io.Copy(shell.Stdout, shell.Stdin)
		return err
	}
	for _, path := range paths {
		if !filepath.IsAbs(path) {
			path = filepath.Join(shell.Dir, path)
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		_, err = io.Copy(shell.Stdout, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}
