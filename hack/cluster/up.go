package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

type upOptions struct {
	name, mode string
	nodes      int
	extra      extraArgs
}

func newUpCommand() *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring a cluster up and print the path of its kubeconfig",
		Long: `Bring a cluster up and print the path of its kubeconfig.

  --node kubelet  a real node with real containers; needs root on Debian
  --node kwok     simulated nodes whose pods run and succeed; needs nothing
  --node none     no node: a test writes the status of pods; needs nothing`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := up(cmd.Context(), newProgress(), o)
			if err != nil {
				return err
			}
			fmt.Println(c.kubeconfig())
			return nil
		},
	}
	nameFlag(cmd, &o.name)
	cmd.Flags().StringVar(&o.mode, "node", modeKubelet, "who plays the node: kubelet, kwok or none")
	cmd.Flags().IntVar(&o.nodes, "nodes", 10, "number of simulated nodes")
	cmd.Flags().StringArrayVar(&o.extra.apiserver, "apiserver-arg", nil, "additional argument of kube-apiserver (repeatable)")
	cmd.Flags().StringArrayVar(&o.extra.controllerManager, "controller-manager-arg", nil, "additional argument of kube-controller-manager (repeatable)")
	cmd.Flags().StringArrayVar(&o.extra.scheduler, "scheduler-arg", nil, "additional argument of kube-scheduler (repeatable)")
	return cmd
}

func nameFlag(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "name", "taskwarden", "name of the cluster")
}

func up(ctx context.Context, p *progress, o upOptions) (*cluster, error) {
	switch o.mode {
	case modeNone, modeKwok, modeKubelet:
	default:
		return nil, fmt.Errorf("--node %s: must be kubelet, kwok or none", o.mode)
	}
	dir, err := clusterDir(o.name)
	if err != nil {
		return nil, err
	}
	unlock, err := lockCluster(ctx, p, o.name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	running, err := findRunning(ctx, p, o)
	if running != nil || err != nil {
		return running, err
	}
	if o.mode == modeKubelet {
		if err := prepareMachine(ctx, p, dir); err != nil {
			return nil, err
		}
	}
	bin, err := ensureBuilt(ctx, p, o.mode == modeKwok)
	if err != nil {
		return nil, err
	}
	c := &cluster{Name: o.name, Mode: o.mode, BinDir: bin.dir, dir: dir}
	if o.mode == modeKwok {
		c.Nodes = o.nodes
	}
	if err := c.prepare(o.extra); err != nil {
		return nil, err
	}
	p.say("starting cluster %s (%s) in %s", c.Name, c.Mode, c.dir)
	if err := c.start(ctx, p); err != nil {
		return nil, err
	}
	c.Ready = true
	if err := c.save(); err != nil {
		return nil, err
	}
	p.say("cluster %s is ready at %s", c.Name, c.apiURL())
	return c, nil
}

func lockCluster(ctx context.Context, p *progress, name string) (func(), error) {
	dir, err := clusterDir(name)
	if err != nil {
		return nil, err
	}
	return lockFile(ctx, p, dir+".lock", "another command on cluster "+name)
}

// findRunning answers the cluster if it is up as asked, and otherwise removes what an
// earlier run has left of it.
func findRunning(ctx context.Context, p *progress, o upOptions) (*cluster, error) {
	c, err := loadCluster(o.name)
	if errors.Is(err, errNoCluster) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	healthy := c.Ready && len(c.dead()) == 0
	if healthy {
		a, err := c.api()
		healthy = err == nil && a.ready(ctx) == nil
	}
	if healthy && c.Mode == o.mode {
		p.say("cluster %s (%s) is already running at %s", c.Name, c.Mode, c.apiURL())
		return c, nil
	}
	if healthy {
		return nil, fmt.Errorf("cluster %s is running with --node %s; end it with `down --name %s` first", c.Name, c.Mode, c.Name)
	}
	p.say("removing what is left of an earlier cluster %s", c.Name)
	return nil, c.remove(ctx, p, false)
}

// prepare makes the cluster's folder with everything the servers read.
func (c *cluster) prepare(extra extraArgs) error {
	if err := os.RemoveAll(c.dir); err != nil {
		return err
	}
	for _, sub := range []string{"logs", "pki", "etcd", "config/cni"} {
		if err := os.MkdirAll(c.path(sub), 0o700); err != nil {
			return err
		}
	}
	free := portsFree
	if c.Mode == modeKubelet {
		free = networkFree
	}
	var err error
	if c.Slot, err = reserveSlot(slotsDir(), c.dir, free); err != nil {
		return err
	}
	c.Components = c.describeComponents(extra)
	if err := c.save(); err != nil {
		return err
	}
	if err := os.WriteFile(c.path("config", "resolv.conf"), nil, 0o644); err != nil {
		return err
	}
	if err := c.writeCredentials(); err != nil {
		return err
	}
	return c.writeConfigs()
}

// start brings the servers up. What can wait for the API server by itself starts first;
// controller manager and scheduler give up when they do not find it.
func (c *cluster) start(ctx context.Context, p *progress) error {
	if c.Mode == modeKubelet {
		if err := c.startNode(ctx, p); err != nil {
			return err
		}
	}
	startAll := func(names ...string) error {
		for _, name := range names {
			comp, err := c.component(name)
			if err != nil {
				return err
			}
			if err := c.startComponent(comp); err != nil {
				return err
			}
		}
		return nil
	}
	first := []string{"etcd", "kube-apiserver"}
	if c.Mode == modeKubelet {
		first = append([]string{"containerd"}, first...)
	}
	if err := startAll(first...); err != nil {
		return err
	}
	if c.Mode == modeKubelet {
		if err := c.importPause(ctx, p); err != nil {
			return err
		}
	}
	a, err := c.api()
	if err != nil {
		return err
	}
	if err := c.wait(ctx, p, "the API server", func() error { return a.ready(ctx) }); err != nil {
		return err
	}
	second := map[string][]string{
		modeNone:    {"kube-controller-manager"},
		modeKwok:    {"kube-controller-manager", "kube-scheduler", "kwok"},
		modeKubelet: {"kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"},
	}
	if err := startAll(second[c.Mode]...); err != nil {
		return err
	}
	if c.Mode == modeKwok {
		if err := createSimulatedNodes(ctx, a, c.Nodes); err != nil {
			return err
		}
	}
	return c.waitReady(ctx, p, a)
}

// waitReady waits for what a first pod needs: its service account, and ready nodes.
func (c *cluster) waitReady(ctx context.Context, p *progress, a *api) error {
	err := c.wait(ctx, p, "the default service account", func() error {
		return a.get(ctx, "/api/v1/namespaces/default/serviceaccounts/default", nil)
	})
	if err != nil || c.Mode == modeNone {
		return err
	}
	want := max(c.Nodes, 1)
	return c.wait(ctx, p, fmt.Sprintf("%d ready nodes", want), func() error {
		ready, total, err := a.nodes(ctx)
		if err == nil && ready < want {
			err = fmt.Errorf("%d of %d nodes are ready", ready, total)
		}
		return err
	})
}

// readyLimit bounds each wait; on a loaded machine with two cores a start takes 15 s.
const readyLimit = 3 * time.Minute

// wait polls until check succeeds, and stops early when one of our servers has died.
func (c *cluster) wait(ctx context.Context, p *progress, what string, check func() error) error {
	var last error
	stop := p.heartbeat(func() string { return "waiting for " + what })
	defer stop()
	for deadline := time.Now().Add(readyLimit); time.Now().Before(deadline); {
		if last = check(); last == nil {
			p.say("%s: ready", what)
			return nil
		}
		for _, comp := range c.Components {
			if comp.Process != nil && !comp.Process.alive() {
				return c.died(comp)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return fmt.Errorf("%s not ready after %s (%w); logs are in %s", what, readyLimit, last, c.path("logs"))
}

// died tells the end of the log of a server that ended during the start.
func (c *cluster) died(comp *component) error {
	content, err := os.ReadFile(c.logFile(comp.Name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	tail := lines[max(0, len(lines)-25):]
	return fmt.Errorf("%s ended during the start; the end of %s:\n%s", comp.Name, c.logFile(comp.Name), strings.Join(tail, "\n"))
}

// dead names the components that should run and do not.
func (c *cluster) dead() []string {
	var names []string
	for _, comp := range c.Components {
		if !comp.Process.alive() {
			names = append(names, comp.Name)
		}
	}
	return names
}
