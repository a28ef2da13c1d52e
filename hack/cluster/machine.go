package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// cniBinDir is where Debian puts the network plugins.
const cniBinDir = "/usr/lib/cni"

// tools are what a real node needs of the machine, by the Debian package that has them.
var tools = []struct{ path, pkg string }{
	{"containerd", "containerd"}, {"ctr", "containerd"}, {"containerd-shim-runc-v2", "containerd"},
	{"runc", "runc"},
	{cniBinDir + "/bridge", "containernetworking-plugins"}, {cniBinDir + "/host-local", "containernetworking-plugins"},
	{cniBinDir + "/portmap", "containernetworking-plugins"}, {cniBinDir + "/loopback", "containernetworking-plugins"},
	{"iptables", "iptables"}, {"nft", "nftables"}, {"ip", "iproute2"}, {"mount", "mount"},
}

// prepareMachine checks that a real node can run here, and installs Debian packages where
// they are missing. Everything that cannot be installed is told at once and before
// anything is changed.
func prepareMachine(ctx context.Context, p *progress, dir string) error {
	missingTools, packages := missingTools()
	var problems []string
	problem := func(format string, args ...any) { problems = append(problems, "  - "+fmt.Sprintf(format, args...)) }
	if os.Geteuid() != 0 {
		problem("root: the node needs namespaces, mounts and cgroups")
	}
	if _, err := exec.LookPath("apt-get"); err != nil && len(missingTools) > 0 {
		problem("the programs %s; there is no apt-get to install them with", strings.Join(missingTools, ", "))
	}
	filesystems, err := os.ReadFile("/proc/filesystems")
	if err != nil || !bytes.Contains(filesystems, []byte("\toverlay\n")) {
		problem("the file system overlay in the kernel")
	}
	if !unified() {
		for _, controller := range []string{"memory", "cpu", "pids", "freezer", "devices"} {
			if _, err := os.Stat(filepath.Join(cgroupRoot, controller, "cgroup.procs")); err != nil {
				problem("the cgroup controller %s under %s", controller, cgroupRoot)
			}
		}
	}
	for _, covered := range []string{"/run", "/var/run", "/var/lib", "/var/log"} {
		if strings.HasPrefix(dir, covered+"/") {
			problem("a cluster folder outside of %s, which the node covers with its own: set TASKWARDEN_CACHE", covered)
		}
	}
	if os.Geteuid() == 0 {
		if err := tryNamespaces(ctx); err != nil {
			problem("the permission to create namespaces (%v)", err)
		}
	}
	if len(problems) > 0 {
		return fmt.Errorf("--node kubelet cannot run here; missing:\n%s\nuse --node kwok or --node none instead, or kind where Docker runs",
			strings.Join(problems, "\n"))
	}
	if len(packages) == 0 {
		return nil
	}
	return installPackages(ctx, p, packages)
}

func missingTools() (missing, packages []string) {
	seen := map[string]bool{}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool.path); err == nil {
			continue
		}
		missing = append(missing, tool.path)
		if !seen[tool.pkg] {
			seen[tool.pkg] = true
			packages = append(packages, tool.pkg)
		}
	}
	return missing, packages
}

// tryNamespaces creates the kinds of namespaces that the node needs and drops them again.
func tryNamespaces(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "true")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNET, Unshareflags: syscall.CLONE_NEWNS,
	}
	return cmd.Run()
}

// installPackages installs without letting packages start services: containerd's would
// run a daemon that nobody asked for.
func installPackages(ctx context.Context, p *progress, packages []string) error {
	p.say("installing Debian packages: %s", strings.Join(packages, " "))
	release, err := forbidServices()
	if err != nil {
		return err
	}
	defer release()
	for _, args := range [][]string{
		{"update", "-q"},
		append([]string{"install", "-q", "-y", "--no-install-recommends"}, packages...),
	} {
		step := "apt-get " + args[0]
		stop := p.heartbeat(func() string { return "still running: " + step })
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		out, err := cmd.CombinedOutput()
		stop()
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", step, err, out)
		}
		p.say("%s: done", step)
	}
	if missing, _ := missingTools(); len(missing) > 0 {
		return fmt.Errorf("still missing after the installation: %s", strings.Join(missing, ", "))
	}
	return nil
}

// forbidServices uses Debian's own switch for that, unless the machine already has one.
func forbidServices() (release func(), err error) {
	const policy = "/usr/sbin/policy-rc.d"
	f, err := os.OpenFile(policy, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	_, err = f.WriteString("#!/bin/sh\nexit 101\n")
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return func() { _ = os.Remove(policy) }, nil
}
