package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/taskwarden/taskwarden/test/benchkit"
)

// replicas is how many gateways there are.
const replicas = 2

// gateways are the replicas of the gateway. They come back at the same addresses, as behind a Service.
type gateways struct {
	program, kubeconfig string
	args                []string
	addresses           []string
	running             []*benchkit.Process
	// gone are the metrics of those that were killed, peak the most memory that one of them had.
	gone []benchkit.Metrics
	peak float64
}

func newGateways(program, kubeconfig string, args []string) (*gateways, error) {
	g := &gateways{program: program, kubeconfig: kubeconfig, args: args}
	for range replicas {
		address, err := benchkit.FreeAddress()
		if err != nil {
			return nil, err
		}
		g.addresses = append(g.addresses, address)
	}
	return g, nil
}

// start starts all replicas and waits until they are ready.
func (g *gateways) start(ctx context.Context) error {
	for i, address := range g.addresses {
		args := append([]string{
			"--bind-address", address, "--namespace", benchkit.Namespace, "--tls-extra-name", "127.0.0.1",
		}, g.args...)
		log := filepath.Join(runFolder, fmt.Sprintf("gateway-%d.log", i))
		// As in config/gateway, so that the memory is what it would be there.
		p, err := benchkit.Start(g.program, "gateway", g.kubeconfig, log, args, "GOMEMLIMIT=100MiB")
		if err != nil {
			return err
		}
		g.running = append(g.running, p)
	}
	for _, p := range g.running {
		if _, err := p.WaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// kill ends all replicas without a warning.
func (g *gateways) kill(ctx context.Context) error {
	now, err := g.read(ctx)
	if err != nil {
		return err
	}
	for _, p := range g.running {
		err = errors.Join(err, p.Kill())
	}
	g.running, g.gone = nil, now
	return err
}

// stop ends all replicas.
func (g *gateways) stop() error {
	var errs []error
	for _, p := range g.running {
		errs = append(errs, p.Stop())
	}
	g.running = nil
	return errors.Join(errs...)
}

// read gives the metrics of all replicas that there have been, and notes the memory of those that run.
func (g *gateways) read(ctx context.Context) ([]benchkit.Metrics, error) {
	all := g.gone[:len(g.gone):len(g.gone)]
	for _, p := range g.running {
		m, err := p.Metrics(ctx)
		if err != nil {
			return nil, err
		}
		_, peak, err := p.Memory()
		if err != nil {
			return nil, err
		}
		all, g.peak = append(all, m), max(g.peak, peak)
	}
	return all, nil
}

// counts are what the gateways say of their work.
type counts struct {
	retries float64
	// finals are final reports that were taken, finalSeconds how long that took.
	finals, finalSeconds float64
	// refused are requests that were not taken, by code.
	refused map[string]float64
}

const refusedMetric = "task_reports_refused_total"

func (g *gateways) counts(ctx context.Context) (counts, error) {
	all, err := g.read(ctx)
	c := counts{refused: map[string]float64{}}
	for _, m := range all {
		c.add(m)
	}
	return c, err
}

func (c *counts) add(m benchkit.Metrics) {
	retries, _ := m.Sum("callback_retry_total")
	c.retries += retries
	c.finals += m[`task_report_seconds_count{final="true"}`]
	c.finalSeconds += m[`task_report_seconds_sum{final="true"}`]
	for series, v := range m {
		if labels, ok := strings.CutPrefix(series, refusedMetric+`{code="`); ok {
			c.refused[strings.TrimSuffix(labels, `"}`)] += v
		}
	}
}

// since is what was counted after an earlier reading; codes of which there is nothing are left out.
func (c *counts) since(before counts) counts {
	d := counts{retries: c.retries - before.retries, refused: map[string]float64{}}
	for code, v := range c.refused {
		if n := v - before.refused[code]; n > 0 {
			d.refused[code] = n
		}
	}
	return d
}
