package task

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/builders"
)

// jobOf is the Job of a Task built by b, at its given attempt.
func jobOf(b *builders.TaskBuilder, attempt int32) *batchv1.Job {
	t := b.Namespace("ns").Obj()
	t.UID, t.Status.Attempt = "task-uid", attempt
	return newJob(t, nil)
}

func TestNewJob(t *testing.T) {
	job := jobOf(builders.Task("demo").Label("app", "mine").Template(
		builders.Pod().Label("team", "video").Label(v1alpha1.LabelAttempt, "forged").Annotation("note", "kept").Obj(),
	).Input(map[string]int{"n": 1}).Env("OWN", "$(TASKWARDEN_ATTEMPT)").Env(v1alpha1.EnvAttempt, "forged"), 3)

	ours := map[string]string{
		v1alpha1.LabelTask: "demo", v1alpha1.LabelTaskUID: "task-uid", v1alpha1.LabelAttempt: "3",
		v1alpha1.LabelManagedBy: v1alpha1.ManagedBy,
	}
	if diff := cmp.Diff(ours, job.Labels); diff != "" {
		t.Errorf("labels of the Job: ours only (-want +got):\n%s", diff)
	}
	ours["team"] = "video"
	if diff := cmp.Diff(ours, job.Spec.Template.Labels); diff != "" {
		t.Errorf("labels of the pod: ours over the template's (-want +got):\n%s", diff)
	}
	owner := []metav1.OwnerReference{{
		APIVersion: "taskwarden.dev/v1alpha1", Kind: "Task", Name: "demo", UID: "task-uid",
		Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
	}}
	if diff := cmp.Diff(owner, job.OwnerReferences); diff != "" {
		t.Errorf("owner (-want +got):\n%s", diff)
	}
	if job.Name != "demo-3" || job.Namespace != "ns" {
		t.Errorf("it is %s/%s", job.Namespace, job.Name)
	}
	spec := job.Spec
	if *spec.BackoffLimit != 0 || *spec.PodReplacementPolicy != batchv1.Failed || spec.Template.Spec.RestartPolicy != corev1.RestartPolicyNever {
		t.Errorf("a Job is one pod, and an exit an end: %v %v %v", *spec.BackoffLimit, *spec.PodReplacementPolicy, spec.Template.Spec.RestartPolicy)
	}
	policy := &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
		Action:          batchv1.PodFailurePolicyActionFailJob,
		OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}},
	}}}
	if diff := cmp.Diff(policy, spec.PodFailurePolicy); diff != "" {
		t.Errorf("C30: the Job keeps the evidence of a disruption (-want +got):\n%s", diff)
	}
	if spec.TTLSecondsAfterFinished != nil || spec.ActiveDeadlineSeconds != nil || spec.Suspend != nil {
		t.Errorf("the Job has a life of its own: %+v", spec)
	}
}

func TestNewJobEnvironment(t *testing.T) {
	job := jobOf(builders.Task("demo").Env("OWN", "$(TASKWARDEN_ATTEMPT)").Env(v1alpha1.EnvAttempt, "forged").Input("x"), 3)
	env := job.Spec.Template.Spec.Containers[0].Env
	want := map[string]string{
		v1alpha1.EnvTaskName: "demo", v1alpha1.EnvTaskNamespace: "ns", v1alpha1.EnvTaskUID: "task-uid", v1alpha1.EnvAttempt: "3",
		v1alpha1.EnvInput: "/var/run/taskwarden/input.json", "OWN": "$(TASKWARDEN_ATTEMPT)",
	}
	got := map[string]string{}
	for _, e := range env {
		if _, twice := got[e.Name]; twice {
			t.Errorf("%s is set twice", e.Name)
		}
		got[e.Name] = e.Value
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	own := slices.IndexFunc(env, func(e corev1.EnvVar) bool { return e.Name == "OWN" })
	attempt := slices.IndexFunc(env, func(e corev1.EnvVar) bool { return e.Name == v1alpha1.EnvAttempt })
	if own < attempt {
		t.Error("the template's variables cannot refer to ours, which stand behind them")
	}
}

func TestNewJobInput(t *testing.T) {
	template := jobOf(builders.Task("demo").Template(builders.Pod().Annotation("note", "kept").Container("second", "image").Obj()).
		WorkerContainer("second").Input(map[string]string{"k": "v"}), 1).Spec.Template
	want := map[string]string{"note": "kept", v1alpha1.AnnotationInput: `{"k":"v"}`}
	if diff := cmp.Diff(want, template.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	if len(template.Spec.Volumes) != 1 || template.Spec.Volumes[0].DownwardAPI == nil {
		t.Fatalf("volumes %+v", template.Spec.Volumes)
	}
	item := template.Spec.Volumes[0].DownwardAPI.Items[0]
	if item.Path != "input.json" || item.FieldRef.FieldPath != "metadata.annotations['taskwarden.dev/input']" {
		t.Errorf("the file is %+v", item)
	}
	first, second := template.Spec.Containers[0], template.Spec.Containers[1]
	if len(first.VolumeMounts) != 0 || len(first.Env) != 0 {
		t.Errorf("another container than the worker got something: %+v", first)
	}
	if len(second.VolumeMounts) != 1 || second.VolumeMounts[0].MountPath != "/var/run/taskwarden" || !second.VolumeMounts[0].ReadOnly {
		t.Errorf("mounts of the worker %+v", second.VolumeMounts)
	}
	none := jobOf(builders.Task("demo"), 1).Spec.Template
	if len(none.Annotations) != 0 || len(none.Spec.Volumes) != 0 || len(none.Spec.Containers[0].VolumeMounts) != 0 {
		t.Errorf("without an input there is nothing to hand over: %+v", none)
	}
}

func TestNewJobLeavesTheTaskAlone(t *testing.T) {
	task := builders.Task("demo").Env("A", "b").Input("x").Obj()
	task.Status.Attempt = 1
	task.Status.Resources = memory("2Gi")
	before := task.DeepCopy()
	newJob(task, nil)
	if diff := cmp.Diff(before, task); diff != "" {
		t.Errorf("the cached Task was changed:\n%s", diff)
	}
}

func memory(q string) *corev1.ResourceRequirements {
	list := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(q)}
	return &corev1.ResourceRequirements{Requests: list, Limits: list.DeepCopy()}
}

func TestNewJobResources(t *testing.T) {
	task := builders.Task("demo").Template(builders.Pod().Memory("1Gi").Spec(func(s *corev1.PodSpec) {
		s.Containers[0].Resources.Limits[corev1.ResourceCPU] = resource.MustParse("1")
	}).Obj()).Obj()
	task.Status.Attempt, task.Status.Resources = 2, memory("2Gi")
	got := newJob(task, nil).Spec.Template.Spec.Containers[0].Resources
	want := *memory("2Gi")
	want.Limits[corev1.ResourceCPU] = resource.MustParse("1")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a rule's resources replace the template's, name by name (-want +got):\n%s", diff)
	}
}

func TestBackstop(t *testing.T) {
	cases := map[string]struct {
		reason string
		spec   func(*v1alpha1.Task)
		want   int64
	}{
		"defaults": {"start 600, active 1800, grace 30, slack 60", func(*v1alpha1.Task) {}, 2490},
		"set": {"all of them count", func(t *v1alpha1.Task) {
			t.Spec.StartTimeoutSeconds, t.Spec.ActiveDeadlineSeconds = ptr.To[int32](10), ptr.To[int32](100)
			t.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](5)
		}, 175},
		"a shorter one is kept": {"the template may be stricter", func(t *v1alpha1.Task) {
			t.Spec.Template.Spec.ActiveDeadlineSeconds = ptr.To[int64](7)
		}, 7},
		"a longer one is not": {"nothing outlives the operator's word for long", func(t *v1alpha1.Task) {
			t.Spec.Template.Spec.ActiveDeadlineSeconds = ptr.To[int64](7000)
		}, 2490},
		"grace out of all bounds": {"the API server bounds a pod's deadline, and takes any grace", func(t *v1alpha1.Task) {
			t.Spec.StartTimeoutSeconds, t.Spec.ActiveDeadlineSeconds = ptr.To[int32](31536000), ptr.To[int32](31536000)
			t.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1 << 60)
		}, 2*31536000 + 86400 + 60},
	}
	for name, tc := range cases {
		task := builders.Task("demo").Obj()
		task.Status.Attempt = 1
		tc.spec(task)
		if got := *newJob(task, nil).Spec.Template.Spec.ActiveDeadlineSeconds; got != tc.want {
			t.Errorf("%s: %d, want %d: %s", name, got, tc.want, tc.reason)
		}
	}
}

func TestC28RestartPolicyIsNever(t *testing.T) {
	for _, p := range []corev1.RestartPolicy{"", corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure, corev1.RestartPolicyAlways} {
		job := jobOf(builders.Task("demo").Template(builders.Pod().RestartPolicy(p).Obj()), 1)
		if got := job.Spec.Template.Spec.RestartPolicy; got != corev1.RestartPolicyNever {
			t.Errorf("template %q: the pod has %q", p, got)
		}
	}
}

func TestJobNames(t *testing.T) {
	cases := map[string]string{
		"short":                      "demo",
		"dots":                       "a.b.c",
		"just fits":                  strings.Repeat("a", 61),
		"just too long":              strings.Repeat("a", 62),
		"longest":                    strings.Repeat("a", 253),
		"dot at the cut":             strings.Repeat("a", 47) + "." + strings.Repeat("b", 205),
		"dash at the cut":            strings.Repeat("a", 47) + "-" + strings.Repeat("b", 205),
		"dashes and a dot before it": strings.Repeat("a", 44) + "---." + strings.Repeat("b", 200),
		"dots all over":              strings.Repeat("a.", 126) + "a",
	}
	seen := map[string]string{}
	for name, task := range cases {
		for _, attempt := range []int32{1, 2, 9, 10, 99, 1000, 2147483647} {
			job := JobName(task, attempt)
			if errs := validation.IsDNS1123Subdomain(job); len(errs) > 0 {
				t.Errorf("%s: Job name %q: %v", name, job, errs)
			}
			// The Job controller copies the name into a label of the pod.
			if errs := validation.IsValidLabelValue(job); len(errs) > 0 {
				t.Errorf("%s: as a label %q: %v", name, job, errs)
			}
			if !strings.HasSuffix(job, fmt.Sprintf("-%d", attempt)) {
				t.Errorf("%s: %q does not end in its attempt", name, job)
			}
			if other := seen[job]; other != "" {
				t.Errorf("%q names an attempt of %q and of %q", job, other, task)
			}
			seen[job] = task
		}
	}
}

func TestJobNamesProperty(t *testing.T) {
	taskName := rapid.StringMatching(`[a-z0-9]([a-z0-9.-]{0,250}[a-z0-9])?`).Filter(func(s string) bool {
		return len(validation.IsDNS1123Subdomain(s)) == 0
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := taskName.Draw(t, "one"), taskName.Draw(t, "other")
		n, m := rapid.Int32Range(1, 200).Draw(t, "attempt"), rapid.Int32Range(1, 200).Draw(t, "other attempt")
		job := jobOf(builders.Task(a), n)
		if errs := append(validation.IsDNS1123Subdomain(job.Name), validation.IsValidLabelValue(job.Name)...); len(errs) > 0 {
			t.Fatalf("%q: %v", job.Name, errs)
		}
		for key, value := range job.Spec.Template.Labels {
			if errs := validation.IsValidLabelValue(value); len(errs) > 0 {
				t.Fatalf("label %s=%q: %v", key, value, errs)
			}
		}
		if (a != b || n != m) && job.Name == JobName(b, m) {
			t.Fatalf("%q names two attempts", job.Name)
		}
	})
}

// TestLongNamesDiffer: names that are equal up to the cut stay apart, many thousands of them.
func TestLongNamesDiffer(t *testing.T) {
	seen := map[string]bool{}
	const n = 200000
	for i := range n {
		seen[JobName(fmt.Sprintf("%s-%d", strings.Repeat("render-", 30), i), 1)] = true
	}
	if len(seen) != n {
		t.Errorf("%d of %d names clash", n-len(seen), n)
	}
}
