package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

func TestLockKeepsOthersOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.lock")
	unlock, err := lockFile(t.Context(), newProgress(), path, "the first")
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lockFile(over, newProgress(), path, "the first"); err == nil {
		t.Error("locked twice")
	}
	unlock()
	unlock, err = lockFile(t.Context(), newProgress(), path, "nobody")
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

// `down` removes the file while others wait for it: a waiter that had opened it must not hold the
// lock together with a newcomer.
func TestLockOfARemovedFileIsNone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.lock")
	waiter, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer waiter.Close()
	unlock, err := lockFile(t.Context(), newProgress(), path, "nobody")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	unlock()
	if held, err := tryLock(waiter, path); held || err != nil {
		t.Errorf("no file any more: got %v %v, want no lock", held, err)
	}
	unlock, err = lockFile(t.Context(), newProgress(), path, "nobody")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if held, err := tryLock(waiter, path); held || err != nil {
		t.Errorf("another file now: got %v %v, want no lock", held, err)
	}
}
