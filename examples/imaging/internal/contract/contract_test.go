package contract

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadEnv(t *testing.T) {
	cases := map[string]struct {
		reason string
		env    map[string]string
		want   Env
		err    string
	}{
		"all": {
			"as Taskwarden sets it",
			map[string]string{EnvTaskName: "a", EnvTaskNamespace: "b", EnvTaskUID: "c", EnvAttempt: "3", EnvInput: "/in"},
			Env{Name: "a", Namespace: "b", UID: "c", Attempt: 3, InputPath: "/in"}, "",
		},
		"none": {"outside a cluster", nil, Env{}, ""},
		"zero": {"attempts count from 1", map[string]string{EnvAttempt: "0"}, Env{}, "TASKWARDEN_ATTEMPT"},
		"text": {"no number", map[string]string{EnvAttempt: "one"}, Env{}, "TASKWARDEN_ATTEMPT"},
	}
	for name, tc := range cases {
		got, err := ReadEnv(func(k string) string { return tc.env[k] })
		if (err != nil) != (tc.err != "") || (err != nil && !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%s (%s): error %v, want %q", name, tc.reason, err, tc.err)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (%s): (-want +got)\n%s", name, tc.reason, diff)
		}
	}
}

func TestResultThatWouldBeCut(t *testing.T) {
	r := Result{Data: strings.Repeat("x", MaxMessageBytes-len(`{"data":""}`))}
	if b, err := r.Encode(); err != nil || len(b) != MaxMessageBytes {
		t.Errorf("%d bytes, %v; want it to fit exactly", len(b), err)
	}
	r = Result{Data: r.Data.(string) + "x"}
	if _, err := r.Encode(); err == nil {
		t.Error("one byte more was accepted")
	}
}

// The kubelet makes the file; a worker without rights on the folder must still be able to write it.
func TestMessageReplacesWhatIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("something longer"), 0o666); err != nil {
		t.Fatal(err)
	}
	getenv := func(k string) string { return map[string]string{EnvMessagePath: path}[k] }
	if err := WriteMessage(getenv, []byte("short")); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); string(got) != "short" {
		t.Errorf("got %q", got)
	}
}
