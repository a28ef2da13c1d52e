package worker

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"

	"github.com/taskwarden/taskwarden/internal/report"
)

// finish tells how the work has ended, and says the exit code. stopped is why the worker was told to stop, nil where it was
// not.
func (t *Task) finish(ctx context.Context, stopped, err error) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err == nil:
		return t.succeed(ctx)
	case stopped != nil && !IsPermanent(err):
		// Not a failure of this worker's: the operator knows why it was stopped, and a drained node is no reason to charge an
		// attempt.
		t.options.Log.Info("stopped", "cause", stopped, "error", err)
		return ExitStopped
	}
	t.options.Log.Error("the work has failed", "error", err, "permanent", IsPermanent(err))
	t.fail(ctx, err)
	if IsPermanent(err) {
		return ExitPermanent
	}
	return ExitFailed
}

// succeed hands the result over. A result that nobody has is no success.
func (t *Task) succeed(ctx context.Context) int {
	if t.sidecar != nil {
		body := &report.SucceededBody{ResultPayload: t.result, ExecutionLogURL: t.logURL}
		_, err := t.sidecar.PostPatiently(ctx, report.Succeeded, body, 0, finalPatience)
		if err == nil {
			return ExitSucceeded
		}
		t.options.Log.Error("the result could not be handed over", "error", err)
	}
	text, err := message(t.result, t.logURL)
	if err != nil || len(text) > report.MaxNoteBytes {
		return ExitFailed
	}
	if !writeMessage(t.options, text) && len(text) > 0 {
		t.options.Log.Warn("there is no termination message to leave the result in", "file", t.options.MessageFile)
	}
	return ExitSucceeded
}

func (t *Task) fail(ctx context.Context, why error) {
	text := cut(why.Error(), report.MaxMessageBytes)
	if t.sidecar != nil {
		body := &report.FailedBody{
			FailurePayload:  report.FailurePayload{Message: text, Permanent: IsPermanent(why)},
			ExecutionLogURL: t.logURL,
		}
		_, err := t.sidecar.PostPatiently(ctx, report.Failed, body, 0, finalPatience)
		if err == nil {
			return
		}
		t.options.Log.Error("the failure could not be handed over", "error", err)
	}
	writeMessage(t.options, []byte(text))
}

// cut cuts a text at a rune.
func cut(text string, limit int) string {
	if len(text) > limit {
		text = text[:limit]
	}
	return strings.ToValidUTF8(text, "")
}

// message is a result as the guide says that it stands in a termination message; empty where there is nothing to say.
func message(result report.ResultPayload, logURL string) ([]byte, error) {
	var m struct {
		URL     string          `json:"url,omitempty"`
		Data    json.RawMessage `json:"data,omitempty"`
		LogURL  string          `json:"logURL,omitempty"`
		Message string          `json:"message,omitempty"`
	}
	m.URL, m.Data, m.LogURL, m.Message = result.URL, result.Data, logURL, result.Message
	text, err := json.Marshal(&m)
	if err != nil || string(text) == "{}" {
		return nil, err
	}
	return text, nil
}

// writeMessage writes the termination message. Where there is no such file, the program does not run in a container.
func writeMessage(o *Options, text []byte) (written bool) {
	if len(text) == 0 {
		return false
	}
	f, err := os.OpenFile(o.MessageFile, os.O_WRONLY|os.O_TRUNC, 0)
	if err == nil {
		_, err = f.Write(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		o.Log.Error("the termination message cannot be written", "error", err)
	}
	return err == nil
}
