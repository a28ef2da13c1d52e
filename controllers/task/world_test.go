package task

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// world is a cluster of one Task, as small as can be: a Job controller, a kubelet on one node that may die and come back, a
// user, and the decisions under test, whose orders are carried out.
type world struct {
	*scene
	t *rapid.T
	// alive are the processes on the node, by pod UID, whatever the API server knows of them.
	alive map[string]time.Time
	// doomed are those that the kubelet is to end, since when.
	doomed   map[string]time.Time
	nodeDead bool
	back     time.Time // when the node came back
	pods     int
	// excused: a worker has been taken for lost, so that a second one may run beside it.
	excused bool
	wakeAt  time.Time
}

func newWorld(t *rapid.T) *world {
	changes := []change{limit(rapid.Int32Range(0, 3).Draw(t, "limit"))}
	if rapid.Bool().Draw(t, "overall deadline") {
		changes = append(changes, overall(2000))
	}
	if rapid.Bool().Draw(t, "active deadline") {
		changes = append(changes, active(50))
	}
	if rapid.Bool().Draw(t, "wait for the lost") {
		changes = append(changes, waitForLost)
	}
	if rapid.Bool().Draw(t, "born suspended") {
		changes = append(changes, suspend)
	}
	return &world{scene: fresh(changes...), t: t, alive: map[string]time.Time{}, doomed: map[string]time.Time{}}
}

// reconcile passes until nothing changes, and carries out what is asked for.
func (w *world) reconcile() {
	for range settled {
		asked := (&decision{Snapshot: w.Snapshot, task: w.Task}).nodeToAsk() != ""
		w.NodeReady, w.NodeReadySince = asked && !w.nodeDead, w.back
		plan := decide(w.Snapshot)
		for _, v := range violations(w.Snapshot, plan) {
			w.t.Fatalf("a plan at %s from %s: %s", w.Now.Sub(created), describe(w.scene), v)
		}
		w.patrol(&plan)
		carryOutCreation(w.scene, &plan)
		unchanged := equality.Semantic.DeepEqual(w.Task.Status, plan.Task.Status)
		w.Task, w.wakeAt = plan.Task, plan.WakeAt
		w.excused = w.excused || workerLost(w.Task)
		for _, stop := range plan.Stop {
			w.obey(stop)
		}
		for _, key := range plan.DeleteJobs {
			ownerOf(w.Snapshot, key).Job = nil
		}
		w.count()
		if unchanged {
			return
		}
	}
	w.t.Fatalf("no end of passes at one moment in %s", describe(w.scene))
}

// patrol asserts that a plan which moves the Task or destroys anything mends a mismatch that is no younger than now, and that one
// which changes nothing does not: the patrol overlooks nothing, and leaves alone what is as it should be.
func (w *world) patrol(plan *Plan) {
	found := mismatchOf(w.Snapshot, plan)
	acts := plan.Moved || len(plan.Stop)+len(plan.DeleteJobs) > 0
	idle := !acts && !plan.Create && equality.Semantic.DeepEqual(w.Task.Status, plan.Task.Status)
	if acts && found == nil || idle && found != nil || found != nil && found.Since.After(w.Now) {
		w.t.Fatalf("the patrol finds %+v in %s", found, describe(w.scene))
	}
}

func (w *world) obey(stop Stop) {
	owner := ownerOf(w.Snapshot, stop.ObjectKey)
	if stop.By == StopByDeletingJob {
		owner.Job.Deleting = true
		return
	}
	for i := range owner.Pods {
		if p := &owner.Pods[i]; p.UID == stop.UID {
			p.StopAsked = p.StopAsked || stop.By == StopByDeadline
			p.Deleting = p.Deleting || stop.By == StopByDeletingPod
		}
	}
}

// count asserts invariant 1: at most one live worker, bounded by onWorkerLost.
func (w *world) count() {
	waits := w.Task.Spec.Retry.OnWorkerLost == v1alpha1.WaitForLostWorker
	if len(w.alive) > 1 && (waits || !w.excused) {
		w.t.Fatalf("%d workers live: %v\n%s", len(w.alive), w.alive, describe(w.scene))
	}
	if w.Task.Status.State == cancelledState && len(w.alive) > 0 && !w.excused {
		w.t.Fatalf("Cancelled while a worker runs: %v", w.alive)
	}
}

// control is the Job controller and the garbage collector.
func (w *world) control() {
	for i := range w.Workers {
		worker := &w.Workers[i]
		job := worker.Job
		if job == nil {
			continue
		}
		for j := range worker.Pods {
			p := &worker.Pods[j]
			job.Complete = job.Complete || p.Phase == corev1.PodSucceeded
			job.Failed = job.Failed || p.Phase == corev1.PodFailed
			p.Deleting = p.Deleting || job.Deleting
		}
		switch {
		case job.Deleting && len(worker.Pods) == 0:
			worker.Job = nil
		case !job.Deleting && !job.Finished() && len(worker.Pods) == 0:
			w.pods++
			uid := fmt.Sprintf("pod-%d-%d", worker.Attempt, w.pods)
			worker.Pods = append(worker.Pods, PodFacts{
				Name: uid, UID: types.UID(uid), CreateTime: w.Now, Phase: corev1.PodPending, Grace: defaultPodGrace, MayRun: true,
			})
		}
	}
}

// kubelet starts and stops what it is told to, unless it is dead. Processes of pods that it no longer finds end after their
// grace.
func (w *world) kubelet(mayStart bool) {
	if w.nodeDead {
		return
	}
	known := map[string]bool{}
	for i := range w.Workers {
		worker := &w.Workers[i]
		for j := range worker.Pods {
			p := &worker.Pods[j]
			uid := string(p.UID)
			known[uid] = true
			_, lives := w.alive[uid]
			switch {
			case !p.MayRun:
			case p.StopAsked || p.Deleting:
				delete(w.alive, uid)
				if lives {
					p.Exit = &Exit{Code: 143, Reason: "Error", StartTime: p.RunningSince, FinishTime: w.Now}
				}
				p.RunningSince, p.MayRun, p.Phase = time.Time{}, false, corev1.PodFailed
			case mayStart && !lives && p.Exit == nil:
				w.alive[uid] = w.Now
				p.NodeName, p.StartTime, p.Phase, p.RunningSince = testNode, w.Now, corev1.PodRunning, w.Now
			}
		}
		// The Job controller's finalizer keeps a pod until it has been counted.
		kept := worker.Job != nil && !worker.Job.Finished() && !worker.Job.Deleting
		worker.Pods = slices.DeleteFunc(worker.Pods, func(p PodFacts) bool { return p.Deleting && !p.MayRun && !kept })
	}
	for uid := range w.alive {
		if known[uid] {
			continue
		}
		if since, ok := w.doomed[uid]; !ok {
			w.doomed[uid] = w.Now
		} else if w.Now.Sub(since) >= defaultPodGrace {
			delete(w.alive, uid)
		}
	}
}

// exit ends a live worker by itself.
func (w *world) exit(code int32) {
	if w.nodeDead {
		return
	}
	for i := range w.Workers {
		for j := range w.Workers[i].Pods {
			p := &w.Workers[i].Pods[j]
			if _, lives := w.alive[string(p.UID)]; !lives {
				continue
			}
			delete(w.alive, string(p.UID))
			p.Exit = &Exit{Code: code, Reason: "Error", StartTime: p.RunningSince, FinishTime: w.Now}
			over(p)
			return
		}
	}
}

func (w *world) pass(d time.Duration) {
	// The kubelet of a live node looks more often than a grace.
	for end := w.Now.Add(d); w.Now.Before(end); {
		w.Now = lifecycle.Earliest(end, w.Now.Add(10*time.Second))
		w.kubelet(false)
	}
}

func (w *world) anyPod() *PodFacts {
	for i := range w.Workers {
		if len(w.Workers[i].Pods) > 0 {
			return &w.Workers[i].Pods[0]
		}
	}
	return nil
}

// act does one thing that happens in a cluster.
func (w *world) act(what string) {
	switch what {
	case "time":
		w.pass(time.Duration(rapid.IntRange(1, 400).Draw(w.t, "seconds")) * time.Second)
	case "wake-up":
		if w.wakeAt.After(w.Now) {
			w.pass(w.wakeAt.Sub(w.Now))
		}
	case "control":
		w.control()
	case "kubelet":
		w.kubelet(true)
	case "exit 0":
		w.exit(0)
	case "exit 1":
		w.exit(1)
	case "cancel":
		cancel(w.Task)
	case "suspend":
		suspend(w.Task)
	case "resume":
		w.Task.Spec.Suspend = ptr.To(false)
	case "retry":
		askRetry(w.Now.String())(w.Task)
	case "node dies":
		w.nodeDead = true
	case "node returns":
		if w.nodeDead {
			w.nodeDead, w.back = false, w.Now
		}
	case "pod deleted":
		if p := w.anyPod(); p != nil {
			p.Deleting = true
		}
	case "pod gone":
		for i := range w.Workers {
			if len(w.Workers[i].Pods) > 0 {
				if !w.nodeDead {
					delete(w.alive, string(w.Workers[i].Pods[0].UID)) // a deletion by force leaves no grace
				}
				w.Workers[i].Pods = w.Workers[i].Pods[1:]
				break
			}
		}
	case "job orphaned":
		for i := range w.Workers {
			if w.Workers[i].Job != nil {
				w.Workers[i].Job = nil
				break
			}
		}
	}
}

// TestWorld lets things happen in any order, then lets the user and the node be kind, and asks that the Task comes to an end:
// never two workers, never a lost Task.
func TestWorld(t *testing.T) {
	things := []string{
		"time", "wake-up", "control", "kubelet", "control", "kubelet", "exit 0", "exit 1", "exit 1", "cancel", "suspend", "resume",
		"resume", "retry", "node dies", "node returns", "pod deleted", "pod gone", "job orphaned",
	}
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.reconcile()
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			w.act(rapid.SampledFrom(things).Draw(t, "thing"))
			w.reconcile()
		}
		for _, thing := range []string{"resume", "node returns"} {
			w.act(thing)
			w.reconcile()
		}
		for range 60 {
			if lifecycle.Terminal(w.Task.Status.State) {
				break
			}
			before := w.Now
			for _, thing := range []string{"control", "kubelet", "exit 0", "kubelet", "control", "wake-up"} {
				w.act(thing)
				w.reconcile()
			}
			if w.Now.Equal(before) {
				w.pass(time.Second)
			}
		}
		if !lifecycle.Terminal(w.Task.Status.State) {
			t.Fatalf("the Task never ends: %s", describe(w.scene))
		}
		w.leavesNothing()
	})
}

// leavesNothing asserts invariant 5: some time after its end no worker of the Task runs.
func (w *world) leavesNothing() {
	for range 20 {
		for _, thing := range []string{"control", "kubelet", "control"} {
			w.act(thing)
		}
		w.pass(30 * time.Second)
		w.reconcile()
	}
	if len(w.alive) > 0 {
		w.t.Fatalf("it left workers: %v\n%s", w.alive, describe(w.scene))
	}
	for i := range w.Workers {
		if w.Workers[i].MayRun() {
			w.t.Fatalf("it left a worker of attempt %d: %s", w.Workers[i].Attempt, describe(w.scene))
		}
	}
}
