package main

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

func newStatusCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the clusters, what runs of them, and where they answer",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := listClusters()
			if err != nil {
				return err
			}
			if name != "" {
				c, err := loadCluster(name)
				if err != nil {
					return err
				}
				all = []*cluster{c}
			}
			w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
			fmt.Fprintln(w, "NAME\tNODE\tCOMPONENTS\tAPI\tNODES READY")
			for _, c := range all {
				nodes := "unknown"
				if a, err := c.api(); err == nil {
					if ready, total, err := a.nodes(cmd.Context()); err == nil {
						nodes = fmt.Sprintf("%d/%d", ready, total)
					}
				}
				components := fmt.Sprintf("%d/%d", len(c.Components)-len(c.dead()), len(c.Components))
				if dead := c.dead(); len(dead) > 0 {
					components += " (not running: " + strings.Join(dead, ", ") + ")"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", c.Name, c.Mode, components, c.apiURL(), nodes)
			}
			return w.Flush()
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "only this cluster")
	return cmd
}

func newEnvCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "env",
		Short: "Print a cluster's paths as NAME=value lines for scripts",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			c, err := loadCluster(name)
			if err != nil {
				return err
			}
			fmt.Printf("KUBECONFIG=%s\nAUDIT_LOG=%s\nKUBECTL=%s\nCLUSTER_DIR=%s\nAPI_SERVER=%s\nHOST_ADDRESS=%s\n",
				c.kubeconfig(), c.auditLog(), c.bin().path("kubectl"), c.dir, c.apiURL(), c.hostAddress())
			return nil
		},
	}
	nameFlag(cmd, &name)
	return cmd
}

// hostAddress is where a program on this machine can listen so that the API server and
// the pods reach it, a webhook for example.
func (c *cluster) hostAddress() string {
	if c.Mode == modeKubelet {
		return slotNetwork(c.Slot).host.String()
	}
	return "127.0.0.1"
}
