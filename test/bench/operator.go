package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// userAgent is the operator's own, by which its requests are told from all others.
	userAgent = "taskwarden-controller"
	// readinessPoll is the resolution of the time to readiness.
	readinessPoll = 5 * time.Millisecond
	readyLimit    = 2 * time.Minute
)

// operator is the operator as a process of its own.
type operator struct {
	cmd            *exec.Cmd
	began          time.Time
	metrics, ready string // addresses
	log            string
	exited         chan struct{}
	err            error // once exited is closed
}

// buildOperator builds the program that runs in every profile.
func buildOperator(ctx context.Context) (string, error) {
	doing("building the operator")
	program, err := filepath.Abs(filepath.Join(runFolder, "taskwarden"))
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", program, "./cmd/taskwarden")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build the operator: %w", err)
	}
	return program, nil
}

// startOperator starts the process; it is not ready yet.
func startOperator(program, kubeconfig, log string, args []string) (*operator, error) {
	metrics, err := freeAddress()
	if err != nil {
		return nil, err
	}
	probes, err := freeAddress()
	if err != nil {
		return nil, err
	}
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close() // the process has it open, too
	o := &operator{
		cmd: exec.Command(program, append([]string{
			"controller", "--metrics-bind-address", metrics, "--health-probe-bind-address", probes,
		}, args...)...),
		metrics: "http://" + metrics + "/metrics", ready: "http://" + probes + "/readyz",
		log: log, exited: make(chan struct{}),
	}
	o.cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	o.cmd.Stdout, o.cmd.Stderr = out, out
	o.began = time.Now()
	if err := o.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		o.err = o.cmd.Wait()
		close(o.exited)
	}()
	return o, nil
}

// freeAddress is one on the loopback that nobody listens on.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// waitReady waits for the readiness and answers the time since the start.
func (o *operator) waitReady(ctx context.Context) (time.Duration, error) {
	var last error
	err := wait.PollUntilContextTimeout(ctx, readinessPoll, readyLimit, true, func(ctx context.Context) (bool, error) {
		if !o.alive() {
			return false, fmt.Errorf("the operator has ended, see %s: %w", o.log, o.err)
		}
		_, last = get(ctx, o.ready)
		return last == nil, nil
	})
	if err != nil {
		return 0, errors.Join(fmt.Errorf("wait for the operator: %w", err), last)
	}
	return time.Since(o.began), nil
}

func (o *operator) alive() bool {
	select {
	case <-o.exited:
		return false
	default:
		return true
	}
}

// stop ends the process, politely first.
func (o *operator) stop() error {
	if o == nil {
		return nil
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if !o.alive() {
			return nil
		}
		if err := o.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		select {
		case <-o.exited:
			return nil
		case <-time.After(25 * time.Second):
		}
	}
	return fmt.Errorf("the operator, process %d, does not end", o.cmd.Process.Pid)
}

// counters are what the operator's metrics say of its work.
type counters struct {
	reconciles, queued, active float64
}

func (o *operator) counters(ctx context.Context) (counters, error) {
	if !o.alive() {
		return counters{}, fmt.Errorf("the operator has ended, see %s: %w", o.log, o.err)
	}
	text, err := get(ctx, o.metrics)
	if err != nil {
		return counters{}, err
	}
	return parseCounters(text)
}

// errFewMetrics says that a metric is missing, as all are until the first pass.
var errFewMetrics = errors.New("the operator has not all of the metrics wanted")

// parseCounters adds up the series of each metric. The text format is simple enough to do without its library.
func parseCounters(text string) (counters, error) {
	var c counters
	wanted := map[string]*float64{
		"controller_runtime_reconcile_total": &c.reconciles,
		"workqueue_depth":                    &c.queued,
		"controller_runtime_active_workers":  &c.active,
	}
	seen := map[string]bool{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		series, value, ok := strings.Cut(lines.Text(), "} ")
		name, _, _ := strings.Cut(series, "{")
		sum := wanted[name]
		if !ok || sum == nil {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return c, fmt.Errorf("metric %s: %w", name, err)
		}
		seen[name] = true
		*sum += v
	}
	if len(seen) != len(wanted) {
		return c, fmt.Errorf("%w, only %v", errFewMetrics, seen)
	}
	return c, lines.Err()
}

// idle waits until the operator has nothing to do and has done nothing for a while.
func (o *operator) idle(ctx context.Context, atLeast float64, limit time.Duration) (counters, error) {
	const while = 2 * time.Second
	var before counters
	since := time.Now()
	err := wait.PollUntilContextTimeout(ctx, 250*time.Millisecond, limit, true, func(ctx context.Context) (bool, error) {
		now, err := o.counters(ctx)
		if err != nil && !errors.Is(err, errFewMetrics) {
			return false, err
		}
		doing("waiting until the operator is idle: %.0f reconciles so far, %.0f queued", now.reconciles, now.queued)
		if now != before || now.queued > 0 || now.active > 0 || now.reconciles < atLeast {
			before, since = now, time.Now()
			return false, nil
		}
		return time.Since(since) >= while, nil
	})
	if err != nil {
		return before, fmt.Errorf("wait until the operator is idle (%+v): %w", before, err)
	}
	return before, nil
}

// memory are the resident and the highest resident set of the process, in MiB.
func (o *operator) memory() (now, peak float64, err error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", o.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	return parseMemory(string(content))
}

func parseMemory(status string) (now, peak float64, err error) {
	values := map[string]float64{}
	for line := range strings.SplitSeq(status, "\n") {
		key, value, _ := strings.Cut(line, ":")
		if key != "VmRSS" && key != "VmHWM" {
			continue
		}
		kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
		if err != nil {
			return 0, 0, fmt.Errorf("%s: %w", key, err)
		}
		values[key] = kib / 1024
	}
	if len(values) != 2 {
		return 0, 0, errors.New("no VmRSS and VmHWM in the status of the process")
	}
	return values["VmRSS"], values["VmHWM"], nil
}

// get fetches a page that must be answered with 200.
func get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", url, resp.Status)
	}
	return string(body), nil
}
