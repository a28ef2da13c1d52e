package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process names one process for good. A process id alone is reused; with the time it was
// started and the boot it belongs to, it is not, so nobody else's process is ever ended.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in clock ticks since boot
	Boot  string `json:"boot"`
}

func describeProcess(pid int) (*process, error) {
	_, start, err := procStat(pid)
	if err != nil {
		return nil, err
	}
	return &process{PID: pid, Start: start, Boot: bootID()}, nil
}

func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

func procStat(pid int) (state byte, start uint64, err error) {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, err
	}
	return parseStat(string(content))
}

// parseStat reads the state and the start time. The program's name may hold spaces and
// parentheses, so fields are counted from the last parenthesis.
func parseStat(stat string) (state byte, start uint64, err error) {
	end := strings.LastIndexByte(stat, ')')
	if end < 0 {
		return 0, 0, errors.New("no process name in stat")
	}
	fields := strings.Fields(stat[end+1:])
	if len(fields) < 20 {
		return 0, 0, errors.New("short stat")
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return fields[0][0], start, err
}

// alive tells whether this very process still runs. One that ended but was not waited
// for yet counts as ended.
func (p *process) alive() bool {
	if p == nil || p.Boot != bootID() {
		return false
	}
	state, start, err := procStat(p.PID)
	return err == nil && start == p.Start && state != 'Z' && state != 'X'
}

func (p *process) signal(s syscall.Signal) error {
	if !p.alive() {
		return nil
	}
	err := syscall.Kill(p.PID, s)
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// end asks the process to stop, insists after the grace, and waits until it is gone.
func (p *process) end(ctx context.Context, grace time.Duration) error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	if p.waitGone(ctx, grace) {
		return nil
	}
	return p.kill(ctx)
}

func (p *process) kill(ctx context.Context) error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	if !p.waitGone(ctx, 10*time.Second) {
		return fmt.Errorf("process %d does not end", p.PID)
	}
	return nil
}

func (p *process) waitGone(ctx context.Context, limit time.Duration) bool {
	for deadline := time.Now().Add(limit); p.alive(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) || ctx.Err() != nil {
			return false
		}
	}
	return true
}

// startComponent starts a server in a session of its own, so that it outlives this
// command and no signal of the terminal reaches it.
func (c *cluster) startComponent(comp *component) error {
	log, err := os.OpenFile(c.logFile(comp.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(comp.Argv[0], comp.Argv[1:]...)
	cmd.Dir = c.dir
	cmd.Env = append(append(os.Environ(), c.marker()), comp.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.inNode(cmd.Start); err != nil {
		return fmt.Errorf("starting %s: %w", comp.Name, err)
	}
	if comp.Process, err = describeProcess(cmd.Process.Pid); err != nil {
		return fmt.Errorf("%s ended at once; its log is %s: %w", comp.Name, c.logFile(comp.Name), err)
	}
	go func() { _ = cmd.Wait() }() // no zombies while this command still runs
	return c.save()
}

// inNode runs start, which must fork, with the calling thread inside the node's
// namespaces. Entering them by hand instead of through nsenter makes the server itself
// our child, so the process id that is written down is the one to signal.
func (c *cluster) inNode(start func() error) error {
	if c.Node == nil {
		return start()
	}
	if !c.Node.alive() {
		return errors.New("the node's namespaces are gone")
	}
	done := make(chan error)
	go func() {
		// Never unlocked: the thread cannot go back, so it ends with this goroutine.
		runtime.LockOSThread()
		done <- func() error {
			// A mount namespace cannot be entered by a thread that shares its working directory.
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return err
			}
			for _, ns := range []struct {
				file string
				kind int
			}{{"net", unix.CLONE_NEWNET}, {"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS}} {
				f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", c.Node.PID, ns.file))
				if err != nil {
					return err
				}
				err = unix.Setns(int(f.Fd()), ns.kind)
				f.Close()
				if err != nil {
					return fmt.Errorf("entering the node's %s namespace: %w", ns.file, err)
				}
			}
			return start()
		}()
	}()
	return <-done
}

// marker stands in the environment of all processes of a cluster.
func (c *cluster) marker() string { return "TASKWARDEN_OWNER=" + c.dir }

// killStray ends processes that bear the cluster's mark but are not written down: a run
// that was cut off between starting a server and saving its process id leaves one.
func (c *cluster) killStray(ctx context.Context) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		stray, err := describeProcess(pid)
		if err != nil {
			continue // it ended meanwhile
		}
		environ, err := os.ReadFile("/proc/" + entry.Name() + "/environ")
		if err != nil || !hasMarker(environ, c.marker()) {
			continue // it ended, or belongs to somebody else
		}
		if err := stray.kill(ctx); err != nil {
			return err
		}
	}
	return nil
}

func hasMarker(environ []byte, marker string) bool {
	return slices.Contains(strings.Split(string(environ), "\x00"), marker)
}
