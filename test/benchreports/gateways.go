package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

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
type counts struct{ retries, refused, taken float64 }

func (g *gateways) counts(ctx context.Context) (c counts, err error) {
	all, err := g.read(ctx)
	for _, m := range all {
		for name, sum := range map[string]*float64{
			"callback_retry_total": &c.retries, "task_reports_refused_total": &c.refused, "task_reports_total": &c.taken,
		} {
			v, found := m.Sum(name)
			if !found {
				return c, fmt.Errorf("the gateway has no metric %s", name)
			}
			*sum += v
		}
	}
	return c, err
}
