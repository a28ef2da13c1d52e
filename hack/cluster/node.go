package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A cluster with a real node gets namespaces of its own for processes, mounts and
// network, so that it sits in the machine like a virtual one. Ending process 1 in there
// ends every server, shim and container, and with the last of them the kernel drops the
// mounts, interfaces, firewall tables and pod namespaces. Outside remain one interface,
// which goes with its peer, and cgroups, which removeCgroups deletes. It also lets several
// clusters run kube-proxy, whose table name is fixed.

// startNode creates the namespaces and furnishes them.
func (c *cluster) startNode(ctx context.Context, p *progress) error {
	log, err := os.Create(c.logFile("node"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(c.bin().path("pause"), "--cluster", c.Name)
	cmd.Env = append(os.Environ(), c.marker())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:       true,
		Cloneflags:   syscall.CLONE_NEWPID | syscall.CLONE_NEWNET,
		Unshareflags: syscall.CLONE_NEWNS, // also makes all mounts private, so ours stay inside
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("creating the node's namespaces: %w", err)
	}
	if c.Node, err = describeProcess(cmd.Process.Pid); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }()
	if err := c.save(); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{c.mountNode, c.connectNode} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	p.say("the node's namespaces: ready")
	return nil
}

// nodeCommand prepares a command that run executes inside the node.
func (c *cluster) nodeCommand(ctx context.Context, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), c.marker())
	return cmd
}

// runInNode runs a short command inside the node's namespaces.
func (c *cluster) runInNode(cmd *exec.Cmd) error {
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err := c.inNode(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(out.String()))
	}
	return nil
}

// mountNode covers the folders that container software writes to by fixed names.
func (c *cluster) mountNode(ctx context.Context) error {
	for _, sub := range []string{"kubelet", "containerd"} {
		if err := os.MkdirAll(c.path(sub), 0o755); err != nil {
			return err
		}
	}
	script := `
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /var/log
mount -t tmpfs -o mode=755 tmpfs /var/lib
mkdir /run/netns /run/lock /var/lib/kubelet /var/lib/containerd
mount --bind "$1/kubelet" /var/lib/kubelet
mount --bind "$1/containerd" /var/lib/containerd
`
	return c.runInNode(c.nodeCommand(ctx, "sh", "-euc", script, "sh", c.dir))
}

// connectNode joins node and machine by a pair of interfaces. The machine gets routes to
// pods and Services, so that a test can reach them; the node gets no way out, so that an
// unknown image fails at once and nothing depends on a network.
func (c *cluster) connectNode(ctx context.Context) error {
	n := slotNetwork(c.Slot)
	host := fmt.Sprintf(`
ip link add %[1]s type veth peer name eth0 netns %[2]d
ip addr add %[3]s/%[4]d dev %[1]s
ip link set %[1]s up
ip route add %[5]s via %[6]s onlink dev %[1]s
ip route add %[7]s via %[6]s onlink dev %[1]s
`, n.hostLink, c.Node.PID, n.host, n.linkBits, n.pods, n.node, n.services)
	node := fmt.Sprintf(`
ip link set lo up
ip addr add %[1]s/%[2]d dev eth0
ip link set eth0 up
ip route add %[3]s dev eth0
echo 1 > /proc/sys/net/ipv4/ip_forward
`, n.node, n.linkBits, n.services)
	// The node's end comes up in between, because a route needs its link to be up.
	if err := c.runInNode(c.nodeCommand(ctx, "sh", "-euc", "ip link set lo up")); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "sh", "-euc", host).CombinedOutput(); err != nil {
		return fmt.Errorf("connecting the node: %w: %s", err, out)
	}
	return c.runInNode(c.nodeCommand(ctx, "sh", "-euc", node))
}

// cgroup is the parent of the cgroups of all containers; runc makes it when needed. The
// slot makes the name unique on the machine.
func (c *cluster) cgroup() string { return fmt.Sprintf("/taskwarden-%s-%d", c.Name, c.Slot) }

const cgroupRoot = "/sys/fs/cgroup"

// cgroupDirs lists the cluster's cgroup in each hierarchy: one on cgroup v2, one for each
// controller on v1.
func (c *cluster) cgroupDirs() ([]string, error) {
	if unified() {
		return []string{filepath.Join(cgroupRoot, c.cgroup())}, nil
	}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, entry := range entries {
		dir := filepath.Join(cgroupRoot, entry.Name())
		// Links such as cpuacct -> cpu,cpuacct name a hierarchy a second time.
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil && entry.Type()&fs.ModeSymlink == 0 {
			dirs = append(dirs, filepath.Join(dir, c.cgroup()))
		}
	}
	return dirs, nil
}

func unified() bool {
	var st unix.Statfs_t
	return unix.Statfs(cgroupRoot, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// removeCgroups deletes the tree from the leaves. Just-killed processes leave their
// cgroups with a delay, hence the patience.
func (c *cluster) removeCgroups(ctx context.Context) error {
	if c.Mode != modeKubelet {
		return nil
	}
	dirs, err := c.cgroupDirs()
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		var last error
		for _, dir := range dirs {
			last = errors.Join(last, removeCgroupTree(dir))
		}
		if last == nil || time.Now().After(deadline) || ctx.Err() != nil {
			return last
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func removeCgroupTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeCgroupTree(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	// rmdir, not RemoveAll: the files in a cgroup cannot be unlinked and need not be.
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing cgroup %s: %w", dir, err)
	}
	return nil
}
