package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// TestKubectlWait is C63: one condition is true for each end, so that a script can wait for it.
func TestKubectlWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(w.worker("good"))
	w.create(w.worker("bad", "--exit=1"))
	cancelled := w.create(w.worker("unwanted").Suspend())
	w.kubectl("wait", "--for=condition=Finished", "--timeout=60s", "tasks.taskwarden.dev/good", "tasks.taskwarden.dev/bad")
	w.kubectl("wait", "--for=jsonpath={.status.state}=Succeeded", "--timeout=30s", "tasks.taskwarden.dev/good")
	w.kubectl("wait", "--for=condition=Succeeded=False", "--timeout=30s", "tasks.taskwarden.dev/bad")
	if out, err := kubectl(t.Context(), "", "-n", w.namespace, "wait", "--for=condition=Finished", "--timeout=1s", "tasks.taskwarden.dev/unwanted"); err == nil {
		t.Errorf("a suspended Task is finished: %s", out)
	}
	w.patch(cancelled, `{"spec":{"cancel":true}}`)
	w.kubectl("wait", "--for=condition=Finished", "--timeout=60s", "tasks.taskwarden.dev/unwanted")
}

// TestKubectlGet checks what people look at first.
func TestKubectlGet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	task := w.create(w.worker("looked-at", "--exit=7", "--message=no such file"))
	w.end(soon, task, v1alpha1.StateFailed, v1alpha1.ReasonNonZeroExitCode)
	other := w.create(w.worker("other"))
	w.end(soon, other, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted)

	narrow := strings.Split(w.kubectl("get", "tasks.taskwarden.dev", "looked-at"), "\n")
	if got := strings.Fields(narrow[0]); !slices.Equal(got, []string{"NAME", "STATE", "REASON", "ATTEMPT", "PROGRESS", "STAGE", "AGE"}) {
		t.Errorf("columns: %v", got)
	}
	if got := strings.Fields(narrow[1]); len(got) != 5 || !slices.Equal(got[:4], []string{"looked-at", "Failed", "NonZeroExitCode", "1"}) {
		t.Errorf("line: %v", got)
	}
	wide := w.kubectl("get", "twt", "looked-at", "-o", "wide")
	for _, want := range []string{"NODE", "STARTED", "FINISHED", "MESSAGE", "no such file"} {
		if !strings.Contains(wide, want) {
			t.Errorf("%q is not in\n%s", want, wide)
		}
	}
	if got := w.kubectl("get", "tasks.taskwarden.dev", "--field-selector", "status.state=Failed", "-o", "name"); strings.TrimSpace(got) != "task.taskwarden.dev/looked-at" {
		t.Errorf("selected by state: %q", got)
	}
	events := w.kubectl("events", "--for", "task.taskwarden.dev/looked-at")
	if !strings.Contains(events, v1alpha1.ReasonNonZeroExitCode) {
		t.Errorf("no event says how it failed:\n%s", events)
	}
}

// TestKubectlDiff is C62: what was applied is not changed by defaults, neither at once nor when the Task has ended, so that
// tools that compare see nothing to do; and an edit of what is fixed is refused by name.
func TestKubectlDiff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	samples, err := filepath.Glob(repository("examples", "tasks", "*.yaml"))
	if err != nil || len(samples) == 0 {
		t.Fatalf("samples: %v, %v", samples, err)
	}
	sample := repository("examples", "tasks", "succeeds.yaml")
	w.kubectl("apply", "-f", sample)
	if diff := w.kubectl("diff", "-f", sample); diff != "" {
		t.Errorf("right after apply:\n%s", diff)
	}
	w.kubectl("wait", "--for=condition=Finished", "--timeout=90s", "-f", sample)
	if diff := w.kubectl("diff", "-f", sample); diff != "" {
		t.Errorf("when it has ended:\n%s", diff)
	}
	if out := w.kubectl("apply", "-f", sample); !strings.Contains(out, "unchanged") {
		t.Errorf("a second apply: %s", out)
	}
	content, err := os.ReadFile(sample)
	if err != nil {
		t.Fatal(err)
	}
	edited := strings.Replace(string(content), "activeDeadlineSeconds: 45", "activeDeadlineSeconds: 46", 1)
	if _, err := kubectl(t.Context(), edited, "-n", w.namespace, "apply", "-f", "-"); err == nil || !strings.Contains(err.Error(), "activeDeadlineSeconds") {
		t.Errorf("an edit of a fixed field: %v", err)
	}
	for _, file := range samples { // the others only as what they would be
		w.kubectl("apply", "--dry-run=server", "-f", file)
	}
}

// TestPlainApplyOfCRD is C61: the CRD fits into the annotation of a client-side apply, which has installed it, and a second
// one finds nothing to change.
func TestPlainApplyOfCRD(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := cluster.client.Get(ctx, client.ObjectKey{Name: "tasks.taskwarden.dev"}, crd); err != nil {
		t.Fatal(err)
	}
	switch n := len(crd.Annotations[corev1.LastAppliedConfigAnnotation]); {
	case n == 0:
		t.Error("it was not installed by a client-side apply")
	case n > 200<<10:
		t.Errorf("%d bytes of the 262144 that all annotations may have", n)
	}
	manifests, err := kubectl(ctx, "", "kustomize", repository("config", "default"))
	if err != nil {
		t.Fatal(err)
	}
	if diff, err := kubectl(ctx, manifests, "diff", "-f", "-"); err != nil || diff != "" {
		t.Errorf("after the installation: %v\n%s", err, diff)
	}
}
