package api

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/controllers/patrol"
	"github.com/taskwarden/taskwarden/controllers/task"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/test/builders"
	"github.com/taskwarden/taskwarden/test/testenv"
)

// longRun asks for as many objects as the promises name; without it there are a tenth, for the Job controller is slow.
var longRun = os.Getenv("LONG") != ""

// tries is how often each kind of mismatch is planted.
func tries() int {
	if longRun {
		return 100
	}
	return 10
}

// patrolled is a world with a patrol, whose controller can be made blind: then it misses whatever happens.
type patrolled struct {
	*testenv.Env
	t      *testing.T
	patrol *patrol.Patrol
	blind  atomic.Bool
}

// byHand is the period of a patrol that passes only when the test says so. It is also the time that a pass may take.
const byHand = 24 * time.Hour

// newPatrolled has a patrol that passes by its period, and when the test says so.
func newPatrolled(t *testing.T, o patrol.Options, opts ...testenv.Option) *patrolled {
	t.Helper()
	p := &patrolled{t: t}
	setup := testenv.WithController(func(ctx context.Context, mgr ctrl.Manager, env *testenv.Env, wrap testenv.Wrap) error {
		gateways := &task.Gateways{Reader: mgr.GetAPIReader(), Namespace: env.Namespace, Image: "taskwarden.dev/taskwarden:dev", Clock: env.Clock}
		r := &task.Reconciler{Gateways: gateways}
		sees := func(inner reconcile.Reconciler) reconcile.Reconciler {
			return wrap(reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
				if p.blind.Load() {
					return reconcile.Result{}, nil
				}
				return inner.Reconcile(ctx, req)
			}))
		}
		options := task.Options{Clock: env.Clock, Wrap: sees, ReadsOwnWrites: true, SkipNameValidation: true}
		if err := r.SetupWithManager(ctx, mgr, options); err != nil {
			return err
		}
		o.Namespaces = []string{env.Namespace}
		if err := patrol.SetupWithManager(mgr, r, o); err != nil {
			return err
		}
		var err error
		p.patrol, err = patrol.New(mgr, r, o)
		return err
	})
	p.Env = testenv.New(t, append(append(operatorFor(1), setup), opts...)...)
	return p
}

func (p *patrolled) pass() patrol.Found {
	p.t.Helper()
	found, err := p.patrol.Pass(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	return found
}

// passIdly makes passes that must find and write nothing.
func (p *patrolled) passIdly(times int) {
	p.t.Helper()
	before := p.Faults.Calls("write *")
	for i := range times {
		if found := p.pass(); len(found) > 0 {
			p.t.Fatalf("pass %d found %v", i, found)
		}
	}
	if wrote := p.Faults.Calls("write *") - before; wrote > 0 {
		p.t.Errorf("%d passes over healthy Tasks wrote %d times", times, wrote)
	}
}

// group is a number of Tasks of one shape.
func (p *patrolled) group(name string, n int, shape func(*builders.TaskBuilder) *builders.TaskBuilder) []*v1alpha1.Task {
	p.t.Helper()
	var all []*v1alpha1.Task
	for i := range n {
		all = append(all, p.Create(shape(builders.Task(fmt.Sprintf("%s-%d", name, i)).Retry(0)).Obj()))
	}
	return all
}

func (p *patrolled) waitAll(all []*v1alpha1.Task, state v1alpha1.State) {
	p.t.Helper()
	for _, one := range all {
		p.WaitState(one, state)
	}
}

// byGroup has each pod behave by the group of its Task.
func byGroup(behaviours map[string]testenv.Behaviour) func(*corev1.Pod) testenv.Behaviour {
	return func(pod *corev1.Pod) testenv.Behaviour {
		name := pod.Labels[v1alpha1.LabelTask]
		return behaviours[name[:strings.LastIndex(name, "-")]]
	}
}

// planted is the attempt of a Job that a Task knows nothing of.
const planted = "7"

func (p *patrolled) plantJob(one *v1alpha1.Task) {
	p.t.Helper()
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.Namespace, Name: one.Name + "-" + planted, Labels: map[string]string{
			v1alpha1.LabelAttempt: planted, v1alpha1.LabelTaskUID: string(one.UID), v1alpha1.LabelTask: one.Name,
		},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(one, v1alpha1.GroupVersion.WithKind("Task"))},
	}}
	job.Spec.Template = builders.Pod().Obj()
	job.Spec.Template.Labels = job.Labels
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	mustCreate(p.t, p.Env, job)
}

// TestPatrolMendsEachKind plants mismatches of each kind while the controller is blind. One pass mends every one of them, with a trace
// in the history wherever it moves the Task, and once all has taken its course the patrol finds nothing more.
func TestPatrolMendsEachKind(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	p := newPatrolled(t, patrol.Options{Period: byHand}, testenv.WithClock(clock))
	addGateway(t, p.Env)
	p.Waive(1, "one-worker", "a second worker is planted")
	p.Waive(2, "job-after-end", "a Job is planted")
	p.Waive(6, "attempt-missing", "a Job is planted")
	played := byGroup(map[string]testenv.Behaviour{
		"ended": {RunFor: 5 * time.Minute}, "jobless": testenv.UntilStopped, "doubled": testenv.UntilStopped, "done": {},
		"silent": testenv.UntilStopped, "overran": testenv.UntilStopped, "starts": {StartAfter: 5 * time.Minute, RunFor: -1},
		"wished": testenv.UntilStopped, "ttl": {}, "new": testenv.UntilStopped,
	})
	p.Kubelet.Auto(func(pod *corev1.Pod) testenv.Behaviour {
		if pod.Labels[v1alpha1.LabelAttempt] == planted {
			return testenv.UntilStopped
		}
		return played(pod)
	})
	n := tries()
	plain := func(b *builders.TaskBuilder) *builders.TaskBuilder { return b }
	groups := map[string][]*v1alpha1.Task{
		"ended": p.group("ended", n, plain), "jobless": p.group("jobless", n, plain), "doubled": p.group("doubled", n, plain),
		"starts": p.group("starts", n, plain), "wished": p.group("wished", n, plain),
		"done": p.group("done", n, func(b *builders.TaskBuilder) *builders.TaskBuilder { return b.WorkerRetention(time.Hour) }),
		"silent": p.group("silent", n, func(b *builders.TaskBuilder) *builders.TaskBuilder {
			return b.Sidecar().HeartbeatTimeout(time.Minute)
		}),
		"overran": p.group("overran", n, func(b *builders.TaskBuilder) *builders.TaskBuilder { return b.ActiveDeadline(10 * time.Minute) }),
		"ttl":     p.group("ttl", n, func(b *builders.TaskBuilder) *builders.TaskBuilder { return b.TTL(time.Minute) }),
	}
	for name, all := range groups {
		state := v1alpha1.StateProcessing
		switch name {
		case "done", "ttl":
			state = v1alpha1.StateSucceeded
		case "starts":
			state = v1alpha1.StatePending
			for _, one := range all {
				p.Kubelet.WaitPod(one, 1)
			}
		}
		p.waitAll(all, state)
	}
	p.Quiet(time.Second)
	p.passIdly(1)

	p.blind.Store(true)
	groups["new"] = p.group("new", n, plain)
	for i := range n {
		p.plantJob(groups["doubled"][i])
		p.plantJob(groups["done"][i])
		p.Cancel(groups["wished"][i])
	}
	deleteJobsKeepingPods(t, p.Env, groups["jobless"]...)
	for _, name := range []string{"doubled", "done"} {
		for _, one := range groups[name] {
			p.Kubelet.WaitPod(one, 7)
		}
		p.waitPods(groups[name], func(pod *corev1.Pod) bool { return pod.Status.Phase != corev1.PodPending })
	}
	clock.Step(15 * time.Minute)
	p.waitPods(groups["ended"], func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded })
	p.waitPods(groups["starts"], func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning })

	want := patrol.Found{
		task.FinishedWorker: n, task.MissingWorker: n, task.OrphanWorker: n, task.WorkerOfFinishedTask: n, task.SilentHeartbeat: n,
		task.UnseenStart: n, task.UnseenRequest: n, task.OverdueWakeUp: 3 * n, // overran, ttl, new
	}
	if found := p.pass(); !maps.Equal(found, want) {
		t.Errorf("found %v, wanted %v", found, want)
	}
	for name, state := range map[string]v1alpha1.State{
		"ended": v1alpha1.StateSucceeded, "starts": v1alpha1.StateProcessing, "new": v1alpha1.StatePending,
	} {
		for _, one := range groups[name] {
			status := p.Get(one).Status
			if last := status.History[len(status.History)-1]; status.State != state || last.Actor != lifecycle.ActorPatrol {
				t.Errorf("Task %s is %s by %s", one.Name, status.State, last.Actor)
			}
		}
	}
	for _, one := range groups["ttl"] {
		p.WaitGone(one)
	}

	// The controller sees again, and all ends as it would have.
	p.blind.Store(false)
	for _, name := range []string{"doubled", "starts", "new"} {
		for _, one := range groups[name] {
			p.Cancel(one)
		}
	}
	p.TouchAll()
	for name, state := range map[string]v1alpha1.State{
		"jobless": v1alpha1.StateFailed, "silent": v1alpha1.StateFailed, "overran": v1alpha1.StateFailed, "wished": v1alpha1.StateCancelled,
		"doubled": v1alpha1.StateCancelled, "starts": v1alpha1.StateCancelled, "new": v1alpha1.StateCancelled, "done": v1alpha1.StateSucceeded,
	} {
		p.waitAll(groups[name], state)
	}
	p.waitPods(groups["done"], func(pod *corev1.Pod) bool { return pod.Status.Phase != corev1.PodRunning })
	p.Quiet(time.Second)
	p.passIdly(2)
	deleteOrphans(t, p.Env, groups["jobless"]...)
}

// waitPods waits until all pods of these Tasks are so.
func (p *patrolled) waitPods(all []*v1alpha1.Task, so func(*corev1.Pod) bool) {
	p.t.Helper()
	theirs := map[types.UID]bool{}
	for _, one := range all {
		theirs[one.UID] = true
	}
	testenv.Eventually(p.t, func(ctx context.Context) error {
		var pods corev1.PodList
		if err := p.Client.List(ctx, &pods, client.InNamespace(p.Namespace)); err != nil {
			return err
		}
		for i := range pods.Items {
			if pod := &pods.Items[i]; theirs[types.UID(pod.Labels[v1alpha1.LabelTaskUID])] && !so(pod) {
				return fmt.Errorf("pod %s is %s", pod.Name, pod.Status.Phase)
			}
		}
		return nil
	})
}

// TestPatrolLeavesTheHealthyAlone passes 20 times over Tasks in each state, with no threshold at all.
func TestPatrolLeavesTheHealthyAlone(t *testing.T) {
	t.Parallel()
	p := newPatrolled(t, patrol.Options{Period: byHand})
	p.Kubelet.Auto(byGroup(map[string]testenv.Behaviour{
		"runs": testenv.UntilStopped, "homeless": {Unschedulable: "0/3 nodes are available"}, "succeeds": {},
		"fails": failing("boom"), "retries": failing("boom"),
	}))
	n := tries()
	plain := func(b *builders.TaskBuilder) *builders.TaskBuilder { return b }
	suspended := p.group("suspended", 5*n-5*(n/2), func(b *builders.TaskBuilder) *builders.TaskBuilder { return b.Suspend() })
	for state, all := range map[v1alpha1.State][]*v1alpha1.Task{
		v1alpha1.StateProcessing: p.group("runs", n/2, plain),
		v1alpha1.StateSucceeded:  p.group("succeeds", n/2, plain),
		v1alpha1.StateFailed:     p.group("fails", n/2, plain),
		v1alpha1.StateRetrying: p.group("retries", n/2, func(b *builders.TaskBuilder) *builders.TaskBuilder {
			return b.Retry(2).Backoff(time.Hour, time.Hour, "1")
		}),
		v1alpha1.StatePending: append(p.group("homeless", n/2, plain), suspended...),
	} {
		p.waitAll(all, state)
	}
	p.Quiet(3 * time.Second)
	p.passIdly(20)

	p.blind.Store(true)
	p.Cancel(suspended[0])
	p.Quiet(time.Second)
	if found := p.pass(); !maps.Equal(found, patrol.Found{task.UnseenRequest: 1}) { // what is not healthy is found
		t.Errorf("found %v", found)
	}
	p.WaitState(suspended[0], v1alpha1.StateCancelled)
	p.blind.Store(false)
	p.TouchAll()
}

// TestC13PatrolWithoutWatches: all watches are silent, over open connections. Workers end, a Job is deleted, a cancel is asked for and a
// Task is created: the patrol mends them all without a restart, and says so. When the watches end and are taken up again nothing changes.
func TestC13PatrolWithoutWatches(t *testing.T) {
	t.Parallel()
	p := newPatrolled(t, patrol.Options{Period: time.Second, Threshold: time.Second})
	p.Kubelet.Auto(byGroup(map[string]testenv.Behaviour{
		"ends": {RunFor: -1, StopCode: -1}, "jobless": testenv.UntilStopped, "wished": testenv.UntilStopped, "new": {},
	}))
	plain := func(b *builders.TaskBuilder) *builders.TaskBuilder { return b }
	ends, jobless, wished := p.group("ends", 3, plain), p.group("jobless", 1, plain), p.group("wished", 1, plain)
	for _, all := range [][]*v1alpha1.Task{ends, jobless, wished} {
		p.waitAll(all, v1alpha1.StateProcessing)
	}
	var thaw []func()
	for _, resource := range []string{"tasks", "jobs", "pods"} {
		thaw = append(thaw, p.Faults.FreezeWatch(resource))
	}
	for _, one := range ends {
		p.Kubelet.Exit(p.Kubelet.WaitPod(one, 1), testenv.Exit{})
	}
	deleteJobsKeepingPods(t, p.Env, jobless[0])
	p.Cancel(wished[0])
	late := p.group("new", 1, plain)

	mended := append(append(append([]*v1alpha1.Task{}, ends...), jobless[0], wished[0]), late...)
	p.waitAll(ends, v1alpha1.StateSucceeded)
	p.waitAll(late, v1alpha1.StateSucceeded)
	wantReason(t, p.WaitState(jobless[0], v1alpha1.StateFailed), v1alpha1.ReasonJobDeleted)
	p.waitAll(wished, v1alpha1.StateCancelled)
	for _, one := range mended {
		wantRepaired(t, p.Env, one)
	}
	for _, end := range thaw {
		end()
	}
	for _, resource := range []string{"tasks", "jobs", "pods"} {
		p.Faults.CutWatch(resource)
	}
	before := p.Get(ends[0])
	p.Quiet(200 * time.Millisecond)
	wantSameEnd(t, before, p.Get(ends[0]))
	deleteOrphans(t, p.Env, jobless...)
}

// deleteJobsKeepingPods takes the Jobs of Tasks away and leaves their pods.
func deleteJobsKeepingPods(t *testing.T, env *testenv.Env, all ...*v1alpha1.Task) {
	t.Helper()
	var jobs []batchv1.Job
	for _, one := range all {
		jobs = append(jobs, env.Jobs(one)...)
	}
	for i := range jobs {
		mustDelete(t, env, &jobs[i], client.PropagationPolicy(metav1.DeletePropagationOrphan))
	}
	for i := range jobs {
		env.WaitGone(&jobs[i])
	}
}

// deleteOrphans takes away the pods that nobody owns any more.
func deleteOrphans(t *testing.T, env *testenv.Env, all ...*v1alpha1.Task) {
	t.Helper()
	for _, one := range all {
		env.Kubelet.Vanish(env.Kubelet.WaitPod(one, 1))
	}
}

// wantRepaired asserts the traces of a repair: the patrol's entry in the history, and its Event.
func wantRepaired(t *testing.T, env *testenv.Env, one *v1alpha1.Task) {
	t.Helper()
	signed := false
	for _, h := range env.Get(one).Status.History {
		signed = signed || h.Actor == lifecycle.ActorPatrol
	}
	if !signed {
		t.Errorf("Task %s: no entry of the patrol in %+v", one.Name, env.Get(one).Status.History)
	}
	testenv.Eventually(t, func(ctx context.Context) error {
		var told eventsv1.EventList
		if err := env.Client.List(ctx, &told, client.InNamespace(env.Namespace)); err != nil {
			return err
		}
		for i := range told.Items {
			if e := &told.Items[i]; e.Reason == v1alpha1.ReasonRepaired && e.Regarding.UID == one.UID {
				return nil
			}
		}
		return fmt.Errorf("no Event %s about Task %s", v1alpha1.ReasonRepaired, one.Name)
	})
}
