package api

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/builders"
	"github.com/taskwarden/taskwarden/test/testenv"
)

// deadLetters runs the commands of the guide with the real kubectl.
type deadLetters struct {
	t   *testing.T
	env *testenv.Env
	bin string // first in the path
}

func newDeadLetters(t *testing.T, env *testenv.Env) *deadLetters {
	t.Helper()
	kubectl, err := exec.LookPath(cmp.Or(os.Getenv("CLUSTER_KUBECTL"), "kubectl"))
	if err != nil {
		t.Fatalf("%v; hack/with-cluster.sh brings one", err)
	}
	d := &deadLetters{t: t, env: env, bin: t.TempDir()}
	// Somebody else changes Task oom-3 after it was listed and before it is patched.
	wrapper := fmt.Sprintf("#!/bin/sh\nkubectl() { %q --kubeconfig %q --namespace %s \"$@\"; }\n"+
		"[ \"$1 $3\" != 'patch oom-3' ] || kubectl label task.taskwarden.dev/oom-3 looked-at-by=somebody >&2\nkubectl \"$@\"\n",
		kubectl, os.Getenv("TASKWARDEN_TEST_KUBECONFIG"), env.Namespace)
	if err := os.WriteFile(filepath.Join(d.bin, "kubectl"), []byte(wrapper), 0o700); err != nil {
		t.Fatal(err)
	}
	return d
}

// run runs a block of the guide, with the values of this test in place of those of the example.
func (d *deadLetters) run(block string, values ...string) string {
	d.t.Helper()
	guide, err := os.ReadFile("../../docs/guide.md")
	if err != nil {
		d.t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)<!-- " + block + " -->\n```sh\n(.*?)```").FindSubmatch(guide)
	if found == nil {
		d.t.Fatalf("the guide has no block %s", block)
	}
	script := string(found[1])
	for i := 0; i < len(values); i += 2 {
		if !strings.Contains(script, values[i]) {
			d.t.Fatalf("%q is not in\n%s", values[i], script)
		}
		script = strings.ReplaceAll(script, values[i], values[i+1])
	}
	cmd := exec.CommandContext(d.t.Context(), "sh", "-c", script)
	cmd.Env = append(os.Environ(), "PATH="+d.bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	d.t.Logf("%s\n%s", script, out)
	if err != nil && block != "retry-all" { // whose last line may be a refusal
		d.t.Fatalf("%s: %v", block, err)
	}
	return string(out)
}

// names are the Tasks in the output of kubectl get.
func names(out string) []string {
	var found []string
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] != "NAME" {
			found = append(found, fields[0])
		}
	}
	slices.Sort(found)
	return found
}

// versions are the resourceVersions of all Tasks.
func (d *deadLetters) versions() map[string]string {
	d.t.Helper()
	var all v1alpha1.TaskList
	if err := d.env.Client.List(d.t.Context(), &all, client.InNamespace(d.env.Namespace)); err != nil {
		d.t.Fatal(err)
	}
	found := map[string]string{}
	for i := range all.Items {
		found[all.Items[i].Name] = all.Items[i].ResourceVersion
	}
	return found
}

// TestDeadLetters lists what has failed by its cause, and retries one, and all of a cause, as the guide says: nothing else moves.
func TestDeadLetters(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	oom := testenv.Behaviour{Exit: testenv.Exit{Code: 137, Reason: v1alpha1.ReasonOOMKilled}}
	env.Kubelet.Auto(func(p *corev1.Pod) testenv.Behaviour {
		kind, _, _ := strings.Cut(p.Labels[v1alpha1.LabelTask], "-")
		switch {
		case kind == "good", p.Labels[v1alpha1.LabelAttempt] != "1" && kind != "waits":
			return testenv.Behaviour{}
		case kind == "oom", kind == "waits":
			return oom
		case kind == "deadline", kind == "cancelled":
			return testenv.UntilStopped
		}
		return failing("boom")
	})
	causes := map[string]string{
		"oom": v1alpha1.ReasonOOMKilled, "exit": v1alpha1.ReasonNonZeroExitCode, "rule": v1alpha1.ReasonNonZeroExitCode,
		"deadline": v1alpha1.ReasonActiveDeadlineExceeded,
	}
	why := map[string]string{"rule": v1alpha1.ReasonRetryRuleFail}
	byCause, tasks := map[string][]string{}, map[string]*v1alpha1.Task{}
	for kind, many := range map[string]int{"oom": 4, "exit": 2, "rule": 1, "deadline": 1, "good": 1, "waits": 1, "cancelled": 1} {
		for i := range many {
			name := fmt.Sprintf("%s-%d", kind, i+1)
			b := builders.Task(name).Retry(0)
			switch kind {
			case "rule":
				b = b.Retry(5).OnExit(v1alpha1.ActionFail, 1)
			case "deadline":
				b = b.ActiveDeadline(time.Second)
			case "waits": // it has the cause of others, but is not dead
				b = b.Retry(1).Backoff(time.Hour, time.Hour, "1")
			}
			tasks[name] = env.Create(b.Obj())
			if cause := causes[kind]; cause != "" {
				byCause[cause] = append(byCause[cause], name)
			}
		}
	}
	for name, task := range tasks {
		kind, _, _ := strings.Cut(name, "-")
		switch kind {
		case "good":
			env.WaitState(task, v1alpha1.StateSucceeded)
		case "waits":
			env.WaitState(task, v1alpha1.StateRetrying)
		case "cancelled":
			env.WaitState(task, v1alpha1.StateProcessing)
			env.Cancel(task)
			env.WaitState(task, v1alpha1.StateCancelled)
		default:
			done := env.WaitState(task, v1alpha1.StateFailed)
			wantReason(t, done, causes[kind])
			if c := condition(done, v1alpha1.ConditionDeadLettered); c.Status != metav1.ConditionTrue || c.Reason != cmp.Or(why[kind], v1alpha1.ReasonRetryLimitReached) {
				t.Errorf("Task %s: condition DeadLettered is %+v", name, c)
			}
			continue
		}
		if c := condition(env.Get(task), v1alpha1.ConditionDeadLettered); c.Type != "" {
			t.Errorf("Task %s is no dead letter: %+v", name, c)
		}
	}
	d := newDeadLetters(t, env)
	for cause, want := range byCause {
		slices.Sort(want)
		if got := names(d.run("list-by-cause", "OOMKilled", cause)); !slices.Equal(got, want) {
			t.Errorf("%s: listed are %v, wanted are %v", cause, got, want)
		}
	}
	var counted []string
	for cause, failed := range byCause {
		counted = append(counted, fmt.Sprintf("%d %s", len(failed), cause))
	}
	slices.Sort(counted)
	var got []string
	for line := range strings.Lines(d.run("count-causes")) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	slices.Sort(got)
	if !slices.Equal(got, counted) {
		t.Errorf("counted are %v, wanted are %v", got, counted)
	}

	env.Quiet(500 * time.Millisecond)
	before := d.versions()
	moved := func(names ...string) {
		t.Helper()
		env.Quiet(500 * time.Millisecond)
		after := d.versions()
		for _, name := range slices.Sorted(maps.Keys(tasks)) {
			if changed := before[name] != after[name]; changed != slices.Contains(names, name) {
				t.Errorf("Task %s changed: %v", name, changed)
			}
		}
		before = after
	}
	d.run("retry-one", "my-task", "exit-2")
	wantAttempts(t, env.WaitState(tasks["exit-2"], v1alpha1.StateSucceeded), v1alpha1.ReasonNonZeroExitCode, v1alpha1.ReasonCompleted)
	moved("exit-2")

	out := d.run("retry-all")
	retried := []string{"oom-1", "oom-2", "oom-4"}
	for _, name := range retried {
		done := env.WaitState(tasks[name], v1alpha1.StateSucceeded)
		wantAttempts(t, done, v1alpha1.ReasonOOMKilled, v1alpha1.ReasonCompleted)
		if c := condition(done, v1alpha1.ConditionDeadLettered); c.Type != "" {
			t.Errorf("Task %s is no dead letter any more: %+v", name, c)
		}
	}
	moved(append(retried, "oom-3")...) // which somebody has labelled
	if now := env.Get(tasks["oom-3"]); now.Status.State != v1alpha1.StateFailed || now.Status.LastHandledRetry != nil {
		t.Errorf("a Task that has changed meanwhile is %s, its request was answered with %+v", now.Status.State, now.Status.LastHandledRetry)
	}
	if !strings.Contains(out, "the object has been modified") {
		t.Errorf("nobody is told of the Task that has changed:\n%s", out)
	}
	if got := names(d.run("list-by-cause")); !slices.Equal(got, []string{"oom-3"}) {
		t.Errorf("left are %v", got)
	}
}
