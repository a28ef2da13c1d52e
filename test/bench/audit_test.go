package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/taskwarden/taskwarden/test/audit"
	"github.com/taskwarden/taskwarden/test/benchkit"
)

// logLine is one line of an audit log; at counts seconds from the hour.
func logLine(verb, resource, subresource, name, agent string, code int, at float64, response string) string {
	stamp := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC).Add(time.Duration(at * float64(time.Second))).Format("2006-01-02T15:04:05.000000Z")
	uri := "/apis/x/namespaces/run/" + resource
	return fmt.Sprintf(`{"kind":"Event","level":"RequestResponse","stage":"ResponseComplete","requestURI":%q,"verb":%q,`+
		`"user":{"username":"u"},"userAgent":%q,"objectRef":{"resource":%q,"namespace":"run","name":%q,"subresource":%q},`+
		`"responseStatus":{"metadata":{},"code":%d},"responseObject":%s,"requestReceivedTimestamp":%q,"stageTimestamp":%q}`,
		uri, verb, agent, resource, name, subresource, code, response, stamp, stamp)
}

const (
	operatorAgent = "taskwarden-controller"
	managerAgent  = "kube-controller-manager/v1.37.2 (linux/amd64) kubernetes/abc/system:serviceaccount:kube-system:job-controller"
	nodeAgent     = "kwok/v0.8.0"
)

func owned(name, kind, owner, status string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"ownerReferences":[{"kind":"Stranger","name":"other"},{"kind":%q,"name":%q,"controller":true}]},"status":%s}`,
		name, kind, owner, status)
}

func oneTask(status string) string {
	return fmt.Sprintf(`{"metadata":{"name":"t"},"status":%s}`, status)
}

const (
	running    = `{"containerStatuses":[{"name":"side","state":{"terminated":{"exitCode":0}}},{"name":"worker","state":{"running":{}}}]}`
	terminated = `{"containerStatuses":[{"name":"worker","state":{"terminated":{"exitCode":0}}}]}`
)

// taskLog is the life of one Task whose Job is slow. The pod's creation is logged before that of its Job.
var taskLog = []string{
	logLine("create", "tasks", "", "t", "taskwarden-bench", 201, 0, oneTask(`{}`)),
	logLine("get", "tasks", "", "t", operatorAgent, 200, 0.1, `null`),
	logLine("create", "pods", "", "", managerAgent, 201, 0.5, owned("p", "Job", "t-1", `{"phase":"Pending"}`)),
	logLine("create", "jobs", "", "t-1", operatorAgent, 201, 0.2, owned("t-1", "Task", "t", `{}`)),
	logLine("create", "pods", "binding", "p", "kube-scheduler/v1.37.2", 201, 0.6, `{"kind":"Status","metadata":{},"status":"Success"}`),
	logLine("update", "tasks", "status", "t", operatorAgent, 200, 0.25, oneTask(`{"state":"Pending"}`)),
	logLine("patch", "pods", "status", "p", nodeAgent, 200, 0.7, owned("p", "Job", "t-1", running)),
	logLine("update", "tasks", "status", "t", operatorAgent, 409, 0.75, `{"kind":"Status","status":"Failure"}`),
	logLine("update", "tasks", "status", "t", operatorAgent, 200, 0.8, oneTask(`{"state":"Processing"}`)),
	logLine("patch", "pods", "status", "p", nodeAgent, 200, 1.7, owned("p", "Job", "t-1", terminated)),
	logLine("update", "tasks", "status", "t", operatorAgent, 200, 1.725001, oneTask(`{"state":"Succeeded"}`)),
	logLine("patch", "pods", "", "p", managerAgent, 200, 2, owned("p", "Job", "t-1", terminated)),
	logLine("update", "jobs", "status", "t-1", managerAgent, 200, 2.5, owned("t-1", "Task", "t", `{"conditions":[{"type":"SuccessCriteriaMet","status":"True"}]}`)),
	logLine("update", "jobs", "status", "t-1", managerAgent, 200, 3, owned("t-1", "Task", "t", `{"conditions":[{"type":"Complete","status":"True"}]}`)),
	logLine("delete", "jobs", "", "t-1", operatorAgent, 200, 4, owned("t-1", "Task", "t", `{"conditions":[{"type":"Complete","status":"True"}]}`)),
	strings.ReplaceAll(logLine("create", "tasks", "", "t", operatorAgent, 201, 0, `{}`), `"namespace":"run"`, `"namespace":"elsewhere"`),
}

func writeLog(t *testing.T, lines ...string) *benchkit.AuditLog {
	t.Helper()
	l := &benchkit.AuditLog{Path: filepath.Join(t.TempDir(), "audit.log")}
	appendLog(t, l, lines...)
	return l
}

func appendLog(t *testing.T, l *benchkit.AuditLog, lines ...string) {
	t.Helper()
	f, err := os.OpenFile(l.Path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(strings.Join(lines, "\n")); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func readLedger(t *testing.T, l *benchkit.AuditLog) *ledger {
	t.Helper()
	ledger := newLedger()
	if err := l.Read("run", ledger.add); err != nil {
		t.Fatal(err)
	}
	return ledger
}

func TestLedgerOfTask(t *testing.T) {
	l := readLedger(t, writeLog(t, append(taskLog, "")...))
	units, err := l.taskUnits()
	if err != nil {
		t.Fatal(err)
	}
	if len(units) != 1 {
		t.Fatalf("units: got %d, want 1", len(units))
	}
	u := units[0]
	for what, got := range map[string]struct {
		value time.Duration
		want  time.Duration
	}{
		"create to terminal": {u.ended.Sub(u.created), 1725001 * time.Microsecond},
		"lag of the Task":    {u.ended.Sub(u.podEnded), 25001 * time.Microsecond},
		"lag of its Job":     {u.jobComplete.Sub(u.podEnded), 1300 * time.Millisecond},
	} {
		if got.value != got.want {
			t.Errorf("%s: got %s, want %s", what, got.value, got.want)
		}
	}
	// The Job, three states and the conflict before the end; the deletion after it; the foreign namespace never.
	if got := l.writesUntilEnd(); got != 5 {
		t.Errorf("writes until the end: got %d, want 5", got)
	}
	if len(l.writes) != 6 || l.reads != 1 || l.conflicts != 1 {
		t.Errorf("got %d writes, %d reads, %d conflicts, want 6, 1, 1", len(l.writes), l.reads, l.conflicts)
	}
	if got := l.requests["kwok"]; got != 2 {
		t.Errorf("requests of kwok: got %d, want 2", got)
	}
	if got := beforeJobComplete(units); got != 1 {
		t.Errorf("share before the Job: got %v, want 1", got)
	}
}

func TestLedgerOfPlainJob(t *testing.T) {
	l := readLedger(t, writeLog(t, append(taskLog[2:], "")...))
	units := l.plainJobs()
	if len(units) != 1 {
		t.Fatalf("units: got %d, want 1", len(units))
	}
	if got, want := units[0].ended.Sub(units[0].podEnded), 1300*time.Millisecond; got != want {
		t.Errorf("lag: got %s, want %s", got, want)
	}
}

func TestLedgerRefusesOtherEnds(t *testing.T) {
	failed := logLine("update", "tasks", "status", "t", operatorAgent, 200, 2, oneTask(`{"state":"Failed"}`))
	second := logLine("create", "jobs", "", "t-2", operatorAgent, 201, 3, owned("t-2", "Task", "t", `{}`))
	for name, lines := range map[string][]string{
		"failed":      slices.Concat(taskLog[:10], []string{failed, ""}),
		"going":       slices.Concat(taskLog[:10], []string{""}),
		"two Jobs":    slices.Concat(taskLog[:15], []string{second, ""}),
		"without Job": {taskLog[0], taskLog[10], ""},
	} {
		if _, err := readLedger(t, writeLog(t, lines...)).taskUnits(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestAuditLogGoesOn(t *testing.T) {
	half := len(taskLog[1]) / 2
	log := writeLog(t, taskLog[0], taskLog[1][:half])
	var verbs []string
	add := func(e *audit.Event) error {
		if e.Verb == "list" {
			return errors.New("refused")
		}
		verbs = append(verbs, e.Verb)
		return nil
	}
	read := func(want string) {
		t.Helper()
		if err := log.Read("run", add); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(verbs, " "); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	read("create") // a line that is half written is not there yet
	appendLog(t, log, taskLog[1][half:], "")
	read("create get")
	appendLog(t, log, taskLog[4], "")
	if err := log.Skip(); err != nil {
		t.Fatal(err)
	}
	appendLog(t, log, taskLog[14], "")
	read("create get delete")
	appendLog(t, log, logLine("list", "tasks", "", "", operatorAgent, 200, 9, `null`), "")
	if err := log.Read("run", add); err == nil {
		t.Error("an event that is refused is passed over")
	}
	appendLog(t, log, `{"namespace":"run"`, "")
	if err := log.Read("run", add); err == nil {
		t.Error("no error for a line that is no JSON")
	}
}
