package api

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/gateway"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/internal/report"
	"github.com/taskwarden/taskwarden/test/builders"
	"github.com/taskwarden/taskwarden/test/testenv"
)

const (
	controllerUser = "system:serviceaccount:taskwarden-system:taskwarden-controller"
	gatewayUser    = "system:serviceaccount:taskwarden-system:taskwarden-gateway"
)

func readManifest(t *testing.T, object any, parts ...string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(append([]string{"..", "..", "config"}, parts...)...))
	if err == nil {
		err = yaml.UnmarshalStrict(content, object)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// installPolicy installs config/policy under a name of the test's own, for its namespace alone: other tests write statuses as
// administrators meanwhile.
func installPolicy(t *testing.T, env *testenv.Env) {
	t.Helper()
	var policy admissionregistrationv1.ValidatingAdmissionPolicy
	readManifest(t, &policy, "policy", "task_status_policy.yaml")
	var binding admissionregistrationv1.ValidatingAdmissionPolicyBinding
	readManifest(t, &binding, "policy", "task_status_policy_binding.yaml")
	policy.Name, binding.Name, binding.Spec.PolicyName = env.Namespace, env.Namespace, env.Namespace
	binding.Spec.MatchResources = &admissionregistrationv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": env.Namespace}},
	}
	for _, object := range []client.Object{&policy, &binding} {
		mustCreate(t, env, object)
		t.Cleanup(func() {
			if err := env.Client.Delete(context.WithoutCancel(t.Context()), object); err != nil {
				t.Errorf("delete %T: %v", object, err)
			}
		})
	}
	if len(policy.Spec.Validations) == 0 {
		t.Fatal("the policy is empty")
	}
}

// as is a client of another user. Its group may do everything, so that what is refused is refused by the policy.
func as(t *testing.T, env *testenv.Env, user string) client.Client {
	t.Helper()
	cfg := rest.CopyConfig(env.Config)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
	c, err := client.New(cfg, client.Options{Scheme: testenv.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestReportsC68OnlyTheControllerMovesATask changes each part of a status as the controller, as the gateway and as an administrator.
func TestReportsC68OnlyTheControllerMovesATask(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	task, pod := processing(t, env, "guarded")
	task = changeStatus(t, env, task, func(task *v1alpha1.Task) {
		task.Status.LastHandledRetry = &v1alpha1.HandledRetry{RequestedAt: "1", Outcome: v1alpha1.RetryAccepted}
		meta.SetStatusCondition(&task.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionTerminating, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonCancelled,
		})
	})
	fresh := env.Create(builders.Task("fresh").Obj()) // without a status
	freshPod := workerOf(t, env, fresh, 1)
	if task.Status.RunStartTime == nil {
		t.Fatal("the Task has no runStartTime to protect")
	}
	installPolicy(t, env)
	now := metav1.NewMicroTime(time.Now())
	gatewayClient := as(t, env, gatewayUser)
	users := map[string]client.Client{"the gateway": gatewayClient, "an administrator": env.Client}
	dryRun := func(c client.Client, change func(*v1alpha1.TaskStatus)) error {
		changed := env.Get(task)
		change(&changed.Status)
		return c.Status().Update(t.Context(), changed, client.DryRunAll)
	}
	// A policy takes a moment until it is in force.
	testenv.Eventually(t, func(context.Context) error {
		if err := dryRun(gatewayClient, func(s *v1alpha1.TaskStatus) { s.State = v1alpha1.StateSucceeded }); !apierrors.IsForbidden(err) {
			return fmt.Errorf("not refused: %w", err)
		}
		return nil
	})
	condition := func(kind string) func(*v1alpha1.TaskStatus) {
		return func(s *v1alpha1.TaskStatus) {
			s.Conditions = append(s.Conditions, metav1.Condition{
				Type: kind, Status: metav1.ConditionTrue, Reason: "Test", Message: "test", LastTransitionTime: metav1.NewTime(now.Time),
			})
		}
	}
	for name, c := range map[string]struct {
		change func(*v1alpha1.TaskStatus)
		open   bool // to everyone
	}{
		"state":               {change: func(s *v1alpha1.TaskStatus) { s.State = v1alpha1.StateSucceeded }},
		"reason":              {change: func(s *v1alpha1.TaskStatus) { s.Reason = "Other" }},
		"message":             {change: func(s *v1alpha1.TaskStatus) { s.Message = "other" }},
		"no reason":           {change: func(s *v1alpha1.TaskStatus) { s.Reason = "" }},
		"attempt":             {change: func(s *v1alpha1.TaskStatus) { s.Attempt = 2 }},
		"charged":             {change: func(s *v1alpha1.TaskStatus) { s.Charged = 1 }},
		"history":             {change: func(s *v1alpha1.TaskStatus) { s.History[0].Reason = "Other" }},
		"attempts":            {change: func(s *v1alpha1.TaskStatus) { s.Attempts = nil }},
		"completionTime":      {change: func(s *v1alpha1.TaskStatus) { s.CompletionTime = &now }},
		"nextRetryTime":       {change: func(s *v1alpha1.TaskStatus) { s.NextRetryTime = &now }},
		"result":              {change: func(s *v1alpha1.TaskStatus) { s.Result = &v1alpha1.TaskResult{URL: "a:b"} }},
		"syncLagMilliseconds": {change: func(s *v1alpha1.TaskStatus) { s.SyncLagMilliseconds = ptr.To[int64](1) }},
		"runStartTime":        {change: func(s *v1alpha1.TaskStatus) { s.RunStartTime = &now }},
		"no runStartTime":     {change: func(s *v1alpha1.TaskStatus) { s.RunStartTime = nil }},
		"lastHandledRetry":    {change: func(s *v1alpha1.TaskStatus) { s.LastHandledRetry.RequestedAt = "other" }},
		"no lastHandledRetry": {change: func(s *v1alpha1.TaskStatus) { s.LastHandledRetry = nil }},
		"worker":              {change: func(s *v1alpha1.TaskStatus) { s.Worker = nil }},
		"worker.jobUID":       {change: func(s *v1alpha1.TaskStatus) { s.Worker.JobUID = "x" }},
		"worker.podUID":       {change: func(s *v1alpha1.TaskStatus) { s.Worker.PodUID = "" }},
		"worker.nodeName":     {change: func(s *v1alpha1.TaskStatus) { s.Worker.NodeName = "x" }},
		"worker.startTime":    {change: func(s *v1alpha1.TaskStatus) { s.Worker.StartTime = &now }},
		"condition Suspended": {change: condition(v1alpha1.ConditionSuspended)},
		"not Terminating": {change: func(s *v1alpha1.TaskStatus) {
			meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionTerminating).Status = metav1.ConditionFalse
		}},
		"no condition Terminating": {change: func(s *v1alpha1.TaskStatus) {
			meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionTerminating)
		}},
		"no conditions":            {change: func(s *v1alpha1.TaskStatus) { s.Conditions = nil }},
		"condition Finished":       {change: condition(v1alpha1.ConditionFinished)},
		"condition ReportMismatch": {change: condition(v1alpha1.ConditionReportMismatch), open: true},
		"worker.heartbeatTime":     {change: func(s *v1alpha1.TaskStatus) { s.Worker.HeartbeatTime, s.Worker.Sequence = &now, 7 }, open: true},
		"progress":                 {change: func(s *v1alpha1.TaskStatus) { s.Progress = &v1alpha1.TaskProgress{Percent: ptr.To[int32](9)} }, open: true},
		"checkpoint": {change: func(s *v1alpha1.TaskStatus) {
			s.Checkpoint = &v1alpha1.TaskCheckpoint{Data: apiextensionsv1.JSON{Raw: []byte(`{"a":null}`)}, Attempt: 1, UpdateTime: now}
		}, open: true},
		"the first report": {change: func(s *v1alpha1.TaskStatus) {
			s.Report = &v1alpha1.FinalReport{Attempt: 1, Sequence: 1, Outcome: v1alpha1.ReportFailed, Source: v1alpha1.FromGateway, ReceivedTime: now}
		}, open: true},
		"nothing": {change: func(*v1alpha1.TaskStatus) {}, open: true},
	} {
		t.Run(name, func(t *testing.T) {
			for who, user := range users {
				switch err := dryRun(user, c.change); {
				case c.open && err != nil:
					t.Errorf("%s: %v", who, err)
				case !c.open && !apierrors.IsForbidden(err):
					t.Errorf("%s is not refused: %v", who, err)
				}
			}
			if err := dryRun(as(t, env, controllerUser), c.change); err != nil {
				t.Errorf("the controller: %v", err)
			}
		})
	}
	// Of a Task that the controller has not written to, a report is all that the gateway may store.
	wantPost(t, gatewayFor(t, env, func(o *gateway.Options) { o.Client = gatewayClient }), reportFor(fresh, report.Succeeded, 1),
		workerToken(t, env, freshPod), 200, "Stored")
	for what, change := range map[string]func(*v1alpha1.TaskStatus){
		"a worker": func(s *v1alpha1.TaskStatus) {
			s.Worker = &v1alpha1.WorkerStatus{HeartbeatTime: &now, Sequence: 1}
		},
		"a condition": condition(v1alpha1.ConditionTerminating),
		"a message":   func(s *v1alpha1.TaskStatus) { s.Message = "other" },
	} {
		changed := env.Get(fresh)
		change(&changed.Status)
		if err := gatewayClient.Status().Update(t.Context(), changed, client.DryRunAll); !apierrors.IsForbidden(err) {
			t.Errorf("%s can be given to a Task without a status: %v", what, err)
		}
	}
	// It can do its work under the policy, and a stored report stays.
	live := env.Get(task)
	meta.RemoveStatusCondition(&live.Status.Conditions, v1alpha1.ConditionTerminating)
	if err := as(t, env, controllerUser).Status().Update(t.Context(), live); err != nil {
		t.Fatal(err)
	}
	token, handler := workerToken(t, env, pod), gatewayFor(t, env, func(o *gateway.Options) { o.Client = gatewayClient })
	for i, kind := range []report.Kind{report.Progress, report.Stage, report.Checkpoint, report.Succeeded} {
		wantPost(t, handler, reportFor(task, kind, int64(i+1)), token, 200, "Stored")
	}
	wantPost(t, handler, reportFor(task, report.Failed, 9), token, 409, "OutcomeRecorded") // notes a mismatch
	for _, change := range []func(*v1alpha1.TaskStatus){
		func(s *v1alpha1.TaskStatus) { s.Report = nil },
		func(s *v1alpha1.TaskStatus) { s.Report.Outcome = v1alpha1.ReportFailed },
	} {
		if err := dryRun(gatewayClient, change); !apierrors.IsForbidden(err) {
			t.Errorf("a stored report can be changed: %v", err)
		}
	}
	// And so can the controller: the table's moves pass.
	live = env.Get(task)
	_, err := lifecycle.End(live, lifecycle.Ending{Event: lifecycle.Succeed, Reason: v1alpha1.ReasonCompleted}, lifecycle.Facts{WorkerStopped: true}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := as(t, env, controllerUser).Status().Update(t.Context(), live); err != nil {
		t.Errorf("the controller cannot end the Task: %v", err)
	}
	// The spec and the metadata are not the policy's affair.
	env.Touch(task)
}

// TestReportsC68EachAttemptHasItsReport: the report of an earlier attempt gives way to that of the current one, which then stays.
func TestReportsC68EachAttemptHasItsReport(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	task, pod := processing(t, env, "twice")
	wantPost(t, gatewayFor(t, env, nil), reportFor(task, report.Failed, 1), workerToken(t, env, pod), 200, "Stored")
	earlier := env.Get(task).Status.Report
	secondPod := workerOf(t, env, task, 2)
	task = nextAttempt(t, env, task, lifecycle.Ending{Event: lifecycle.Fail, Reason: v1alpha1.ReasonNonZeroExitCode}, secondPod)
	task = changeStatus(t, env, task, func(task *v1alpha1.Task) {
		task.Status.Report = earlier // as an operator may leave it that does not clear it
	})
	if r := task.Status.Report; r == nil || r.Attempt != 1 || task.Status.Attempt != 2 {
		t.Fatalf("attempt %d runs beside report %+v", task.Status.Attempt, r)
	}
	installPolicy(t, env)
	gatewayClient := as(t, env, gatewayUser)
	testenv.Eventually(t, func(context.Context) error {
		changed := env.Get(task)
		changed.Status.Message = "other"
		if err := gatewayClient.Status().Update(t.Context(), changed, client.DryRunAll); !apierrors.IsForbidden(err) {
			return fmt.Errorf("not refused: %w", err)
		}
		return nil
	})
	handler, token := gatewayFor(t, env, func(o *gateway.Options) { o.Client = gatewayClient }), workerToken(t, env, secondPod)
	final := reportFor(task, report.Succeeded, 1)
	final.Attempt = 2
	wantPost(t, handler, final, token, 200, "Stored")
	changed := env.Get(task)
	changed.Status.Report.Outcome = v1alpha1.ReportFailed
	if err := gatewayClient.Status().Update(t.Context(), changed, client.DryRunAll); !apierrors.IsForbidden(err) {
		t.Errorf("the report of the current attempt can be changed: %v", err)
	}
}

// TestReportsPolicyNamesOneAccount: who installs elsewhere changes this one expression, as docs/gateway.md says.
func TestReportsPolicyNamesOneAccount(t *testing.T) {
	var policy admissionregistrationv1.ValidatingAdmissionPolicy
	readManifest(t, &policy, "policy", "task_status_policy.yaml")
	want := []admissionregistrationv1.MatchCondition{
		{Name: "not-the-controller", Expression: fmt.Sprintf("request.userInfo.username != %q", controllerUser)},
	}
	if diff := cmp.Diff(want, policy.Spec.MatchConditions); diff != "" {
		t.Errorf("match conditions (-want +got):\n%s", diff)
	}
	policy.Spec.MatchConditions = nil
	text, err := yaml.Marshal(policy.Spec)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "serviceaccount") || strings.Contains(string(text), "taskwarden-") {
		t.Errorf("an account is named in another place:\n%s", text)
	}
}
