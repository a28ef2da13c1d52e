package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// lockFile waits for an exclusive lock that the kernel gives back when the process ends,
// however it ends. Whoever holds it may remove the file.
func lockFile(ctx context.Context, p *progress, path, holder string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	for waited := false; ; waited = true {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return nil, err
		}
		held, err := tryLock(f, path)
		if held {
			return func() { f.Close() }, nil
		}
		f.Close()
		if err != nil {
			return nil, err
		}
		if !waited {
			p.say("waiting for %s to finish", holder)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// tryLock tells whether f is locked now and still the file at path. If its last holder has
// removed it, the next command locks another file, and this lock would keep nobody out.
func tryLock(f *os.File, path string) (bool, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(mine, there), err
}
