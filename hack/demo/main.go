// Command demo shows Taskwarden at work: it brings a cluster up, installs the operator, applies one sample Task for each
// outcome, shows their lines live until they have ended, and fails unless each ended as its manifest says that it should.
//
// `make demo` runs it. CLUSTER chooses where: local (a cluster of its own), current (the one that kubectl talks to) or kind.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const (
	operatorNamespace = "taskwarden-system"
	operatorImage     = "taskwarden.dev/taskwarden:dev"
	workerImage       = "taskwarden.dev/imaging:dev"
	demoNamespace     = "taskwarden-demo"
	samplesDir        = "examples/tasks"
	// limit bounds the wait for the samples; the slowest takes some 30 seconds on an idle machine.
	limit = 4 * time.Minute
)

// deployments are those that must run before a sample does.
var deployments = []string{"deployment.apps/taskwarden-controller", "deployment.apps/taskwarden-gateway"}

var began = time.Now()

// say prints a line of progress with the time since the start.
func say(format string, args ...any) {
	fmt.Printf("[%5.1fs] "+format+"\n", append([]any{time.Since(began).Seconds()}, args...)...)
}

func main() {
	down := flag.Bool("down", false, "take away what the demo has left")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *down)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, down bool) error {
	c, err := newCluster(os.Getenv("CLUSTER"))
	if err != nil {
		return err
	}
	if down {
		return remove(ctx, c)
	}
	if c.kind != "local" {
		// Before anything is changed.
		api, err := newClient(c)
		if err != nil {
			return err
		}
		if err := checkFree(ctx, api); err != nil {
			return err
		}
	}
	if err := c.prepare(ctx); err != nil {
		return err
	}
	if err := install(ctx, c); err != nil {
		return err
	}
	seen, err := watchSamples(ctx, c)
	if err != nil {
		return err
	}
	if err := report(seen); err != nil {
		return err
	}
	c.nextSteps()
	return nil
}

// install puts the operator into the cluster and waits until it is ready.
func install(ctx context.Context, c *cluster) error {
	say("installing the operator into namespace %s", operatorNamespace)
	dir, err := marked()
	if err != nil {
		return err
	}
	manifests, err := c.output(ctx, c.kubectl, "kustomize", dir)
	if err != nil {
		return err
	}
	running, err := c.output(ctx, c.kubectl, "-n", operatorNamespace, "get", "deployments", "-o", "name", "--ignore-not-found")
	if err != nil {
		return err
	}
	if err := c.input(ctx, withImages(manifests), c.kubectl, "apply", "-f", "-"); err != nil {
		return err
	}
	for _, deployment := range deployments {
		if c.reloaded && strings.Contains(running, deployment) {
			// The image keeps its name from one build to the next, so what runs must be told to take the new one.
			if err := c.run(ctx, c.kubectl, "-n", operatorNamespace, "rollout", "restart", deployment); err != nil {
				return err
			}
		}
	}
	if err := c.run(ctx, c.kubectl, "wait", "--for=condition=Established", "--timeout=60s", "crd/tasks.taskwarden.dev"); err != nil {
		return err
	}
	for _, deployment := range deployments {
		err := c.run(ctx, c.kubectl, "-n", operatorNamespace, "rollout", "status", "--timeout=120s", deployment)
		if err != nil {
			return err
		}
	}
	return nil
}
