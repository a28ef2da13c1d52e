// Command pause waits for a signal and reaps orphans meanwhile.
//
// It has two jobs that ask for the same thing. It is the sandbox container that holds a
// pod's namespaces, so no image has to be pulled for it. And it is process 1 of the
// namespaces a kubelet cluster lives in: when it ends, the kernel ends everything else there.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		// Signals coalesce, so one SIGCHLD may stand for several children.
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}
