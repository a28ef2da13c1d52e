package testenv

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Main is for TestMain: after all tests it makes sure that no goroutine of an operator or of this package goes on.
func Main(m *testing.M) {
	code := m.Run()
	if left := leftOver(10 * time.Second); code == 0 && left != "" {
		fmt.Fprintf(os.Stderr, "goroutines that outlive their test:\n%s\n", left)
		code = 1
	}
	os.Exit(code)
}

// waitsForSync is a goroutine of controller-runtime that waits for a cache to be filled, and goes on where the operator is killed
// before that.
const waitsForSync = "cache.newMultiNamespaceInformerHandlerRegistration.func1"

// leftOver gives the stacks of the goroutines that should have ended; they have a while to do so.
func leftOver(patience time.Duration) string {
	deadline := time.Now().Add(patience)
	for tick := time.Tick(pollEvery); ; <-tick {
		stacks := make([]byte, 16<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		var left []string
		for i, stack := range strings.Split(string(stacks), "\n\n") {
			if strings.Contains(stack, waitsForSync) {
				continue
			}
			if i > 0 && (strings.Contains(stack, "taskwarden/taskwarden/") || strings.Contains(stack, "sigs.k8s.io/controller-runtime/pkg/")) {
				left = append(left, stack)
			}
		}
		if len(left) == 0 || time.Now().After(deadline) {
			return strings.Join(left, "\n\n")
		}
	}
}
