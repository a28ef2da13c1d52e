package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// poll is how often a log is looked at again while somebody waits for it.
const poll = 50 * time.Millisecond

// Log follows a log file that the API server goes on writing, and keeps the events of one namespace.
type Log struct {
	path      string
	namespace []byte

	mu      sync.Mutex
	file    *os.File
	reader  *bufio.Reader
	partial []byte // a line that is not written to its end yet
	events  []Event
}

// Follow begins at the present end of the file: what a namespace that does not exist yet will see. Close it after use.
func Follow(path, namespace string) (*Log, error) { return open(path, namespace, io.SeekEnd) }

// Read begins at the beginning of the file.
func Read(path, namespace string) (*Log, error) { return open(path, namespace, io.SeekStart) }

func open(path, namespace string, whence int) (*Log, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	if _, err := file.Seek(0, whence); err != nil {
		return nil, errors.Join(fmt.Errorf("audit log: %w", err), file.Close())
	}
	return &Log{path: path, namespace: []byte(namespace), file: file, reader: bufio.NewReaderSize(file, 1<<16)}, nil
}

// Close ends the reading.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}

// Events are the finished requests in the namespace that the log holds so far, in the order of the log.
func (l *Log) Events() ([]Event, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		chunk, err := l.reader.ReadBytes('\n')
		l.partial = append(l.partial, chunk...)
		if errors.Is(err, io.EOF) {
			return l.events[:len(l.events):len(l.events)], l.same()
		}
		if err != nil {
			return nil, fmt.Errorf("audit log: %w", err)
		}
		line := l.partial
		l.partial = nil
		if err := l.take(line); err != nil {
			return nil, err
		}
	}
}

// take keeps an event of the namespace. The line is searched first: parsing those of all other tests would cost more
// than the tests do.
func (l *Log) take(line []byte) error {
	if !bytes.Contains(line, l.namespace) {
		return nil
	}
	var e Event
	if err := json.Unmarshal(line, &e); err != nil {
		return fmt.Errorf("audit log: %w in line %.200q", err, line)
	}
	if e.Object.Namespace == string(l.namespace) && (e.Stage == "ResponseComplete" || e.Stage == "Panic") {
		l.events = append(l.events, e)
	}
	return nil
}

// same makes sure that the file was not rotated away: a checker that misses half of what happened would find nothing wrong.
func (l *Log) same() error {
	now, err := os.Stat(l.path)
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	ours, err := l.file.Stat()
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	if !os.SameFile(now, ours) {
		return fmt.Errorf("audit log: %s was rotated while it was read; start the API server with a larger --audit-log-maxsize", l.path)
	}
	return nil
}

// WaitFor reads until an event matches. The log is written after the answer has left, so it may be slightly behind.
func (l *Log) WaitFor(ctx context.Context, match func(*Event) bool) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for seen := 0; ; {
		events, err := l.Events()
		if err != nil {
			return err
		}
		for ; seen < len(events); seen++ {
			if match(&events[seen]) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("audit log: what was waited for did not come: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}
