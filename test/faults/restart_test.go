package faults

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/builders"
	"github.com/taskwarden/taskwarden/test/testenv"
)

// TestControlPlaneRestarts stops the API server, or etcd under it, while workers run, who end meanwhile. It is not parallel: all tests
// have the same control plane.
func TestControlPlaneRestarts(t *testing.T) {
	for _, component := range []string{"kube-apiserver", "etcd"} {
		t.Run(component, func(t *testing.T) {
			env := newEnv(t)
			env.StartController()
			ends := make(chan struct{}) // when the workers may end
			env.Kubelet.Auto(func(p *corev1.Pod) testenv.Behaviour {
				b := testenv.Behaviour{LastWord: func(ctx context.Context, _ *corev1.Pod) {
					select {
					case <-ends:
					case <-ctx.Done():
					}
				}}
				if p.Labels[v1alpha1.LabelTask] == "fails-0" || p.Labels[v1alpha1.LabelTask] == "fails-1" {
					failing(&b)
				}
				return b
			})
			var tasks []*v1alpha1.Task
			for i := range 10 {
				tasks = append(tasks, env.Create(builders.Task(fmt.Sprint("works-", i)).Retry(0).Obj()))
			}
			for i := range 2 {
				tasks = append(tasks, env.Create(builders.Task(fmt.Sprint("fails-", i)).Retry(0).Obj()))
			}
			for _, task := range tasks {
				env.WaitState(task, v1alpha1.StateProcessing)
			}
			env.Quiet(time.Second) // a write that is under way may be stored and not logged
			control(t, "stop", component)
			t.Cleanup(func() { control(t, "start", component) })
			close(ends)
			pause(t, 3*time.Second)
			control(t, "start", component)
			testenv.Eventually(t, func(ctx context.Context) error {
				return env.Client.List(ctx, &v1alpha1.TaskList{}, client.InNamespace(env.Namespace))
			})
			for i, task := range tasks {
				want := v1alpha1.StateSucceeded
				if i >= 10 {
					want = v1alpha1.StateFailed
				}
				done := env.WaitState(task, v1alpha1.StateSucceeded, v1alpha1.StateFailed)
				if done.Status.State != want || done.Status.Attempt != 1 {
					t.Errorf("Task %s: %+v", task.Name, outcomeOf(done))
				}
			}
		})
	}
}

// control stops or starts a component of the control plane; it does nothing where that is so already.
func control(t *testing.T, what, component string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // also in a cleanup
	cmd := exec.CommandContext(ctx, "../../bin/cluster", what, "--name", os.Getenv("CLUSTER_NAME"), component)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", cmd.Args, err, out)
	}
}
