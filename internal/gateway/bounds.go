package gateway

import (
	"io"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/taskwarden/taskwarden/internal/report"
)

// maxPerPod is how many requests of one pod are handled at once. A sidecar has one under way at a time, and a copy or two of it
// where it has given up waiting; one that sends more must not take the places of others.
const maxPerPod = 8

// shares sees to it that no key has more than limit of something at once.
type shares[K comparable] struct {
	limit int

	mu  sync.Mutex
	now map[K]int
}

func newShares[K comparable](limit int) *shares[K] {
	return &shares[K]{limit: limit, now: map[K]int{}}
}

// enter tells whether a key may have one more.
func (s *shares[K]) enter(key K) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now[key] >= s.limit {
		return false
	}
	s.now[key]++
	return true
}

func (s *shares[K]) leave(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now[key]--
	if s.now[key] == 0 {
		delete(s.now, key)
	}
}

// reservation is one report's share of the memory for reports. It grows with what arrives, so that a sender who announces much
// and sends little takes little. The request holds it, and so does the report while it waits to be written, maybe for longer.
type reservation struct {
	memory  *semaphore.Weighted
	size    int64
	holders atomic.Int32
}

// newReservation is an empty one with one holder.
func newReservation(memory *semaphore.Weighted) *reservation {
	r := &reservation{memory: memory}
	r.holders.Store(1)
	return r
}

func (r *reservation) grow(n int64) bool {
	if !r.memory.TryAcquire(n) {
		return false
	}
	r.size += n
	return true
}

// shrink gives back what is above a size. Only the first holder, while it is the only one, may call it.
func (r *reservation) shrink(size int64) {
	if size < r.size {
		r.memory.Release(r.size - size)
		r.size = size
	}
}

func (r *reservation) retain() { r.holders.Add(1) }

// release gives the memory back when the last holder calls it.
func (r *reservation) release() {
	if r.holders.Add(-1) == 0 {
		r.memory.Release(r.size)
	}
}

// metered reads into a reservation.
type metered struct {
	io.Reader
	held *reservation
}

func (m metered) Read(p []byte) (int, error) {
	n, err := m.Reader.Read(p)
	if !m.held.grow(int64(n)) {
		return 0, errBusy
	}
	return n, err
}

// footprint is about what a report takes that was read.
func footprint(r *report.Report) int64 {
	const fixed = 512
	size := fixed + len(r.TaskID) + len(r.ExecutionLogURL) + len(r.Checkpoint)
	if r.Progress != nil {
		size += len(r.Progress.Message)
	}
	if r.Result != nil {
		size += len(r.Result.URL) + len(r.Result.Data) + len(r.Result.Message)
	}
	if r.Failure != nil {
		size += len(r.Failure.Message)
	}
	return int64(size)
}
