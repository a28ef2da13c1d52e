// Command testimage is the container of this folder's tests: it does what its first
// argument says.
package main

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	mode := ""
	if len(os.Args) > 1 {
		mode = os.Args[1]
	}
	switch mode {
	case "hello": // logs, a termination message, success
		fmt.Println("hello from the container")
		report("all done")
	case "wait": // until it is told to stop
		fmt.Println("waiting")
		waitForSignal()
		fmt.Println("told to stop")
		os.Exit(143)
	case "sidecar": // outlives the worker and uses the time it gets
		waitForSignal()
		report("sidecar finished after the worker")
	case "hog": // until the kernel kills it
		var hoard [][]byte
		for {
			block := make([]byte, 1<<20)
			for i := 0; i < len(block); i += 4096 {
				block[i] = 1 // a page that is never written takes no memory
			}
			hoard = append(hoard, block)
			fmt.Println(len(hoard), "MiB")
		}
	case "dial": // whether an address answers from inside a pod
		conn, err := net.DialTimeout("tcp", os.Args[2], 5*time.Second)
		if err != nil {
			report(err.Error())
			os.Exit(1)
		}
		conn.Close()
		report("connected")
	default:
		fmt.Fprintf(os.Stderr, "testimage: no mode %q\n", mode)
		os.Exit(2)
	}
}

func waitForSignal() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	<-signals
}

func report(message string) {
	if err := os.WriteFile("/dev/termination-log", []byte(message), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(4)
	}
}
