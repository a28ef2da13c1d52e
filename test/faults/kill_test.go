package faults

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/taskwarden/taskwarden/test/testenv"
)

// TestKilledAtEachWrite kills the operator before and after each single write of a Task's life, for each shape of life, starts it
// again, and compares the end with that of the same life without a fault. In the long form it also stays down for a while, in which
// workers end and deadlines pass.
func TestKilledAtEachWrite(t *testing.T) {
	t.Parallel()
	down := []time.Duration{0}
	if long {
		down = append(down, 5*time.Second)
	}
	for _, s := range shapes() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			writes, undisturbed := undisturbed(t, s)
			for n := range writes {
				for _, after := range []bool{false, true} {
					for _, d := range down {
						name := fmt.Sprintf("before write %d, down for %s", n+1, d)
						if after {
							name = fmt.Sprintf("after write %d, down for %s", n+1, d)
						}
						t.Run(name, func(t *testing.T) {
							t.Parallel()
							killed(t, s, undisturbed, n+1, after, d)
						})
					}
				}
			}
		})
	}
}

// isWrite tells of a write that the end of a Task could depend on. Events are told of what is stored already.
func isWrite(c testenv.Call) bool { return c.Resource != "events" }

// undisturbed lives a life without faults, and gives the number of its writes and its outcome.
func undisturbed(t *testing.T, s shape) (writes int, end *outcome) {
	t.Helper()
	t.Run("undisturbed", func(t *testing.T) {
		l := begin(t, s)
		var count atomic.Int32
		l.Faults.On("write *", testenv.Fault{Match: isWrite, Before: func(_ context.Context, c testenv.Call) error {
			t.Logf("write %d: %s", count.Add(1), c)
			return nil
		}})
		l.live()
		l.rest()
		var err error
		if end, err = l.outcome(); err != nil {
			t.Fatal(err)
		}
		writes = int(count.Load())
	})
	if end == nil || writes == 0 {
		t.FailNow()
	}
	return writes, end
}

// rest waits until the Task has ended and the operator has done all that it had to.
func (l *life) rest() {
	l.t.Helper()
	l.wait(func(context.Context) error {
		_, err := l.outcome()
		return err
	})
	l.Quiet(time.Second)
}

// killed lives a life in which the operator is killed at its n-th write.
func killed(t *testing.T, s shape, want *outcome, n int, after bool, down time.Duration) {
	l := begin(t, s)
	c := newCrash(n, after)
	remove := l.Faults.On("write *", c.fault())
	dead := false
	l.revive = func() {
		if dead || !c.has() {
			return
		}
		dead = true
		l.KillController()
		remove()
		close(c.over)
		pause(t, down)
		l.StartController()
	}
	l.live()
	l.wait(func(context.Context) error {
		if !dead {
			return fmt.Errorf("write %d has not come", n)
		}
		return nil
	})
	l.wantOutcome(want)
}

// wantOutcome waits until the Task has ended as it did without a fault.
func (l *life) wantOutcome(want *outcome) {
	l.t.Helper()
	l.wait(func(context.Context) error {
		got, err := l.outcome()
		if err != nil {
			return err
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("the end is another one (- without the fault, + with it):\n%s", diff)
		}
		return nil
	})
}

// crash stops an operator at one of its writes: that one and all that follow do not get through until it is killed. After a write it
// is its answer that does not.
type crash struct {
	at     int
	after  bool
	count  atomic.Int32
	struck chan struct{}
	strike func()
	over   chan struct{} // closed when the operator is dead
}

func newCrash(at int, after bool) *crash {
	c := &crash{at: at, after: after, struck: make(chan struct{}), over: make(chan struct{})}
	c.strike = sync.OnceFunc(func() { close(c.struck) })
	return c
}

func (c *crash) fault() testenv.Fault {
	return testenv.Fault{Match: c.match, Before: c.before, After: c.afterwards}
}

func (c *crash) match(call testenv.Call) bool {
	if isWrite(call) {
		return int(c.count.Add(1)) >= c.at
	}
	return c.has()
}

// has tells whether it has struck.
func (c *crash) has() bool {
	select {
	case <-c.struck:
		return true
	default:
		return false
	}
}

// before lets that write alone pass whose answer is to be lost.
func (c *crash) before(ctx context.Context, _ testenv.Call) error {
	if c.after && !c.has() {
		return nil
	}
	return c.hold(ctx)
}

func (c *crash) afterwards(ctx context.Context, _ testenv.Call, _ int) error { return c.hold(ctx) }

var errCrash = errors.New("killed in a write (injected)")

// hold waits until the operator is dead.
func (c *crash) hold(ctx context.Context) error {
	c.strike()
	select {
	case <-ctx.Done():
	case <-c.over:
	}
	return errCrash
}

// pause lets time pass while the operator is down.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}
