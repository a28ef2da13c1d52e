package audit

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func line(ns, id string) string {
	return fmt.Sprintf(`{"stage":"ResponseComplete","auditID":%q,"verb":"create","objectRef":{"resource":"tasks","namespace":%q},`+
		`"responseStatus":{"code":201},"responseObject":{"metadata":{"resourceVersion":"7"}}}`+"\n", id, ns)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func ids(t *testing.T, l *Log) []string {
	t.Helper()
	events, err := l.Events()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for i := range events {
		all = append(all, events[i].ID)
	}
	return all
}

func TestFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	write(t, path, line("mine", "before"))
	l, err := Follow(path, "mine")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := ids(t, l); len(got) != 0 {
		t.Errorf("events from before: %v", got)
	}
	whole := line("mine", "b")
	write(t, path, line("mine", "a")+line("other", "x")+whole[:30])
	if got := fmt.Sprint(ids(t, l)); got != "[a]" {
		t.Errorf("with half a line: %v", got)
	}
	write(t, path, whole[30:])
	if got := fmt.Sprint(ids(t, l)); got != "[a b]" {
		t.Errorf("with the other half: %v", got)
	}
	events, err := l.Events()
	if err != nil || events[0].Version() != "7" || !events[0].Stored() {
		t.Errorf("event %+v, %v", events[0], err)
	}
}

func TestRotatedLogIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	write(t, path, "")
	l, err := Read(path, "mine")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write(t, path, line("mine", "a"))
	if _, err := l.Events(); err == nil {
		t.Error("a log that was rotated away was taken for complete")
	}
}

func TestWaitFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	write(t, path, "")
	l, err := Read(path, "mine")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	is := func(id string) func(*Event) bool { return func(e *Event) bool { return e.ID == id } }
	ctx, cancel := context.WithTimeout(t.Context(), 3*poll)
	defer cancel()
	if err := l.WaitFor(ctx, is("late")); err == nil {
		t.Error("what never came was found")
	}
	done := make(chan error)
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() { done <- l.WaitFor(ctx, is("late")) }()
	write(t, path, line("mine", "late"))
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestDryRunIsNoWrite(t *testing.T) {
	e := Event{Verb: "create", RequestURI: "/apis/x/tasks?dryRun=All&x=y", Status: Status{Code: 201}}
	if e.Write() || e.Stored() {
		t.Error("a dry run was taken for a write")
	}
	e.RequestURI = "/apis/x/tasks"
	if !e.Stored() {
		t.Error("a write was taken for none")
	}
}
