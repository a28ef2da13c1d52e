//go:build cluster

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// These tests start real clusters. Run them with: go test -tags cluster -timeout 30m .

const (
	testImage = "taskwarden.dev/hack-test:dev"
	pollEvery = 200 * time.Millisecond
)

// kubectl runs against one cluster and returns its output.
func kubectl(t *testing.T, c *cluster, stdin string, args ...string) string {
	t.Helper()
	out, err := tryKubectl(t.Context(), c, stdin, args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func tryKubectl(ctx context.Context, c *cluster, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.bin().path("kubectl"), append([]string{"--kubeconfig", c.kubeconfig()}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func startCluster(t *testing.T, o upOptions) *cluster {
	t.Helper()
	p := newProgress()
	started := time.Now()
	c, err := up(t.Context(), p, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s up in %s", o.name, time.Since(started).Round(100*time.Millisecond))
	t.Cleanup(func() {
		if err := c.remove(context.Background(), p, false); err != nil {
			t.Error(err)
		}
		_ = os.Remove(c.dir + ".lock")
	})
	return c
}

// eventually polls until a kubectl jsonpath has the wanted value.
func eventually(t *testing.T, c *cluster, limit time.Duration, want, object, jsonpath string) {
	t.Helper()
	var got string
	started := time.Now()
	for time.Since(started) < limit {
		got = strings.TrimSpace(kubectl(t, c, "", "get", object, "--ignore-not-found", "-o", "jsonpath="+jsonpath))
		if got == want {
			t.Logf("%s %s = %s after %s", object, jsonpath, want, time.Since(started).Round(100*time.Millisecond))
			return
		}
		<-time.After(pollEvery)
	}
	t.Fatalf("%s %s = %q, want %q within %s\n%s", object, jsonpath, got, want, limit, kubectl(t, c, "", "describe", object))
}

type podSpec map[string]any

func container(name string, args ...string) podSpec {
	return podSpec{"name": name, "image": testImage, "imagePullPolicy": "IfNotPresent", "args": args}
}

func create(t *testing.T, c *cluster, kind, name string, spec any) {
	t.Helper()
	apiVersion := map[string]string{"Pod": "v1", "Job": "batch/v1"}[kind]
	object, err := json.Marshal(map[string]any{
		"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
	})
	if err != nil {
		t.Fatal(err)
	}
	kubectl(t, c, string(object), "create", "-f", "-")
}

func pod(containers ...podSpec) podSpec {
	return podSpec{"restartPolicy": "Never", "containers": containers}
}

func TestRealNode(t *testing.T) {
	before := machineState(t, "hack-test")
	c := startCluster(t, upOptions{name: "hack-test", mode: modeKubelet})
	loadTestImage(t, c)

	// Not parallel subtests: on two cores they would only wait for each other.
	t.Run("job succeeds with message and logs", func(t *testing.T) {
		create(t, c, "Job", "hello", map[string]any{"template": map[string]any{"spec": pod(container("main", "hello"))}})
		eventually(t, c, 60*time.Second, "1", "job/hello", "{.status.succeeded}")
		if got := kubectl(t, c, "", "get", "pod", "-l", "job-name=hello",
			"-o", "jsonpath={.items[0].status.containerStatuses[0].state.terminated.message}"); got != "all done" {
			t.Errorf("termination message %q", got)
		}
		if got := kubectl(t, c, "", "logs", "job/hello"); !strings.Contains(got, "hello from the container") {
			t.Errorf("logs %q", got)
		}
	})
	t.Run("service address reaches the API server", func(t *testing.T) {
		create(t, c, "Pod", "dial", pod(container("main", "dial", slotNetwork(c.Slot).apiService().String()+":443")))
		eventually(t, c, 60*time.Second, "connected", "pod/dial", "{.status.containerStatuses[0].state.terminated.message}")
	})
	t.Run("native sidecar ends after the worker", func(t *testing.T) {
		sidecar := container("sidecar", "sidecar")
		sidecar["restartPolicy"] = "Always"
		spec := pod(container("main", "hello"))
		spec["initContainers"] = []podSpec{sidecar}
		create(t, c, "Pod", "sidecar", spec)
		eventually(t, c, 60*time.Second, "Succeeded", "pod/sidecar", "{.status.phase}")
		eventually(t, c, time.Second, "sidecar finished after the worker", "pod/sidecar",
			"{.status.initContainerStatuses[0].state.terminated.message}")
	})
	t.Run("memory limit kills", func(t *testing.T) {
		hog := container("main", "hog")
		hog["resources"] = map[string]any{"limits": map[string]string{"memory": "32Mi"}}
		create(t, c, "Pod", "hog", pod(hog))
		eventually(t, c, 60*time.Second, "OOMKilled 137", "pod/hog",
			"{.status.containerStatuses[0].state.terminated.reason} {.status.containerStatuses[0].state.terminated.exitCode}")
	})
	t.Run("unknown image fails fast", func(t *testing.T) {
		unknown := container("main")
		unknown["image"] = "taskwarden.dev/no-such-image:v1"
		create(t, c, "Pod", "unknown", pod(unknown))
		eventually(t, c, 20*time.Second, "ErrImagePull", "pod/unknown", "{.status.containerStatuses[0].state.waiting.reason}")
	})
	t.Run("deadline of a second stops a pod and keeps its logs", func(t *testing.T) {
		create(t, c, "Pod", "stopped", pod(container("main", "wait")))
		eventually(t, c, 60*time.Second, "Running", "pod/stopped", "{.status.phase}")
		kubectl(t, c, "", "patch", "pod", "stopped", "-p", `{"spec":{"activeDeadlineSeconds":1}}`)
		eventually(t, c, 30*time.Second, "Failed DeadlineExceeded", "pod/stopped", "{.status.phase} {.status.reason}")
		eventually(t, c, 5*time.Second, "143", "pod/stopped", "{.status.containerStatuses[0].state.terminated.exitCode}")
		if got := kubectl(t, c, "", "logs", "stopped"); !strings.Contains(got, "told to stop") {
			t.Errorf("logs %q", got)
		}
	})
	t.Run("admission and quota", func(t *testing.T) {
		kubectl(t, c, "", "create", "namespace", "strict")
		kubectl(t, c, "", "label", "namespace", "strict", "pod-security.kubernetes.io/enforce=restricted")
		object := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":%q}]}}`, testImage)
		if out, err := tryKubectl(t.Context(), c, object, "-n", "strict", "create", "-f", "-"); err == nil || !strings.Contains(out, "violates PodSecurity") {
			t.Errorf("PodSecurity: %v %s", err, out)
		}
		kubectl(t, c, "", "create", "namespace", "full")
		kubectl(t, c, "", "-n", "full", "create", "quota", "none", "--hard=pods=0")
		eventuallyIn(t, c, "full")
		if out, err := tryKubectl(t.Context(), c, object, "-n", "full", "create", "-f", "-"); err == nil || !strings.Contains(out, "exceeded quota") {
			t.Errorf("ResourceQuota: %v %s", err, out)
		}
	})
	t.Run("audit log has the job's creation in full", func(t *testing.T) {
		content, err := os.ReadFile(c.auditLog())
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for line := range bytes.Lines(content) {
			var event struct {
				Verb, Level, Stage string
				ObjectRef          struct{ Resource, Name string }
				RequestObject      json.RawMessage
			}
			if err := json.Unmarshal(line, &event); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			if event.Stage != "ResponseComplete" && event.Stage != "Panic" {
				t.Errorf("stage %s is in the log", event.Stage)
			}
			if event.Verb == "create" && event.ObjectRef.Resource == "jobs" && event.ObjectRef.Name == "hello" && len(event.RequestObject) > 0 {
				found = true
			}
		}
		if !found {
			t.Error("not found")
		}
	})
	t.Run("components stop and start", func(t *testing.T) {
		for _, name := range []string{"kubelet", "kube-apiserver", "etcd"} {
			for _, args := range [][]string{{"stop", "--name", c.Name, name}, {"start", "--name", c.Name, name}} {
				cmd := newRootCommand()
				cmd.SetArgs(args)
				if err := cmd.ExecuteContext(t.Context()); err != nil {
					t.Fatal(args, err)
				}
			}
		}
		var err error
		if c, err = loadCluster(c.Name); err != nil {
			t.Fatal(err)
		}
		a, err := c.api()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.waitReady(t.Context(), newProgress(), a); err != nil {
			t.Fatal(err)
		}
	})
	if err := c.remove(t.Context(), newProgress(), false); err != nil {
		t.Fatal(err)
	}
	after := machineState(t, "hack-test")
	for _, line := range after {
		if !slices.Contains(before, line) {
			t.Errorf("left on the machine: %s", line)
		}
	}
	for _, line := range before {
		if !slices.Contains(after, line) {
			t.Errorf("gone from the machine: %s", line)
		}
	}
}

// Two nodes run side by side, and ending one leaves the other alone.
func TestSideBySide(t *testing.T) {
	a := startCluster(t, upOptions{name: "hack-test-a", mode: modeKubelet})
	b := startCluster(t, upOptions{name: "hack-test-b", mode: modeKubelet})
	for _, c := range []*cluster{a, b} {
		loadTestImage(t, c)
		create(t, c, "Pod", "dial", pod(container("main", "dial", slotNetwork(c.Slot).apiService().String()+":443")))
	}
	for _, c := range []*cluster{a, b} {
		eventually(t, c, 60*time.Second, "connected", "pod/dial", "{.status.containerStatuses[0].state.terminated.message}")
	}
	if err := a.remove(t.Context(), newProgress(), false); err != nil {
		t.Fatal(err)
	}
	create(t, b, "Pod", "still", pod(container("main", "hello")))
	eventually(t, b, 60*time.Second, "Succeeded", "pod/still", "{.status.phase}")
}

func TestSimulatedNodes(t *testing.T) {
	c := startCluster(t, upOptions{name: "hack-test-kwok", mode: modeKwok, nodes: 3})
	create(t, c, "Job", "hello", map[string]any{"template": map[string]any{"spec": pod(container("main", "hello"))}})
	eventually(t, c, 30*time.Second, "1", "job/hello", "{.status.succeeded}")
	create(t, c, "Job", "many", map[string]any{
		"parallelism": 100, "completions": 100, "template": map[string]any{"spec": pod(container("main", "hello"))},
	})
	eventually(t, c, 90*time.Second, "100", "job/many", "{.status.succeeded}")

	annotated := func(name string, annotations map[string]string) {
		object, err := json.Marshal(map[string]any{
			"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name, "annotations": annotations},
			"spec": pod(container("main")),
		})
		if err != nil {
			t.Fatal(err)
		}
		kubectl(t, c, string(object), "create", "-f", "-")
	}
	annotated("fails", map[string]string{"sim.taskwarden.dev/exit-code": "3", "sim.taskwarden.dev/message": "no luck"})
	eventually(t, c, 30*time.Second, "Failed 3 no luck", "pod/fails",
		"{.status.phase} {.status.containerStatuses[0].state.terminated.exitCode} {.status.containerStatuses[0].state.terminated.message}")
	annotated("long", map[string]string{"sim.taskwarden.dev/run-for": "10m"})
	eventually(t, c, 30*time.Second, "Running", "pod/long", "{.status.phase}")
	kubectl(t, c, "", "patch", "pod", "long", "-p", `{"spec":{"activeDeadlineSeconds":1}}`)
	eventually(t, c, 30*time.Second, "Failed DeadlineExceeded", "pod/long", "{.status.phase} {.status.reason}")
	annotated("deleted", map[string]string{"sim.taskwarden.dev/run-for": "10m"})
	eventually(t, c, 30*time.Second, "Running", "pod/deleted", "{.status.phase}")
	kubectl(t, c, "", "delete", "pod", "deleted", "--timeout=30s")
}

// Without a node a test plays the kubelet: a pod stays as it was written.
func TestNoNode(t *testing.T) {
	c := startCluster(t, upOptions{name: "hack-test-none", mode: modeNone})
	create(t, c, "Job", "hello", map[string]any{"template": map[string]any{"spec": pod(container("main", "hello"))}})
	eventually(t, c, 30*time.Second, "1", "job/hello", "{.status.active}")
	name := kubectl(t, c, "", "get", "pod", "-l", "job-name=hello", "-o", "jsonpath={.items[0].metadata.name}")
	kubectl(t, c, "", "patch", "pod", name, "--subresource=status", "-p", `{"status":{"phase":"Succeeded"}}`)
	eventually(t, c, 30*time.Second, "1", "job/hello", "{.status.succeeded}")
}

func eventuallyIn(t *testing.T, c *cluster, namespace string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); <-time.After(pollEvery) {
		_, err := tryKubectl(t.Context(), c, "", "-n", namespace, "get", "serviceaccount", "default")
		used := kubectl(t, c, "", "-n", namespace, "get", "quota", "none", "-o", "jsonpath={.status.hard.pods}")
		if err == nil && used == "0" {
			return
		}
	}
	t.Fatalf("namespace %s does not become ready", namespace)
}

func loadTestImage(t *testing.T, c *cluster) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "test.tar")
	if err := buildImage(t.Context(), newProgress(), imageOptions{packages: []string{"./testimage"}, dir: ".", tag: testImage, out: file}); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := c.importImage(t.Context(), f); err != nil {
		t.Fatal(err)
	}
}

// machineState is everything a node could leave behind outside of its folder. Other
// clusters may run meanwhile, so what is theirs by its name does not count.
func machineState(t *testing.T, name string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", `
cut -d' ' -f2,3 /proc/mounts
ip -o link | cut -d: -f2 | grep -v twc
nft list tables 2>/dev/null
find /run /var/lib /var/log -maxdepth 1
find /sys/fs/cgroup -type d -path "*taskwarden-$1-[0-9]*"
grep -l "taskwarden-$1-[0-9]" /proc/[0-9]*/cgroup 2>/dev/null
pgrep -af "clusters/$1/|--cluster $1\$" | grep -v pgrep
true`, "sh", name).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	lines := strings.Split(string(out), "\n")
	slices.Sort(lines)
	return lines
}
