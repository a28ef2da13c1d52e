// Command bench compares Tasks with plain Jobs of the same pods on one control plane with simulated nodes. `make bench` runs it.
//
// Standard output gets one JSON line for each figure, standard error the progress and a table of the figures that have a
// bound. The exit code is 1 where a bound is missed, unless --no-fail is given.
//
// For each profile of the controller manager a fresh cluster comes up, the operator runs as a process of its own with the
// rights of its own role, and one after the other run: some Tasks on an idle control plane, plain Jobs, as many Tasks, and
// Tasks whose Jobs are deleted at once. The last profile also gets thousands of finished Tasks, over which the operator is
// restarted. Every moment comes from the API server's audit log: one clock, that neither the operator nor this program keeps.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/taskwarden/taskwarden/test/benchkit"
)

type options struct {
	tasks, light, finished, creators int
	profiles                         []profile
	keep, noFail                     bool
	clusterBin                       string
	operatorArgs                     []string
}

// profile is one set of arguments of the controller manager.
type profile struct {
	name string
	// suffix of its figures.
	suffix string
	args   []string
	// rounds is how often Jobs and Tasks take turns, each second time the other way round. Where the processors are what
	// limits them, a machine whose speed changes from minute to minute would else favour one or the other.
	rounds int
}

var profiles = map[string]profile{
	"default": {name: "default", rounds: 1},
	"tuned":   {name: "tuned", suffix: "_tuned", rounds: 5, args: benchkit.TunedArgs},
}

// runFolder takes what a run leaves: the operator's program, log and credentials.
const runFolder = ".run/bench"

func main() { benchkit.Main("bench", run) }

func run(ctx context.Context) error {
	o, err := parse()
	if err != nil {
		return err
	}
	defer benchkit.Heartbeat()()
	program, err := benchkit.Build(ctx, runFolder)
	if err != nil {
		return err
	}
	figures := &benchkit.Figures{Out: os.Stdout, Bounds: boundOf}
	resolution(figures)
	for i, p := range o.profiles {
		b := &bench{options: o, profile: p, program: program, figures: figures, last: i == len(o.profiles)-1}
		if err := b.run(ctx); err != nil {
			return errors.Join(fmt.Errorf("profile %s: %w", p.name, err), figures.Err())
		}
	}
	return figures.Close(os.Stderr, o.noFail)
}

func parse() (*options, error) {
	o := &options{clusterBin: os.Getenv("TASKWARDEN_CLUSTER_BIN")}
	names := flag.String("profiles", "default,tuned", "settings of the controller manager to run with: default, tuned or both")
	flag.IntVar(&o.tasks, "tasks", 500, "number of Tasks, and of Jobs to compare them with")
	flag.IntVar(&o.light, "light", 20, "number of Tasks in the run on an idle control plane")
	flag.IntVar(&o.finished, "finished", 5000, "number of finished Tasks over which the operator is restarted; 0 leaves that out")
	flag.IntVar(&o.creators, "creators", 8, "how many objects are created at once")
	flag.BoolVar(&o.keep, "keep", false, "leave the clusters up")
	flag.BoolVar(&o.noFail, "no-fail", false, "end with 0 even if a bound is missed")
	flag.Func("operator-arg", "additional `argument` of the operator (repeatable)", func(arg string) error {
		o.operatorArgs = append(o.operatorArgs, arg)
		return nil
	})
	flag.Parse()
	for name := range strings.SplitSeq(*names, ",") {
		p, ok := profiles[name]
		if !ok {
			return nil, fmt.Errorf("--profiles: %q is neither default nor tuned", name)
		}
		o.profiles = append(o.profiles, p)
	}
	if o.tasks < 1 || o.light < 1 || o.finished < 0 || o.creators < 1 {
		return nil, errors.New("--tasks, --light and --creators must be above 0, --finished not below")
	}
	if o.clusterBin == "" {
		return nil, errors.New("TASKWARDEN_CLUSTER_BIN is not set: run `make bench`")
	}
	if _, err := os.Stat(filepath.Join("config", "crd")); err != nil {
		return nil, fmt.Errorf("run it from the top of the repository: %w", err)
	}
	return o, os.MkdirAll(runFolder, 0o755)
}
