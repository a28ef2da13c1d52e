package behave

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/taskwarden/taskwarden/examples/imaging/internal/contract"
)

func TestRun(t *testing.T) {
	cases := map[string]struct {
		reason  string
		args    string
		attempt int
		term    time.Duration // when SIGTERM comes; 0: never
		exit    int
		takes   time.Duration
		message string
	}{
		"nothing":          {"no flags", "", 1, 0, 0, 0, ""},
		"sleep":            {"takes its time", "--sleep=10s", 1, 0, 0, 10 * time.Second, ""},
		"exit":             {"as told", "--exit=3", 1, 0, 3, 0, "exit 3, as told"},
		"early attempt":    {"fails until its turn", "--fail-until-attempt=3", 2, 0, 1, 0, "attempt 2 fails, as every one before attempt 3"},
		"its attempt":      {"succeeds in its turn", "--fail-until-attempt=3", 3, 0, 0, 0, ""},
		"later attempt":    {"and after it", "--fail-until-attempt=3", 4, 0, 0, 0, ""},
		"both failures":    {"--exit counts from its turn on", "--fail-until-attempt=2 --exit=9", 2, 0, 9, 0, "exit 9, as told"},
		"text":             {"the message as given", "--message=hello", 1, 0, 0, 0, "hello"},
		"text on failure":  {"the given message goes before our own", "--message=hello --exit=1", 1, 0, 1, 0, "hello"},
		"silent failure":   {"an empty message leaves none", "--message= --exit=1", 1, 0, 1, 0, ""},
		"bytes":            {"of that length", "--message-bytes=12", 1, 0, 0, 0, "012345678901"},
		"memory":           {"takes and ends", "--allocate=3Mi", 1, 0, 0, 0, ""},
		"stopped":          {"SIGTERM ends it at once", "--sleep=10s", 1, 4 * time.Second, 143, 4 * time.Second, "stopped by SIGTERM"},
		"stopped, message": {"with its message", "--sleep=10s --message=hello", 1, 4 * time.Second, 143, 4 * time.Second, "hello"},
		"stopped, 0":       {"with another exit code", "--sleep=10s --on-sigterm-exit=0", 1, 4 * time.Second, 0, 4 * time.Second, ""},
		"grace":            {"works on for a while", "--sleep=10s --term-grace=2s", 1, 4 * time.Second, 143, 6 * time.Second, "stopped by SIGTERM"},
		"grace, done":      {"the work ends first", "--sleep=10s --term-grace=20s", 1, 4 * time.Second, 0, 10 * time.Second, ""},
		"grace, failed":    {"the work fails first", "--sleep=10s --term-grace=20s --exit=5", 1, 4 * time.Second, 5, 10 * time.Second, "exit 5, as told"},
		"ignored":          {"as if nothing had come", "--sleep=10s --ignore-sigterm", 1, 4 * time.Second, 0, 10 * time.Second, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			msg := filepath.Join(t.TempDir(), "msg")
			env := map[string]string{contract.EnvMessagePath: msg, contract.EnvAttempt: strconv.Itoa(tc.attempt)}
			synctest.Test(t, func(t *testing.T) {
				term := make(chan os.Signal, 1)
				if tc.term > 0 {
					time.AfterFunc(tc.term, func() { term <- syscall.SIGTERM })
				}
				begin := time.Now()
				exit := Main(strings.Fields(tc.args), func(k string) string { return env[k] }, &bytes.Buffer{}, time.Now, term)
				if exit != tc.exit {
					t.Errorf("%s: exit %d, want %d", tc.reason, exit, tc.exit)
				}
				if took := time.Since(begin); took != tc.takes {
					t.Errorf("%s: took %v, want %v", tc.reason, took, tc.takes)
				}
			})
			got, err := os.ReadFile(msg)
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			if string(got) != tc.message {
				t.Errorf("%s: message %q, want %q", tc.reason, got, tc.message)
			}
		})
	}
}

func TestMessageFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "in"), []byte(`{"a":1}`), 0o644); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{contract.EnvMessagePath: filepath.Join(dir, "msg")}
	exit := Main([]string{"--message-file", filepath.Join(dir, "in")}, func(k string) string { return env[k] }, &bytes.Buffer{}, time.Now, nil)
	if got, _ := os.ReadFile(filepath.Join(dir, "msg")); exit != 0 || string(got) != `{"a":1}` {
		t.Errorf("exit %d, message %q", exit, got)
	}
}

func TestBadFlags(t *testing.T) {
	cases := map[string]struct {
		reason string
		args   string
		want   string
	}{
		"unknown":       {"typing error", "--slep=1s", "slep"},
		"argument":      {"a flag without its dashes", "sleep", `"sleep"`},
		"sleep":         {"no unit", "--sleep=10", "sleep"},
		"negative":      {"no time before now", "--sleep=-1s", "negative"},
		"exit range":    {"a process cannot give it", "--exit=256", "0 to 255"},
		"sigterm exit":  {"a process cannot give it", "--on-sigterm-exit=-1", "0 to 255"},
		"attempt":       {"attempts count from 1", "--fail-until-attempt=0", "fail-until-attempt"},
		"no attempt":    {"it must be known", "--fail-until-attempt=2", contract.EnvAttempt},
		"memory":        {"not how Kubernetes writes it", "--allocate=200MB", "200Mi"},
		"memory sign":   {"no negative memory", "--allocate=-1Mi", "200Mi"},
		"memory range":  {"beyond any number", "--allocate=9223372036854775807Gi", "200Mi"},
		"two messages":  {"which one?", "--message=a --message-bytes=3", "more than one message"},
		"message range": {"bounded", "--message-bytes=-1", "message-bytes"},
		"message file":  {"is not there", "--message-file=/nowhere/file", "message-file"},
		"contradiction": {"ignored or answered", "--ignore-sigterm --term-grace=2s", "ignore-sigterm"},
		"marks":         {"no start mark, no work", "--marks=/nowhere/at/all", "marks"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			msg := filepath.Join(t.TempDir(), "msg")
			env := map[string]string{contract.EnvMessagePath: msg}
			exit := Main(strings.Fields(tc.args), func(k string) string { return env[k] }, &bytes.Buffer{}, time.Now, nil)
			want := contract.ExitBadInput
			if name == "marks" {
				want = contract.ExitFailed
			}
			if exit != want {
				t.Errorf("%s: exit %d, want %d", tc.reason, exit, want)
			}
			if got, _ := os.ReadFile(msg); !strings.Contains(string(got), tc.want) {
				t.Errorf("%s: message %q lacks %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	var out bytes.Buffer
	if exit := Main([]string{"--help"}, func(string) string { return "" }, &out, time.Now, nil); exit != 0 {
		t.Errorf("exit %d", exit)
	}
	if !strings.Contains(out.String(), "exit codes") {
		t.Errorf("got %s", &out)
	}
}

func TestParseBytes(t *testing.T) {
	for in, want := range map[string]int64{"7": 7, "2Ki": 2048, "200Mi": 200 << 20, "1Gi": 1 << 30, "3k": 3000, "5M": 5e6, "1G": 1e9} {
		if got, err := parseBytes(in); got != want || err != nil {
			t.Errorf("%s: %d, %v; want %d", in, got, err, want)
		}
	}
}

// Logs are read by machines.
func TestLogIsJSON(t *testing.T) {
	var out bytes.Buffer
	env := map[string]string{contract.EnvTaskUID: "u", contract.EnvAttempt: "1"}
	Main(nil, func(k string) string { return env[k] }, &out, time.Now, nil)
	for line := range bytes.Lines(out.Bytes()) {
		var m map[string]any
		if err := json.Unmarshal(line, &m); err != nil || m["uid"] != "u" {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// TestReports: what is reported, in which order, and what becomes of a report that fails.
func TestReports(t *testing.T) {
	command := filepath.Join(t.TempDir(), "command")
	said := command + ".said"
	script := "#!/bin/sh\necho \"$@\" >> " + said + "\ncase \"$2\" in refused) echo no such stage >&2; exit 2;; esac\n"
	if err := os.WriteFile(command, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args    []string
		command string
		exit    int
		said    string
	}{
		"before and after": {[]string{"--report=stage a", "--report=progress 1", "--report-at-end=succeeded --url u"}, command, 0, "report stage a\nreport progress 1\nreport succeeded --url u\n"},
		"then its exit":    {[]string{"--report-at-end=succeeded", "--exit=3"}, command, 3, "report succeeded\n"},
		"refused":          {[]string{"--report=refused", "--report-at-end=succeeded"}, command, 1, "report refused\n"},
		"no reporter":      {[]string{"--report=stage a"}, "", 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(said, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			env := map[string]string{contract.EnvMessagePath: filepath.Join(t.TempDir(), "msg"), contract.EnvAttempt: "1", envCommand: tc.command}
			if exit := Main(tc.args, func(k string) string { return env[k] }, &bytes.Buffer{}, time.Now, nil); exit != tc.exit {
				t.Errorf("exit %d, want %d", exit, tc.exit)
			}
			if got, err := os.ReadFile(said); err != nil || string(got) != tc.said {
				t.Errorf("said %q, %v; want %q", got, err, tc.said)
			}
		})
	}
}
