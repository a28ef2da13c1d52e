package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// kubernetesVersion is the release of the modules that kube/go.mod pins. It is also
// linked into the programs, because clients refuse to parse the unset default.
const kubernetesVersion = "v1.37.2"

// kubePrograms are the names the linked program answers to.
var kubePrograms = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"}

// program is one binary in the cache: how it is built, and what its key is made of.
type program struct {
	name    string
	module  string // folder under hack/cluster with the go.mod that pins it
	pkg     string
	ldflags string
	links   []string
}

func programs() []program {
	var x strings.Builder
	parts := strings.Split(strings.TrimPrefix(kubernetesVersion, "v"), ".")
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		fmt.Fprintf(&x, " -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=%[3]s -X %[1]s.gitMinor=%[4]s -X %[1]s.gitTreeState=clean",
			pkg, kubernetesVersion, parts[0], parts[1])
	}
	return []program{
		{name: "pause", module: "pause", pkg: "."},
		{name: "etcd", module: "etcd", pkg: "go.etcd.io/etcd/server/v3"},
		{name: "kube", module: "kube", pkg: ".", ldflags: x.String(), links: kubePrograms},
		{name: "kwok", module: "kwok", pkg: "sigs.k8s.io/kwok/cmd/kwok"},
	}
}

// binaries finds programs in the cache.
type binaries struct{ dir string }

func (b binaries) path(name string) string { return filepath.Join(b.dir, name) }

func newBuildCommand() *cobra.Command {
	var with []string
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build the Kubernetes programs that are missing in the cache",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, w := range with {
				if w != "kwok" {
					return fmt.Errorf("--with %s: only kwok can be added", w)
				}
			}
			bin, err := ensureBuilt(cmd.Context(), newProgress(), slices.Contains(with, "kwok"))
			if err != nil {
				return err
			}
			fmt.Println(bin.dir)
			return nil
		},
	}
	cmd.Flags().StringSliceVar(&with, "with", nil, "also build these optional programs (kwok)")
	return cmd
}

// ensureBuilt builds what is missing and answers where the programs are. Two callers at
// once are serialized: a second build would only take half of the machine from the first.
func ensureBuilt(ctx context.Context, p *progress, withKwok bool) (binaries, error) {
	source, err := sourceDir()
	if err != nil {
		return binaries{}, err
	}
	cache, err := cacheDir()
	if err != nil {
		return binaries{}, err
	}
	kubeKey, err := programKey(source, programs()[2])
	if err != nil {
		return binaries{}, err
	}
	bin := binaries{dir: filepath.Join(cache, "bin", kubernetesVersion+"-"+kubeKey)}
	if err := os.MkdirAll(bin.dir, 0o755); err != nil {
		return binaries{}, err
	}
	var missing []program
	for _, prog := range programs() {
		if prog.name == "kwok" && !withKwok {
			continue
		}
		built, err := isBuilt(source, bin, prog)
		if err != nil {
			return binaries{}, err
		}
		if !built {
			missing = append(missing, prog)
		}
	}
	if len(missing) == 0 {
		return bin, nil // without waiting for somebody else's build of something else
	}
	unlock, err := lockFile(ctx, p, filepath.Join(cache, "build.lock"), "another build")
	if err != nil {
		return binaries{}, err
	}
	defer unlock()
	for _, prog := range missing {
		if err := buildProgram(ctx, p, source, bin, prog); err != nil {
			return binaries{}, fmt.Errorf("building %s: %w", prog.name, err)
		}
	}
	return bin, nil
}

func (b binaries) stamp(prog program) string { return b.path("." + prog.name + ".key") }

// isBuilt tells whether the cache has the program as today's sources would make it.
func isBuilt(source string, bin binaries, prog program) (bool, error) {
	key, err := programKey(source, prog)
	if err != nil {
		return false, err
	}
	old, err := os.ReadFile(bin.stamp(prog))
	if err != nil || string(old) != key {
		return false, nil //nolint:nilerr // not readable means not built
	}
	_, err = os.Stat(bin.path(prog.name))
	return err == nil, nil
}

// buildFlags leave debug information out at the compiler already: that makes the cold
// build a seventh faster than stripping it at the end, and nobody debugs these binaries.
var buildFlags = []string{"-buildvcs=false", "-trimpath", "-gcflags=all=-dwarf=false"}

// programKey is a digest of everything that decides the binary's content.
func programKey(source string, prog program) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, runtime.GOOS, runtime.GOARCH, runtime.Version(), prog.pkg, prog.ldflags, buildFlags)
	files, err := filepath.Glob(filepath.Join(source, prog.module, "*"))
	if err != nil {
		return "", err
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", filepath.Base(file), len(content))
		h.Write(content)
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

func buildProgram(ctx context.Context, p *progress, source string, bin binaries, prog program) error {
	// Once more, because it may have been built while we waited for the lock.
	if built, err := isBuilt(source, bin, prog); built || err != nil {
		return err
	}
	key, err := programKey(source, prog)
	if err != nil {
		return err
	}
	started := time.Now()
	p.say("building %s (once per version; later runs find it in the cache)", prog.name)
	if err := goBuild(ctx, p, filepath.Join(source, prog.module), bin.path(prog.name), prog); err != nil {
		return err
	}
	for _, link := range prog.links {
		_ = os.Remove(bin.path(link))
		if err := os.Symlink(prog.name, bin.path(link)); err != nil {
			return err
		}
	}
	p.say("built %s in %s", prog.name, time.Since(started).Round(time.Second))
	return os.WriteFile(bin.stamp(prog), []byte(key), 0o644)
}

// goBuild compiles into a temporary name first: a cluster may be running the old binary,
// and a build that was cut off must not look like a finished one.
func goBuild(ctx context.Context, p *progress, dir, out string, prog program) error {
	env := append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		// The compiler spends a sixth of its time collecting garbage that its end frees
		// anyway. The limit keeps the linker, which holds much more, on a small machine.
		env = append(env, "GOGC=400", "GOMEMLIMIT=2GiB")
	}
	total := 0
	list := exec.CommandContext(ctx, "go", "list", "-deps", prog.pkg)
	list.Dir, list.Env = dir, env
	if listed, err := list.Output(); err == nil {
		total = bytes.Count(listed, []byte("\n"))
	}
	tmp := out + ".tmp"
	args := append([]string{"build", "-v"}, buildFlags...)
	args = append(args, "-ldflags=-s -w"+prog.ldflags, "-o", tmp, prog.pkg)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = dir, env
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var done atomic.Int64
	stop := p.heartbeat(func() string {
		return fmt.Sprintf("building %s: %d packages compiled of %d less the cached ones", prog.name, done.Load(), total)
	})
	tail := countPackages(stderr, &done)
	err = cmd.Wait()
	stop()
	if err != nil {
		return errors.Join(err, errors.New(tail))
	}
	return os.Rename(tmp, out)
}

// countPackages reads what `go build -v` prints, one import path a line, and keeps the
// last lines for the error message, should there be one.
func countPackages(r io.Reader, done *atomic.Int64) string {
	var tail []string
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		done.Add(1)
		tail = append(tail, lines.Text())
		if len(tail) > 30 {
			tail = tail[1:]
		}
	}
	return strings.Join(tail, "\n")
}
