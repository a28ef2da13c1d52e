package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// cluster is where the demo runs.
type cluster struct {
	kind       string // local, current or kind
	name       string
	tool       string // the program that runs local clusters
	kubectl    string
	kubeconfig string // empty: as kubectl finds it
	reloaded   bool
}

func newCluster(kind string) (*cluster, error) {
	c := &cluster{kind: kind, kubectl: "kubectl", tool: os.Getenv("TASKWARDEN_CLUSTER_BIN"), name: os.Getenv("LOCAL_CLUSTER")}
	if c.name == "" {
		c.name = "taskwarden"
	}
	switch kind {
	case "", "local":
		c.kind = "local"
		if c.tool == "" {
			return nil, fmt.Errorf("TASKWARDEN_CLUSTER_BIN is not set; run this as `make demo`")
		}
	case "current", "kind":
		if _, err := exec.LookPath("kubectl"); err != nil {
			return nil, fmt.Errorf("CLUSTER=%s needs kubectl: %w", kind, err)
		}
	default:
		return nil, fmt.Errorf("CLUSTER=%s is not known; it is local, current or kind", kind)
	}
	return c, nil
}

// prepare brings the cluster up and the images into it.
func (c *cluster) prepare(ctx context.Context) error {
	images := []string{".run/images/taskwarden.tar", ".run/images/imaging.tar"}
	switch c.kind {
	case "kind":
		say("loading the images into the kind cluster")
		c.reloaded = true
		for _, image := range images {
			if err := c.run(ctx, "kind", "load", "image-archive", image); err != nil {
				return err
			}
		}
		return nil
	case "current":
		say("using the cluster that kubectl talks to; its nodes must have, or be able to pull, %s", withImages(operatorImage+" and "+workerImage))
		return nil
	}
	say("bringing the local cluster %s up (the very first time builds Kubernetes, 12 to 16 minutes on 2 idle cores)", c.name)
	if err := c.run(ctx, c.tool, "up", "--name", c.name); err != nil {
		return err
	}
	if err := c.readEnv(ctx); err != nil {
		return err
	}
	say("loading the images")
	c.reloaded = true
	return c.run(ctx, append([]string{c.tool, "load-image", "--name", c.name}, images...)...)
}

// readEnv learns from the local cluster how to talk to it.
func (c *cluster) readEnv(ctx context.Context) error {
	out, err := c.output(ctx, c.tool, "env", "--name", c.name)
	if err != nil {
		return err
	}
	scan := bufio.NewScanner(strings.NewReader(out))
	for scan.Scan() {
		switch key, value, _ := strings.Cut(scan.Text(), "="); key {
		case "KUBECONFIG":
			c.kubeconfig = value
		case "KUBECTL":
			c.kubectl = value
		}
	}
	return scan.Err()
}

// withImages puts the images that the environment names into manifests.
func withImages(manifests string) string {
	return strings.NewReplacer(
		operatorImage, cmp.Or(os.Getenv("IMG"), operatorImage),
		workerImage, cmp.Or(os.Getenv("IMAGING_IMG"), workerImage),
	).Replace(manifests)
}

func (c *cluster) command(ctx context.Context, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = os.Environ()
	if c.kubeconfig != "" {
		cmd.Env = append(cmd.Env, "KUBECONFIG="+c.kubeconfig)
	}
	cmd.Stderr = os.Stderr
	return cmd
}

// run shows what the command prints.
func (c *cluster) run(ctx context.Context, argv ...string) error {
	cmd := c.command(ctx, argv...)
	cmd.Stdout = os.Stdout
	return describe(cmd.Run(), argv)
}

func (c *cluster) input(ctx context.Context, stdin string, argv ...string) error {
	cmd := c.command(ctx, argv...)
	cmd.Stdin = strings.NewReader(stdin)
	var out bytes.Buffer
	cmd.Stdout = &out
	err := cmd.Run()
	for line := range strings.Lines(out.String()) {
		if !strings.HasSuffix(strings.TrimSpace(line), "unchanged") {
			fmt.Print("         ", line)
		}
	}
	return describe(err, argv)
}

func (c *cluster) output(ctx context.Context, argv ...string) (string, error) {
	cmd := c.command(ctx, argv...)
	cmd.Stderr = nil // part of the error
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	return string(out), describe(err, argv)
}

func describe(err error, argv []string) error {
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	return nil
}

func (c *cluster) nextSteps() {
	fmt.Println("\nTo look around:")
	if c.kind == "local" {
		fmt.Printf("  export KUBECONFIG=%s PATH=%s:$PATH\n", c.kubeconfig, filepath.Dir(c.kubectl))
	}
	for _, line := range []string{
		"get tasks.taskwarden.dev -o wide",
		"describe tasks.taskwarden.dev retries-used-up",
		"get tasks.taskwarden.dev succeeds -o yaml",
		`annotate --overwrite tasks.taskwarden.dev retries-used-up taskwarden.dev/retry-requested-at="$(date)"`,
		"logs job/succeeds-1",
	} {
		fmt.Printf("  kubectl -n %s %s\n", demoNamespace, line)
	}
	down := "make demo-down"
	switch {
	case c.kind != "local":
		down += " CLUSTER=" + c.kind
	case c.name != "taskwarden": // the Makefile's default
		down += " LOCAL_CLUSTER=" + c.name
	}
	fmt.Println("When you have seen enough:", down)
}
