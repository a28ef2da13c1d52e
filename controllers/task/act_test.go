package task

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// fakeOf is a client in the making that knows our kinds, and the indexes of our caches.
func fakeOf(t *testing.T) *fake.ClientBuilder {
	t.Helper()
	scheme := runtime.NewScheme()
	b := fake.NewClientBuilder().WithScheme(scheme)
	for _, err := range []error{v1alpha1.AddToScheme(scheme), clientgoscheme.AddToScheme(scheme), addIndexes(t.Context(), indexer{b})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return b
}

type indexer struct{ *fake.ClientBuilder }

func (i indexer) IndexField(_ context.Context, obj client.Object, field string, extract client.IndexerFunc) error {
	i.WithIndex(obj, field, extract)
	return nil
}

// writes notes every write that is asked for, and carries none out.
type writes struct {
	done    []string
	answers map[string][]error // to the writes that begin with these two words, one after the other; then nil
}

func (w *writes) note(what, more string) error {
	w.done = append(w.done, what+more)
	if a := w.answers[what]; len(a) > 0 {
		w.answers[what] = a[1:]
		return a[0]
	}
	return nil
}

// reconciler is one whose caches hold these objects.
func (w *writes) reconciler(t *testing.T, now time.Time, live client.Reader, cached ...client.Object) *Reconciler {
	t.Helper()
	funcs := interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, obj client.Object, _ ...client.CreateOption) error {
			obj.SetUID("made")
			return w.note("create "+obj.GetName(), "")
		},
		SubResourceUpdate: func(_ context.Context, _ client.Client, sub string, obj client.Object, _ ...client.SubResourceUpdateOption) error {
			status := obj.(*v1alpha1.Task).Status
			obj.SetResourceVersion("written")
			return w.note(sub+" "+obj.GetName(), ": "+string(status.State)+", "+status.Reason)
		},
		Patch: func(_ context.Context, _ client.WithWatch, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
			data, err := patch.Data(obj)
			return errors.Join(err, w.note("patch "+obj.GetName(), " with "+string(data)))
		},
		Delete: func(_ context.Context, _ client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			o := (&client.DeleteOptions{}).ApplyOptions(opts)
			more := ""
			if p := o.Preconditions; p != nil {
				more = " of " + string(ptr.Deref(p.UID, "")) + " at " + ptr.Deref(p.ResourceVersion, "any")
			}
			return w.note("delete "+obj.GetName(), more+" "+string(ptr.Deref(o.PropagationPolicy, "")))
		},
	}
	return &Reconciler{
		Client: fakeOf(t).WithObjects(cached...).WithInterceptorFuncs(funcs).Build(), Live: live,
		Recorder: events.NewFakeRecorder(10), Clock: clocktesting.NewFakePassiveClock(now),
	}
}

// versionOf is a copy of a Task with that resourceVersion.
func versionOf(t *v1alpha1.Task, version string) *v1alpha1.Task {
	t = t.DeepCopy()
	t.ResourceVersion = version
	return t
}

var (
	tasks      = schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "tasks"}
	gone       = apierrors.NewNotFound(tasks, "demo")
	changed    = apierrors.NewConflict(tasks, "demo", errors.New("changed"))
	overloaded = apierrors.NewServiceUnavailable("later")
)

// TestOrders: each order names its object beyond doubt. One that is gone, or is another by now, has stopped and holds up
// nothing; after any other error the next pass goes on.
func TestOrders(t *testing.T) {
	task := ended(lifecycle.Succeed).Task
	plan := Plan{
		Task: task,
		Stop: []Stop{
			{ObjectKey: ObjectKey{Name: "pod-1", UID: "uid-1"}, By: StopByDeadline},
			{ObjectKey: ObjectKey{Name: "pod-2", UID: "uid-2"}, By: StopByDeletingPod},
			{ObjectKey: ObjectKey{Name: "demo-3", UID: "uid-3"}, By: StopByDeletingJob},
		},
		DeleteJobs: []ObjectKey{{Name: "demo-4", UID: "uid-4"}, {Name: "demo-5", UID: "uid-5"}},
		DeleteTask: true,
	}
	orders := []string{
		`patch pod-1 with {"metadata":{"uid":"uid-1"},"spec":{"activeDeadlineSeconds":1}}`,
		"delete pod-2 of uid-2 at any ",
		"delete demo-3 of uid-3 at any Foreground",
		"delete demo-4 of uid-4 at any Background",
		"delete demo-5 of uid-5 at any Background",
		"delete demo of task-uid at 1 Background",
	}
	for i, order := range orders {
		for _, answer := range []error{nil, gone, changed, overloaded} {
			w := &writes{answers: map[string][]error{strings.Join(strings.Fields(order)[:2], " "): {answer}}}
			r := w.reconciler(t, after(100), nil)
			err := r.apply(t.Context(), Snapshot{Task: task, Now: after(100)}, &plan)
			want, fails := orders, errors.Is(answer, overloaded) || errors.Is(answer, changed) && i == len(orders)-1 // the Task lives on
			if fails {
				want = orders[:i+1]
			}
			if fails != (err != nil) || fails && !errors.Is(err, answer) {
				t.Errorf("%s: answered %v, returns %v", order, answer, err)
			}
			if diff := cmp.Diff(want, w.done); diff != "" {
				t.Errorf("%s: answered %v, what is done (-want +got):\n%s", order, answer, diff)
			}
		}
	}
}

// TestMayDestroyGuard: what a pass has read nothing of is stopped only if the Task is still what was decided on.
func TestMayDestroyGuard(t *testing.T) {
	unknown := func() *scene { return ended(lifecycle.Fail).at(after(100)).runs(2) }
	answers := ended(lifecycle.Succeed, askRetry("1")).at(after(100)).runs(2)
	cases := map[string]struct {
		scene  *scene
		stored string // its version
		fails  error  // the live read
		want   error
		asks   bool
	}{
		"as it was":            {unknown(), "1", nil, nil, true},
		"changed since":        {unknown(), "2", nil, errStale, true},
		"gone":                 {unknown(), "", nil, errStale, true},
		"no answer":            {unknown(), "1", overloaded, overloaded, true},
		"a known attempt":      {ended(lifecycle.Fail).at(after(100)).runs(1), "2", nil, nil, false},
		"written in this pass": {answers, "2", nil, nil, false},
	}
	for name, tc := range cases {
		var stored []client.Object
		if tc.stored != "" {
			stored = append(stored, versionOf(tc.scene.Task, tc.stored))
		}
		live, w := newLiveReader(t, stored...), &writes{}
		live.fails = tc.fails
		plan := decide(tc.scene.Snapshot)
		err := w.reconciler(t, tc.scene.Now, live).apply(t.Context(), tc.scene.Snapshot, &plan)
		if !errors.Is(err, tc.want) || tc.want == nil && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		stops := slices.ContainsFunc(w.done, func(s string) bool { return strings.HasPrefix(s, "patch ") })
		if asks := live.gets > 0; stops != (tc.want == nil) || asks != tc.asks {
			t.Errorf("%s: done %q, asked is %v", name, w.done, asks)
		}
	}
}

// TestWhatIsToldOfACreation: a Job is made before its Task tells of it, and what is told is of this try, not of one before.
func TestWhatIsToldOfACreation(t *testing.T) {
	tries := func(status string) []string { return []string{"create demo-1", "status demo: " + status} }
	within := func(seconds int32) change {
		return func(t *v1alpha1.Task) { t.Spec.StartTimeoutSeconds = ptr.To(seconds) }
	}
	cases := map[string]struct {
		scene  *scene
		answer error
		wrote  []string
		wake   string
	}{
		"made, the first":                {fresh(), nil, []string{"create demo-1"}, "2s"},
		"made, its time is short":        {fresh(within(1)).at(after(5)), nil, []string{"create demo-1"}, "6s"},
		"made, after a failure":          {uncreated(), nil, tries("Pending, WaitingForWorker"), "7s"},
		"made, with a second left":       {uncreated(within(6)), nil, tries("Pending, WaitingForWorker"), "6s"},
		"failed, the first":              {fresh(), overloaded, tries("Pending, CreatePending"), "now"},
		"failed, with a history":         {accepted(), overloaded, tries("Pending, CreatePending"), "1s"},
		"refused, after a failure":       {uncreated(), invalidJob("demo-1"), tries("Failed, InvalidTemplate"), "now"},
		"not wanted, the first":          {fresh(suspend), nil, []string{"status demo: Pending, Suspended"}, "now"},
		"not wanted, told before":        {accepted(suspend), nil, []string{"status demo: Pending, Suspended"}, "none"},
		"not wanted, and nothing is new": {ended(lifecycle.Succeed), nil, nil, "none"},
	}
	for name, tc := range cases {
		w := &writes{answers: map[string][]error{"create demo-1": {tc.answer}}}
		plan := decide(tc.scene.Snapshot)
		r := w.reconciler(t, tc.scene.Now, newLiveReader(t, tc.scene.Task))
		if err := r.apply(t.Context(), tc.scene.Snapshot, &plan); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tc.wrote, w.done); diff != "" {
			t.Errorf("%s: writes (-want +got):\n%s", name, diff)
		}
		if got := outcomeOf(tc.scene.Snapshot, plan).Wake; got != tc.wake {
			t.Errorf("%s: the next pass is at %s, want %s", name, got, tc.wake)
		}
		if st, c := plan.Task.Status, findCondition(plan.Task, v1alpha1.ConditionSucceeded); c.Reason != st.Reason || c.Message != st.Message {
			t.Errorf("%s: status says %s: %s, its condition %s: %s", name, st.Reason, st.Message, c.Reason, c.Message)
		}
	}
}

// TestAdopt: the Job that a lost write has left is taken; a Job that only has its name is not.
func TestAdopt(t *testing.T) {
	cases := map[string]struct {
		alter func(*batchv1.Job)
		want  string
	}{
		"the attempt's own": {func(*batchv1.Job) {}, v1alpha1.ReasonWaitingForWorker},
		"another attempt's": {func(j *batchv1.Job) { j.Labels[v1alpha1.LabelAttempt] = "2" }, v1alpha1.ReasonNameConflict},
		"another Task's":    {func(j *batchv1.Job) { j.OwnerReferences[0].UID = "another" }, v1alpha1.ReasonNameConflict},
		"nobody's":          {func(j *batchv1.Job) { j.OwnerReferences = nil }, v1alpha1.ReasonNameConflict},
		"on its way out": {func(j *batchv1.Job) {
			j.DeletionTimestamp, j.Finalizers = ptr.To(metav1.NewTime(created)), []string{"a/b"}
		}, v1alpha1.ReasonNameConflict},
		"gone again already": {func(j *batchv1.Job) { j.Name = "other" }, v1alpha1.ReasonCreatePending},
	}
	for name, tc := range cases {
		s := uncreated()
		job := newJob(s.Task, nil)
		job.UID = "made before"
		tc.alter(job)
		taken := apierrors.NewAlreadyExists(schema.GroupResource{Group: "batch", Resource: "jobs"}, "demo-1")
		w := &writes{answers: map[string][]error{"create demo-1": {taken}}}
		plan := decide(s.Snapshot)
		if err := w.reconciler(t, s.Now, newLiveReader(t, s.Task, job)).apply(t.Context(), s.Snapshot, &plan); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		st := &plan.Task.Status
		if adopted := st.Worker.JobUID == "made before"; adopted != (tc.want == v1alpha1.ReasonWaitingForWorker) || st.Reason != tc.want {
			t.Errorf("%s: Job %q, %s: %s", name, st.Worker.JobUID, st.Reason, st.Message)
		}
	}
}

// TestRefusedStopBecomesADeletion: where the gentle way to stop a pod is forbidden, it is stopped all the same. An error that
// may pass is no refusal.
func TestRefusedStopBecomesADeletion(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	cases := map[string]struct {
		answer  error
		deleted bool
		fails   bool
	}{
		"done":            {nil, false, false},
		"a policy":        {apierrors.NewForbidden(pods, "pod-1", errors.New("denied")), true, false},
		"an invalid one":  {apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "pod-1", nil), true, false},
		"a bad request":   {apierrors.NewBadRequest("no"), true, false},
		"gone":            {apierrors.NewNotFound(pods, "pod-1"), false, false},
		"another pod":     {apierrors.NewConflict(pods, "pod-1", errors.New("uid")), false, false},
		"a server's moan": {apierrors.NewServiceUnavailable("later"), false, true},
	}
	for name, tc := range cases {
		w := &writes{answers: map[string][]error{"patch pod-1": {tc.answer}}}
		err := w.reconciler(t, created, nil).stop(t.Context(), "demo", Stop{ObjectKey: ObjectKey{Name: "pod-1", UID: "uid-1"}, By: StopByDeadline})
		deleted := slices.Contains(w.done, "delete pod-1 of uid-1 at any ")
		if deleted != tc.deleted || (err != nil) != tc.fails {
			t.Errorf("%s: deleted is %v, error %v", name, deleted, err)
		}
	}
}
