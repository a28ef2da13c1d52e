// Command taskwarden is the operator: one binary, one role a subcommand.
package main

import (
	"os"

	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"
)

func main() {
	root := &cobra.Command{
		Use:           "taskwarden",
		Short:         "A Kubernetes operator for asynchronous tasks that must never go missing",
		SilenceUsage:  true,
		SilenceErrors: false,
	}
	root.AddCommand(newControllerCommand(), newGatewayCommand())
	if err := root.ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		os.Exit(1)
	}
}
