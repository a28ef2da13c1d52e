package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/builders"
	"github.com/taskwarden/taskwarden/test/testenv"
)

// allStates makes a Task in each state, named after it, with pods that play themselves.
func allStates(env *testenv.Env) []*v1alpha1.Task {
	env.Kubelet.Auto(byTask(map[string]testenv.Behaviour{
		"pending":    {Unschedulable: "0/3 nodes are available"},
		"processing": testenv.UntilStopped,
		"cancelled":  testenv.UntilStopped,
		"stopping":   {RunFor: -1, StopAfter: 30 * time.Second},
		"retrying":   failing("boom"),
		"failed":     failing("boom"),
	}))
	hour := func(name string) *v1alpha1.Task {
		return env.Create(builders.Task(name).Backoff(time.Hour, time.Hour, "1").Obj())
	}
	suspended := env.Create(builders.Task("suspended").Suspend().Obj())
	failed := env.Create(builders.Task("failed").Retry(0).Obj())
	pending, processing, retrying, succeeded, cancelled := hour("pending"), hour("processing"), hour("retrying"), hour("succeeded"), hour("cancelled")
	stopping := hour("stopping")
	env.WaitState(cancelled, v1alpha1.StateProcessing)
	env.Cancel(cancelled)
	env.WaitState(stopping, v1alpha1.StateProcessing)
	env.Cancel(stopping)
	env.WaitCondition(stopping, v1alpha1.ConditionTerminating, metav1.ConditionTrue, "")
	env.WaitTask(pending, hasReason(v1alpha1.ReasonUnschedulable))
	env.WaitState(processing, v1alpha1.StateProcessing)
	env.WaitState(retrying, v1alpha1.StateRetrying)
	env.WaitState(succeeded, v1alpha1.StateSucceeded)
	env.WaitState(cancelled, v1alpha1.StateCancelled)
	env.WaitState(failed, v1alpha1.StateFailed)
	env.WaitCondition(suspended, v1alpha1.ConditionSuspended, metav1.ConditionTrue, "")
	return []*v1alpha1.Task{suspended, failed, pending, processing, retrying, succeeded, cancelled, stopping}
}

// nothingLeft waits until no Task, Job or pod is stored in the namespace.
func nothingLeft(t *testing.T, env *testenv.Env) {
	t.Helper()
	testenv.Eventually(t, func(ctx context.Context) error {
		for _, list := range []client.ObjectList{&v1alpha1.TaskList{}, &batchv1.JobList{}, &corev1.PodList{}} {
			var one metav1.PartialObjectMetadataList
			gvk, err := env.Client.GroupVersionKindFor(list)
			if err != nil {
				return err
			}
			one.SetGroupVersionKind(gvk)
			err = env.Client.List(ctx, &one, client.InNamespace(env.Namespace))
			if client.IgnoreNotFound(err) != nil { // not found where the CRD is gone
				return err
			}
			if len(one.Items) > 0 {
				return fmt.Errorf("%d of %s are left, %s first", len(one.Items), gvk.Kind, one.Items[0].Name)
			}
		}
		return nil
	})
}

// TestC42NamespaceDeleted deletes the namespace of Tasks in all states, one of them just about to get its Job.
func TestC42NamespaceDeleted(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	allStates(env)
	hold := env.Faults.Hold("create jobs")
	env.Create(builders.Task("late").Obj())
	hold.Wait(t)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: env.Namespace}}
	mustDelete(t, env, ns)
	testenv.Eventually(t, func(ctx context.Context) error {
		if err := env.Client.Get(ctx, client.ObjectKeyFromObject(ns), ns); err == nil && ns.DeletionTimestamp == nil {
			return errors.New("the namespace is not being deleted yet")
		}
		return nil
	})
	created := env.Faults.Calls("create jobs")
	hold.Release()
	nothingLeft(t, env)
	if n := env.Faults.Calls("create jobs"); n > created+1 {
		t.Errorf("%d Jobs were asked for in a namespace that is being deleted", n-created)
	}
}

// TestC42DeletedWhileDown deletes Tasks in all states while there is no operator: nothing of ours stands in the way.
func TestC42DeletedWhileDown(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	tasks := allStates(env)
	env.KillController()
	for _, task := range tasks {
		mustDelete(t, env, task) // with the default propagation, as kubectl would
	}
	nothingLeft(t, env)
}

// TestC42Uninstalled removes the CRD under Tasks in all states, in one namespace after the operator, in another before it:
// nothing stays, nothing new is made, and a new installation works. It is not parallel: all tests share the CRD.
func TestC42Uninstalled(t *testing.T) {
	stopped, running := newEnv(t), newEnv(t)
	t.Cleanup(stopped.InstallCRDs) // before the cleanups of the environments, which list Tasks
	// The garbage collector looks for new kinds every 30 seconds. What it does not know it cannot miss.
	known := stopped.Create(builders.Task("known").Obj())
	job := stopped.WaitJob(known, 1)
	mustDelete(t, stopped, known)
	stopped.WaitGone(job)
	waitPodsGone(t, stopped, known)
	allStates(stopped)
	allStates(running)
	stopped.StopController()
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "tasks." + v1alpha1.GroupVersion.Group}}
	if err := stopped.Client.Get(t.Context(), client.ObjectKeyFromObject(crd), crd); err != nil {
		t.Fatal(err)
	}
	created := running.Faults.Calls("create jobs")
	mustDelete(t, stopped, crd)
	stopped.WaitGone(crd)
	for _, env := range []*testenv.Env{stopped, running} {
		letGo(t, env)
		nothingLeft(t, env)
	}
	if n := running.Faults.Calls("create jobs") - created; n > 0 {
		t.Errorf("%d Jobs were asked for since the CRD was deleted", n)
	}
	stopped.InstallCRDs()
	stopped.StartController()
	for _, env := range []*testenv.Env{stopped, running} {
		env.WaitState(env.Create(builders.Task("again").Obj()), v1alpha1.StateSucceeded)
	}
}

// letGo waits until all pods that have not ended are being deleted, and lets those go that take their time.
func letGo(t *testing.T, env *testenv.Env) {
	t.Helper()
	testenv.Eventually(t, func(ctx context.Context) error {
		var pods corev1.PodList
		if err := env.Client.List(ctx, &pods, client.InNamespace(env.Namespace)); err != nil {
			return err
		}
		for i := range pods.Items {
			p := &pods.Items[i]
			if p.DeletionTimestamp == nil {
				return fmt.Errorf("pod %s is not being deleted", p.Name)
			}
			env.Kubelet.Vanish(p)
		}
		return nil
	})
}

func TestC58TTLTakesJobAndPodsAlong(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	env.Kubelet.Auto(byTask(map[string]testenv.Behaviour{"bad": failing("boom")}))
	good := env.Create(builders.Task("good").TTL(time.Second).Obj())
	bad := env.Create(builders.Task("bad").Retry(0).TTL(time.Second).Obj())
	kept := env.Create(builders.Task("kept").Obj())
	env.WaitGone(good)
	env.WaitGone(bad)
	for _, task := range []*v1alpha1.Task{good, bad} {
		waitPodsGone(t, env, task)
	}
	env.WaitState(kept, v1alpha1.StateSucceeded)
	if n := env.Faults.Calls("delete tasks"); n != 2 {
		t.Errorf("%d Tasks were deleted", n)
	}
}

// TestC58RetryRequestBeatsTTL has somebody ask for a retry in the last moment before the deletion.
func TestC58RetryRequestBeatsTTL(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	env.Kubelet.Auto(firstThen(failing("boom"), testenv.UntilStopped))
	task := env.Create(builders.Task("late").Retry(0).TTL(time.Second).Obj())
	var deletions atomic.Int32
	env.Faults.On("delete tasks", testenv.Fault{Before: func(ctx context.Context, _ testenv.Call) error {
		if deletions.Add(1) > 1 {
			return nil
		}
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:"now"}}}`, v1alpha1.AnnotationRetryRequestedAt)
		return env.Client.Patch(ctx, task.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(patch)))
	}})
	now := env.WaitTask(task, func(t *v1alpha1.Task) error {
		if t.Status.State != v1alpha1.StateProcessing || t.Status.Attempt != 2 {
			return fmt.Errorf("%s, attempt %d", t.Status.State, t.Status.Attempt)
		}
		return nil
	})
	if a := now.Status.LastHandledRetry; a == nil || a.Outcome != v1alpha1.RetryAccepted || deletions.Load() != 1 {
		t.Errorf("the answer is %+v after %d tries to delete", a, deletions.Load())
	}
}

// TestC63OneConditionForTheEnd waits as kubectl does: by a watch, for one condition, whatever the outcome.
func TestC63OneConditionForTheEnd(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	env.Kubelet.Auto(byTask(map[string]testenv.Behaviour{"bad": failing("boom"), "stopped": testenv.UntilStopped}))
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	w, err := env.Client.Watch(ctx, &v1alpha1.TaskList{}, client.InNamespace(env.Namespace))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	env.Create(builders.Task("good").Obj())
	env.Create(builders.Task("bad").Retry(0).Obj())
	stopped := env.Create(builders.Task("stopped").Obj())
	env.Create(builders.Task("swept").TTL(0).Obj())
	env.WaitState(stopped, v1alpha1.StateProcessing)
	env.Cancel(stopped)
	want := map[string]v1alpha1.State{
		"good": v1alpha1.StateSucceeded, "bad": v1alpha1.StateFailed, "stopped": v1alpha1.StateCancelled, "swept": v1alpha1.StateSucceeded,
	}
	for len(want) > 0 {
		event, ok := <-w.ResultChan()
		if !ok {
			t.Fatalf("the watch ended; not finished are %v", want)
		}
		task, ok := event.Object.(*v1alpha1.Task)
		if !ok {
			t.Fatalf("the watch gave %T", event.Object)
		}
		finished := condition(task, v1alpha1.ConditionFinished)
		terminal := slices.Contains([]v1alpha1.State{v1alpha1.StateSucceeded, v1alpha1.StateFailed, v1alpha1.StateCancelled}, task.Status.State)
		if task.Status.State != "" && (finished.Status == metav1.ConditionTrue) != terminal {
			t.Errorf("Task %s is %s with Finished=%s", task.Name, task.Status.State, finished.Status)
		}
		if event.Type == watch.Deleted || !terminal {
			continue
		}
		if state, waited := want[task.Name]; waited && state != task.Status.State {
			t.Errorf("Task %s is %s", task.Name, task.Status.State)
		}
		delete(want, task.Name)
	}
}

// TestC65RolesNameEachRight reads the roles of the installation: each right is named, and none is a way to more of them.
func TestC65RolesNameEachRight(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../config/rbac/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rules := 0
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096); ; {
			var role rbacv1.ClusterRole // a Role looks the same
			if err := documents.Decode(&role); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			for _, rule := range role.Rules {
				rules++
				if why := tooWide(rule); why != "" {
					t.Errorf("%s, %s %s: %s: %+v", file, role.Kind, role.Name, why, rule)
				}
			}
		}
	}
	if rules < 10 {
		t.Errorf("only %d rules were found in %v", rules, files)
	}
	for _, wide := range []rbacv1.PolicyRule{
		{APIGroups: []string{"*"}, Resources: []string{"tasks"}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"pods/*"}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "*"}},
		{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"one"}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, Verbs: []string{"create"}},
		{APIGroups: []string{rbacv1.GroupName}, Resources: []string{"roles"}, Verbs: []string{"escalate"}},
		{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}},
	} {
		if tooWide(wide) == "" {
			t.Errorf("not found too wide: %+v", wide)
		}
	}
}

// TestC65RightsInOneNamespace: an operator for one namespace needs no right in any other.
func TestC65RightsInOneNamespace(t *testing.T) {
	t.Parallel()
	env := newEnv(t, testenv.Stopped(), testenv.WithUser("operator-of-one-namespace"))
	content, err := os.ReadFile("../../config/rbac/role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all rbacv1.ClusterRole
	if err := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096).Decode(&all); err != nil {
		t.Fatal(err)
	}
	meta := metav1.ObjectMeta{Namespace: env.Namespace, Name: "taskwarden-controller"}
	mustCreate(t, env, &rbacv1.Role{ObjectMeta: meta, Rules: all.Rules})
	mustCreate(t, env, &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "operator-of-one-namespace"}},
	})
	env.StartController()
	env.Kubelet.Auto(byTask(map[string]testenv.Behaviour{"works": {}, "cancelled": testenv.UntilStopped, "fails": failing("boom")}))
	asked := env.Faults.Calls("list tasks")
	cancelled := env.Create(builders.Task("cancelled").Obj())
	env.WaitState(cancelled, v1alpha1.StateProcessing)
	env.Cancel(cancelled)
	env.WaitState(cancelled, v1alpha1.StateCancelled)
	env.WaitState(env.Create(builders.Task("works").Obj()), v1alpha1.StateSucceeded)
	failed := env.Create(builders.Task("fails").Retry(0).TTL(0).Obj())
	env.WaitGone(failed)
	if n := env.Faults.Calls("list tasks") - asked; n > 1 {
		t.Errorf("it asked %d times for what it may not have", n)
	}
}

// tooWide tells why a rule gives more than an operator of Jobs needs.
func tooWide(rule rbacv1.PolicyRule) string {
	for _, names := range [][]string{rule.APIGroups, rule.Resources, rule.Verbs} {
		for _, name := range names {
			if strings.Contains(name, "*") {
				return "a wildcard"
			}
		}
	}
	has := func(names, unwanted []string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return slices.Contains(unwanted, name) })
	}
	switch {
	case has(rule.Resources, []string{"secrets", "serviceaccounts", "serviceaccounts/token", "pods/exec", "pods/attach", "pods/ephemeralcontainers", "nodes/proxy"}):
		return "a way to the rights of others"
	case has(rule.Verbs, []string{"escalate", "bind", "impersonate"}) || has(rule.APIGroups, []string{rbacv1.GroupName}):
		return "a way to give oneself rights"
	case len(rule.NonResourceURLs) > 0:
		return "a right beyond resources"
	}
	return ""
}

// TestC65TemplateGivesNoMoreRights compares the pod with one that its author could have made.
func TestC65TemplateGivesNoMoreRights(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	task := newObject(t, env.Namespace, `
template:
  metadata:
    labels: {app: x}
    ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: other, uid: 11111111-1111-1111-1111-111111111111}]
    name: other
    namespace: kube-system
  spec: {containers: [{name: worker, image: busybox}]}
`)
	task.SetLabels(map[string]string{"team": "blue", "argocd.argoproj.io/instance": "app"})
	task.SetAnnotations(map[string]string{"note": "text"})
	if err := createStrictly(t, env, task.DeepCopy(), true); err == nil {
		t.Error("metadata that is not used was not refused")
	}
	if err := env.Client.Create(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	created := &v1alpha1.Task{ObjectMeta: metav1.ObjectMeta{Namespace: env.Namespace, Name: task.GetName(), UID: task.GetUID()}}
	job, pod := env.WaitJob(created, 1), env.Kubelet.WaitPod(created, 1)
	for _, object := range []client.Object{job, pod} {
		if object.GetLabels()["team"] != "" || object.GetLabels()["argocd.argoproj.io/instance"] != "" || object.GetAnnotations()["note"] != "" {
			t.Errorf("%T has labels %v and annotations %v of the Task", object, object.GetLabels(), object.GetAnnotations())
		}
		if n := len(object.GetOwnerReferences()); n != 1 {
			t.Errorf("%T has %d owners: %+v", object, n, object.GetOwnerReferences())
		}
	}
	if pod.Labels["app"] != "x" {
		t.Errorf("the template's own labels are lost: %v", pod.Labels)
	}
	// A pod that the author of the Task makes by hand gets the same from the API server.
	byHand := &unstructured.Unstructured{}
	byHand.SetAPIVersion("v1")
	byHand.SetKind("Pod")
	byHand.SetNamespace(env.Namespace)
	byHand.SetName("by-hand")
	byHand.Object["spec"] = map[string]any{"restartPolicy": "Never", "containers": []any{map[string]any{"name": "worker", "image": "busybox"}}}
	if err := env.Client.Create(t.Context(), byHand, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	got := &unstructured.Unstructured{}
	got.SetAPIVersion("v1")
	got.SetKind("Pod")
	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(pod), got); err != nil {
		t.Fatal(err)
	}
	want, have := byHand.Object["spec"].(map[string]any), got.Object["spec"].(map[string]any)
	delete(have, "activeDeadlineSeconds") // the backstop
	for _, spec := range []map[string]any{want, have} {
		// The names of the projected token volumes are random, their kind is not.
		for i, v := range spec["volumes"].([]any) {
			v.(map[string]any)["name"] = fmt.Sprint("volume-", i)
		}
		c := spec["containers"].([]any)[0].(map[string]any)
		delete(c, "env")
		for i, m := range c["volumeMounts"].([]any) {
			m.(map[string]any)["name"] = fmt.Sprint("volume-", i)
		}
	}
	if !equality.Semantic.DeepEqual(want, have) {
		t.Errorf("by hand %s\nhas     %s", asJSON(t, want), asJSON(t, have))
	}
}
