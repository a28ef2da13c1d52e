package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

func newDownCommand() *cobra.Command {
	var name string
	var keepLogs bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "End a cluster and remove everything it left on the machine",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, p := cmd.Context(), newProgress()
			unlock, err := lockCluster(ctx, p, name)
			if err != nil {
				return err
			}
			defer unlock()
			c, err := loadCluster(name)
			if errors.Is(err, errNoCluster) {
				p.say("there is no cluster %s", name)
				if keepLogs {
					return nil
				}
				return removeKeptLogs(name)
			}
			if err != nil {
				return err
			}
			if err := c.remove(ctx, p, keepLogs); err != nil {
				return err
			}
			p.say("cluster %s is gone", name)
			return os.Remove(c.dir + ".lock")
		},
	}
	nameFlag(cmd, &name)
	cmd.Flags().BoolVar(&keepLogs, "keep-logs", false, "keep the folder with the logs and the audit log")
	return cmd
}

// remove ends the cluster's processes and deletes its traces. It works on any state that
// an interrupted `up` or `down` may have left.
func (c *cluster) remove(ctx context.Context, p *progress, keepLogs bool) error {
	p.say("ending cluster %s", c.Name)
	// The data goes too, so there is nothing that a polite end would save.
	for i := len(c.Components) - 1; i >= 0; i-- {
		if err := c.Components[i].Process.signalKill(); err != nil {
			return fmt.Errorf("ending %s: %w", c.Components[i].Name, err)
		}
	}
	if c.Node != nil {
		if err := c.Node.kill(ctx); err != nil {
			return fmt.Errorf("ending the node: %w", err)
		}
	}
	for _, comp := range c.Components {
		if comp.Process == nil {
			continue
		}
		if err := comp.Process.kill(ctx); err != nil {
			return fmt.Errorf("ending %s: %w", comp.Name, err)
		}
	}
	if err := c.killStray(ctx); err != nil {
		return err
	}
	if err := c.removeCgroups(ctx); err != nil {
		return err
	}
	if err := c.removeFiles(keepLogs); err != nil {
		return err
	}
	releaseSlot(slotsDir(), c.dir, c.Slot)
	return nil
}

// signalKill is kill without the wait, so that all servers end at the same time.
func (p *process) signalKill() error {
	if p == nil {
		return nil
	}
	return p.signal(9)
}

func (c *cluster) removeFiles(keepLogs bool) error {
	if !keepLogs {
		return os.RemoveAll(c.dir)
	}
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if matched, _ := filepath.Match("audit*.log", entry.Name()); matched || entry.Name() == "logs" {
			continue
		}
		if err := os.RemoveAll(c.path(entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// removeKeptLogs deletes what an earlier `down --keep-logs` has left.
func removeKeptLogs(name string) error {
	dir, err := clusterDir(name)
	if err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(dir), os.Remove(dir+".lock"))
}
