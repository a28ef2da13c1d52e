package benchkit

import (
	"fmt"
	"os"
	"sync"
	"time"
)

// silence is the longest time without a line of progress.
const silence = 10 * time.Second

// progress is the one line that tells what goes on.
var progress = struct {
	sync.Mutex
	began, said time.Time
	status      string
}{began: time.Now()}

// Say prints a line of progress with the time since the start.
func Say(format string, args ...any) {
	progress.Lock()
	defer progress.Unlock()
	progress.status = ""
	sayLocked(fmt.Sprintf(format, args...))
}

func sayLocked(text string) {
	progress.said = time.Now()
	fmt.Fprintf(os.Stderr, "[%6.1fs] %s\n", time.Since(progress.began).Seconds(), text)
}

// Doing sets what is said when nothing else has been for a while.
func Doing(format string, args ...any) {
	progress.Lock()
	defer progress.Unlock()
	progress.status = fmt.Sprintf(format, args...)
}

// Heartbeat says the status again and again until the returned function is called.
func Heartbeat() (stop func()) {
	done := make(chan struct{})
	tick := time.NewTicker(time.Second)
	go func() {
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				progress.Lock()
				if time.Since(progress.said) >= silence-time.Second {
					sayLocked("still at it: " + progress.status)
				}
				progress.Unlock()
			}
		}
	}()
	return func() { tick.Stop(); close(done) }
}
