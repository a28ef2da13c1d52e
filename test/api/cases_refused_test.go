package api

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/builders"
	"github.com/taskwarden/taskwarden/test/testenv"
)

// fewTries is the start timeout of what will never start. Where many tests run at once the Job controller may take ten seconds
// to try for the first time, and then there must be time to see the wait.
const fewTries = 30 * time.Second

// deny has a policy refuse what Tasks need in the test's namespace, and waits until it does.
func deny(t *testing.T, env *testenv.Env, group, resourceName, text string, reason *metav1.StatusReason) {
	t.Helper()
	name := env.Namespace + "-" + resourceName
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	policy.Spec = admissionregistrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionregistrationv1.MatchResources{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: env.Namespace}},
			ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: []string{resourceName}},
			}}},
		},
		Validations: []admissionregistrationv1.Validation{{Expression: "false", Message: text, Reason: reason}},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}}
	binding.Spec = admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
	}
	for _, object := range []client.Object{policy, binding} {
		mustCreate(t, env, object)
		t.Cleanup(func() {
			if err := env.Client.Delete(context.WithoutCancel(t.Context()), object); err != nil {
				t.Errorf("delete %s: %v", object.GetName(), err)
			}
		})
	}
	testenv.Eventually(t, func(ctx context.Context) error {
		meta := metav1.ObjectMeta{Namespace: env.Namespace, Name: "probe"}
		var probe client.Object = &corev1.Pod{ObjectMeta: meta, Spec: builders.Pod().Obj().Spec}
		if resourceName == "jobs" {
			job := &batchv1.Job{ObjectMeta: meta}
			job.Spec.Template = builders.Pod().RestartPolicy(corev1.RestartPolicyNever).Obj()
			probe = job
		}
		if err := env.Client.Create(ctx, probe, client.DryRunAll); err == nil || !strings.Contains(err.Error(), text) {
			return fmt.Errorf("the policy does not refuse %s yet: %w", resourceName, err)
		}
		return nil
	})
}

// waitsFor waits until condition Reconciling gives a reason with the server's own text.
func waitsFor(t *testing.T, env *testenv.Env, task *v1alpha1.Task, reason, text string) *v1alpha1.Task {
	t.Helper()
	now := env.WaitCondition(task, v1alpha1.ConditionReconciling, metav1.ConditionTrue, reason)
	if message := condition(now, v1alpha1.ConditionReconciling).Message; !strings.Contains(message, text) || now.Status.State != v1alpha1.StatePending {
		t.Errorf("Task %s is %s with message %q, wanted is %q", task.Name, now.Status.State, message, text)
	}
	return now
}

// failsWith waits until a Task has failed with one attempt, for a reason with the server's own text.
func failsWith(t *testing.T, env *testenv.Env, task *v1alpha1.Task, reason, text string) {
	t.Helper()
	done := env.WaitState(task, v1alpha1.StateFailed)
	wantReason(t, done, reason)
	wantAttempts(t, done, reason)
	if !strings.Contains(done.Status.Message, text) {
		t.Errorf("Task %s: message %q, wanted is %q", task.Name, done.Status.Message, text)
	}
}

func TestC10PolicyRefusesTheJob(t *testing.T) {
	t.Parallel()
	// Without a reason a policy answers with 422, as for a field that is wrong.
	for name, reason := range map[string]*metav1.StatusReason{"Forbidden": ptr.To(metav1.StatusReasonForbidden), "no reason": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := newEnv(t, testenv.Stopped())
			deny(t, env, "batch", "jobs", "no Jobs on Mondays", reason)
			env.StartController()
			task := env.Create(builders.Task("denied").Retry(0).StartTimeout(4 * time.Second).Obj())
			waitsFor(t, env, task, v1alpha1.ReasonAdmissionDenied, "no Jobs on Mondays")
			failsWith(t, env, task, v1alpha1.ReasonAdmissionDenied, "no Jobs on Mondays")
			if n := env.Faults.Calls("create jobs"); n > 6 {
				t.Errorf("%d Jobs were asked for within 4 s", n)
			}
		})
	}
}

func TestC10PolicyRefusesThePod(t *testing.T) {
	t.Parallel()
	env := newEnv(t, testenv.Stopped())
	deny(t, env, "", "pods", "no pods on Mondays", nil)
	env.StartController()
	task := env.Create(builders.Task("denied").Retry(0).StartTimeout(fewTries).Obj())
	waitsFor(t, env, task, v1alpha1.ReasonAdmissionDenied, "no pods on Mondays")
	failsWith(t, env, task, v1alpha1.ReasonAdmissionDenied, "no pods on Mondays")
}

func TestC10PodSecurityRefusesThePod(t *testing.T) {
	t.Parallel()
	env := newEnv(t, testenv.WithNamespaceLabel("pod-security.kubernetes.io/enforce", "restricted"))
	task := env.Create(builders.Task("mighty").Template(builders.Pod().Privileged().Obj()).Retry(0).StartTimeout(fewTries).Obj())
	waitsFor(t, env, task, v1alpha1.ReasonAdmissionDenied, `violates PodSecurity "restricted:latest"`)
	failsWith(t, env, task, v1alpha1.ReasonAdmissionDenied, "privileged")
}

// TestC10InvalidOnlyAsAJob has a template that the schema of the Task cannot refuse.
func TestC10InvalidOnlyAsAJob(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	task := env.Create(builders.Task("invalid").Template(builders.Pod().Spec(func(s *corev1.PodSpec) {
		s.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "nowhere", MountPath: "/data"}}
	}).Obj()).Obj())
	failsWith(t, env, task, v1alpha1.ReasonInvalidTemplate, "volumeMounts[0].name")
	env.Touch(task)
	env.Quiet(500 * time.Millisecond)
	if n := env.Faults.Calls("create jobs"); n > 2 {
		t.Errorf("%d Jobs were asked for", n)
	}
}

// TestC18PodThatNeverFits asks for more than the namespace will ever give, by its quota or for a single container: the API
// server's own text tells, until the Task ends by its start timeout.
func TestC18PodThatNeverFits(t *testing.T) {
	t.Parallel()
	memory := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi"), corev1.ResourceLimitsMemory: resource.MustParse("64Mi")}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "small"}}
	quota.Spec.Hard = memory
	limits := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "small"}}
	limits.Spec.Limits = []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}}}
	for name, c := range map[string]struct {
		rule         client.Object
		reason, text string
	}{
		"quota":       {quota, v1alpha1.ReasonQuotaExceeded, "exceeded quota: small, requested: limits.memory=65Mi,memory=65Mi, used: limits.memory=0,memory=0, limited: limits.memory=64Mi,memory=64Mi"},
		"limit range": {limits, v1alpha1.ReasonAdmissionDenied, "maximum memory usage per Container is 64Mi, but limit is 65Mi"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := newEnv(t, testenv.Stopped())
			c.rule.SetNamespace(env.Namespace)
			mustCreate(t, env, c.rule)
			template := builders.Pod().Memory("65Mi").Obj()
			waitRefusal(t, env, template, c.text)
			env.StartController()
			task := env.Create(builders.Task("big").Template(template).Retry(0).StartTimeout(fewTries).Obj())
			waiting := waitsFor(t, env, task, c.reason, c.text)
			failsWith(t, env, task, c.reason, c.text)
			if n := env.Faults.Calls("create jobs"); n != 1 {
				t.Errorf("%d Jobs were asked for", n)
			}
			// Accepted, waiting, told why, given up, ended.
			if n := env.Faults.Calls("update tasks/status"); n > 5 {
				t.Errorf("the status was written %d times; while it waited it was %+v", n, waiting.Status)
			}
		})
	}
}

// waitRefusal waits until the API server refuses pods of a template.
func waitRefusal(t *testing.T, env *testenv.Env, template corev1.PodTemplateSpec, text string) {
	t.Helper()
	testenv.Eventually(t, func(ctx context.Context) error {
		probe := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: env.Namespace, Name: "probe"}, Spec: template.Spec}
		if err := env.Client.Create(ctx, probe, client.DryRunAll); err == nil || !strings.Contains(err.Error(), text) {
			return fmt.Errorf("it is not refused yet: %w", err)
		}
		return nil
	})
}

// TestC18QuotaIsWaitedFor fills a quota with one Task while others wait: for room, or in vain.
func TestC18QuotaIsWaitedFor(t *testing.T) {
	t.Parallel()
	env := newEnv(t, testenv.Stopped())
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: env.Namespace, Name: "one-pod"}}
	quota.Spec.Hard = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}
	mustCreate(t, env, quota)
	testenv.Eventually(t, func(ctx context.Context) error {
		if err := env.Client.Get(ctx, client.ObjectKeyFromObject(quota), quota); err != nil || len(quota.Status.Hard) == 0 {
			return fmt.Errorf("the quota is not counted yet: %w", err)
		}
		return nil
	})
	env.StartController()
	holder := env.Create(builders.Task("holder").Obj())
	pod := env.Kubelet.Run(env.Kubelet.WaitPod(holder, 1))
	env.WaitState(holder, v1alpha1.StateProcessing)
	waiter := env.Create(builders.Task("waiter").Retry(0).Obj())
	never := env.Create(builders.Task("never").Retry(0).StartTimeout(fewTries).Obj())
	cancelled := env.Create(builders.Task("cancelled").Obj())
	waiting := waitsFor(t, env, waiter, v1alpha1.ReasonQuotaExceeded, "exceeded quota: one-pod")
	waitsFor(t, env, cancelled, v1alpha1.ReasonQuotaExceeded, "exceeded quota: one-pod")
	env.Cancel(cancelled) // C35
	wantNever(t, env.WaitState(cancelled, v1alpha1.StateCancelled), v1alpha1.StateProcessing)
	failsWith(t, env, never, v1alpha1.ReasonQuotaExceeded, "exceeded quota: one-pod")
	// The Job controller has tried several times meanwhile; the Task says the same as before.
	testenv.Eventually(t, func(ctx context.Context) error {
		var events corev1.EventList
		if err := env.Client.List(ctx, &events, client.InNamespace(env.Namespace)); err != nil {
			return err
		}
		tries := int32(0)
		for i := range events.Items {
			if e := &events.Items[i]; e.Reason == "FailedCreate" && e.InvolvedObject.UID == waiting.Status.Worker.JobUID {
				tries += e.Count
			}
		}
		if tries < 3 {
			return fmt.Errorf("%d tries", tries)
		}
		return nil
	})
	env.Quiet(300 * time.Millisecond)
	if now := env.Get(waiter); now.ResourceVersion != waiting.ResourceVersion {
		t.Errorf("the status was written again: %+v, then %+v", waiting.Status, now.Status)
	}
	env.Kubelet.Exit(pod, testenv.Exit{})
	env.Kubelet.Flash(env.Kubelet.WaitPod(waiter, 1), testenv.Exit{})
	done := env.WaitState(waiter, v1alpha1.StateSucceeded)
	wantAttempts(t, done, v1alpha1.ReasonCompleted)
}
