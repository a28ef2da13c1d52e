package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/invariants"
)

const (
	// chaosEnv repeats a run: it has the seed.
	chaosEnv = "TASKWARDEN_E2E_SEED"
	// chaosKills and chaosTasks bound the run.
	chaosKills, chaosTasks = 14, 6
)

// TestKillAtRandom kills sidecars, workers, the gateway, the operator and the API server at random moments while workers report.
// Whatever happens, each Task comes to its end, and a final report that was acknowledged is in status (invariant 9): a worker exits
// with 0 only when its sidecar has taken that report for good.
func TestKillAtRandom(t *testing.T) {
	w := newWorld(t)
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv(chaosEnv); s != "" {
		if _, err := fmt.Sscan(s, &seed); err != nil {
			t.Fatalf("%s: %v", chaosEnv, err)
		}
	}
	t.Logf("to repeat the kills: %s=%d", chaosEnv, seed)
	random := rand.New(rand.NewPCG(seed, seed)) //nolint:gosec // a seed that can be given again, no secret
	var tasks []*v1alpha1.Task
	for i := range chaosTasks {
		tasks = append(tasks, w.create(w.reporting(fmt.Sprint("chaos-", i), "--sleep=15s", "--progress-every=700ms",
			fmt.Sprintf("--report-at-end=succeeded --url s3://chaos/%d --data %s", i, chaosData)).Retry(50)))
	}
	w.state(2*soon, tasks[0], v1alpha1.StateProcessing)
	for range chaosKills {
		w.killOne(random, tasks)
		pause(t, time.Duration(500+random.IntN(2500))*time.Millisecond)
	}
	for i, task := range tasks {
		done := w.end(6*soon, task, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted)
		w.whole(done, fmt.Sprint("s3://chaos/", i))
		if last := done.Status.Attempts[len(done.Status.Attempts)-1]; !ptr.Deref(last.Reported, false) {
			t.Errorf("%s: ended by its exit, and not by its report", describe(done))
		}
		w.acknowledged(done)
	}
}

// chaosData is more than has room in a termination message, and has what a careless write would lose.
var chaosData = `{"a":null,"b":[null,{"c":null}],"d":"` + strings.Repeat("x", 5000) + `"}`

// whole asserts that a Task has all that its worker has reported, or says that a part of it is lost: the sidecar may have been killed
// after its worker's exit, while there was no gateway.
func (w *world) whole(task *v1alpha1.Task, url string) {
	w.t.Helper()
	r := task.Status.Result
	switch {
	case r == nil || r.URL != url:
		w.t.Errorf("%s: result %+v, wanted %s", describe(task), r, url)
	case meta.IsStatusConditionTrue(task.Status.Conditions, v1alpha1.ConditionResultUndelivered):
		w.t.Logf("%s: its result is undelivered", describe(task))
	case r.Data == nil || !sameJSON(r.Data.Raw, []byte(chaosData)):
		w.t.Errorf("%s: the data is not what was reported", describe(task))
	}
}

func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// acknowledged is invariant 9 as far as it can be told from outside: the first attempt whose worker ended well is the one by which
// the Task has succeeded.
func (w *world) acknowledged(task *v1alpha1.Task) {
	w.t.Helper()
	for attempt, marks := range w.runs(task) {
		for _, m := range marks {
			if m.Event == invariants.Stop && m.Exit != nil && *m.Exit == 0 && attempt != task.Status.Attempt {
				w.t.Errorf("%s: the worker of attempt %d had its report taken, and another attempt followed", describe(task), attempt)
			}
		}
	}
}

// killOne kills something of this cluster.
func (w *world) killOne(random *rand.Rand, tasks []*v1alpha1.Task) {
	w.t.Helper()
	task := tasks[random.IntN(len(tasks))]
	switch what := random.IntN(8); what {
	case 0, 1:
		w.t.Logf("kill the sidecar of %s: %d", task.Name, killProcesses(w.t, sidecarOf(task)))
	case 2, 3:
		w.t.Logf("kill the worker of %s: %d", task.Name, killProcesses(w.t, workerOf(task)))
	case 4, 5:
		w.killComponent("gateway")
	case 6:
		w.killComponent("controller")
	case 7:
		w.t.Log("kill the API server")
		for _, args := range [][]string{{"stop", "--signal", "KILL"}, {"start"}} {
			args = append(args, "--name", os.Getenv("CLUSTER_NAME"), "kube-apiserver")
			if out, err := exec.CommandContext(w.t.Context(), repository("bin", "cluster"), args...).CombinedOutput(); err != nil {
				w.t.Fatalf("%v: %v: %s", args, err, out)
			}
		}
		w.eventually(2*soon, func(ctx context.Context) error {
			return cluster.client.Get(ctx, w.key("default"), &corev1.ServiceAccount{})
		})
	}
}

func (w *world) killComponent(component string) {
	w.t.Helper()
	pods := w.podsOf(component)
	for i := range pods {
		w.t.Logf("kill %s", pods[i].Name)
		if err := cluster.client.Delete(w.t.Context(), &pods[i], client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
			w.t.Fatal(err)
		}
	}
}

// pause lets things happen.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal(errors.New("the test is over"))
	}
}
