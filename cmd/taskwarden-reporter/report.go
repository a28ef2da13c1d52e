package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/taskwarden/taskwarden/internal/report"
	"github.com/taskwarden/taskwarden/internal/reporter/client"
)

const (
	// patience is how long the command tries to reach the sidecar.
	patience = 5 * time.Second
	// maxWait is the longest --wait.
	maxWait = 30
)

const reportUsage = `Report something of a worker to the sidecar beside it, which delivers it.

Usage: "$TASKWARDEN_COMMAND" in front of one of
  report heartbeat
  report progress PERCENT [--message TEXT] [--remaining SECONDS]
  report stage NAME
  report checkpoint JSON|@FILE|-
  report succeeded [--url URL] [--data JSON|@FILE|-] [--log-url URL] [--message TEXT] [--wait SECONDS]
  report failed [--message TEXT] [--permanent] [--log-url URL] [--wait SECONDS]

  PERCENT         how far the worker is, 0 to 100
  NAME            the stage that it has entered, one of spec.stages
  JSON|@FILE|-    a JSON value, or where it is: in a file, or in the standard input. At most 16 KiB
  --message       one line for people, at most 1 KiB
  --remaining     how long the worker will still take
  --url           where the result is, at most 2 KiB
  --data          the result itself
  --log-url       where the worker's log is, at most 2 KiB
  --permanent     another attempt would fail as well
  --wait          wait for the delivery, at most so many seconds (0 to 30)

succeeded and failed are final: nothing more can be reported. The script must still exit.

Environment:
  TASKWARDEN_REPORTER    the sidecar's address; the operator sets it with reporter: Sidecar

Exit codes:
  0  the sidecar has it: a final report is kept and delivered, of anything else the newest
  1  the sidecar could not be reached, for 5 seconds
  2  wrong usage, or the sidecar does not take it; standard error says why
`

// usageError is a mistake of whoever has called the command.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func misused(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// reportCommand is `report`.
type reportCommand struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
}

// told is what the command line says.
type told struct {
	kind report.Kind
	body any
	wait time.Duration
}

func (c *reportCommand) run(args []string) int {
	if len(args) == 0 {
		_, _ = io.WriteString(c.stderr, reportUsage)
		return exitRefused
	}
	if asksForHelp(args) {
		_, _ = io.WriteString(c.stdout, reportUsage)
		return exitTaken
	}
	t, err := c.parse(report.Kind(args[0]), args[1:])
	if err == nil {
		err = c.send(t)
	}
	return exitCode(c.stderr, err)
}

// asksForHelp looks at what stands before "--".
func asksForHelp(args []string) bool {
	for i, arg := range args {
		switch arg {
		case "-h", "-help", "--help":
			return true
		case "help":
			if i == 0 {
				return true
			}
		case "--":
			return false
		}
	}
	return false
}

func (c *reportCommand) send(t *told) error {
	base := c.getenv(report.EnvReporter)
	if base == "" {
		return misused("%s is not set: there is a sidecar only where the Task has reporter: Sidecar", report.EnvReporter)
	}
	api, err := client.New(base)
	if err != nil {
		return misused("%s: %v", report.EnvReporter, err)
	}
	status, err := api.PostPatiently(context.Background(), t.kind, t.body, t.wait, patience)
	if err != nil {
		return err
	}
	if t.wait > 0 && status == http.StatusAccepted {
		_, _ = fmt.Fprintln(c.stderr, "taskwarden report: taken, and not delivered yet")
	}
	return nil
}

// parse reads the arguments of one kind.
func (c *reportCommand) parse(kind report.Kind, args []string) (*told, error) {
	flags := flag.NewFlagSet(string(kind), flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	t := &told{kind: kind}
	var finish func(operands []string) error
	switch kind {
	case report.Heartbeat:
		finish = func(operands []string) error { return count(operands, 0, "") }
	case report.Progress:
		finish = t.progress(flags)
	case report.Stage:
		finish = t.stage
	case report.Checkpoint:
		finish = t.checkpoint(c.stdin)
	case report.Succeeded:
		finish = t.succeeded(flags, c.stdin)
	case report.Failed:
		finish = t.failed(flags)
	default:
		return nil, misused("there is nothing called %q to report; see --help", string(kind))
	}
	operands, err := parseMixed(flags, args)
	if err != nil {
		return nil, misused("%s: %v; see --help", kind, err)
	}
	return t, finish(operands)
}

// parseMixed lets flags stand before and behind the operands. What is a number is never a flag.
func parseMixed(flags *flag.FlagSet, args []string) (operands []string, err error) {
	for len(args) > 0 {
		_, errNumber := strconv.ParseFloat(args[0], 64)
		switch {
		case args[0] == "--":
			return append(operands, args[1:]...), nil
		case errNumber == nil, args[0] == "-", !strings.HasPrefix(args[0], "-"):
			operands, args = append(operands, args[0]), args[1:]
		default:
			// The flags end where the next operand stands, or at "--".
			if err := flags.Parse(args); err != nil {
				return nil, err
			}
			if n := len(args) - flags.NArg(); args[n-1] == "--" {
				return append(operands, flags.Args()...), nil
			}
			args = flags.Args()
		}
	}
	return operands, nil
}

func count(operands []string, want int, what string) error {
	switch {
	case len(operands) < want:
		return misused("%s is missing; see --help", what)
	case len(operands) > want:
		return misused("%q is too much; see --help", operands[want])
	}
	return nil
}

func (t *told) progress(flags *flag.FlagSet) func([]string) error {
	message := flags.String("message", "", "")
	remaining := flags.Int64("remaining", 0, "")
	return func(operands []string) error {
		if err := count(operands, 1, "PERCENT"); err != nil {
			return err
		}
		percent, err := strconv.ParseFloat(strings.TrimSuffix(operands[0], "%"), 64)
		if err != nil || math.IsNaN(percent) || math.IsInf(percent, 0) {
			return misused("PERCENT must be a number, not %q", operands[0])
		}
		p := &report.ProgressPayload{Percent: percent, Message: *message}
		if isSet(flags, "remaining") {
			p.EstimatedRemainingSeconds = remaining
		}
		t.body = p
		return nil
	}
}

func isSet(flags *flag.FlagSet, name string) (set bool) {
	flags.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	return set
}

func (t *told) stage(operands []string) error {
	if err := count(operands, 1, "NAME"); err != nil {
		return err
	}
	t.body = &report.StagePayload{Name: operands[0]}
	return nil
}

func (t *told) checkpoint(stdin io.Reader) func([]string) error {
	return func(operands []string) error {
		if err := count(operands, 1, "JSON"); err != nil {
			return err
		}
		value, err := readJSON("the checkpoint", operands[0], stdin)
		t.body = value
		return err
	}
}

// waitFlag is --wait of both final kinds.
func (t *told) waitFlag(flags *flag.FlagSet) {
	flags.Func("wait", "", func(text string) error {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > maxWait {
			return fmt.Errorf("must be a whole number of seconds, 0 to %d", maxWait)
		}
		t.wait = time.Duration(n) * time.Second
		return nil
	})
}

func (t *told) succeeded(flags *flag.FlagSet, stdin io.Reader) func([]string) error {
	var body report.SucceededBody
	flags.StringVar(&body.URL, "url", "", "")
	flags.StringVar(&body.Message, "message", "", "")
	flags.StringVar(&body.ExecutionLogURL, "log-url", "", "")
	data := flags.String("data", "", "")
	t.waitFlag(flags)
	return func(operands []string) (err error) {
		if err := count(operands, 0, ""); err != nil {
			return err
		}
		if isSet(flags, "data") {
			if body.Data, err = readJSON("--data", *data, stdin); err != nil {
				return err
			}
		}
		t.body = &body
		return nil
	}
}

func (t *told) failed(flags *flag.FlagSet) func([]string) error {
	var body report.FailedBody
	flags.StringVar(&body.Message, "message", "", "")
	flags.BoolVar(&body.Permanent, "permanent", false, "")
	flags.StringVar(&body.ExecutionLogURL, "log-url", "", "")
	t.waitFlag(flags)
	return func(operands []string) error {
		t.body = &body
		return count(operands, 0, "")
	}
}

// readJSON reads a JSON value from the argument itself, from @FILE, or from the standard input.
func readJSON(what, argument string, stdin io.Reader) (json.RawMessage, error) {
	text := []byte(argument)
	var err error
	switch {
	case argument == "-":
		text, err = io.ReadAll(io.LimitReader(stdin, report.MaxBodyBytes+1))
	case strings.HasPrefix(argument, "@"):
		text, err = readFile(argument[1:])
	}
	if err != nil {
		return nil, misused("%s cannot be read: %v", what, err)
	}
	if len(text) > report.MaxBodyBytes {
		return nil, misused("%s is too large, the limit is %d bytes", what, report.MaxDataBytes)
	}
	if text = bytes.TrimSpace(text); !json.Valid(text) {
		return nil, misused("%s is not JSON; a text must stand in double quotes, as in '\"text\"'", what)
	}
	return text, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, report.MaxBodyBytes+1))
}
