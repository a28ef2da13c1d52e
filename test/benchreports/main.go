// Command benchreports measures how the reports of workers arrive, on one control plane with simulated nodes.
// `make bench-reports` runs it.
//
// Standard output gets one JSON line for each figure, standard error the progress and a table of the figures that have a
// bound. The exit code is 1 where a bound is missed, unless --no-fail is given.
//
// The controller and two replicas of the gateway run as processes of their own with the rights of their own accounts, under the
// policy of config/policy. For each simulated pod this program is the worker, the sidecar (package reporter, as the sidecar's
// program has it, with its spool on disk and a token that is bound to the pod) and that part of a kubelet which tells how
// containers have ended. There are three phases: some Tasks one after the other, many at once, and many at once while the
// gateways are killed for a while. What was stored, and when, comes from the API server's audit log.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/taskwarden/taskwarden/test/benchkit"
)

type options struct {
	tasks, light, creators int
	timing                 timing
	phases                 []string
	keep, noFail           bool
	clusterBin             string
	controllerArgs         []string
	gatewayArgs            []string
}

// runFolder takes what a run leaves: the operator's program, logs and credentials, and the spools of the sidecars.
const runFolder = ".run/benchreports"

// The phases.
const (
	phaseLatency = "latency"
	phaseLoad    = "load"
	phaseOutage  = "outage"
)

func main() { benchkit.Main("benchreports", run) }

func run(ctx context.Context) error {
	o, err := parse()
	if err != nil {
		return err
	}
	defer benchkit.Heartbeat()()
	b := &bench{options: o, figures: &benchkit.Figures{Out: os.Stdout, Bounds: boundOf}}
	if err := b.run(ctx); err != nil {
		return errors.Join(err, b.figures.Err())
	}
	return b.figures.Close(os.Stderr, o.noFail)
}

func parse() (*options, error) {
	o := &options{clusterBin: os.Getenv("TASKWARDEN_CLUSTER_BIN")}
	phases := flag.String("phases", "latency,load,outage", "what to run: latency, load, outage or several of them")
	flag.IntVar(&o.tasks, "tasks", 500, "number of workers in phases load and outage")
	flag.IntVar(&o.light, "light", 20, "number of Tasks with a sidecar, and of Tasks without, in phase latency")
	flag.IntVar(&o.creators, "creators", 8, "how many objects are created at once")
	seconds := flag.Int("report-seconds", 60, "how long each worker reports progress, every second, before its final report")
	flag.DurationVar(&o.timing.outage, "outage", 2*time.Minute, "how long the gateways are away in phase outage")
	flag.DurationVar(&o.timing.spread, "spread", 20*time.Second, "within which time the workers begin, and so come to their ends")
	flag.BoolVar(&o.keep, "keep", false, "leave the cluster up")
	flag.BoolVar(&o.noFail, "no-fail", false, "end with 0 even if a bound is missed")
	argument := func(args *[]string) func(string) error {
		return func(arg string) error { *args = append(*args, arg); return nil }
	}
	flag.Func("controller-arg", "additional `argument` of the controller (repeatable)", argument(&o.controllerArgs))
	flag.Func("gateway-arg", "additional `argument` of the gateways (repeatable)", argument(&o.gatewayArgs))
	flag.Parse()
	o.timing.report = time.Duration(*seconds) * time.Second
	o.phases = strings.Split(*phases, ",")
	for _, phase := range o.phases {
		if !slices.Contains([]string{phaseLatency, phaseLoad, phaseOutage}, phase) {
			return nil, fmt.Errorf("--phases: %q is none of latency, load and outage", phase)
		}
	}
	if o.tasks < 1 || o.light < 1 || o.creators < 1 || *seconds < 1 || o.timing.outage <= 0 || o.timing.spread < 0 {
		return nil, errors.New("--tasks, --light, --creators, --report-seconds and --outage must be above 0, --spread not below")
	}
	if o.clusterBin == "" {
		return nil, errors.New("TASKWARDEN_CLUSTER_BIN is not set: run `make bench-reports`")
	}
	if _, err := os.Stat(filepath.Join("config", "gateway")); err != nil {
		return nil, fmt.Errorf("run it from the top of the repository: %w", err)
	}
	return o, os.MkdirAll(runFolder, 0o755)
}
