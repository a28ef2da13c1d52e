// Package report is what a worker says about its attempt, as it travels: from the worker to the sidecar beside it, from there
// to the gateway, and meanwhile in the sidecar's spool and termination message. It imports the standard library alone, so that
// the sidecar stays small.
package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Kind says what a report is about.
type Kind string

// The kinds.
const (
	// Heartbeat says that the worker lives, and nothing else.
	Heartbeat Kind = "heartbeat"
	// Progress says how far it is.
	Progress Kind = "progress"
	// Stage says that it has entered a stage of spec.stages.
	Stage Kind = "stage"
	// Checkpoint hands something to the next attempt, should there be one.
	Checkpoint Kind = "checkpoint"
	// Succeeded is final: the work is done.
	Succeeded Kind = "succeeded"
	// Failed is final: the work has failed.
	Failed Kind = "failed"
)

// Kinds are all kinds.
var Kinds = []Kind{Heartbeat, Progress, Stage, Checkpoint, Succeeded, Failed}

// Final tells whether a report of this kind ends its attempt.
func (k Kind) Final() bool { return k == Succeeded || k == Failed }

// Limits of what a report may carry, in bytes. What is over them is refused with 413 and the limit's name.
const (
	// MaxDataBytes bounds result data as compact JSON.
	MaxDataBytes = 16 << 10
	// MaxCheckpointBytes bounds a checkpoint as compact JSON.
	MaxCheckpointBytes = 16 << 10
	// MaxMessageBytes bounds every message.
	MaxMessageBytes = 1 << 10
	// MaxURLBytes bounds every URL.
	MaxURLBytes = 2 << 10
	// MaxStageBytes bounds the name of a stage.
	MaxStageBytes = 63
	// MaxDepth bounds the nesting of data and checkpoints.
	MaxDepth = 64
	// MaxBodyBytes bounds a whole request: the largest valid report, written as wastefully as JSON can be (each byte of a text as
	// six, and indented data), stays below it.
	MaxBodyBytes = 128 << 10
)

// Report is one report as the gateway takes it.
type Report struct {
	// TaskID is the UID of the Task.
	TaskID string `json:"task_id"`
	// Attempt is the number of the attempt, from 1.
	Attempt int32 `json:"attempt"`
	// Sequence orders the reports of one attempt, from 1: a report never changes what one with a higher number has stored.
	Sequence int64 `json:"sequence"`
	// Kind says which of the members below may be set.
	Kind Kind `json:"kind"`
	// ActualFinishTime is when the worker finished, by its own clock, in Unix milliseconds. Only with final kinds; 0 where it is
	// not known. It is recorded and measured, and decides nothing.
	ActualFinishTime int64 `json:"actual_finish_time,omitempty"`
	// ExecutionLogURL is where the worker's log is. Only with final kinds.
	ExecutionLogURL string `json:"execution_log_url,omitempty"`
	// RetryCount is how many deliveries of this report have failed before this one.
	RetryCount int `json:"retry_count"`
	// Progress is the payload of kind progress.
	Progress *ProgressPayload `json:"progress,omitempty"`
	// Stage is the payload of kind stage.
	Stage *StagePayload `json:"stage,omitempty"`
	// Checkpoint is the payload of kind checkpoint: any JSON value.
	Checkpoint json.RawMessage `json:"checkpoint,omitempty"`
	// Result is the payload of kind succeeded; may be left out.
	Result *ResultPayload `json:"result,omitempty"`
	// Failure is the payload of kind failed.
	Failure *FailurePayload `json:"failure,omitempty"`
}

// ProgressPayload says how far a worker is.
type ProgressPayload struct {
	// Percent of the work that is done. What is below 0 or above 100 is stored as that; fractions are cut off.
	Percent float64 `json:"percent"`
	// Message for people, at most MaxMessageBytes.
	Message string `json:"message,omitempty"`
	// EstimatedRemainingSeconds is how long it will still take, 0 or more. Left out, it is reckoned from the worker's pace.
	EstimatedRemainingSeconds *int64 `json:"estimated_remaining_seconds,omitempty"`
}

// StagePayload names the stage that a worker has entered.
type StagePayload struct {
	// Name is one of spec.stages, not before that one which the worker is in.
	Name string `json:"name"`
}

// ResultPayload is what a worker leaves.
type ResultPayload struct {
	// URL is where the result is.
	URL string `json:"url,omitempty"`
	// Data is the result itself: any JSON value.
	Data json.RawMessage `json:"data,omitempty"`
	// Message for people.
	Message string `json:"message,omitempty"`
}

// FailurePayload says why a worker has failed.
type FailurePayload struct {
	// Message for people.
	Message string `json:"message,omitempty"`
	// Permanent says that another attempt would fail as well. Without it the Task's retry policy decides.
	Permanent bool `json:"permanent,omitempty"`
}

// SucceededBody is the body of a report of kind succeeded as the sidecar's API takes it: without an envelope.
type SucceededBody struct {
	ResultPayload
	// ExecutionLogURL is where the worker's log is.
	ExecutionLogURL string `json:"execution_log_url,omitempty"`
}

// FailedBody is the same for kind failed.
type FailedBody struct {
	FailurePayload
	// ExecutionLogURL is where the worker's log is.
	ExecutionLogURL string `json:"execution_log_url,omitempty"`
}

// FieldError says which member of a report is wrong, and why.
type FieldError struct {
	Field, Why string
	// Limit is above 0 where the member is too large: then it is the most that it may have, in bytes.
	Limit int
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Why }

// IsTooLarge tells whether an error is about the size of something.
func IsTooLarge(err error) bool {
	var field *FieldError
	return errors.As(err, &field) && field.Limit > 0
}

func wrong(field, format string, args ...any) error {
	return &FieldError{Field: field, Why: fmt.Sprintf(format, args...)}
}

func tooLarge(field string, size, limit int) error {
	return &FieldError{Field: field, Why: fmt.Sprintf("has %d bytes, the limit is %d", size, limit), Limit: limit}
}

// Decode reads one JSON object strictly into v: a member that is not known, or anything behind the object, is an error.
func Decode(body []byte, v any) error {
	if !utf8.Valid(body) {
		return wrong("body", "is not UTF-8")
	}
	if err := checkDepth(body); err != nil {
		return err // before encoding/json recurses into it
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return wrong("body", "%s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return wrong("body", "has more than one JSON value")
	}
	return nil
}

// Parse reads a report as the gateway takes it, and checks it.
func Parse(body []byte) (*Report, error) {
	if len(body) > MaxBodyBytes {
		return nil, tooLarge("body", len(body), MaxBodyBytes)
	}
	var r Report
	if err := Decode(body, &r); err != nil {
		return nil, err
	}
	if err := r.Check(); err != nil {
		return nil, err
	}
	return &r, nil
}

// Check says what is wrong with a report as it stands, and brings its JSON values into their compact form.
func (r *Report) Check() error {
	switch {
	case r.TaskID == "" || len(r.TaskID) > 64:
		return wrong("task_id", "must be the UID of a Task")
	case r.Attempt < 1:
		return wrong("attempt", "must be 1 or more")
	case r.Sequence < 1:
		return wrong("sequence", "must be 1 or more")
	case r.RetryCount < 0:
		return wrong("retry_count", "must be 0 or more")
	}
	return r.CheckPayload()
}

// CheckPayload checks what the worker itself has said: all but who it is and the numbers of the delivery.
func (r *Report) CheckPayload() error {
	if err := r.checkMembers(); err != nil {
		return err
	}
	if err := checkURL("execution_log_url", r.ExecutionLogURL); err != nil {
		return err
	}
	switch r.Kind {
	case Progress:
		return r.Progress.check()
	case Stage:
		return r.Stage.check()
	case Checkpoint:
		return checkJSON("checkpoint", &r.Checkpoint, MaxCheckpointBytes)
	case Succeeded:
		return r.Result.check()
	case Failed:
		if r.Failure != nil {
			return checkMessage("failure.message", r.Failure.Message)
		}
	case Heartbeat:
	}
	return nil
}

// checkMembers sees to it that a report has what its kind needs, and nothing of another kind.
func (r *Report) checkMembers() error {
	known := false
	for _, k := range Kinds {
		known = known || r.Kind == k
	}
	if !known {
		return wrong("kind", "must be one of heartbeat, progress, stage, checkpoint, succeeded and failed")
	}
	for _, m := range []struct {
		name     string
		set      bool
		of       Kind
		required bool
	}{
		{"progress", r.Progress != nil, Progress, true},
		{"stage", r.Stage != nil, Stage, true},
		{"checkpoint", isSet(r.Checkpoint), Checkpoint, true},
		{"result", r.Result != nil, Succeeded, false},
		{"failure", r.Failure != nil, Failed, false},
	} {
		switch {
		case m.set && r.Kind != m.of:
			return wrong(m.name, "must not be set with kind %s", r.Kind)
		case !m.set && m.required && r.Kind == m.of:
			return wrong(m.name, "must be set with kind %s", r.Kind)
		}
	}
	switch {
	case r.Kind.Final():
	case r.ActualFinishTime != 0:
		return wrong("actual_finish_time", "must not be set with kind %s", r.Kind)
	case r.ExecutionLogURL != "":
		return wrong("execution_log_url", "must not be set with kind %s", r.Kind)
	}
	return nil
}

func (p *ProgressPayload) check() error {
	if math.IsNaN(p.Percent) || math.IsInf(p.Percent, 0) {
		return wrong("progress.percent", "must be a number")
	}
	if s := p.EstimatedRemainingSeconds; s != nil && (*s < 0 || *s > MaxRemainingSeconds) {
		return wrong("progress.estimated_remaining_seconds", "must be between 0 and %d", MaxRemainingSeconds)
	}
	return checkMessage("progress.message", p.Message)
}

// MaxRemainingSeconds is the longest time that a worker may say it will still take: ten years.
const MaxRemainingSeconds = 315360000

// Clamped is the whole percent that is stored.
func (p *ProgressPayload) Clamped() int32 { return int32(max(0, min(100, p.Percent))) }

// BasisPoints is the percent in hundredths, by which slow work is seen to advance.
func (p *ProgressPayload) BasisPoints() int32 { return int32(max(0, min(10000, 100*p.Percent))) }

func (p *StagePayload) check() error {
	switch {
	case p.Name == "":
		return wrong("stage.name", "must not be empty")
	case len(p.Name) > MaxStageBytes:
		return tooLarge("stage.name", len(p.Name), MaxStageBytes)
	case strings.ContainsFunc(p.Name, unicode.IsControl):
		return wrong("stage.name", "must not have control characters")
	}
	return nil
}

func (p *ResultPayload) check() error {
	if p == nil {
		return nil
	}
	if err := checkURL("result.url", p.URL); err != nil {
		return err
	}
	if err := checkMessage("result.message", p.Message); err != nil {
		return err
	}
	if !isSet(p.Data) {
		p.Data = nil
		return nil
	}
	return checkJSON("result.data", &p.Data, MaxDataBytes)
}

// isSet tells whether a JSON value is there: null is as good as none, and the API server drops it.
func isSet(value json.RawMessage) bool {
	trimmed := bytes.TrimSpace(value)
	return len(trimmed) > 0 && string(trimmed) != "null"
}

func checkMessage(field, message string) error {
	if len(message) > MaxMessageBytes {
		return tooLarge(field, len(message), MaxMessageBytes)
	}
	return nil
}

// checkURL takes absolute URLs of any scheme: where results are is the user's affair. That nothing but http and https is made a
// link is up to whoever shows it.
func checkURL(field, value string) error {
	if value == "" {
		return nil
	}
	if len(value) > MaxURLBytes {
		return tooLarge(field, len(value), MaxURLBytes)
	}
	if strings.ContainsFunc(value, unicode.IsControl) {
		return wrong(field, "must not have control characters")
	}
	u, err := url.Parse(value)
	if err != nil || u.Scheme == "" {
		return wrong(field, "must be an absolute URL")
	}
	return nil
}

// checkJSON compacts a JSON value, and sees to it that the API server can store it.
func checkJSON(field string, value *json.RawMessage, limit int) error {
	var compact bytes.Buffer
	if err := json.Compact(&compact, *value); err != nil {
		return wrong(field, "is not JSON")
	}
	if compact.Len() > limit {
		return tooLarge(field, compact.Len(), limit)
	}
	switch tooDeep, number := Unstorable(compact.Bytes()); {
	case tooDeep:
		return wrong(field, "is nested more than %d deep", MaxDepth)
	case number != "":
		return wrong(field, "has the number %s, which is out of range", number)
	}
	*value = bytes.Clone(compact.Bytes()) // without the room for all the white space
	return nil
}

// checkDepth bounds the nesting of a whole body by counting brackets outside of strings; it does not need the JSON to be valid.
func checkDepth(data []byte) error {
	const limit = MaxDepth + 4 // that of data, and of what it stands in
	depth, inString := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			depth++
			if depth > limit {
				return wrong("body", "is nested more than %d deep", limit)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}

// Unstorable finds what valid JSON can say and the API server does not take, so that every later write of the status would fail:
// nesting beyond MaxDepth, or a number, of which it returns the head, that no float64 can hold.
func Unstorable(data []byte) (tooDeep bool, number string) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	depth := 0
	for token, err := d.Token(); err == nil; token, err = d.Token() {
		switch v := token.(type) {
		case json.Delim:
			if v == '{' || v == '[' {
				depth++
			} else {
				depth--
			}
			if depth > MaxDepth {
				return true, ""
			}
		case json.Number:
			if _, err := strconv.ParseFloat(v.String(), 64); err != nil {
				return false, fmt.Sprintf("%.20s", v)
			}
		}
	}
	return false, ""
}
