package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/audit"
	"github.com/taskwarden/taskwarden/test/builders"
	"github.com/taskwarden/taskwarden/test/invariants"
	"github.com/taskwarden/taskwarden/test/testenv"
)

const (
	// soon is for what the operator or the kubelet does by itself, on a slow machine.
	soon = 45 * time.Second
	// shared is where workers see the folder that they share with the test.
	shared = "/shared"
)

// world is the namespace of one test, and the folder that it shares with its workers.
type world struct {
	t         *testing.T
	namespace string
	folder    string
	audit     *audit.Log
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// newWorld makes a namespace and a folder, and arranges for the invariants to be checked and everything to be removed.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t}
	folder, err := os.MkdirTemp(cluster.dir, "e2e-")
	if err != nil {
		t.Fatal(err)
	}
	w.folder = folder
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	// The workers are users of their own, and the umask must not keep them out.
	if err := os.Chmod(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	name := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(t.Name()), "-"), "-")
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: name[:min(len(name), 40)] + "-"}}
	if err := cluster.client.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	w.namespace = ns.Name
	if w.audit, err = audit.Follow(cluster.auditLog, w.namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.cleanup)
	w.eventually(soon, func(ctx context.Context) error { // without it the first pod is refused
		return cluster.client.Get(ctx, w.key("default"), &corev1.ServiceAccount{})
	})
	return w
}

func (w *world) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: w.namespace, Name: name}
}

// eventually polls until check gives no error. The real kubelet takes its time, so polling can be slower than at the API
// level.
func (w *world) eventually(limit time.Duration, check func(ctx context.Context) error) {
	w.t.Helper()
	testenv.EventuallyWithin(w.t, limit, paced(check))
}

// paced asks at most every 100 ms and repeats the last answer meanwhile.
func paced(check func(ctx context.Context) error) func(ctx context.Context) error {
	var last error
	var at time.Time
	return func(ctx context.Context) error {
		if time.Since(at) >= 100*time.Millisecond {
			last, at = check(ctx), time.Now()
		}
		return last
	}
}

// worker starts a Task without retries whose worker behaves as its flags say.
func (w *world) worker(name string, flags ...string) *builders.TaskBuilder {
	return w.build(name, func(c *corev1.Container) {
		c.Command = []string{"/worker"}
		c.Args = append([]string{"--marks=" + shared}, flags...)
	})
}

// imaging starts a Task without retries that makes copies of a picture.
func (w *world) imaging(name string) *builders.TaskBuilder {
	return w.build(name, func(c *corev1.Container) {
		c.Args = []string{"--marks=" + shared}
		c.Resources.Limits = memory("256Mi")
	})
}

func (w *world) build(name string, change func(*corev1.Container)) *builders.TaskBuilder {
	pod := builders.Pod().GracePeriod(5).Spec(func(s *corev1.PodSpec) {
		s.AutomountServiceAccountToken = ptr.To(false)
		s.SecurityContext = &corev1.PodSecurityContext{
			RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65532), RunAsGroup: ptr.To[int64](65532),
		}
		s.Volumes = []corev1.Volume{{Name: "shared", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: w.folder, Type: ptr.To(corev1.HostPathDirectory)},
		}}}
		c := &s.Containers[0]
		c.Image, c.ImagePullPolicy = workerImage, corev1.PullIfNotPresent
		c.Resources.Requests = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi"),
		}
		c.VolumeMounts = []corev1.VolumeMount{{Name: "shared", MountPath: shared}}
		change(c)
	})
	return builders.Task(name).Template(pod.Obj()).Retry(0).FastBackoff()
}

func memory(quantity string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(quantity)}
}

// create stores a Task.
func (w *world) create(b *builders.TaskBuilder) *v1alpha1.Task {
	w.t.Helper()
	return w.createWith(b, func(*v1alpha1.Task) {})
}

// createWith stores a Task with a change that the builder has no word for.
func (w *world) createWith(b *builders.TaskBuilder, change func(*v1alpha1.Task)) *v1alpha1.Task {
	w.t.Helper()
	task := b.Namespace(w.namespace).Obj()
	change(task)
	if err := cluster.client.Create(w.t.Context(), task); err != nil {
		w.t.Fatalf("create Task %s: %v", task.Name, err)
	}
	return task
}

// patch changes a Task as `kubectl patch --type merge` does.
func (w *world) patch(task *v1alpha1.Task, patch string) {
	w.t.Helper()
	if err := cluster.client.Patch(w.t.Context(), task.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		w.t.Fatalf("patch Task %s with %s: %v", task.Name, patch, err)
	}
}

// await waits until check gives no error for a Task, and gives the Task of that moment.
func (w *world) await(limit time.Duration, task *v1alpha1.Task, check func(*v1alpha1.Task) error) *v1alpha1.Task {
	w.t.Helper()
	live := &v1alpha1.Task{}
	w.eventually(limit, func(ctx context.Context) error {
		fresh := &v1alpha1.Task{}
		if err := cluster.client.Get(ctx, client.ObjectKeyFromObject(task), fresh); err != nil {
			return err
		}
		live = fresh
		return check(live)
	})
	return live
}

// state waits for one of the states.
func (w *world) state(limit time.Duration, task *v1alpha1.Task, states ...v1alpha1.State) *v1alpha1.Task {
	w.t.Helper()
	return w.await(limit, task, func(t *v1alpha1.Task) error {
		if !slices.Contains(states, t.Status.State) {
			return fmt.Errorf("%s, wanted %v", describe(t), states)
		}
		return nil
	})
}

// end waits for the end of a Task, which must be this one.
func (w *world) end(limit time.Duration, task *v1alpha1.Task, state v1alpha1.State, reason string) *v1alpha1.Task {
	w.t.Helper()
	live := w.await(limit, task, func(t *v1alpha1.Task) error {
		if !meta.IsStatusConditionTrue(t.Status.Conditions, v1alpha1.ConditionFinished) {
			return errors.New(describe(t))
		}
		return nil
	})
	if live.Status.State != state || live.Status.Reason != reason {
		w.t.Errorf("ended as %s, wanted %s/%s", describe(live), state, reason)
	}
	return live
}

// waits waits until a Task says that it waits for this reason, with this text.
func (w *world) waits(limit time.Duration, task *v1alpha1.Task, reason, text string) {
	w.t.Helper()
	w.await(limit, task, func(t *v1alpha1.Task) error {
		c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionReconciling)
		if c == nil || c.Status != metav1.ConditionTrue || c.Reason != reason || !strings.Contains(c.Message, text) {
			return fmt.Errorf("%s; condition Reconciling is %+v, wanted reason %s and text %q", describe(t), c, reason, text)
		}
		return nil
	})
}

func describe(t *v1alpha1.Task) string {
	return fmt.Sprintf("Task %s: %s/%s in attempt %d: %s", t.Name, t.Status.State, t.Status.Reason, t.Status.Attempt, t.Status.Message)
}

// runs are the marks of a Task's workers, by attempt: what really ran.
func (w *world) runs(task *v1alpha1.Task) map[int32][]invariants.Mark {
	w.t.Helper()
	all, err := invariants.Dir(w.folder).All()
	if err != nil {
		w.t.Fatal(err)
	}
	runs := map[int32][]invariants.Mark{}
	for _, m := range all {
		if m.Task == string(task.UID) {
			runs[m.Attempt] = append(runs[m.Attempt], m)
		}
	}
	return runs
}

// started counts the runs of a Task's workers.
func (w *world) started(task *v1alpha1.Task) int {
	w.t.Helper()
	n := 0
	for _, marks := range w.runs(task) {
		for _, m := range marks {
			if m.Event == invariants.Start {
				n++
			}
		}
	}
	return n
}

// stopped is the mark with which the worker of an attempt ended, nil where it left none.
func (w *world) stopped(task *v1alpha1.Task, attempt int32) *invariants.Mark {
	w.t.Helper()
	for _, m := range w.runs(task)[attempt] {
		if m.Event == invariants.Stop {
			return &m
		}
	}
	return nil
}

// pods are the pods of a Task that are stored now.
func (w *world) pods(task *v1alpha1.Task) []corev1.Pod {
	w.t.Helper()
	var pods corev1.PodList
	if err := cluster.client.List(w.t.Context(), &pods, client.InNamespace(w.namespace), client.MatchingLabels{v1alpha1.LabelTaskUID: string(task.UID)}); err != nil {
		w.t.Fatal(err)
	}
	return pods.Items
}

// jobs are the Jobs of a Task that are stored now.
func (w *world) jobs(task *v1alpha1.Task) []batchv1.Job {
	w.t.Helper()
	var jobs batchv1.JobList
	if err := cluster.client.List(w.t.Context(), &jobs, client.InNamespace(w.namespace), client.MatchingLabels{v1alpha1.LabelTaskUID: string(task.UID)}); err != nil {
		w.t.Fatal(err)
	}
	return jobs.Items
}

// pod is the pod of the current attempt.
func (w *world) pod(task *v1alpha1.Task) *corev1.Pod {
	w.t.Helper()
	live := w.await(soon, task, func(t *v1alpha1.Task) error {
		if t.Status.Worker == nil || t.Status.Worker.PodName == "" {
			return fmt.Errorf("%s: no pod", describe(t))
		}
		return nil
	})
	pod := &corev1.Pod{}
	if err := cluster.client.Get(w.t.Context(), w.key(live.Status.Worker.PodName), pod); err != nil {
		w.t.Fatal(err)
	}
	return pod
}

// kubectl runs kubectl in the namespace.
func (w *world) kubectl(args ...string) string {
	w.t.Helper()
	out, err := kubectl(w.t.Context(), "", append([]string{"-n", w.namespace}, args...)...)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// quiet waits until no pod of a Task runs any more.
func (w *world) quiet(task *v1alpha1.Task) {
	w.t.Helper()
	w.eventually(soon, func(context.Context) error {
		for _, p := range w.pods(task) {
			if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
				return fmt.Errorf("pod %s is %s", p.Name, p.Status.Phase)
			}
		}
		return nil
	})
}

// cleanup checks the invariants, and that the deletion of all Tasks leaves nothing, and removes the namespace.
func (w *world) cleanup() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), 3*time.Minute)
	defer cancel()
	if w.t.Failed() {
		w.tell(ctx)
	}
	if err := w.audit.Sync(ctx, cluster.client); err != nil {
		w.t.Errorf("the audit log is not complete, so the invariants cannot be checked: %v", err)
	} else {
		invariants.Check(w.t, invariants.Source{
			Namespace: w.namespace, Audit: w.audit, IsController: isOperator, Marks: invariants.Dir(w.folder),
			Client: cluster.client, Config: cluster.config, Running: true, Settle: 30 * time.Second,
		})
	}
	if err := w.deleteTasks(ctx); err != nil {
		w.t.Errorf("invariant 5 (deletion leaves nothing): %v", err)
	}
	if err := errors.Join(w.audit.Close(), cluster.client.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}})); err != nil {
		w.t.Error(err)
	}
}

// deleteTasks deletes all Tasks, as a user would, and waits until nothing of them is left.
func (w *world) deleteTasks(ctx context.Context) error {
	err := cluster.client.DeleteAllOf(ctx, &v1alpha1.Task{}, client.InNamespace(w.namespace), client.PropagationPolicy(metav1.DeletePropagationBackground))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := w.nothingLeft(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

func (w *world) nothingLeft(ctx context.Context) error {
	var left []string
	var tasks v1alpha1.TaskList
	var jobs batchv1.JobList
	var pods corev1.PodList
	for _, list := range []client.ObjectList{&pods, &jobs, &tasks} {
		if err := cluster.client.List(ctx, list, client.InNamespace(w.namespace)); err != nil {
			return err
		}
		err := meta.EachListItem(list, func(o runtime.Object) error {
			object, err := meta.Accessor(o)
			if err == nil {
				left = append(left, fmt.Sprintf("%T %s", o, object.GetName()))
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("still there: %s", strings.Join(left, "; "))
	}
	return nil
}

// tell shows what a reader of a failure wants to know.
func (w *world) tell(ctx context.Context) {
	for _, args := range [][]string{
		{"-n", w.namespace, "get", "tasks.taskwarden.dev", "-o", "yaml"},
		{"-n", w.namespace, "get", "jobs,pods", "-o", "wide"},
		{"-n", w.namespace, "get", "events", "--sort-by=.metadata.creationTimestamp"},
	} {
		out, err := kubectl(ctx, "", args...)
		w.t.Logf("kubectl %s\n%s%v", strings.Join(args, " "), out, err)
	}
	out, err := kubectl(ctx, "", "-n", operatorNamespace, "logs", "deployment/"+operatorName)
	for line := range strings.Lines(out) {
		if strings.Contains(line, w.namespace) {
			w.t.Log(strings.TrimSpace(line))
		}
	}
	if err != nil {
		w.t.Log(err)
	}
	files, err := filepath.Glob(filepath.Join(w.folder, "*.jsonl"))
	w.t.Log("marks:", files, err)
	for _, file := range files {
		content, err := os.ReadFile(file)
		w.t.Logf("%s%v", content, err)
	}
}
