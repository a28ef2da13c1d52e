package task

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// settled is how many passes at one moment must be enough: accept, adopt, fix, end, open the next, and a look at it.
const settled = 8

// settle decides until nothing changes any more, carrying out the writes and the creations of each plan but no order to
// stop: those may take their time.
func settle(t interface{ Fatalf(string, ...any) }, s *scene) *v1alpha1.Task {
	for range settled {
		plan := decide(s.Snapshot)
		for _, v := range violations(s.Snapshot, plan) {
			t.Fatalf("a plan at %s from %s: %s", s.Now.Sub(created), describe(s), v)
		}
		carryOutCreation(s, &plan)
		unchanged := equality.Semantic.DeepEqual(s.Task.Status, plan.Task.Status)
		s.Task = plan.Task
		if unchanged {
			return plan.Task
		}
	}
	t.Fatalf("no end of passes at one moment; the last state is %s, %s", s.Task.Status.State, s.Task.Status.Reason)
	return nil
}

func describe(s *scene) string {
	text, err := json.MarshalIndent(struct {
		Status  v1alpha1.TaskStatus
		Workers []Worker
	}{s.Task.Status, s.Workers}, "", " ")
	must(err)
	return string(text)
}

// carryOutCreation does what create does when the API server accepts the Job.
func carryOutCreation(s *scene, plan *Plan) {
	if !plan.Create {
		return
	}
	n := plan.Task.Status.Attempt
	s.job(n, func(j *JobFacts) { j.CreateTime = s.Now })
	slices.SortFunc(s.Workers, func(a, b Worker) int { return int(a.Attempt - b.Attempt) })
	plan.Task.Status.Worker.JobUID = jobUID(n)
	plan.Task.Status.Reason, plan.Task.Status.Message = v1alpha1.ReasonWaitingForWorker, "The worker Job was created"
	d := decision{Snapshot: s.Snapshot, plan: plan, task: plan.Task, now: s.Now}
	d.setConditions()
}

// anyScene draws a Task in any state and way of being there, any worker beside it, and any moment.
func anyScene(t *rapid.T) *scene {
	bases := []func(...change) *scene{fresh, accepted, pending, uncreated, processing, retrying}
	for _, e := range []lifecycle.Event{lifecycle.Succeed, lifecycle.Fail, lifecycle.Cancel} {
		bases = append(bases, func(c ...change) *scene { return ended(e, c...) })
	}
	s := rapid.SampledFrom(bases).Draw(t, "base")(anyChanges(t)...)
	if n := s.Task.Status.Attempt; n > 0 && rapid.Bool().Draw(t, "worker") {
		anyWorker(t, s, n)
	}
	if rapid.IntRange(0, 9).Draw(t, "other worker") == 0 {
		anyWorker(t, s, s.Task.Status.Attempt+1)
	}
	late := rapid.SampledFrom([]int{0, 1, 5, 15, 40, 60, 100, 300, 400, 700, 2000, 100000}).Draw(t, "later")
	s.at(s.Now.Add(time.Duration(late) * time.Second))
	s.NodeReady = rapid.Bool().Draw(t, "node ready")
	s.StopWitnessed = rapid.Bool().Draw(t, "stop witnessed")
	s.PodCreateError = rapid.SampledFrom([]string{"", "exceeded quota: q", "is forbidden: no"}).Draw(t, "pod create error")
	s.MountError = rapid.SampledFrom([]string{"", "secret not found"}).Draw(t, "mount error")
	return s
}

func anyChanges(t *rapid.T) []change {
	all := map[string]change{
		"cancel": cancel, "suspend": suspend, "overall": overall(60), "active": active(50), "limit 0": limit(0), "ttl": ttl(60),
		"retention 0": retention(0), "wait": waitForLost, "ask": askRetry("1"),
		"no uncharged": func(t *v1alpha1.Task) { t.Spec.Retry.UnchargedLimit = ptr.To[int32](0) },
		"sidecar":      withSidecar, "heartbeat": heartbeat(30), "no progress": noProgress(60), "stage": inStage("resize", 15, 60),
		"reported": reportedSuccess(18), "reported failure": reportedFailure(19, false), "permanent": reportedFailure(17, true),
		"generation": func(t *v1alpha1.Task) { t.Generation++ },
		"fixed": func(t *v1alpha1.Task) {
			if s := &t.Status; s.State == pendingState && s.Worker != nil || s.State == processingState {
				terminating(v1alpha1.ReasonActiveDeadlineExceeded, after(15))(t)
			}
		},
		"lost": func(t *v1alpha1.Task) {
			if t.Status.State == retryingState {
				setCondition(t, v1alpha1.ConditionWorkerStopped, "Unknown", v1alpha1.ReasonWorkerLost, "node-a", after(20))
			}
		},
	}
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	var changes []change
	for _, name := range names {
		if rapid.IntRange(0, 3).Draw(t, name) == 0 {
			changes = append(changes, all[name])
		}
	}
	return changes
}

func anyWorker(t *rapid.T, s *scene, attempt int32) {
	if rapid.IntRange(0, 4).Draw(t, "job") > 0 {
		s.job(attempt, rapid.SampledFrom([]func(*JobFacts){func(*JobFacts) {}, completed, jobFailed, jobGoing, disruptedJ}).Draw(t, "job's state"))
	}
	if rapid.IntRange(0, 3).Draw(t, "pod") == 0 {
		return
	}
	phase := rapid.SampledFrom([]func(*PodFacts){
		func(*PodFacts) {}, unbound, running, running, running,
		exits(0, after(18)), exits(1, after(18)), exits(143, after(200)),
		func(p *PodFacts) { exits(0, after(18))(p); over(p) },
		func(p *PodFacts) { exits(1, after(18))(p); over(p) },
		func(p *PodFacts) { over(p); podSays("Evicted", "storage")(p) },
		func(p *PodFacts) { over(p); podSays("DeadlineExceeded", "long")(p) },
		func(p *PodFacts) { over(p); p.ExitUnknown = "lost track" },
		func(p *PodFacts) { p.Phase = corev1.PodUnknown },
		func(p *PodFacts) { unbound(p); p.Unschedulable = "0/3 nodes are available" },
		waits4("ImagePullBackOff", "Back-off pulling image"), waits4("ContainerCreating", ""),
	}).Draw(t, "phase")
	s.pod(attempt, phase)
	p := &s.worker(attempt).Pods[0]
	for _, x := range []struct {
		name string
		do   func(*PodFacts)
	}{
		{"deleting", deleting}, {"stop asked", stopAsked}, {"disrupted", disruptedAt(after(17))},
		{"sidecar runs", sidecarRuns}, {"sidecar ended", sidecarEnded("")}, {"note", sidecarEnded(note(successOf(attempt)))},
	} {
		if rapid.IntRange(0, 3).Draw(t, x.name) == 0 {
			x.do(p)
		}
	}
}

// TestPlans: every plan keeps the invariants, and a pass on the outcome of another comes to rest.
func TestPlans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := anyScene(t)
		settle(t, s)
		last := decide(s.Snapshot)
		again := decide(s.Snapshot)
		if diff := cmp.Diff(last, again, cmp.Comparer(func(a, b error) bool { return a.Error() == b.Error() })); diff != "" {
			t.Fatalf("decide is not a function:\n%s", diff)
		}
		if len(last.Refused) > 0 {
			t.Fatalf("an event is refused again and again: %v", last.Refused)
		}
	})
}

// TestDecideLeavesTheSnapshotAlone: the Task of a snapshot belongs to a cache.
func TestDecideLeavesTheSnapshotAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := anyScene(t)
		before := s.Task.DeepCopy()
		decide(s.Snapshot)
		if diff := cmp.Diff(before, s.Task); diff != "" {
			t.Fatalf("the cached Task was changed:\n%s", diff)
		}
	})
}
