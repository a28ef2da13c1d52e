// Command lint is golangci-lint with the module plugin kube-api-linter linked in, so that one `go build`, pinned by this
// go.mod, replaces `golangci-lint custom`.
package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/golangci/golangci-lint/v2/pkg/commands"
	"github.com/golangci/golangci-lint/v2/pkg/exitcodes"

	_ "sigs.k8s.io/kube-api-linter" // registers the linter "kubeapilinter"
)

const golangciLint = "github.com/golangci/golangci-lint/v2"

func main() {
	info := commands.BuildInfo{GoVersion: runtime.Version(), Version: golangciVersion(), Commit: "?", Date: "?"}
	if err := commands.Execute(info); err != nil {
		_, _ = fmt.Fprintf(os.Stderr, "The command is terminated due to an error: %v\n", err)
		os.Exit(exitcodes.Failure)
	}
}

func golangciVersion() string {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, dep := range build.Deps {
		if dep.Path == golangciLint {
			return strings.TrimPrefix(dep.Version, "v")
		}
	}
	return "unknown"
}
