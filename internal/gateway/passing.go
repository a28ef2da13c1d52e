package gateway

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// passing counts what is on its way and goes first.
type passing struct {
	mu   sync.Mutex
	n    int
	past chan struct{} // closed when there is none; nil while there is none
}

// enter counts one more, until leave.
func (p *passing) enter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n == 0 {
		p.past = make(chan struct{})
	}
	p.n++
}

func (p *passing) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n--; p.n == 0 {
		close(p.past)
		p.past = nil
	}
}

// none tells that nothing is on its way.
func (p *passing) none() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.n == 0
}

// giveWay waits until nothing is on its way, but not past a moment.
func (p *passing) giveWay(clk clock.Clock, until time.Time) {
	p.mu.Lock()
	past := p.past
	p.mu.Unlock()
	left := until.Sub(clk.Now())
	if past == nil || left <= 0 {
		return
	}
	timer := clk.NewTimer(left)
	defer timer.Stop()
	select {
	case <-past:
	case <-timer.C():
	}
}
