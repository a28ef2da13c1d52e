// Command cluster brings up a real Kubernetes cluster on a machine without Docker.
//
// Everything it starts lives under one folder per cluster, and every process it may end
// later is written down with its start time, so that nothing of anybody else is touched.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := newRootCommand().ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted; `down` removes what was started")
	}
	fmt.Fprintln(os.Stderr, "error:", err)
	return 1
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "cluster",
		Short:         "A real Kubernetes cluster on one machine, without Docker",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(
		newBuildCommand(), newUpCommand(), newDownCommand(), newStatusCommand(), newEnvCommand(),
		newStartCommand(), newStopCommand(), newImageCommand(), newLoadImageCommand(),
	)
	return root
}
