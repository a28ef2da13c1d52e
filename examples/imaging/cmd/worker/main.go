// Command worker is a worker that behaves as its flags say: it sleeps, fails, takes memory, ignores signals. It is
// there for the samples and for tests of what Taskwarden does about such workers.
package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/taskwarden/taskwarden/examples/imaging/internal/behave"
)

func main() {
	// Also with --ignore-sigterm the signal is received, and then not acted on: one path for both.
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM, os.Interrupt)
	os.Exit(behave.Main(os.Args[1:], os.Getenv, os.Stderr, time.Now, term))
}
