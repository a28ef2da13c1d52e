// Package behave is a worker that does as it is told: sleep, fail, take memory, leave a message, answer or ignore
// SIGTERM.
package behave

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/taskwarden/taskwarden/examples/imaging/internal/contract"
)

const usage = `usage: worker [flags]

Takes memory, then sleeps, then leaves a message and ends. Without flags it ends at once with 0.

exit codes: as the flags say; else 0, 2 for bad flags, 143 when stopped by SIGTERM

`

// Options are what the flags say.
type Options struct {
	Sleep            time.Duration
	Exit             int
	FailUntilAttempt int
	Allocate         int64
	IgnoreSIGTERM    bool
	OnSIGTERMExit    int
	TermGrace        time.Duration
	MarksDir         string
	// Reports are made before the work, Finals after it; each is what the report command takes.
	Reports, Finals []string
	// ProgressEvery is how often progress is reported during the work; 0: never.
	ProgressEvery time.Duration
	// Message is left as it is, however the worker ends by itself. Nil leaves a word on failure and nothing else.
	Message []byte
}

// errHelp: the flags asked for help, which has been given.
var errHelp = flag.ErrHelp

// parse reads the flags. It reads a message file too, so that a wrong path is known at once.
func parse(args []string, stderr io.Writer) (Options, error) {
	o := Options{OnSIGTERMExit: contract.ExitTerminated}
	flags := flag.NewFlagSet("worker", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	flags.DurationVar(&o.Sleep, "sleep", 0, "work for this `duration`")
	flags.Func("exit", "exit `code` at the end (default 0)", exitCode(&o.Exit))
	flags.IntVar(&o.FailUntilAttempt, "fail-until-attempt", 0, "exit with 1 in each attempt before attempt `N`")
	flags.Func("allocate", "take this much memory, such as 200Mi, and hold it to the end", func(s string) (err error) {
		o.Allocate, err = parseBytes(s)
		return err
	})
	flags.BoolVar(&o.IgnoreSIGTERM, "ignore-sigterm", false, "go on after SIGTERM as if nothing had come")
	flags.Func("on-sigterm-exit", "exit `code` after SIGTERM (default 143)", exitCode(&o.OnSIGTERMExit))
	flags.DurationVar(&o.TermGrace, "term-grace", 0, "work on this `duration` after SIGTERM; work that ends meanwhile ends as it would have")
	flags.StringVar(&o.MarksDir, "marks", "", "write a start mark and a stop mark into a file in this `folder`")
	flags.Func("report", "first report `WORDS`, such as \"stage resize\"; may be repeated", appendTo(&o.Reports))
	flags.Func("report-at-end", "report `WORDS` after the work, unless stopped; may be repeated", appendTo(&o.Finals))
	flags.DurationVar(&o.ProgressEvery, "progress-every", 0, "report progress each `duration` of the work")
	text := flags.String("message", "", "leave this `text` as termination message; an empty one leaves none")
	size := flags.Int("message-bytes", 0, "leave a termination message of `N` bytes, more than the 4096 that are kept if wanted")
	file := flags.String("message-file", "", "leave the content of this `file` as termination message")
	if err := flags.Parse(args); err != nil {
		return Options{}, err
	}
	if flags.NArg() > 0 {
		return Options{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}

	set := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { set[f.Name] = true })
	switch {
	case o.Sleep < 0 || o.TermGrace < 0 || o.ProgressEvery < 0:
		return Options{}, errors.New("a duration is negative")
	case set["fail-until-attempt"] && o.FailUntilAttempt < 1:
		return Options{}, errors.New("--fail-until-attempt: want 1 or more")
	case o.IgnoreSIGTERM && (set["on-sigterm-exit"] || set["term-grace"]):
		return Options{}, errors.New("--ignore-sigterm goes with neither --on-sigterm-exit nor --term-grace")
	}
	var err error
	o.Message, err = message(set, *text, *size, *file)
	if err != nil {
		return Options{}, err
	}
	return o, nil
}

// message is the termination message that the flags ask for, by one of three ways.
func message(set map[string]bool, text string, size int, file string) ([]byte, error) {
	given := 0
	for _, name := range []string{"message", "message-bytes", "message-file"} {
		if set[name] {
			given++
		}
	}
	switch {
	case given > 1:
		return nil, errors.New("more than one message")
	case set["message"]:
		return []byte(text), nil
	case set["message-bytes"]:
		if size < 0 || size > 1<<20 {
			return nil, errors.New("--message-bytes: want 0 to 1048576")
		}
		return digits(size), nil
	case set["message-file"]:
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("--message-file: %w", err)
		}
		return b, nil
	}
	return nil, nil
}

// digits gives n bytes in which a reader can see what was cut off.
func digits(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('0' + i%10)
	}
	return b
}

func appendTo(list *[]string) func(string) error {
	return func(s string) error {
		*list = append(*list, s)
		return nil
	}
}

func exitCode(into *int) func(string) error {
	return func(s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 || n > 255 {
			return errors.New("want 0 to 255")
		}
		*into = n
		return nil
	}
}

// parseBytes reads a size as Kubernetes writes memory: 200Mi, 1Gi, 500M, or plain bytes.
func parseBytes(s string) (int64, error) {
	units := []struct {
		suffix string
		factor int64
	}{{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"", 1}}
	for _, u := range units {
		digits, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/u.factor {
			break
		}
		return n * u.factor, nil
	}
	return 0, errors.New("want a size such as 200Mi")
}
