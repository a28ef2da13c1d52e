package report

// Answer is the body of every answer of the gateway's report endpoint.
type Answer struct {
	// Outcome is set where the report was taken (2xx).
	Outcome Outcome `json:"outcome,omitempty"`
	// Code names the cause of a refusal.
	Code Code `json:"code,omitempty"`
	// Message says it to people.
	Message string `json:"message,omitempty"`
	// Field is the member that is wrong, with codes InvalidReport and TooLarge.
	Field string `json:"field,omitempty"`
	// Limit is the most that it may have, in bytes, with code TooLarge.
	Limit int `json:"limit,omitempty"`
}

// Outcome is what became of a report that was taken.
type Outcome string

const (
	// Stored: it is in the Task's status.
	Stored Outcome = "Stored"
	// Ignored: a report with the same or a higher sequence is in the status already, and this one changes nothing.
	Ignored Outcome = "Ignored"
	// Queued: the sidecar has it (202), and will deliver it. The gateway never answers so.
	Queued Outcome = "Queued"
)

// Code names the cause of a refusal.
type Code string

// The codes, with their HTTP status. Those with 408, 429 and 5xx ask for another try, all others are for good; but see what a
// sidecar does after 401.
const (
	// InvalidReport (400): the body is not a report; field and message say why.
	InvalidReport Code = "InvalidReport"
	// InvalidFinishTime (400): actual_finish_time is before the Task's creation or too far in the future. The same report without
	// it is taken.
	InvalidFinishTime Code = "InvalidFinishTime"
	// Unauthenticated (401): no token, or one that is not valid here. The kubelet may replace it, and the API server that checks
	// it may be wrong for a moment, so a sidecar tries again.
	Unauthenticated Code = "Unauthenticated"
	// Forbidden (403): the token is not one of this Task's current worker pod. Whether the Task exists is not said. A sidecar
	// answers so to what does not come from a program of the worker's.
	Forbidden Code = "Forbidden"
	// MethodNotAllowed (405): reports are sent with POST.
	MethodNotAllowed Code = "MethodNotAllowed"
	// SlowRequest (408): the body did not come in time.
	SlowRequest Code = "SlowRequest"
	// OutcomeRecorded (409): the outcome of the attempt is fixed: another final report, a cancel or a timeout came first.
	OutcomeRecorded Code = "OutcomeRecorded"
	// AttemptClosed (410): the attempt has ended, or the Task is gone. The worker should stop.
	AttemptClosed Code = "AttemptClosed"
	// TooLarge (413): a member, or the body, has more than limit bytes.
	TooLarge Code = "TooLarge"
	// UnsupportedMediaType (415): the body must be application/json.
	UnsupportedMediaType Code = "UnsupportedMediaType"
	// TooManyRequests (429): try again after Retry-After.
	TooManyRequests Code = "TooManyRequests"
	// Unavailable (503): the API server could not be asked, or did not take the write; try again.
	Unavailable Code = "Unavailable"
)

// Known tells whether a code is one of these. An answer without one is not the gateway's, but that of something on the way to
// it.
func (c Code) Known() bool {
	switch c {
	case InvalidReport, InvalidFinishTime, Unauthenticated, Forbidden, MethodNotAllowed, SlowRequest, OutcomeRecorded,
		AttemptClosed, TooLarge, UnsupportedMediaType, TooManyRequests, Unavailable:
		return true
	default:
		return false
	}
}

// Permanent tells whether an HTTP status refuses a report for good.
func Permanent(status int) bool {
	return status >= 400 && status < 500 && status != 408 && status != 429
}
