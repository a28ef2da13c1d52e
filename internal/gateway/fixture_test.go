package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/internal/report"
	"github.com/taskwarden/taskwarden/test/builders"
)

// The fixtures' Task was created at created; its first attempt runs since started.
var (
	created = time.Date(2030, time.January, 1, 0, 0, 0, 0, time.UTC)
	started = created.Add(10 * time.Second)
)

const (
	namespace = "ns"
	secret    = "very-secret-signature"
)

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(s))
	utilruntime.Must(v1alpha1.AddToScheme(s))
	return s
}()

// world is an API server that is played, and a gateway before it.
type world struct {
	t       *testing.T
	client  client.WithWatch // past all faults
	clock   clock.Clock
	handler http.Handler
	metrics *prometheus.Registry
	gateway *Gateway

	mu     sync.Mutex
	tokens map[string]authenticationv1.TokenReviewStatus
	calls  []string // "get", "patch" and the like, with the kind
	onCall func(what string) error
	log    strings.Builder
}

// newWorld is one with the given Tasks and a real or played clock. Each Task has a Job and a pod for its current attempt, whose
// token is tokenOf(Task name).
func newWorld(t *testing.T, clk clock.Clock, change func(*Options), tasks ...*v1alpha1.Task) *world {
	t.Helper()
	w := &world{t: t, clock: clk, tokens: map[string]authenticationv1.TokenReviewStatus{}}
	var objects []client.Object
	for _, task := range tasks {
		objects = append(objects, task)
		attempt := lifecycle.CurrentAttempt(task)
		job, pod := workerOf(task, attempt)
		objects = append(objects, job, pod)
		w.tokens[tokenOf(task.Name)] = podToken(pod)
	}
	w.client = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.Task{}).WithObjects(objects...).Build()
	w.metrics = prometheus.NewRegistry()
	options := Options{Client: w.faulty(), Clock: clk, Registerer: w.metrics, Log: w.logger()}
	if change != nil {
		change(&options)
	}
	w.gateway = New(options)
	w.handler = w.gateway.Handler()
	return w
}

func (w *world) logger() logr.Logger {
	return funcr.New(func(prefix, args string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.log.WriteString(prefix + args + "\n")
	}, funcr.Options{Verbosity: 9})
}

// faulty is the client of the gateway: it answers TokenReviews, writes down what is asked, and fails where the test wants it.
func (w *world) faulty() client.Client {
	return interceptor.NewClient(w.client, interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, obj client.Object, _ ...client.CreateOption) error {
			review, ok := obj.(*authenticationv1.TokenReview)
			if !ok {
				return fmt.Errorf("the gateway creates a %T", obj)
			}
			if err := w.call("create TokenReview"); err != nil {
				return err
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if !slices.Equal(review.Spec.Audiences, []string{v1alpha1.TokenAudience}) {
				return fmt.Errorf("asked for audiences %v", review.Spec.Audiences)
			}
			review.Status = w.tokens[review.Spec.Token]
			return nil
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			kind := "Task"
			if meta, ok := obj.(*metav1.PartialObjectMetadata); ok {
				kind = meta.Kind
			}
			if err := w.call("get " + kind); err != nil {
				return err
			}
			return c.Get(ctx, key, obj, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			what := "news " + sub
			if body, err := p.Data(obj); err == nil && strings.Contains(string(body), "/metadata/resourceVersion") {
				what = "patch " + sub // of a final report
			}
			if p.Type() != types.JSONPatchType {
				return fmt.Errorf("a patch of type %s, in which a null may mean something else", p.Type())
			}
			if err := w.call(what); err != nil {
				return err
			}
			err := c.SubResource(sub).Patch(ctx, obj, p, opts...)
			if err != nil && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
				return apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind("Task").GroupKind(), obj.GetName(), nil) // as the server says it
			}
			return err
		},
	})
}

func (w *world) call(what string) error {
	w.mu.Lock()
	w.calls = append(w.calls, what)
	hook := w.onCall
	w.mu.Unlock()
	if hook != nil {
		return hook(what)
	}
	return nil
}

func (w *world) on(hook func(what string) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.onCall = hook
}

func (w *world) count(what string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, c := range w.calls {
		if c == what {
			n++
		}
	}
	return n
}

func fakeClock() *clocktesting.FakeClock { return clocktesting.NewFakeClock(started.Add(time.Minute)) }

// processing is a Task whose first attempt runs.
func processing(name string, changes ...func(*v1alpha1.Task)) *v1alpha1.Task {
	task := builders.Task(name).Namespace(namespace).Obj()
	task.UID, task.CreationTimestamp = types.UID(name+"-uid"), metav1.NewTime(created)
	task.Spec.Reporter = v1alpha1.ReporterSidecar
	task.Status.State = v1alpha1.StatePending
	lifecycle.Accept(task, created)
	lifecycle.Begin(task, name+"-1", created)
	task.Status.Worker.JobUID = jobUID(task, 1)
	err := lifecycle.Started(task, v1alpha1.WorkerStatus{
		PodName: name + "-1-pod", PodUID: podUID(task, 1), NodeName: "node", StartTime: ptr.To(metav1.NewMicroTime(started)),
	}, started)
	if err != nil {
		panic(err)
	}
	for _, c := range changes {
		c(task)
	}
	return task
}

func jobUID(task *v1alpha1.Task, attempt int32) types.UID {
	return types.UID(fmt.Sprintf("%s-job-%d", task.Name, attempt))
}

func podUID(task *v1alpha1.Task, attempt int32) types.UID {
	return types.UID(fmt.Sprintf("%s-pod-%d", task.Name, attempt))
}

// workerOf are Job and pod of an attempt.
func workerOf(task *v1alpha1.Task, attempt int32) (*batchv1.Job, *corev1.Pod) {
	labels := map[string]string{v1alpha1.LabelAttempt: fmt.Sprint(attempt), v1alpha1.LabelTaskUID: string(task.UID)}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{
		Namespace: task.Namespace, Name: fmt.Sprintf("%s-%d", task.Name, attempt), UID: jobUID(task, attempt), Labels: labels,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(task, v1alpha1.GroupVersion.WithKind("Task"))},
	}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: task.Namespace, Name: job.Name + "-pod", UID: podUID(task, attempt), Labels: labels,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))},
	}}
	return job, pod
}

func tokenOf(name string) string { return "header." + name + "." + secret }

// podToken is what the API server says of a pod's token.
func podToken(pod *corev1.Pod) authenticationv1.TokenReviewStatus {
	return authenticationv1.TokenReviewStatus{
		Authenticated: true, Audiences: []string{v1alpha1.TokenAudience},
		User: authenticationv1.UserInfo{
			Username: "system:serviceaccount:" + pod.Namespace + ":default",
			Extra: map[string]authenticationv1.ExtraValue{
				extraPodName: {pod.Name}, extraPodUID: {string(pod.UID)},
			},
		},
	}
}

// reportOf is a valid report of a Task's first attempt.
func reportOf(task *v1alpha1.Task, kind report.Kind, sequence int64, changes ...func(*report.Report)) *report.Report {
	r := &report.Report{TaskID: string(task.UID), Attempt: 1, Sequence: sequence, Kind: kind}
	switch kind {
	case report.Progress:
		r.Progress = &report.ProgressPayload{Percent: 40}
	case report.Stage:
		r.Stage = &report.StagePayload{Name: "resize"}
	case report.Checkpoint:
		r.Checkpoint = json.RawMessage(`{"at":1}`)
	default:
	}
	for _, c := range changes {
		c(r)
	}
	return r
}

func percent(p float64) func(*report.Report) {
	return func(r *report.Report) { r.Progress.Percent = p }
}

func retried(n int) func(*report.Report) { return func(r *report.Report) { r.RetryCount = n } }

// answer is what a client gets.
type answer struct {
	report.Answer
	status int
	header http.Header
	body   string
}

// send sends a report with a Task's own token.
func (w *world) send(r *report.Report, token string) answer {
	w.t.Helper()
	return w.sendTo(w.handler, r, token)
}

func (w *world) sendTo(handler http.Handler, r *report.Report, token string) answer {
	w.t.Helper()
	body, err := json.Marshal(r)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.do(handler, newRequest(string(body), token))
}

func newRequest(body, token string) *http.Request {
	req := httptest.NewRequest(http.MethodPost, report.GatewayPath, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token)
	return req
}

func (w *world) do(handler http.Handler, req *http.Request) answer {
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, req)
	a := answer{status: recorder.Code, header: recorder.Header(), body: recorder.Body.String()}
	if err := json.Unmarshal(recorder.Body.Bytes(), &a.Answer); err != nil {
		w.t.Errorf("the answer is no JSON: %s", a.body)
	}
	return a
}

// start sends a report and does not wait for the answer.
func (w *world) start(r *report.Report, token string) <-chan answer {
	w.t.Helper()
	got := make(chan answer, 1)
	go func() { got <- w.send(r, token) }()
	return got
}

func (w *world) task(name string) *v1alpha1.Task {
	w.t.Helper()
	task := &v1alpha1.Task{}
	if err := w.client.Get(w.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, task); err != nil {
		w.t.Fatal(err)
	}
	return task
}

// write changes a Task's status as the controller does.
func (w *world) write(name string, change func(*v1alpha1.Task)) {
	w.t.Helper()
	task := w.task(name)
	change(task)
	if err := w.client.Status().Update(w.t.Context(), task); err != nil {
		w.t.Error(err)
	}
}

// value is the sum of a metric over all series with these labels ("name=value").
func (w *world) value(name string, labels ...string) float64 {
	w.t.Helper()
	families, err := w.metrics.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var own []string
			for _, l := range m.GetLabel() {
				own = append(own, l.GetName()+"="+l.GetValue())
			}
			matches := !slices.ContainsFunc(labels, func(l string) bool { return !slices.Contains(own, l) })
			if f.GetName() == name && matches {
				sum += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

func (w *world) want(got answer, status int, what string) {
	w.t.Helper()
	if got.status != status || string(got.Outcome)+string(got.Code) != what {
		w.t.Errorf("answered with %d %s, want %d %s", got.status, got.body, status, what)
	}
}

// terminating fixes the outcome of the attempt.
func terminating(task *v1alpha1.Task) {
	task.Status.Conditions = append(task.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionTerminating, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonCancelled,
		LastTransitionTime: metav1.NewTime(started),
	})
}

// second brings a Task to its second attempt.
func second(task *v1alpha1.Task) {
	_, err := lifecycle.End(task, lifecycle.Ending{Event: lifecycle.Fail, Reason: v1alpha1.ReasonNonZeroExitCode}, lifecycle.Facts{WorkerStopped: true}, started)
	if err == nil {
		err = lifecycle.Again(task, lifecycle.Facts{BackoffOver: true, WorkerStopped: true}, started.Add(time.Hour))
	}
	if err != nil {
		panic(err)
	}
	lifecycle.Begin(task, task.Name+"-2", started)
	task.Status.Worker.JobUID, task.Status.Worker.PodUID = jobUID(task, 2), podUID(task, 2)
}

// ended brings a Task to its end.
func ended(task *v1alpha1.Task) {
	_, err := lifecycle.End(task, lifecycle.Ending{Event: lifecycle.Succeed, Reason: v1alpha1.ReasonCompleted}, lifecycle.Facts{WorkerStopped: true}, started)
	if err != nil {
		panic(err)
	}
}

// addWorker makes Job and pod of another attempt, and a token.
func (w *world) addWorker(task *v1alpha1.Task, attempt int32, token string, changes ...func(*batchv1.Job, *corev1.Pod)) {
	w.t.Helper()
	job, pod := workerOf(task, attempt)
	for _, c := range changes {
		c(job, pod)
	}
	for _, o := range []client.Object{job, pod} {
		if err := w.client.Create(w.t.Context(), o); err != nil && !apierrors.IsAlreadyExists(err) {
			w.t.Fatal(err)
		}
	}
	w.tokens[token] = podToken(pod)
}

// lint sees to it that the metrics are named as metrics should be.
func (w *world) lint() {
	w.t.Helper()
	problems, err := testutil.GatherAndLint(w.metrics)
	if err != nil || len(problems) > 0 {
		w.t.Errorf("metrics: %v %v", problems, err)
	}
}

// operationsOf are those of a JSON patch, as the API server reads them.
func operationsOf(t *testing.T, patch client.Patch, task *v1alpha1.Task) (ops []operation) {
	t.Helper()
	body, err := patch.Data(task)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(body, &ops); err != nil {
		t.Fatal(err)
	}
	return ops
}
