package api

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/test/builders"
	"github.com/taskwarden/taskwarden/test/testenv"
)

// The tests of this file are about the API server alone. They write status as a cluster admin, past any operator, and
// see that the state law (hack/gen/law.go) holds all the same.

// newBareEnv is a namespace without an operator. What the invariants ask for is an operator's to keep.
func newBareEnv(t *testing.T) *testenv.Env {
	t.Helper()
	env := testenv.New(t)
	for invariant := 1; invariant <= 10; invariant++ {
		env.Waive(invariant, "", "there is no operator, the test itself writes the status")
	}
	return env
}

// storedStates are all that may be found stored.
var storedStates = lifecycle.States

// taskIn is a new Task, brought into a state by writes that the law allows.
func taskIn(t *testing.T, env *testenv.Env, state v1alpha1.State, build func(*v1alpha1.Task)) *unstructured.Unstructured {
	t.Helper()
	task := builders.Task(strings.ToLower(string(state))).Namespace(env.Namespace).Obj()
	if build != nil {
		build(task)
	}
	if err := env.Client.Create(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	task.Status.State = state
	task.Status.History = []v1alpha1.Transition{{Time: metav1.NowMicro(), To: lifecycle.First}}
	if err := env.Client.Status().Update(t.Context(), task); err != nil {
		t.Fatalf("bring a Task to %s: %v", state, err)
	}
	return live(t, env, task.Name)
}

func live(t *testing.T, env *testenv.Env, name string) *unstructured.Unstructured {
	t.Helper()
	task := &unstructured.Unstructured{}
	task.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Task"))
	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: env.Namespace, Name: name}, task); err != nil {
		t.Fatal(err)
	}
	return task
}

func stateOf(task *unstructured.Unstructured) v1alpha1.State {
	state, _, _ := unstructured.NestedString(task.Object, "status", "state")
	return v1alpha1.State(state)
}

func TestStateLawOfEveryPair(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	targets := append([]v1alpha1.State{"Unheard", "pending", "succeeded"}, lifecycle.States...)
	for _, from := range storedStates {
		task := taskIn(t, env, from, nil)
		for _, to := range targets {
			allowed := from == to || slices.Contains(lifecycle.AllowedNext()[from], to)
			t.Run(fmt.Sprintf("%q to %q", from, to), func(t *testing.T) {
				changed := task.DeepCopy()
				if err := unstructured.SetNestedField(changed.Object, string(to), "status", "state"); err != nil {
					t.Fatal(err)
				}
				patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"status":{"state":%q}}`, to))
				if allowed {
					// Not stored, so that the next pair finds the Task as it was.
					wantAccepted(t, env.Client.Status().Update(t.Context(), changed, client.DryRunAll))
					wantAccepted(t, env.Client.Status().Patch(t.Context(), task.DeepCopy(), patch, client.DryRunAll))
					return
				}
				says := string(from) + " "
				wantRefused(t, env.Client.Status().Update(t.Context(), changed), "status.state", says)
				wantRefused(t, env.Client.Status().Patch(t.Context(), task.DeepCopy(), patch), "status.state", says)
				wantState(t, env, task.GetName(), from)
			})
		}
	}
}

// TestStateLawHoldsAgainstRemoval guards the way around a transition rule: to make the old value absent first.
func TestStateLawHoldsAgainstRemoval(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	put := func(change func(map[string]any)) func(*testing.T, *unstructured.Unstructured) error {
		return func(t *testing.T, task *unstructured.Unstructured) error {
			change(task.Object)
			return env.Client.Status().Update(t.Context(), task)
		}
	}
	patch := func(kind types.PatchType, body string) func(*testing.T, *unstructured.Unstructured) error {
		return func(t *testing.T, task *unstructured.Unstructured) error {
			return env.Client.Status().Patch(t.Context(), task, client.RawPatch(kind, []byte(body)))
		}
	}
	ways := map[string]func(*testing.T, *unstructured.Unstructured) error{
		"put without status":       put(func(o map[string]any) { delete(o, "status") }),
		"put an empty status":      put(func(o map[string]any) { o["status"] = map[string]any{} }),
		"put a null status":        put(func(o map[string]any) { o["status"] = nil }),
		"put without state":        put(func(o map[string]any) { o["status"] = map[string]any{"reason": "X"} }),
		"put a null state":         put(func(o map[string]any) { o["status"] = map[string]any{"state": nil} }),
		"put an empty state":       put(func(o map[string]any) { o["status"] = map[string]any{"state": ""} }),
		"put a state of no string": put(func(o map[string]any) { o["status"] = map[string]any{"state": int64(1)} }),
		"merge patch of status":    patch(types.MergePatchType, `{"status":null}`),
		"merge patch of state":     patch(types.MergePatchType, `{"status":{"state":null}}`),
		"JSON patch of status":     patch(types.JSONPatchType, `[{"op":"remove","path":"/status"}]`),
		"JSON patch of history":    patch(types.JSONPatchType, `[{"op":"remove","path":"/status/history"}]`),
		"put only the same state":  put(func(o map[string]any) { o["status"] = map[string]any{"state": o["status"].(map[string]any)["state"]} }),
		"JSON patch of state":      patch(types.JSONPatchType, `[{"op":"remove","path":"/status/state"}]`),
		"JSON patch moving state":  patch(types.JSONPatchType, `[{"op":"move","from":"/status/state","path":"/status/reason"}]`),
	}
	for _, state := range lifecycle.States {
		task := taskIn(t, env, state, nil)
		for way, try := range ways {
			t.Run(string(state)+"/"+way, func(t *testing.T) {
				// Where status itself is null or of another type, the schema refuses it before the law is asked.
				wantRefused(t, try(t, task.DeepCopy()), "status")
				wantState(t, env, task.GetName(), state)
			})
		}
	}
}

// TestStateLawHoldsAgainstServerSideApply: the owner of a field removes it by no longer applying it.
func TestStateLawHoldsAgainstServerSideApply(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	task := builders.Task("applied").Namespace(env.Namespace).Obj()
	if err := env.Client.Create(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	apply := func(status map[string]any) error {
		u := &unstructured.Unstructured{Object: map[string]any{"status": status}}
		u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Task"))
		u.SetNamespace(env.Namespace)
		u.SetName(task.GetName())
		return env.Client.Status().Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u),
			client.FieldOwner("law"), client.ForceOwnership)
	}
	wantRefused(t, apply(map[string]any{"state": "Unheard"}), "status.state", "Pending may only be followed by")
	wantAccepted(t, apply(map[string]any{"state": "Processing", "reason": "X"}))
	wantRefused(t, apply(map[string]any{"reason": "X"}), "status.state", "Required value")
	wantState(t, env, task.GetName(), "Processing")
}

func TestStatusIsWrittenThroughItsSubresourceOnly(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	task := builders.Task("born-done").Namespace(env.Namespace).Obj()
	task.Status.State = v1alpha1.StateSucceeded
	if err := env.Client.Create(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	wantState(t, env, task.Name, v1alpha1.StatePending)

	for _, state := range lifecycle.States {
		task := taskIn(t, env, state, nil)
		changed := task.DeepCopy()
		changed.SetAnnotations(map[string]string{"touched": "yes"})
		delete(changed.Object, "status")
		if err := env.Client.Update(t.Context(), changed); err != nil {
			t.Errorf("%s: an update without status: %v", state, err)
		}
		wantState(t, env, task.GetName(), state)
	}
}

func wantState(t *testing.T, env *testenv.Env, name string, want v1alpha1.State) {
	t.Helper()
	if got := stateOf(live(t, env, name)); got != want {
		t.Errorf("stored state is %q, want %q", got, want)
	}
}

func wantAccepted(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("refused: %v", err)
	}
}

// wantRefused sees to it that the API server has refused something as invalid, and that its text names all of the parts.
func wantRefused(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Error("accepted")
		return
	}
	if reason := apierrors.ReasonForError(err); reason != metav1.StatusReasonInvalid && reason != metav1.StatusReasonBadRequest {
		t.Errorf("refused as %q, want invalid: %v", reason, err)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the refusal does not say %q: %v", part, err)
		}
	}
}
