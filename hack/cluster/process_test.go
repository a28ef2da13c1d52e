package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestParseStat(t *testing.T) {
	stat := "42 (odd ) name) S " + strings.Repeat("0 ", 18) + "12345 0"
	state, start, err := parseStat(stat)
	if err != nil || state != 'S' || start != 12345 {
		t.Errorf("got %c %d %v, want S 12345", state, start, err)
	}
	for _, broken := range []string{"", "42 (name) S 0"} {
		if _, _, err := parseStat(broken); err == nil {
			t.Errorf("%q was accepted", broken)
		}
	}
}

// A process is only ours while pid, start time and boot all agree.
func TestProcessAlive(t *testing.T) {
	self, err := describeProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if !self.alive() {
		t.Error("this very process is not alive")
	}
	reused := *self
	reused.Start++
	if reused.alive() {
		t.Error("another process with the same id passes for ours")
	}
	rebooted := *self
	rebooted.Boot = "another boot"
	if rebooted.alive() {
		t.Error("a process from before a restart passes for ours")
	}
	if (*process)(nil).alive() {
		t.Error("a component that was never started is alive")
	}
}

func TestEndedProcessIsDead(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := describeProcess(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.kill(t.Context()); err != nil { // not waited for yet, so this is a zombie
		t.Fatal(err)
	}
	if p.alive() {
		t.Error("a zombie counts as alive")
	}
	_ = cmd.Wait()
}

func TestHasMarker(t *testing.T) {
	const marker = "TASKWARDEN_OWNER=/clusters/a"
	tests := map[string]struct {
		environ string
		want    bool
		reason  string
	}{
		"ours":           {"HOME=/\x00" + marker + "\x00", true, "the variable is there"},
		"longer name":    {marker + "b\x00", false, "another cluster whose name begins alike"},
		"in other value": {"X=" + marker + "\x00", false, "a mention is not a mark"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := hasMarker([]byte(tt.environ), marker); got != tt.want {
				t.Errorf("got %v, want %v: %s", got, tt.want, tt.reason)
			}
		})
	}
}
