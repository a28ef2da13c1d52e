package testenv

import (
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
)

// testLog writes the operator's log to the test's, where it shows when the test fails. A test must not be written to after
// its end, so it falls silent then.
type testLog struct {
	mu   sync.Mutex
	t    testing.TB
	done bool
}

func (l *testLog) logger() logr.Logger {
	return funcr.New(func(prefix, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.done {
			l.t.Log(prefix, args)
		}
	}, funcr.Options{LogTimestamp: true})
}

func (l *testLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = true
}
