package benchkit

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
	// ReadinessPoll is the resolution of the time to readiness.
	ReadinessPoll = 5 * time.Millisecond
	readyLimit    = 2 * time.Minute
)

// Process is one of the operator's roles, "controller" or "gateway", as a process of its own.
type Process struct {
	role           string
	cmd            *exec.Cmd
	began          time.Time
	metrics, ready string // addresses
	log            string
	exited         chan struct{}
	err            error // once exited is closed
}

// Build builds the operator's program into a folder.
func Build(ctx context.Context, folder string) (string, error) {
	Doing("building the operator")
	program, err := filepath.Abs(filepath.Join(folder, "taskwarden"))
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

// Start starts a role; it is not ready yet. args are added to its addresses, env to the environment.
func Start(program, role, kubeconfig, log string, args []string, env ...string) (*Process, error) {
	metrics, err := FreeAddress()
	if err != nil {
		return nil, err
	}
	probes, err := FreeAddress()
	if err != nil {
		return nil, err
	}
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close() // the process has it open, too
	p := &Process{
		role: role,
		cmd: exec.Command(program, append([]string{
			role, "--metrics-bind-address", metrics, "--health-probe-bind-address", probes,
		}, args...)...),
		metrics: "http://" + metrics + "/metrics", ready: "http://" + probes + "/readyz",
		log: log, exited: make(chan struct{}),
	}
	p.cmd.Env = append(append(os.Environ(), "KUBECONFIG="+kubeconfig), env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.began = time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// FreeAddress is one on the loopback that nobody listens on.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// PID is the id of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// WaitReady waits for the readiness and answers the time since the start.
func (p *Process) WaitReady(ctx context.Context) (time.Duration, error) {
	var last error
	err := wait.PollUntilContextTimeout(ctx, ReadinessPoll, readyLimit, true, func(ctx context.Context) (bool, error) {
		if !p.alive() {
			return false, p.ended()
		}
		_, last = get(ctx, p.ready)
		return last == nil, nil
	})
	if err != nil {
		return 0, errors.Join(fmt.Errorf("wait for the %s: %w", p.role, err), last)
	}
	return time.Since(p.began), nil
}

func (p *Process) alive() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Stop ends the process, politely first.
func (p *Process) Stop() error {
	if p == nil {
		return nil
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		done, err := p.end(s, 25*time.Second)
		if done || err != nil {
			return err
		}
	}
	return fmt.Errorf("the %s, process %d, does not end", p.role, p.PID())
}

// Kill ends the process as a machine that fails would.
func (p *Process) Kill() error {
	done, err := p.end(syscall.SIGKILL, 25*time.Second)
	if !done && err == nil {
		err = fmt.Errorf("the %s, process %d, cannot be killed", p.role, p.PID())
	}
	return err
}

// end sends a signal and waits for the end of the process.
func (p *Process) end(s syscall.Signal, limit time.Duration) (done bool, err error) {
	if !p.alive() {
		return true, nil
	}
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return false, err
	}
	select {
	case <-p.exited:
		return true, nil
	case <-time.After(limit):
		return false, nil
	}
}

// Metrics reads the metrics of the process.
func (p *Process) Metrics(ctx context.Context) (Metrics, error) {
	if !p.alive() {
		return nil, p.ended()
	}
	text, err := get(ctx, p.metrics)
	if err != nil {
		return nil, err
	}
	return ParseMetrics(text)
}

func (p *Process) ended() error {
	return fmt.Errorf("the %s has ended, see %s: %w", p.role, p.log, p.err)
}

// Metrics are values by series, as the page of metrics names it.
type Metrics map[string]float64

// ParseMetrics reads a page of metrics. The text format is simple enough to do without its library.
func ParseMetrics(text string) (Metrics, error) {
	m := Metrics{}
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		cut := strings.LastIndexByte(line, ' ')
		if cut < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		v, err := strconv.ParseFloat(line[cut+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("metric %s: %w", line[:cut], err)
		}
		m[line[:cut]] = v
	}
	return m, lines.Err()
}

// Sum adds up the series of one metric; it also tells whether there is any.
func (m Metrics) Sum(name string) (sum float64, found bool) {
	for series, v := range m {
		if metric, _, _ := strings.Cut(series, "{"); metric == name {
			sum, found = sum+v, true
		}
	}
	return sum, found
}

// Memory are the resident and the highest resident set of the process, in MiB.
func (p *Process) Memory() (now, peak float64, err error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
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
