package main

import (
	"fmt"
	"os"
	"time"
)

// progress tells on stderr what is going on. stdout is kept for results that scripts read.
type progress struct{ started time.Time }

func newProgress() *progress { return &progress{started: time.Now()} }

// say prints one line with the time since the command started.
func (p *progress) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "[%6.1fs] %s\n", time.Since(p.started).Seconds(), fmt.Sprintf(format, args...))
}

// heartbeat repeats line every 10 seconds until the returned function is called, so that
// a long step is never mistaken for a hang.
func (p *progress) heartbeat(line func() string) (stop func()) {
	done := make(chan struct{})
	ticker := time.NewTicker(10 * time.Second)
	go func() {
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				p.say("%s", line())
			}
		}
	}()
	return func() { ticker.Stop(); close(done) }
}
