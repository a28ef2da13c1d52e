package api

import (
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/test/testenv"
)

// fullSpec sets every field that may be absent.
const fullSpec = `
template:
  metadata: {labels: {a: b}}
  spec:
    initContainers: [{name: i, image: b, env: [{name: A, value: a}, {name: B, value: $(A)}]}, {name: j, image: b}]
    containers: [{name: worker, image: busybox, env: [{name: A, value: a}, {name: B, value: $(A)}]}, {name: other, image: busybox}]
workerContainer: worker
input: {value: {a: {b: 1}, c: [1, 2]}}
startTimeoutSeconds: 60
queueTimeoutSeconds: 60
activeDeadlineSeconds: 60
overallDeadlineSeconds: 600
reporter: Sidecar
heartbeatTimeoutSeconds: 20
progressTimeoutSeconds: 30
stages: [{name: download, timeoutSeconds: 10}, {name: upload, weight: 2}]
retry: {limit: 1, rules: [{exitCodes: [1, 2], action: Retry}]}
finishGraceSeconds: 10
workerLostTimeoutSeconds: 100
workerRetentionSeconds: 100
priority: 5
suspend: true
ttlSecondsAfterFinished: 1000
`

// specIn is a Task with the given spec, brought into a state.
func specIn(t *testing.T, env *testenv.Env, state v1alpha1.State, spec string) *unstructured.Unstructured {
	t.Helper()
	return taskIn(t, env, state, func(task *v1alpha1.Task) {
		task.Spec = v1alpha1.TaskSpec{}
		if err := yaml.Unmarshal([]byte(spec), &task.Spec); err != nil {
			t.Fatal(err)
		}
	})
}

func patchSpec(t *testing.T, env *testenv.Env, task *unstructured.Unstructured, spec string) error {
	t.Helper()
	return env.Client.Patch(t.Context(), task.DeepCopy(),
		client.RawPatch(types.MergePatchType, []byte(`{"spec":`+spec+`}`)), client.DryRunAll)
}

func TestC62ImmutableFieldsInEveryState(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	changes := map[string][]string{
		"template": {
			`{"template":{"metadata":{"labels":{"a":"c"}}}}`, `{"template":{"metadata":null}}`,
			`{"template":{"metadata":{"annotations":{"x":"y"}}}}`, `{"template":{"spec":{"nodeName":"n"}}}`,
			`{"template":{"spec":{"containers":[{"name":"worker","image":"other"}]}}}`,
			`{"template":{"spec":{"initContainers":null}}}`,
		},
		"workerContainer":          {`{"workerContainer":"other"}`, `{"workerContainer":null}`},
		"input":                    {`{"input":{"value":{"a":{"b":2}}}}`, `{"input":{"value":{"d":1}}}`, `{"input":{"value":{"a":null}}}`, `{"input":{"value":{"c":[2,1]}}}`, `{"input":{"value":7}}`, `{"input":null}`},
		"startTimeoutSeconds":      {`{"startTimeoutSeconds":61}`, `{"startTimeoutSeconds":null}`},
		"queueTimeoutSeconds":      {`{"queueTimeoutSeconds":61}`, `{"queueTimeoutSeconds":null}`},
		"activeDeadlineSeconds":    {`{"activeDeadlineSeconds":61}`},
		"overallDeadlineSeconds":   {`{"overallDeadlineSeconds":601}`, `{"overallDeadlineSeconds":null}`},
		"retry":                    {`{"retry":{"limit":2}}`, `{"retry":{"rules":null}}`, `{"retry":{"backoff":{"factor":"3"}}}`, `{"retry":null}`},
		"reporter":                 {`{"reporter":"None"}`, `{"reporter":null}`},
		"heartbeatTimeoutSeconds":  {`{"heartbeatTimeoutSeconds":21}`, `{"heartbeatTimeoutSeconds":null}`},
		"progressTimeoutSeconds":   {`{"progressTimeoutSeconds":31}`, `{"progressTimeoutSeconds":null}`},
		"stages":                   {`{"stages":[{"name":"download","timeoutSeconds":10}]}`, `{"stages":[{"name":"upload","weight":2},{"name":"download","timeoutSeconds":10}]}`, `{"stages":null}`},
		"finishGraceSeconds":       {`{"finishGraceSeconds":11}`, `{"finishGraceSeconds":null}`},
		"workerLostTimeoutSeconds": {`{"workerLostTimeoutSeconds":101}`, `{"workerLostTimeoutSeconds":null}`},
		"workerRetentionSeconds":   {`{"workerRetentionSeconds":101}`, `{"workerRetentionSeconds":null}`},
	}
	mutable := []string{
		`{"priority":6}`, `{"priority":null}`, `{"suspend":false}`, `{"suspend":null}`, `{"cancel":true}`, `{"cancel":false}`,
		`{"ttlSecondsAfterFinished":0}`, `{"ttlSecondsAfterFinished":null}`, `{"template":{"metadata":{"labels":{"a":"b"}}}}`,
	}
	for _, state := range storedStates {
		task := specIn(t, env, state, fullSpec)
		for field, patches := range changes {
			for _, patch := range patches {
				t.Run(fmt.Sprintf("%q %s", state, patch), func(t *testing.T) {
					wantRefused(t, patchSpec(t, env, task, patch), "spec."+field, field+" is immutable")
				})
			}
		}
		for _, patch := range mutable {
			t.Run(fmt.Sprintf("%q %s", state, patch), func(t *testing.T) {
				wantAccepted(t, patchSpec(t, env, task, patch))
			})
		}
	}
}

// TestC62AbsentFieldsStayAbsent guards against rules that are not asked where a field comes anew.
func TestC62AbsentFieldsStayAbsent(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	task := specIn(t, env, lifecycle.First, plainTemplate)
	for field, value := range map[string]string{
		"workerContainer": `"worker"`, "input": `{"value":1}`, "queueTimeoutSeconds": "60", "overallDeadlineSeconds": "3600",
		"heartbeatTimeoutSeconds": "60", "progressTimeoutSeconds": "60", "stages": `[{"name":"a"}]`,
	} {
		t.Run(field, func(t *testing.T) {
			wantRefused(t, patchSpec(t, env, task, fmt.Sprintf(`{%q:%s}`, field, value)), "spec."+field, field+" is immutable")
		})
	}
	for field, value := range map[string]string{"suspend": "true", "cancel": "true", "ttlSecondsAfterFinished": "0"} {
		t.Run(field, func(t *testing.T) {
			wantAccepted(t, patchSpec(t, env, task, fmt.Sprintf(`{%q:%s}`, field, value)))
		})
	}
}

// TestC62OrderIsImmutable: to CEL two lists with keys are equal in any order, to a pod they are not.
func TestC62OrderIsImmutable(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	task := specIn(t, env, lifecycle.First, fullSpec)
	swap := func(path ...string) error {
		changed := task.DeepCopy()
		pod := changed.Object["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
		list := pod[path[0]].([]any)
		if len(path) > 1 {
			list = list[0].(map[string]any)[path[1]].([]any)
		}
		list[0], list[1] = list[1], list[0]
		return env.Client.Update(t.Context(), changed, client.DryRunAll)
	}
	wantRefused(t, swap("containers"), "spec.template.spec.containers", "order of containers")
	wantRefused(t, swap("initContainers"), "spec.template.spec.initContainers", "order of initContainers")
	wantRefused(t, swap("initContainers", "env"), "spec.template.spec.initContainers[0].env", "order of env")
	wantRefused(t, swap("containers", "env"), "spec.template.spec.containers[0].env", "order of env")
}

func TestCancelIsOneWay(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	for _, state := range storedStates {
		task := specIn(t, env, state, plainTemplate+"cancel: true")
		for _, patch := range []string{`{"cancel":false}`, `{"cancel":null}`} {
			wantRefused(t, patchSpec(t, env, task, patch), "spec.cancel", "cannot be taken back")
		}
		wantAccepted(t, patchSpec(t, env, task, `{"cancel":true,"priority":1}`))
	}
}

// TestC62AppliedAgainChangesNothing is what an empty kubectl diff rests on: what the API server fills in stays.
func TestC62AppliedAgainChangesNothing(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	for name, spec := range map[string]string{"least": plainTemplate, "full": fullSpec, "half": plainTemplate + "retry: {backoff: {initialSeconds: 3}}"} {
		t.Run(name, func(t *testing.T) {
			apply := func() *unstructured.Unstructured {
				task := newObject(t, env.Namespace, spec)
				task.SetGenerateName("")
				task.SetName(name)
				if err := applyAs(t, env, task, "kubectl"); err != nil {
					t.Fatal(err)
				}
				return live(t, env, name)
			}
			apply()
			// The first write after the creation stores the status that the API server has given it so far.
			first, second := apply(), apply()
			if first.GetResourceVersion() != second.GetResourceVersion() {
				t.Errorf("applied again, it has changed:\n%s\n%s", asJSON(t, first), asJSON(t, second))
			}
			// What a sync tool sends back is what it has read.
			if err := env.Client.Update(t.Context(), second); err != nil {
				t.Fatal(err)
			}
			if got := live(t, env, name).GetResourceVersion(); got != first.GetResourceVersion() {
				t.Error("written back as it was read, it has changed")
			}
		})
	}
}

func TestC62TwoManagers(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	object := func(spec string) *unstructured.Unstructured {
		task := &unstructured.Unstructured{Object: map[string]any{}}
		if spec != "" {
			task = newObject(t, env.Namespace, spec)
		}
		task.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Task"))
		task.SetNamespace(env.Namespace)
		task.SetGenerateName("")
		task.SetName("shared")
		return task
	}
	only := func(field string, value any) *unstructured.Unstructured {
		task := object("")
		task.Object["spec"] = map[string]any{field: value}
		return task
	}
	wantAccepted(t, applyAs(t, env, object(plainTemplate+"startTimeoutSeconds: 60"), "gitops"))
	wantAccepted(t, applyAs(t, env, only("priority", int64(7)), "person"))
	wantAccepted(t, applyAs(t, env, object(plainTemplate+"startTimeoutSeconds: 60"), "gitops"))
	if got, _, _ := unstructured.NestedInt64(live(t, env, "shared").Object, "spec", "priority"); got != 7 {
		t.Errorf("priority %d, want the other manager's 7", got)
	}
	if err := applyAs(t, env, only("startTimeoutSeconds", int64(61)), "person"); !apierrors.IsConflict(err) {
		t.Errorf("a field of another manager: %v, want a conflict", err)
	}
	wantRefused(t, applyAs(t, env, only("startTimeoutSeconds", int64(61)), "person", client.ForceOwnership),
		"spec.startTimeoutSeconds", "startTimeoutSeconds is immutable")
	// A manager that no longer applies what it owned removes it: the same as a change.
	wantRefused(t, applyAs(t, env, object(plainTemplate), "gitops"), "spec.startTimeoutSeconds", "startTimeoutSeconds is immutable")
	wantAccepted(t, applyAs(t, env, only("suspend", true), "person"))
}

// TestC62AppliedByTwo: two tools apply one manifest, which leaves out what has defaults.
func TestC62AppliedByTwo(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	task := func() *unstructured.Unstructured {
		task := newObject(t, env.Namespace, plainTemplate+"retry: {limit: 1}\ninput: {value: {a: 1}}")
		task.SetGenerateName("")
		task.SetName("shared")
		return task
	}
	mustCreate(t, env, task())
	wantAccepted(t, applyAs(t, env, task(), "gitops"))
	wantAccepted(t, applyAs(t, env, task(), "person"))
	wantAccepted(t, applyAs(t, env, task(), "gitops"))
}

func applyAs(t *testing.T, env *testenv.Env, task *unstructured.Unstructured, manager string, options ...client.ApplyOption) error {
	t.Helper()
	return env.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(task),
		append(options, client.FieldOwner(manager))...)
}
