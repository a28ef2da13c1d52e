package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/taskwarden/taskwarden/internal/report"
	"github.com/taskwarden/taskwarden/internal/reporter/client"
)

// ErrNoInput says that the Task has no spec.input.
var ErrNoInput = errors.New("the Task has no input")

// Task is what a worker works for, and by which it reports. Its methods are safe for concurrent use.
type Task struct {
	// Name, Namespace and UID are those of the Task.
	Name, Namespace, UID string
	// Attempt is the number of the attempt, from 1.
	Attempt int

	options *Options
	ctx     context.Context
	cancel  context.CancelCauseFunc
	// sidecar is nil where the Task has none.
	sidecar *client.Client

	mu     sync.Mutex
	result report.ResultPayload
	logURL string
}

func newTask(o *Options) (*Task, error) {
	t := &Task{
		Name: o.Getenv(report.EnvTaskName), Namespace: o.Getenv(report.EnvTaskNamespace), UID: o.Getenv(report.EnvTaskUID),
		Attempt: 1, options: o,
	}
	if text := o.Getenv(report.EnvAttempt); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%s must be a number from 1, not %.40q", report.EnvAttempt, text)
		}
		t.Attempt = n
	}
	base := o.Getenv(report.EnvReporter)
	if base == "" {
		return t, nil
	}
	sidecar, err := client.New(base)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", report.EnvReporter, err)
	}
	t.sidecar = sidecar
	return t, nil
}

// Input reads spec.input.value into v, as encoding/json does. The error is ErrNoInput where the Task has none, and permanent
// where the input does not fit into v: the same input will not fit the next time.
func (t *Task) Input(v any) error {
	found, err := t.readFile(report.EnvInput, v)
	switch {
	case err != nil:
		return fmt.Errorf("the input: %w", err)
	case !found:
		return ErrNoInput
	}
	return nil
}

// Checkpoint reads what an earlier attempt has saved into v, as encoding/json does. It tells whether there is anything.
func (t *Task) Checkpoint(v any) (found bool, err error) {
	found, err = t.readFile(report.EnvCheckpoint, v)
	if err != nil {
		return false, fmt.Errorf("the checkpoint: %w", err)
	}
	return found, nil
}

func (t *Task) readFile(env string, v any) (bool, error) {
	path := t.options.Getenv(env)
	if path == "" {
		return false, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return false, Permanent(err)
	}
	return true, nil
}

// ProgressOption says more about progress.
type ProgressOption func(*report.ProgressPayload)

// WithMessage adds a line for people. At most 1 KiB.
func WithMessage(message string) ProgressOption {
	return func(p *report.ProgressPayload) { p.Message = message }
}

// WithRemaining adds how long the work will still take; without it that is reckoned from the pace so far. Fractions of a second
// are rounded up.
func WithRemaining(d time.Duration) ProgressOption {
	return func(p *report.ProgressPayload) {
		seconds := int64((max(0, d) + time.Second - 1) / time.Second)
		p.EstimatedRemainingSeconds = &seconds
	}
}

// Progress says how far the work is, in percent; what is below 0 or above 100 counts as that. It may be called as often as is
// convenient. What cannot be reported is logged, and is no reason to stop.
func (t *Task) Progress(percent float64, options ...ProgressOption) {
	p := &report.ProgressPayload{Percent: percent}
	for _, option := range options {
		option(p)
	}
	t.tell(t.ctx, report.Progress, p)
}

// Stage says that the work has entered a stage: one of spec.stages, in their order. What cannot be reported is logged.
func (t *Task) Stage(name string) {
	if err := t.say(report.Stage, &report.StagePayload{Name: name}); err != nil {
		t.options.Log.Warn("a stage could not be reported", "stage", name, "error", err)
	}
}

// SaveCheckpoint keeps a value for the next attempt, should there be one, in place of the one before. It is written as JSON,
// and may have at most 16 KiB. Without a sidecar it does nothing. The error says why the sidecar does not have it.
func (t *Task) SaveCheckpoint(v any) error {
	if t.sidecar == nil {
		return nil
	}
	return t.say(report.Checkpoint, v)
}

// tell reports what the next report makes superfluous: once, and without waiting long.
func (t *Task) tell(ctx context.Context, kind report.Kind, body any) {
	if t.sidecar == nil {
		return
	}
	if _, err := t.sidecar.Post(ctx, kind, body, 0); err != nil && ctx.Err() == nil {
		t.heed(err)
		t.options.Log.Warn("a report could not be handed over", "kind", string(kind), "error", err)
	}
}

// say reports what is not said again.
func (t *Task) say(kind report.Kind, body any) error {
	if t.sidecar == nil {
		return nil
	}
	// A worker that is told to stop may still save its checkpoint.
	_, err := t.sidecar.PostPatiently(context.WithoutCancel(t.ctx), kind, body, 0, patience)
	t.heed(err)
	return err
}

// heed stops the work where the sidecar says that nobody waits for it.
func (t *Task) heed(err error) {
	var refused *client.RefusedError
	if errors.As(err, &refused) && refused.Status == http.StatusGone {
		t.cancel(ErrAttemptClosed)
	}
}

// Result is what a worker leaves.
type Result struct {
	// URL is where the result is. At most 2 KiB.
	URL string
	// Data is the result itself, as encoding/json writes it. At most 16 KiB; without a sidecar everything together must fit into
	// the termination message, which has 4096 bytes.
	Data any
	// Message is a line for people. At most 1 KiB.
	Message string
}

// SetResult sets what the worker leaves if it succeeds, in place of what was set before. The error says what is wrong with it,
// and then nothing is set.
func (t *Task) SetResult(r Result) error {
	payload := report.ResultPayload{URL: r.URL, Message: r.Message}
	if r.Data != nil {
		data, err := json.Marshal(r.Data)
		if err != nil {
			return fmt.Errorf("the result: %w", err)
		}
		payload.Data = data
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.check(&payload, t.logURL); err != nil {
		return fmt.Errorf("the result: %w", err)
	}
	t.result = payload
	return nil
}

// SetLogURL sets where the log of this attempt is, in success and in failure. At most 2 KiB. The error says what is wrong with
// it.
func (t *Task) SetLogURL(address string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.check(&t.result, address); err != nil {
		return err
	}
	t.logURL = address
	return nil
}

// check tells whether a result can be handed over.
func (t *Task) check(result *report.ResultPayload, logURL string) error {
	r := &report.Report{Kind: report.Succeeded, Result: result, ExecutionLogURL: logURL}
	if err := r.CheckPayload(); err != nil {
		return err
	}
	if t.sidecar != nil {
		return nil
	}
	message, err := message(*result, logURL)
	if err == nil && len(message) > report.MaxNoteBytes {
		err = fmt.Errorf("has %d bytes in all; a termination message has at most %d", len(message), report.MaxNoteBytes)
	}
	return err
}
