package patrol

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/controllers/task"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/test/builders"
)

// created is when all Tasks of the tests are; their workers start at once.
var created = time.Date(2030, time.January, 1, 0, 0, 0, 0, time.UTC)

func after(d time.Duration) time.Time { return created.Add(d) }

// beat is one patrol over a fake API server, by a played clock.
type beat struct {
	*Patrol
	t      *testing.T
	client client.WithWatch
	clock  *clocktesting.FakePassiveClock
	events *events.FakeRecorder
	writes []string
	lists  []string // by resource and selectors, as asked for
	refuse func(what string) error
}

func newBeat(t *testing.T, o Options, stored ...client.Object) *beat {
	t.Helper()
	b := &beat{t: t, clock: clocktesting.NewFakePassiveClock(created), events: events.NewFakeRecorder(100)}
	scheme := runtime.NewScheme()
	for _, err := range []error{v1alpha1.AddToScheme(scheme), clientgoscheme.AddToScheme(scheme)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(what, name string) error {
		b.writes = append(b.writes, what+" "+name)
		if b.refuse != nil {
			return b.refuse(what + " " + name)
		}
		return nil
	}
	b.client = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.Task{}).WithObjects(stored...).
		WithInterceptorFuncs(interceptor.Funcs{
			List: b.list,
			Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
				obj.SetUID(types.UID(obj.GetName())) // as the API server does; the fake does not
				if err := write("create", obj.GetName()); err != nil {
					return err
				}
				return c.Create(ctx, obj, opts...)
			},
			Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
				if err := write("delete", obj.GetName()); err != nil {
					return err
				}
				return c.Delete(ctx, obj, opts...)
			},
			Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
				if err := write("patch", obj.GetName()); err != nil {
					return err
				}
				return c.Patch(ctx, obj, patch, opts...)
			},
			SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
				if err := write(sub, obj.GetName()); err != nil {
					return err
				}
				return c.SubResource(sub).Update(ctx, obj, opts...)
			},
		}).Build()
	reconciler := &task.Reconciler{Client: b.client, Live: b.client, Recorder: b.events, Clock: b.clock}
	b.Patrol = &Patrol{
		Live: b.client, Client: b.client, Recorder: b.events, Clock: b.clock, Repairer: reconciler.Repairer(b.client), Options: o,
	}
	return b
}

// expired is a token that the API server has forgotten; it answers with one that goes on behind the first page.
const expired = "expired"

// list selects by fields, and cuts into pages, as the API server does and the fake client does not.
func (b *beat) list(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(opts)
	selector := o.FieldSelector
	if selector == nil {
		selector = fields.Everything()
	}
	kind := map[bool]string{true: "tasks"}[isTasks(list)]
	b.lists = append(b.lists, kind+"?"+selector.String())
	if o.Continue == expired {
		err := apierrors.NewResourceExpired("the token is too old")
		err.ErrStatus.Continue = strconv.Itoa(tasksPerPage)
		return err
	}
	if err := c.List(ctx, list, &client.ListOptions{Namespace: o.Namespace, LabelSelector: o.LabelSelector}); err != nil {
		return err
	}
	switch l := list.(type) {
	case *v1alpha1.TaskList:
		l.Items = slices.DeleteFunc(l.Items, func(t v1alpha1.Task) bool {
			return !selector.Matches(fields.Set{"status.state": string(t.Status.State)})
		})
		l.Items, l.Continue = cut(l.Items, o)
	case *batchv1.JobList:
		l.Items = slices.DeleteFunc(l.Items, func(j batchv1.Job) bool {
			return !selector.Matches(fields.Set{"status.successful": strconv.Itoa(int(j.Status.Succeeded))})
		})
		l.Items, l.Continue = cut(l.Items, o)
	case *metav1.PartialObjectMetadataList:
		var pods corev1.PodList
		if err := c.List(ctx, &pods, client.InNamespace(o.Namespace)); err != nil {
			return err
		}
		alive := map[types.UID]bool{}
		for i := range pods.Items {
			alive[pods.Items[i].UID] = selector.Matches(fields.Set{"status.phase": string(pods.Items[i].Status.Phase)})
		}
		l.Items = slices.DeleteFunc(l.Items, func(p metav1.PartialObjectMetadata) bool { return !alive[p.UID] })
		l.Items, l.Continue = cut(l.Items, o)
	}
	return nil
}

func isTasks(list client.ObjectList) bool {
	_, ok := list.(*v1alpha1.TaskList)
	return ok
}

// cut gives the page that is asked for, and where the next one begins.
func cut[T any](items []T, o *client.ListOptions) (page []T, next string) {
	from, _ := strconv.Atoi(o.Continue)
	items = items[min(from, len(items)):]
	if o.Limit == 0 || int64(len(items)) <= o.Limit {
		return items, ""
	}
	return items[:o.Limit], strconv.Itoa(from + int(o.Limit))
}

// pass makes one pass, and gives what was found and how many writes it made.
func (b *beat) pass() (Found, []string) {
	b.t.Helper()
	b.writes, b.lists = nil, nil
	found, err := b.Pass(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return found, b.writes
}

func (b *beat) get(name string) *v1alpha1.Task {
	b.t.Helper()
	var t v1alpha1.Task
	if err := b.client.Get(b.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, &t); err != nil {
		b.t.Fatal(err)
	}
	return &t
}

// taskOf is a Task that the operator has brought to where move leaves it.
func taskOf(name string, moves ...func(*v1alpha1.Task)) *v1alpha1.Task {
	t := builders.Task(name).Namespace("ns").Retry(0).Obj()
	t.UID, t.Generation, t.CreationTimestamp = types.UID(name), 1, metav1.NewTime(created)
	t.Status.State = v1alpha1.StatePending
	for _, move := range moves {
		move(t)
	}
	if lifecycle.Accepted(t) {
		describe(t)
	}
	return t
}

// describe sets the conditions that the operator derives from the rest of a status.
func describe(t *v1alpha1.Task) {
	s := &t.Status
	set := func(kind string, is metav1.ConditionStatus, message string) {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{
			Type: kind, Status: is, Reason: s.Reason, Message: message, ObservedGeneration: t.Generation, LastTransitionTime: metav1.NewTime(created),
		})
	}
	s.ObservedGeneration = t.Generation
	switch s.State {
	case v1alpha1.StateSucceeded:
		set(v1alpha1.ConditionSucceeded, metav1.ConditionTrue, s.Message)
		set(v1alpha1.ConditionFinished, metav1.ConditionTrue, "")
	case v1alpha1.StateFailed:
		set(v1alpha1.ConditionSucceeded, metav1.ConditionFalse, s.Message)
		set(v1alpha1.ConditionFinished, metav1.ConditionTrue, "")
		set(v1alpha1.ConditionStalled, metav1.ConditionTrue, s.Message)
	default:
		set(v1alpha1.ConditionSucceeded, metav1.ConditionUnknown, s.Message)
		set(v1alpha1.ConditionFinished, metav1.ConditionFalse, "")
		set(v1alpha1.ConditionReconciling, metav1.ConditionTrue, s.Message)
	}
}

func pending(t *v1alpha1.Task) {
	lifecycle.Accept(t, created)
	lifecycle.Begin(t, task.JobName(t.Name, 1), created)
	t.Status.Worker.JobUID = types.UID("job-" + t.Name)
	t.Status.Reason, t.Status.ObservedGeneration = v1alpha1.ReasonWaitingForWorker, 1
}

func processing(t *v1alpha1.Task) {
	pending(t)
	must(lifecycle.Started(t, v1alpha1.WorkerStatus{
		PodName: t.Name + "-1-pod", PodUID: types.UID("pod-" + t.Name), NodeName: "node", StartTime: ptr.To(metav1.NewMicroTime(created)),
	}, created))
}

func succeeded(t *v1alpha1.Task) {
	processing(t)
	_, err := lifecycle.End(t, lifecycle.Ending{Event: lifecycle.Succeed, Reason: v1alpha1.ReasonCompleted, ExitCode: ptr.To[int32](0)},
		lifecycle.Facts{WorkerStopped: true}, created)
	must(err)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// jobOf is the Job of an attempt.
func jobOf(t *v1alpha1.Task, attempt int) *batchv1.Job {
	return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: task.JobName(t.Name, int32(attempt)), UID: types.UID("job-" + t.Name), CreationTimestamp: metav1.NewTime(created),
		Labels:          map[string]string{v1alpha1.LabelTaskUID: string(t.UID), v1alpha1.LabelAttempt: strconv.Itoa(attempt)},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(t, v1alpha1.GroupVersion.WithKind("Task"))},
	}}
}

// podOf is the pod of a Job, whose worker runs, or has ended at the given time.
func podOf(job *batchv1.Job, ended *time.Time) *corev1.Pod {
	owner := *metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))
	uid := job.Labels[v1alpha1.LabelTaskUID]
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: job.Name + "-pod", UID: types.UID("pod-" + uid), CreationTimestamp: metav1.NewTime(created),
		Labels: job.Labels, OwnerReferences: []metav1.OwnerReference{owner},
	}}
	p.Spec.NodeName, p.Spec.Containers = "node", []corev1.Container{{Name: "worker"}}
	state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(created)}}
	p.Status.Phase = corev1.PodRunning
	if ended != nil {
		p.Status.Phase = corev1.PodSucceeded
		state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: metav1.NewTime(created), FinishedAt: metav1.NewTime(*ended)}}
	}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "worker", State: state}}
	return p
}

// withWorker is a Task with a Job and a running pod.
func withWorker(t *v1alpha1.Task) []client.Object {
	job := jobOf(t, 1)
	return []client.Object{t, job, podOf(job, nil)}
}

// failing is an API server in trouble.
type failing struct{ client.Reader }

func (failing) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return apierrors.NewServiceUnavailable("later")
}
