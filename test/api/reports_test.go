package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/gateway"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/internal/report"
	"github.com/taskwarden/taskwarden/test/builders"
	"github.com/taskwarden/taskwarden/test/testenv"
)

// The tests of the files reports_*.go send reports to a gateway before a real API server, with tokens that it has made. There is no
// operator: each test says itself where its Task is.

// gatewayFor is a gateway as the given user, an administrator by default.
func gatewayFor(t *testing.T, env *testenv.Env, change func(*gateway.Options)) http.Handler {
	t.Helper()
	c, err := client.New(env.Config, client.Options{Scheme: testenv.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	options := gateway.Options{Client: c, WriteInterval: time.Millisecond}
	if change != nil {
		change(&options)
	}
	return gateway.New(options).Handler()
}

// processing is a stored Task whose given attempt runs, and its worker's pod.
func processing(t *testing.T, env *testenv.Env, name string) (*v1alpha1.Task, *corev1.Pod) {
	t.Helper()
	task := env.Create(builders.Task(name).Obj())
	pod := workerOf(t, env, task, 1)
	task = changeStatus(t, env, task, func(task *v1alpha1.Task) {
		now := time.Now()
		lifecycle.Accept(task, now)
		lifecycle.Begin(task, pod.Labels["batch.kubernetes.io/job-name"], now)
		task.Status.Worker.JobUID = metav1.GetControllerOf(pod).UID
		worker := v1alpha1.WorkerStatus{PodName: pod.Name, PodUID: pod.UID, StartTime: ptr.To(metav1.NewMicroTime(now))}
		if err := lifecycle.Started(task, worker, now); err != nil {
			t.Fatal(err)
		}
	})
	return task, pod
}

// workerOf makes the Job of an attempt, and waits for its pod.
func workerOf(t *testing.T, env *testenv.Env, task *v1alpha1.Task, attempt int) *corev1.Pod {
	t.Helper()
	labels := map[string]string{v1alpha1.LabelAttempt: fmt.Sprint(attempt), v1alpha1.LabelTaskUID: string(task.UID), v1alpha1.LabelTask: task.Name}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{
		Namespace: env.Namespace, Name: fmt.Sprintf("%s-%d", task.Name, attempt), Labels: labels,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(task, v1alpha1.GroupVersion.WithKind("Task"))},
	}}
	job.Spec.Template = builders.Pod().RestartPolicy(corev1.RestartPolicyNever).Obj()
	job.Spec.Template.Labels = labels
	mustCreate(t, env, job)
	return env.Kubelet.WaitPod(task, attempt)
}

func changeStatus(t *testing.T, env *testenv.Env, task *v1alpha1.Task, change func(*v1alpha1.Task)) *v1alpha1.Task {
	t.Helper()
	var live *v1alpha1.Task
	testenv.Eventually(t, func(ctx context.Context) error {
		live = env.Get(task)
		change(live)
		return env.Client.Status().Update(ctx, live)
	})
	return live
}

// nextAttempt ends the current attempt and begins the next one, whose worker is the given pod.
func nextAttempt(t *testing.T, env *testenv.Env, task *v1alpha1.Task, ending lifecycle.Ending, pod *corev1.Pod) *v1alpha1.Task {
	t.Helper()
	job := metav1.GetControllerOf(pod)
	changeStatus(t, env, task, func(task *v1alpha1.Task) {
		if _, err := lifecycle.End(task, ending, lifecycle.Facts{WorkerStopped: true}, time.Now()); err != nil {
			t.Fatal(err)
		}
	})
	return changeStatus(t, env, task, func(task *v1alpha1.Task) {
		if err := lifecycle.Again(task, lifecycle.Facts{BackoffOver: true, WorkerStopped: true}, time.Now()); err != nil {
			t.Fatal(err)
		}
		lifecycle.Begin(task, job.Name, time.Now())
		task.Status.Worker.JobUID = job.UID
	})
}

// tokenFor is a token of the namespace's default account, bound to a pod unless that is nil.
func tokenFor(t *testing.T, env *testenv.Env, pod *corev1.Pod, audience string) string {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: env.Namespace, Name: "default"}}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	if err := env.Client.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}

func workerToken(t *testing.T, env *testenv.Env, pod *corev1.Pod) string {
	t.Helper()
	return tokenFor(t, env, pod, v1alpha1.TokenAudience)
}

func reportFor(task *v1alpha1.Task, kind report.Kind, sequence int64) *report.Report {
	r := &report.Report{TaskID: string(task.UID), Attempt: 1, Sequence: sequence, Kind: kind}
	switch kind {
	case report.Progress:
		r.Progress = &report.ProgressPayload{Percent: 40, Message: "half way"}
	case report.Stage:
		r.Stage = &report.StagePayload{Name: "resize"}
	case report.Checkpoint:
		r.Checkpoint = json.RawMessage(`{"at":[1,2,{"x":null}]}`)
	default:
	}
	return r
}

// post sends a report and gives the status of the answer with its outcome or code.
func post(t *testing.T, handler http.Handler, r *report.Report, token string) (status int, what string) {
	t.Helper()
	body, err := json.Marshal(r)
	if err != nil {
		t.Error(err)
	}
	req := httptest.NewRequest(http.MethodPost, report.GatewayPath, strings.NewReader(string(body)))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token)
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, req)
	var answer report.Answer
	if err := json.Unmarshal(recorder.Body.Bytes(), &answer); err != nil {
		t.Errorf("the answer is no JSON: %s", recorder.Body)
	}
	return recorder.Code, string(answer.Outcome) + string(answer.Code)
}

func wantPost(t *testing.T, handler http.Handler, r *report.Report, token string, status int, what string) {
	t.Helper()
	if s, w := post(t, handler, r, token); s != status || w != what {
		t.Errorf("%s %d: answered with %d %s, want %d %s", r.Kind, r.Sequence, s, w, status, what)
	}
}

// forged is a token whose claims are right and whose signature is not. The API server's answer is that to a token which it could
// not check.
func forged(token string) string {
	claims, signature := token[:strings.LastIndex(token, ".")+1], token[strings.LastIndex(token, ".")+1:]
	return claims + strings.Repeat("A", len(signature))
}

// TestReportsC68Tokens sends a final report with every kind of token but the right one, then with that.
func TestReportsC68Tokens(t *testing.T) {
	t.Parallel()
	env, elsewhere := newBareEnv(t), newBareEnv(t)
	task, pod := processing(t, env, "mine")
	_, otherPod := processing(t, env, "other")
	_, strangersPod := processing(t, elsewhere, "mine")
	lone := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: env.Namespace, Name: "lone", Labels: map[string]string{
		v1alpha1.LabelTaskUID: string(task.UID), v1alpha1.LabelAttempt: "1", // without the Job's own, by which it would be adopted
	}}, Spec: pod.Spec}
	lone.Spec.NodeName = ""
	lone.Spec.Volumes, lone.Spec.Containers[0].VolumeMounts = nil, nil
	mustCreate(t, env, lone)
	handler := gatewayFor(t, env, nil)
	success := reportFor(task, report.Succeeded, 1)
	for name, c := range map[string]struct {
		token  string
		status int
		code   string
	}{
		"none":                    {token: "", status: http.StatusUnauthorized, code: "Unauthenticated"},
		"forged":                  {token: "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.", status: http.StatusUnauthorized, code: "Unauthenticated"},
		"with a forged signature": {token: forged(workerToken(t, env, pod)), status: http.StatusServiceUnavailable, code: "Unavailable"},
		"for the API server":      {token: tokenFor(t, env, pod, "https://kubernetes.default.svc"), status: http.StatusUnauthorized, code: "Unauthenticated"},
		"for somebody else":       {token: tokenFor(t, env, pod, "vault"), status: http.StatusUnauthorized, code: "Unauthenticated"},
		"of no pod":               {token: tokenFor(t, env, nil, v1alpha1.TokenAudience), status: http.StatusForbidden, code: "Forbidden"},
		"of another Task's pod":   {token: workerToken(t, env, otherPod), status: http.StatusForbidden, code: "Forbidden"},
		"of a pod with labels":    {token: workerToken(t, env, lone), status: http.StatusForbidden, code: "Forbidden"},
		"of another namespace's":  {token: workerToken(t, elsewhere, strangersPod), status: http.StatusForbidden, code: "Forbidden"},
	} {
		t.Run(name, func(t *testing.T) { wantPost(t, handler, success, c.token, c.status, c.code) })
	}
	mustDelete(t, env, lone, client.GracePeriodSeconds(0)) // nobody else would
	if diff := cmp.Diff(task, env.Get(task)); diff != "" {
		t.Errorf("the Task has changed:\n%s", diff)
	}
	token := workerToken(t, env, pod)
	wantPost(t, handler, success, token, http.StatusOK, "Stored")
	if r := env.Get(task).Status.Report; r == nil || r.PodUID != pod.UID {
		t.Errorf("stored is %+v", r)
	}
	// A token ends with its pod. What the API server and this gateway remember of it is given time to pass.
	mustDelete(t, env, pod, client.GracePeriodSeconds(0))
	testenv.Eventually(t, func(context.Context) error {
		if status, code := post(t, gatewayFor(t, env, nil), success, token); status < http.StatusBadRequest {
			return fmt.Errorf("answered with %d %s", status, code)
		}
		return nil
	})
}

// TestReportsC14FirstFinalWins races two final reports through two gateways with each other and with the controller, which fixes the
// outcome in half of the rounds.
func TestReportsC14FirstFinalWins(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	task, pod := processing(t, env, "raced")
	token := workerToken(t, env, pod)
	gateways := []http.Handler{gatewayFor(t, env, nil), gatewayFor(t, env, nil)}
	for round := range 50 {
		changeStatus(t, env, task, func(task *v1alpha1.Task) { task.Status.Report, task.Status.Conditions = nil, nil })
		statuses, codes := make([]int, 2), make([]string, 2)
		var wg sync.WaitGroup
		for i, kind := range []report.Kind{report.Succeeded, report.Failed} {
			wg.Go(func() {
				statuses[i], codes[i] = post(t, gateways[i], reportFor(task, kind, int64(10*round+i+1)), token)
			})
		}
		if round%2 == 1 {
			wg.Go(func() { terminate(t, env, task) })
		}
		wg.Wait()
		after := env.Get(task).Status
		fixed := meta.FindStatusCondition(after.Conditions, v1alpha1.ConditionTerminating)
		mismatch := meta.IsStatusConditionTrue(after.Conditions, v1alpha1.ConditionReportMismatch)
		acknowledged := 0
		for i, outcome := range []v1alpha1.ReportOutcome{v1alpha1.ReportSucceeded, v1alpha1.ReportFailed} {
			switch {
			case statuses[i] == http.StatusOK && (after.Report == nil || after.Report.Outcome != outcome):
				t.Errorf("round %d: %s was acknowledged, and %+v is stored", round, outcome, after.Report)
			case statuses[i] == http.StatusOK:
				acknowledged++
			case statuses[i] != http.StatusConflict || codes[i] != "OutcomeRecorded":
				t.Errorf("round %d: answered with %d %s", round, statuses[i], codes[i])
			}
		}
		if acknowledged != 1 && (fixed == nil || after.Report != nil) || !mismatch {
			t.Errorf("round %d: %d acknowledged, stored %+v, fixed %+v, mismatch %v", round, acknowledged, after.Report, fixed, mismatch)
		}
	}
}

// terminate fixes the outcome as the controller does: not where a report is stored.
func terminate(t *testing.T, env *testenv.Env, task *v1alpha1.Task) {
	t.Helper()
	for {
		live := env.Get(task)
		if live.Status.Report != nil {
			return
		}
		meta.SetStatusCondition(&live.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionTerminating, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonCancelled, Message: "by the test",
		})
		if err := env.Client.Status().Update(t.Context(), live); !apierrors.IsConflict(err) {
			if err != nil {
				t.Error(err)
			}
			return
		}
	}
}

// TestReportsC14ProgressMeetsTheController sends 50 reports at once while the status is written by somebody else.
func TestReportsC14ProgressMeetsTheController(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	task, pod := processing(t, env, "busy")
	token := workerToken(t, env, pod)
	handler := gatewayFor(t, env, nil)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			for {
				status, what := post(t, handler, reportFor(task, report.Progress, int64(i+1)), token)
				if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
					continue // as a sidecar, which also waits
				}
				if status != http.StatusOK {
					t.Errorf("answered with %d %s", status, what)
				}
				return
			}
		})
	}
	for i := range 20 {
		changeStatus(t, env, task, func(task *v1alpha1.Task) { task.Status.Message = fmt.Sprint(i) })
	}
	wg.Wait()
	after := env.Get(task).Status
	if after.Worker.Sequence != 50 || after.Message != "19" || *after.Progress.Percent != 40 {
		t.Errorf("stored is report %d with %+v and message %q", after.Worker.Sequence, after.Progress, after.Message)
	}
}

// TestReportsC15OrderAndDuplicates follows one worker through all kinds of reports, some of them late or twice.
func TestReportsC15OrderAndDuplicates(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	task, pod := processing(t, env, "talks")
	token, handler := workerToken(t, env, pod), gatewayFor(t, env, nil)
	send := func(kind report.Kind, sequence int64, status int, what string) {
		t.Helper()
		wantPost(t, handler, reportFor(task, kind, sequence), token, status, what)
	}
	send(report.Progress, 2, 200, "Stored")
	send(report.Progress, 2, 200, "Ignored")
	send(report.Stage, 1, 200, "Ignored")
	send(report.Stage, 3, 200, "Stored")
	send(report.Checkpoint, 4, 200, "Stored")
	send(report.Heartbeat, 5, 200, "Ignored") // the last write tells as much
	got := env.Get(task).Status
	if p := got.Progress; *p.Percent != 40 || p.Stage != "resize" || p.Message != "half way" || got.Worker.Sequence != 4 || got.Worker.HeartbeatTime == nil {
		t.Errorf("stored is %+v and %+v", got.Progress, got.Worker)
	}
	if c := got.Checkpoint; c == nil || string(c.Data.Raw) != `{"at":[1,2,{"x":null}]}` || c.Attempt != 1 {
		t.Errorf("the checkpoint is %+v", c)
	}
	if got.Worker.PodUID != pod.UID || got.State != v1alpha1.StateProcessing {
		t.Errorf("what is not reported has changed: %+v", got)
	}
	send(report.Succeeded, 6, 200, "Stored")
	send(report.Succeeded, 6, 200, "Ignored")
	send(report.Progress, 7, http.StatusGone, "AttemptClosed")
	send(report.Failed, 8, http.StatusConflict, "OutcomeRecorded")
	got = env.Get(task).Status
	if got.Report.Outcome != v1alpha1.ReportSucceeded || got.Report.Sequence != 6 || *got.Progress.Percent != 40 {
		t.Errorf("stored is %+v", got)
	}
	if c := meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionReportMismatch); c == nil || c.Status != metav1.ConditionTrue {
		t.Errorf("conditions are %+v", got.Conditions)
	}
}

// TestReportsC27EarlierAttempt has the first attempt's worker report while the second one runs, and when all is over.
func TestReportsC27EarlierAttempt(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	task, pod := processing(t, env, "late")
	token, handler := workerToken(t, env, pod), gatewayFor(t, env, nil)
	wantPost(t, handler, reportFor(task, report.Progress, 1), token, 200, "Stored")
	secondPod := workerOf(t, env, task, 2)
	running := nextAttempt(t, env, task, lifecycle.Ending{Event: lifecycle.Timeout, Reason: v1alpha1.ReasonHeartbeatTimeout}, secondPod)
	handler = gatewayFor(t, env, nil) // one that does not know yet how little a heartbeat tells
	for _, kind := range report.Kinds {
		wantPost(t, handler, reportFor(task, kind, 100), token, http.StatusGone, "AttemptClosed")
	}
	if diff := cmp.Diff(running, env.Get(task)); diff != "" {
		t.Errorf("the Task has changed:\n%s", diff)
	}
	// The second attempt's numbers begin anew, and its report is stored although nobody has seen it start.
	progress, success := reportFor(task, report.Progress, 1), reportFor(task, report.Succeeded, 2)
	progress.Attempt, success.Attempt = 2, 2
	wantPost(t, handler, progress, token, http.StatusForbidden, "Forbidden")
	wantPost(t, handler, progress, workerToken(t, env, secondPod), 200, "Stored")
	wantPost(t, handler, success, workerToken(t, env, secondPod), 200, "Stored")
	mustDelete(t, env, task, client.PropagationPolicy(metav1.DeletePropagationOrphan))
	env.WaitGone(task)
	wantPost(t, handler, success, workerToken(t, env, secondPod), http.StatusGone, "AttemptClosed")
	t.Cleanup(func() { // orphans
		for _, name := range []string{"late-1", "late-2"} {
			job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: env.Namespace, Name: name}}
			_ = env.Client.Delete(context.WithoutCancel(t.Context()), job, client.PropagationPolicy(metav1.DeletePropagationBackground))
		}
	})
}

// TestReportsC47Progress: whatever a worker says, what is stored is a number of the schema.
func TestReportsC47Progress(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	task, pod := processing(t, env, "numbers")
	token, handler := workerToken(t, env, pod), gatewayFor(t, env, nil)
	for i, c := range []struct {
		said float64
		want int32
	}{{10, 10}, {80, 80}, {30, 30}, {250, 100}, {-5, 0}, {99.99, 99}, {1e300, 100}} {
		r := reportFor(task, report.Progress, int64(i+1))
		r.Progress.Percent, r.Progress.EstimatedRemainingSeconds = c.said, ptr.To[int64](report.MaxRemainingSeconds)
		wantPost(t, handler, r, token, 200, "Stored")
		if p := env.Get(task).Status.Progress; *p.Percent != c.want {
			t.Errorf("%v is stored as %d, want %d", c.said, *p.Percent, c.want)
		}
	}
}

// TestReportsC48FinishTimes: a finish that cannot be is refused, and the same report without it is taken.
func TestReportsC48FinishTimes(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	task, pod := processing(t, env, "clocks")
	token, handler := workerToken(t, env, pod), gatewayFor(t, env, nil)
	for name, at := range map[string]time.Time{
		"an hour before the creation": task.CreationTimestamp.Add(-time.Hour), "1970": time.UnixMilli(1),
		"9999": time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), "in an hour": time.Now().Add(time.Hour),
	} {
		t.Run(name, func(t *testing.T) {
			r := reportFor(task, report.Succeeded, 1)
			r.ActualFinishTime = at.UnixMilli()
			wantPost(t, handler, r, token, http.StatusBadRequest, "InvalidFinishTime")
		})
	}
	if diff := cmp.Diff(task, env.Get(task)); diff != "" {
		t.Errorf("the Task has changed:\n%s", diff)
	}
	r := reportFor(task, report.Succeeded, 1)
	r.ActualFinishTime = time.Now().Add(10 * time.Minute).UnixMilli()
	wantPost(t, handler, r, token, 200, "Stored")
	if f := env.Get(task).Status.Report; f.FinishTime.After(f.ReceivedTime.Time) || f.FinishTime.Time.Before(task.CreationTimestamp.Time) {
		t.Errorf("stored are finish %s and receipt %s", f.FinishTime, f.ReceivedTime)
	}
}

// TestReportsC44LargestReports stores what is just within the limits.
func TestReportsC44LargestReports(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	task, pod := processing(t, env, "large")
	token, handler := workerToken(t, env, pod), gatewayFor(t, env, nil)
	data := json.RawMessage(`"` + strings.Repeat("x", report.MaxDataBytes-2) + `"`)
	checkpoint, success := reportFor(task, report.Checkpoint, 1), reportFor(task, report.Succeeded, 2)
	checkpoint.Checkpoint = data
	success.ExecutionLogURL = "https://l/" + strings.Repeat("l", report.MaxURLBytes-10)
	success.Result = &report.ResultPayload{URL: success.ExecutionLogURL, Data: data, Message: strings.Repeat("ä", report.MaxMessageBytes/2)}
	wantPost(t, handler, checkpoint, token, 200, "Stored")
	wantPost(t, handler, success, token, 200, "Stored")
	if got := env.Get(task).Status; len(got.Checkpoint.Data.Raw) != len(data) || len(got.Report.Result.Data.Raw) != len(data) {
		t.Error("something is missing")
	}
	for _, depth := range []int{report.MaxDepth, report.MaxDepth + 1} {
		r := reportFor(task, report.Checkpoint, 3)
		r.Checkpoint = json.RawMessage(strings.Repeat("[", depth) + strings.Repeat("]", depth))
		want := map[bool]string{true: "AttemptClosed", false: "InvalidReport"}[depth <= report.MaxDepth]
		if _, what := post(t, handler, r, token); what != want {
			t.Errorf("depth %d: %s, want %s", depth, what, want)
		}
	}
}

// TestReportsNullsAreKept: a null within what a worker leaves is a value like any other, in an object, in an array and deeper.
func TestReportsNullsAreKept(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	const data = `{"a":null,"b":[1,null,{"c":null}],"d":{"e":null,"f":[[null]]},"g":{}}`
	same := func(what string, raw []byte) {
		t.Helper()
		var want, got any
		if err := json.Unmarshal([]byte(data), &want); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(raw, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-sent +stored):\n%s", what, diff)
		}
	}
	task, pod := processing(t, env, "nulls")
	token, handler := workerToken(t, env, pod), gatewayFor(t, env, nil)
	for sequence := range int64(2) { // also where something is there before
		r := reportFor(task, report.Checkpoint, sequence+1)
		r.Checkpoint = json.RawMessage(data)
		wantPost(t, handler, r, token, 200, "Stored")
		same("checkpoint", env.Get(task).Status.Checkpoint.Data.Raw)
	}
	final := reportFor(task, report.Succeeded, 3)
	final.Result = &report.ResultPayload{Data: json.RawMessage(data)}
	wantPost(t, handler, final, token, 200, "Stored")
	same("result data", env.Get(task).Status.Report.Result.Data.Raw)
	// A mismatch is noted beside it, and the data stays.
	wantPost(t, handler, reportFor(task, report.Failed, 4), token, http.StatusConflict, "OutcomeRecorded")
	got := env.Get(task).Status
	if !meta.IsStatusConditionTrue(got.Conditions, v1alpha1.ConditionReportMismatch) {
		t.Errorf("conditions are %+v", got.Conditions)
	}
	same("result data after a mismatch", got.Report.Result.Data.Raw)
}

// TestReportsBeforeTheOperator stores a final report in a Task that has no status at all yet.
func TestReportsBeforeTheOperator(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	task := env.Create(builders.Task("early").Obj())
	pod := workerOf(t, env, task, 1)
	token, handler := workerToken(t, env, pod), gatewayFor(t, env, nil)
	wantPost(t, handler, reportFor(task, report.Succeeded, 1), token, 200, "Stored")
	if r := env.Get(task).Status.Report; r == nil || r.Outcome != v1alpha1.ReportSucceeded || r.PodUID != pod.UID {
		t.Errorf("stored is %+v", r)
	}
}

// TestReportsPatchesTestAbsence shows what the gateway's patches rest on: the API server takes a test for null as one for absence,
// refuses the whole patch where a test fails, and says so with 422.
func TestReportsPatchesTestAbsence(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	task, _ := processing(t, env, "patched")
	for name, c := range map[string]struct {
		test  string
		holds bool
	}{
		"absent":                          {test: `{"op":"test","path":"/status/report","value":null}`, holds: true},
		"absent within what is there":     {test: `{"op":"test","path":"/status/worker/sequence","value":null}`, holds: true},
		"absent, and a value is wanted":   {test: `{"op":"test","path":"/status/worker/sequence","value":0}`},
		"there, and absence is wanted":    {test: `{"op":"test","path":"/status/worker/jobUID","value":null}`},
		"an object, and absence wanted":   {test: `{"op":"test","path":"/status/worker","value":null}`},
		"absent within what is not there": {test: `{"op":"test","path":"/status/report/attempt","value":null}`},
		"the value":                       {test: `{"op":"test","path":"/status/attempt","value":1}`, holds: true},
		"another value":                   {test: `{"op":"test","path":"/status/attempt","value":2}`},
		"the value as text":               {test: `{"op":"test","path":"/status/attempt","value":"1"}`},
		"the UID":                         {test: fmt.Sprintf(`{"op":"test","path":"/metadata/uid","value":%q}`, task.UID), holds: true},
		"another UID":                     {test: `{"op":"test","path":"/metadata/uid","value":"x"}`},
	} {
		t.Run(name, func(t *testing.T) {
			before := env.Get(task)
			message := "patched: " + name
			patch := fmt.Sprintf(`[%s,{"op":"add","path":"/status/message","value":%q}]`, c.test, message)
			err := env.Client.Status().Patch(t.Context(), before.DeepCopy(), client.RawPatch(types.JSONPatchType, []byte(patch)))
			if c.holds != (err == nil) || err != nil && !apierrors.IsInvalid(err) {
				t.Errorf("answered with %v", err)
			}
			if stored := env.Get(task).Status.Message == message; stored != c.holds {
				t.Errorf("stored: %v", stored)
			}
		})
	}
}
