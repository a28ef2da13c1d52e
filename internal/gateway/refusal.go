package gateway

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/internal/report"
)

// retryAfterSeconds is what a client is told to wait before another try.
const retryAfterSeconds = 1

// statusOf is the HTTP status of each code.
var statusOf = map[report.Code]int{
	report.InvalidReport:        http.StatusBadRequest,
	report.InvalidFinishTime:    http.StatusBadRequest,
	report.Unauthenticated:      http.StatusUnauthorized,
	report.Forbidden:            http.StatusForbidden,
	report.MethodNotAllowed:     http.StatusMethodNotAllowed,
	report.SlowRequest:          http.StatusRequestTimeout,
	report.OutcomeRecorded:      http.StatusConflict,
	report.AttemptClosed:        http.StatusGone,
	report.TooLarge:             http.StatusRequestEntityTooLarge,
	report.UnsupportedMediaType: http.StatusUnsupportedMediaType,
	report.TooManyRequests:      http.StatusTooManyRequests,
	report.Unavailable:          http.StatusServiceUnavailable,
}

// refusal is why a report is not taken, as its sender is told.
type refusal struct {
	answer report.Answer
	cause  error // for the log alone
	quiet  bool  // strangers can bring it about, and shall not fill the log
}

func (r *refusal) Error() string {
	if r.cause != nil {
		return r.answer.Message + ": " + r.cause.Error()
	}
	return r.answer.Message
}

func (r *refusal) Unwrap() error { return r.cause }

func refuse(code report.Code, message string) error {
	return &refusal{answer: report.Answer{Code: code, Message: message}}
}

// The same text for whatever is not the sender's own, so that nothing can be learnt from it.
var (
	errForbidden       = refuse(report.Forbidden, "the token is not that of a worker pod of this attempt")
	errUnauthenticated = refuse(report.Unauthenticated, "a valid token for audience taskwarden is needed")
	errGone            = refuse(report.AttemptClosed, "the Task is gone")
	errLeft            = refuse(report.Unavailable, "the sender no longer waits")
	errBusy            = refuse(report.TooManyRequests, "too many requests at once, try again")
)

// unavailable hides what the API server said, which may name things that are not the sender's, from everyone but the log.
func unavailable(cause error) error {
	return &refusal{
		answer: report.Answer{Code: report.Unavailable, Message: "the API server cannot be asked now, try again"}, cause: cause,
	}
}

// refusalOf brings every error into its answer.
func refusalOf(err error) *refusal {
	var own *refusal
	if errors.As(err, &own) {
		return own
	}
	var decided *lifecycle.ReportRefusedError
	if errors.As(err, &decided) {
		return &refusal{answer: report.Answer{Code: decided.Code, Message: decided.Message, Field: decided.Field}}
	}
	var field *report.FieldError
	if errors.As(err, &field) {
		answer := report.Answer{Code: report.InvalidReport, Message: field.Error(), Field: field.Field, Limit: field.Limit}
		if report.IsTooLarge(err) {
			answer.Code = report.TooLarge
		}
		return &refusal{answer: answer}
	}
	errors.As(unavailable(err), &own)
	return own
}

// writeAnswer sends an answer. That the client has gone meanwhile concerns nobody.
func writeAnswer(w http.ResponseWriter, answer report.Answer) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	status := http.StatusOK
	if answer.Code != "" {
		status = statusOf[answer.Code]
	}
	switch answer.Code {
	case report.TooManyRequests, report.Unavailable:
		h.Set("Retry-After", strconv.Itoa(retryAfterSeconds))
	case report.Unauthenticated:
		h.Set("WWW-Authenticate", "Bearer")
	case report.MethodNotAllowed:
		h.Set("Allow", http.MethodPost)
	default:
	}
	body, err := json.Marshal(answer)
	if err != nil { // strings and numbers only
		status, body = http.StatusInternalServerError, nil
	}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
