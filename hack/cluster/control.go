package main

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// Fault tests end single components, hard or soft, freeze them, and bring them back.

var signals = map[string]syscall.Signal{
	"TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL, "STOP": syscall.SIGSTOP,
}

func newStopCommand() *cobra.Command {
	var name, signal string
	cmd := &cobra.Command{
		Use:   "stop COMPONENT",
		Short: "End (or with --signal STOP freeze) one component",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, ok := signals[signal]
			if !ok {
				return fmt.Errorf("--signal %s: must be TERM, KILL or STOP", signal)
			}
			return onComponent(cmd.Context(), name, args[0], func(_ *cluster, comp *component) error {
				if !comp.Process.alive() {
					return nil
				}
				switch s {
				case syscall.SIGSTOP:
					return comp.Process.signal(s)
				case syscall.SIGKILL:
					return comp.Process.kill(cmd.Context())
				default:
					return comp.Process.end(cmd.Context(), 15*time.Second)
				}
			})
		},
	}
	nameFlag(cmd, &name)
	cmd.Flags().StringVar(&signal, "signal", "TERM", "TERM (KILL after 15 s), KILL, or STOP to freeze")
	return cmd
}

func newStartCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "start COMPONENT",
		Short: "Start one component again, or let a frozen one go on",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onComponent(cmd.Context(), name, args[0], func(c *cluster, comp *component) error {
				if comp.Process.alive() {
					return comp.Process.signal(syscall.SIGCONT)
				}
				return c.startComponent(comp)
			})
		},
	}
	nameFlag(cmd, &name)
	return cmd
}

func onComponent(ctx context.Context, clusterName, name string, do func(*cluster, *component) error) error {
	unlock, err := lockCluster(ctx, newProgress(), clusterName)
	if err != nil {
		return err
	}
	defer unlock()
	c, err := loadCluster(clusterName)
	if err != nil {
		return err
	}
	comp, err := c.component(name)
	if err != nil {
		return err
	}
	return do(c, comp)
}
