package reporter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/taskwarden/taskwarden/internal/report"
)

const (
	// maxConnections bounds the connections of the worker's API; more wait until one is closed.
	maxConnections = 64
	// smallBody is what a body may have, in bytes, to be read beside all others; of larger ones, and of those that do not say,
	// only maxLargeBodies are read at the same time. So nothing that a worker sends makes the sidecar large.
	smallBody      = 32 << 10
	maxLargeBodies = 8
	// noJSON is for those who use curl, which says application/x-www-form-urlencoded where nobody says anything.
	noJSON = "a body must come with the header Content-Type: application/json; with curl, use --json in place of -d, " +
		"or add -H 'Content-Type: application/json'"
	// maxWaitSeconds bounds the wait parameter of final reports.
	maxWaitSeconds = 30
)

// newServer makes the worker's API. A client that is slow, or says too much, is cut off.
func newServer(r *Reporter) *http.Server {
	return &http.Server{
		Handler:           newAPI(r),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      (maxWaitSeconds + 15) * time.Second,
		IdleTimeout:       15 * time.Second,
		MaxHeaderBytes:    8 << 10,
		ErrorLog:          slog.NewLogLogger(r.log.Handler(), slog.LevelDebug),
	}
}

// api answers the worker.
type api struct {
	reporter *Reporter
	large    chan struct{}
}

func newAPI(r *Reporter) *api { return &api{reporter: r, large: make(chan struct{}, maxLargeBodies)} }

// reads turn the body of a request into what a report of a kind carries.
var reads = map[string]func(body []byte) (*report.Report, error){
	"/v1/heartbeat":  readHeartbeat,
	"/v1/progress":   readProgress,
	"/v1/stage":      readStage,
	"/v1/checkpoint": readCheckpoint,
	"/v1/succeeded":  readSucceeded,
	"/v1/failed":     readFailed,
}

func (a *api) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if why := foreign(req); why != "" {
		// Its body is not read, so the connection cannot go on.
		w.Header().Set("Connection", "close")
		respond(w, http.StatusForbidden, &report.Answer{Code: report.Forbidden, Message: why})
		return
	}
	read, isReport := reads[req.URL.Path]
	switch {
	case isReport:
		if req.Method != http.MethodPost {
			refuseMethod(w, http.MethodPost)
			return
		}
		a.take(w, req, read)
	case req.URL.Path != "/v1/status" && req.URL.Path != "/healthz":
		respond(w, http.StatusNotFound, &report.Answer{
			Code: report.InvalidReport, Message: "there is nothing here; see /v1/status and the documentation for what there is",
		})
	case req.Method != http.MethodGet && req.Method != http.MethodHead:
		refuseMethod(w, http.MethodGet)
	case req.URL.Path == "/healthz":
		respond(w, http.StatusOK, &report.Answer{Message: "ok"})
	default:
		respond(w, http.StatusOK, a.reporter.Status())
	}
}

// foreign tells why a request does not come from a program of the worker's; empty where it may. A worker may show pages of
// strangers in a browser, and a browser sends what a page tells it to, to this machine as well; but with each POST it says
// where the page is from. A page whose name a stranger's DNS has bound to this machine counts as its own site, but then the
// browser asks for that name.
func foreign(req *http.Request) string {
	for _, name := range []string{"Origin", "Sec-Fetch-Site"} {
		if _, set := req.Header[name]; set {
			return "a request with the header " + name + " comes from a page in a browser, which has nothing to report"
		}
	}
	host, port, err := net.SplitHostPort(req.Host)
	if err != nil {
		host, port = req.Host, "80" // the port that a client leaves out
	}
	local, ok := req.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok || !isLoopback(host) {
		return "the sidecar is asked for by its loopback address, or as localhost; see TASKWARDEN_REPORTER"
	}
	if _, listens, err := net.SplitHostPort(local.String()); err != nil || port != listens {
		return "the sidecar is asked for with another port than its own; see TASKWARDEN_REPORTER"
	}
	return ""
}

func refuseMethod(w http.ResponseWriter, method string) {
	w.Header().Set("Allow", method)
	respond(w, http.StatusMethodNotAllowed, &report.Answer{Code: report.MethodNotAllowed, Message: "use " + method})
}

// take takes a report of the worker, or says why not.
func (a *api) take(w http.ResponseWriter, req *http.Request, read func([]byte) (*report.Report, error)) {
	wait, err := waitOf(req)
	if err != nil {
		respondError(w, err)
		return
	}
	body, no := a.readBody(w, req)
	if no != nil {
		respond(w, no.status, &no.answer)
		return
	}
	rep, err := read(body)
	if err == nil {
		err = rep.CheckPayload()
	}
	if err != nil {
		respondError(w, err)
		return
	}
	if !rep.Kind.Final() {
		if no := a.reporter.takeNews(rep); no != nil {
			respond(w, no.status, &no.answer)
			return
		}
		respond(w, http.StatusAccepted, &report.Answer{Outcome: report.Queued})
		return
	}
	final, no := a.reporter.takeFinal(rep)
	if no != nil {
		respond(w, no.status, &no.answer)
		return
	}
	a.answerFinal(w, req, final, wait)
}

// answerFinal waits for the gateway's answer as long as the worker wants to.
func (a *api) answerFinal(w http.ResponseWriter, req *http.Request, final *finalState, wait time.Duration) {
	if wait > 0 {
		ctx, cancel := context.WithTimeout(req.Context(), wait)
		defer cancel()
		select {
		case <-final.done:
			d := &final.delivery
			if d.taken() {
				respond(w, http.StatusOK, &report.Answer{Outcome: d.answer.Outcome})
			} else {
				respond(w, d.status, &d.answer)
			}
			return
		case <-a.reporter.stopped:
		case <-ctx.Done():
		}
	}
	respond(w, http.StatusAccepted, &report.Answer{Outcome: report.Queued})
}

// waitOf reads the wait parameter.
func waitOf(req *http.Request) (time.Duration, error) {
	text := req.URL.Query().Get("wait")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxWaitSeconds {
		return 0, &report.FieldError{Field: "wait", Why: fmt.Sprintf("must be a whole number of seconds, 0 to %d", maxWaitSeconds)}
	}
	return time.Duration(n) * time.Second, nil
}

// readBody reads a body of at most report.MaxBodyBytes.
func (a *api) readBody(w http.ResponseWriter, req *http.Request) ([]byte, *refusal) {
	if req.ContentLength > report.MaxBodyBytes {
		// It is not read, so the connection cannot go on.
		w.Header().Set("Connection", "close")
		return nil, bodyTooLarge()
	}
	if req.ContentLength < 0 || req.ContentLength > smallBody {
		a.large <- struct{}{} // for as long as the server's ReadTimeout at most
		defer func() { <-a.large }()
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, report.MaxBodyBytes))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, bodyTooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &refusal{http.StatusRequestTimeout, report.Answer{
			Code: report.SlowRequest, Message: "the body did not come in time",
		}}
	case err != nil:
		return nil, &refusal{http.StatusBadRequest, report.Answer{
			Code: report.InvalidReport, Field: "body", Message: "body: was cut off",
		}}
	}
	if len(body) > 0 {
		// A page in a browser can set any other type without asking first.
		if media, _, err := mime.ParseMediaType(req.Header.Get("Content-Type")); err != nil || media != "application/json" {
			return nil, &refusal{http.StatusUnsupportedMediaType, report.Answer{
				Code: report.UnsupportedMediaType, Message: noJSON,
			}}
		}
	}
	return bytes.TrimSpace(body), nil
}

func bodyTooLarge() *refusal {
	return &refusal{http.StatusRequestEntityTooLarge, report.Answer{
		Code: report.TooLarge, Field: "body", Limit: report.MaxBodyBytes,
		Message: fmt.Sprintf("body: has more than %d bytes; within it result data and a checkpoint may have %d and %d",
			report.MaxBodyBytes, report.MaxDataBytes, report.MaxCheckpointBytes),
	}}
}

func readHeartbeat(body []byte) (*report.Report, error) {
	if len(body) > 0 && string(body) != "{}" {
		return nil, &report.FieldError{Field: "body", Why: "must be empty"}
	}
	return &report.Report{Kind: report.Heartbeat}, nil
}

func readProgress(body []byte) (*report.Report, error) {
	var p struct {
		report.ProgressPayload
		// Percent tells 0 from nothing.
		Percent *float64 `json:"percent"`
	}
	if err := report.Decode(body, &p); err != nil {
		return nil, err
	}
	if p.Percent == nil {
		return nil, &report.FieldError{Field: "percent", Why: "must be set"}
	}
	p.ProgressPayload.Percent = *p.Percent
	return &report.Report{Kind: report.Progress, Progress: &p.ProgressPayload}, nil
}

func readStage(body []byte) (*report.Report, error) {
	var p report.StagePayload
	if err := report.Decode(body, &p); err != nil {
		return nil, err
	}
	return &report.Report{Kind: report.Stage, Stage: &p}, nil
}

// readCheckpoint takes the whole body as the checkpoint.
func readCheckpoint(body []byte) (*report.Report, error) {
	if len(body) == 0 || string(body) == "null" {
		return nil, &report.FieldError{Field: "checkpoint", Why: "must be a JSON value other than null"}
	}
	var value json.RawMessage
	if err := report.Decode(body, &value); err != nil {
		return nil, err
	}
	return &report.Report{Kind: report.Checkpoint, Checkpoint: value}, nil
}

func readSucceeded(body []byte) (*report.Report, error) {
	var p report.SucceededBody
	if err := decodeOptional(body, &p); err != nil {
		return nil, err
	}
	if string(p.Data) == "null" {
		p.Data = nil
	}
	rep := &report.Report{Kind: report.Succeeded, ExecutionLogURL: p.ExecutionLogURL}
	if p.URL != "" || p.Message != "" || len(p.Data) > 0 {
		rep.Result = &p.ResultPayload
	}
	return rep, nil
}

func readFailed(body []byte) (*report.Report, error) {
	var p report.FailedBody
	if err := decodeOptional(body, &p); err != nil {
		return nil, err
	}
	rep := &report.Report{Kind: report.Failed, ExecutionLogURL: p.ExecutionLogURL}
	if p.FailurePayload != (report.FailurePayload{}) {
		rep.Failure = &p.FailurePayload
	}
	return rep, nil
}

func decodeOptional(body []byte, v any) error {
	if len(body) == 0 {
		return nil
	}
	return report.Decode(body, v)
}

// respondError names the member as the worker has written it: its bodies have no envelope.
func respondError(w http.ResponseWriter, err error) {
	a := &report.Answer{Code: report.InvalidReport, Message: err.Error()}
	status := http.StatusBadRequest
	var field *report.FieldError
	if errors.As(err, &field) {
		a.Field, a.Limit = field.Field, field.Limit
		for _, envelope := range []string{"progress.", "stage.", "result.", "failure."} {
			a.Field = strings.TrimPrefix(a.Field, envelope)
		}
		a.Message = a.Field + ": " + field.Why
	}
	if report.IsTooLarge(err) {
		a.Code, status = report.TooLarge, http.StatusRequestEntityTooLarge
	}
	respond(w, status, a)
}

func respond(w http.ResponseWriter, status int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		status = http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // the worker may have gone
}
