// Command taskwarden-reporter is the sidecar that brings a worker's reports to the gateway, and the command with which a shell
// script reports. It is one program, so that the sidecar can put the command where the worker finds it, and it needs nothing
// but itself, so that it runs in any image.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"k8s.io/utils/clock"

	"github.com/taskwarden/taskwarden/internal/report"
	"github.com/taskwarden/taskwarden/internal/reporter"
	"github.com/taskwarden/taskwarden/internal/reporter/client"
)

// The exit codes.
const (
	exitTaken       = 0
	exitUnreachable = 1
	exitRefused     = 2
)

const (
	// memoryLimit is where the garbage collector begins to work harder; the program itself stays below 20 MiB.
	memoryLimit = 12 << 20
	gcPercent   = 40
	// readyPatience is how long `ready` waits.
	readyPatience = 30 * time.Second
)

const usage = `Usage:
  taskwarden-reporter report WHAT ...   report something of a worker; see "report --help". A worker's script has this program
                                        under another name: "$TASKWARDEN_COMMAND" report WHAT ...
  taskwarden-reporter serve             be the sidecar; the operator starts it, and sets its environment
  taskwarden-reporter ready             wait until the sidecar listens, at most 30 seconds

Exit codes: 0 done; 1 the sidecar cannot be reached, or has failed; 2 wrong usage, or refused.
`

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv))
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer, getenv func(string) string) int {
	command := ""
	if len(args) > 0 {
		command = args[0]
	}
	switch command {
	case "serve":
		return serve(args[1:], stderr, getenv)
	case "ready":
		return ready(stderr, getenv)
	case "report":
		c := &reportCommand{stdin: stdin, stdout: stdout, stderr: stderr, getenv: getenv}
		return c.run(args[1:])
	case "help", "-h", "-help", "--help":
		_, _ = io.WriteString(stdout, usage)
		return exitTaken
	case "":
		_, _ = io.WriteString(stderr, usage)
		return exitRefused
	default:
		_, _ = fmt.Fprintf(stderr, "taskwarden-reporter: there is no command %q\n\n%s", command, usage)
		return exitRefused
	}
}

// serve is the sidecar.
func serve(args []string, stderr io.Writer, getenv func(string) string) int {
	if len(args) > 0 {
		_, _ = io.WriteString(stderr, "taskwarden-reporter serve takes no arguments: it is configured by its environment\n")
		return exitRefused
	}
	// One report at a time is all that there is to do.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(memoryLimit)
	log := slog.New(slog.NewJSONHandler(stderr, nil))
	config, err := reporter.FromEnvironment(getenv)
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "taskwarden-reporter: %v\n", err)
		return exitRefused
	}
	log = log.With("taskUID", config.TaskUID, "attempt", config.Attempt)
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer cancel()
	if config.CommandFile != "" {
		if err := reporter.Install(config.CommandFile); err != nil {
			log.Error("the command for scripts cannot be installed", "error", err.Error())
		}
	}
	r, err := reporter.New(config, clock.RealClock{}, log)
	if err == nil {
		err = r.Run(ctx, nil)
	}
	if err != nil {
		log.Error("the sidecar ends", "error", err.Error())
		return exitUnreachable
	}
	return exitTaken
}

// ready is what the operator lets the kubelet run after the sidecar's start, so that no worker starts before it listens.
func ready(stderr io.Writer, getenv func(string) string) int {
	listen := getenv(reporter.EnvListen)
	if listen == "" {
		listen = report.DefaultListen
	}
	c, err := client.New("http://" + listen)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), readyPatience)
		defer cancel()
		for err = c.Ready(ctx); err != nil && c.Pause(ctx, 10*time.Millisecond) == nil; {
			err = c.Ready(ctx)
		}
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "taskwarden-reporter: the sidecar does not listen: %v\n", err)
		return exitUnreachable
	}
	return exitTaken
}

// exitCode says an error to people, and to the script.
func exitCode(stderr io.Writer, err error) int {
	if err == nil {
		return exitTaken
	}
	_, _ = fmt.Fprintf(stderr, "taskwarden report: %v\n", err)
	var wrong *usageError
	var refused *client.RefusedError
	if errors.As(err, &wrong) || errors.As(err, &refused) {
		return exitRefused
	}
	return exitUnreachable
}
