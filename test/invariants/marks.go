package invariants

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// The two events of a worker's run.
const (
	Start = "start"
	Stop  = "stop"
)

// Mark is what a worker wrote down about itself, as examples/imaging writes it, one JSON line each.
type Mark struct {
	// Task is the UID of the Task that the worker was told.
	Task string `json:"task"`
	// Attempt that it was told.
	Attempt int32 `json:"attempt"`
	// Host is the worker's host name: its pod.
	Host string `json:"host,omitempty"`
	// Event is Start or Stop. A worker that was killed leaves no stop.
	Event string `json:"event"`
	// Time by the worker's clock.
	Time time.Time `json:"time"`
	// Exit is the exit code that followed; only in a stop mark.
	Exit *int32 `json:"exit,omitempty"`
	// Run tells the runs of one attempt apart: the file of the marks, or the UID of the pod.
	Run string `json:"-"`
}

// Marks are the marks of all workers.
type Marks interface {
	All() ([]Mark, error)
}

// Memory keeps the marks of played workers.
type Memory struct {
	mu    sync.Mutex
	marks []Mark
}

// Add writes a mark down.
func (m *Memory) Add(mark Mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.marks = append(m.marks, mark)
}

// All marks so far.
func (m *Memory) All() ([]Mark, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.marks), nil
}

// Dir reads the marks of real workers, one file a run, from a folder that they share with the test.
type Dir string

// All marks in the folder.
func (d Dir) All() ([]Mark, error) {
	files, err := filepath.Glob(filepath.Join(string(d), "*.jsonl"))
	if err != nil {
		return nil, err
	}
	var all []Mark
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		marks, err := parseMarks(content, filepath.Base(file))
		if err != nil {
			return nil, err
		}
		all = append(all, marks...)
	}
	return all, nil
}

func parseMarks(content []byte, run string) ([]Mark, error) {
	var marks []Mark
	for lines := bufio.NewScanner(bytes.NewReader(content)); lines.Scan(); {
		m := Mark{Run: run}
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			// A worker that was killed in mid-write leaves half a line, and that line can only be its last.
			if !bytes.HasSuffix(content, []byte("\n")) && bytes.HasSuffix(content, lines.Bytes()) {
				return marks, nil
			}
			return nil, fmt.Errorf("%s: %w", run, err)
		}
		marks = append(marks, m)
	}
	return marks, nil
}

// run is one run of a worker. A zero end means that nobody says when, or whether, it has ended.
type run struct {
	attempt int32
	id      string
	host    string
	start   time.Time
	end     time.Time
	exit    *int32
}

func (r *run) String() string {
	end := "no known end"
	if !r.end.IsZero() {
		end = stamp(r.end)
	}
	return fmt.Sprintf("attempt %d in %s from %s to %s", r.attempt, r.id, stamp(r.start), end)
}

// runsOf pairs the marks of one Task, in the order in which the workers started.
func runsOf(marks []Mark) []*run {
	byID := map[string]*run{}
	var runs []*run
	for _, m := range marks {
		r := byID[m.Run]
		if r == nil {
			r = &run{attempt: m.Attempt, id: m.Run, host: m.Host}
			byID[m.Run] = r
			runs = append(runs, r)
		}
		if m.Event == Start {
			r.start = m.Time
		} else {
			r.end, r.exit = m.Time, m.Exit
		}
	}
	slices.SortFunc(runs, func(a, b *run) int { return a.start.Compare(b.start) })
	return runs
}

func stamp(t time.Time) string { return t.UTC().Format("15:04:05.000000") }
