package patrol

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/controllers/task"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

var usual = Options{Period: DefaultPeriod, Threshold: DefaultThreshold}

// TestEachKindIsMendedOnce: a mismatch is left alone while it is younger than the threshold, then mended by one pass, with a trace; the
// pass after that does nothing.
func TestEachKindIsMendedOnce(t *testing.T) {
	ended := after(time.Minute)
	finishedPod := func(one *v1alpha1.Task) []client.Object {
		job := jobOf(one, 1)
		return []client.Object{one, job, podOf(job, &ended)}
	}
	with := func(move func(*v1alpha1.Task), changes ...func(*v1alpha1.Task)) *v1alpha1.Task {
		return taskOf("demo", append([]func(*v1alpha1.Task){move}, changes...)...)
	}
	orphanOf := taskOf("gone", processing)
	for name, tc := range map[string]struct {
		stored []client.Object
		kind   task.MismatchKind
		due    time.Duration // since the creation; where it is undated, since the patrol has seen it first
		first  time.Duration // when the patrol looks first
		writes []string
		state  v1alpha1.State // after
		actor  bool
	}{
		"finished worker": {
			stored: finishedPod(with(processing)), kind: task.FinishedWorker, due: time.Minute + DefaultThreshold,
			writes: []string{"status demo"}, state: v1alpha1.StateSucceeded, actor: true,
		},
		"missing worker": {
			stored: []client.Object{with(pending)}, kind: task.MissingWorker, first: time.Minute, due: time.Minute + DefaultThreshold,
			writes: []string{"status demo"}, state: v1alpha1.StateFailed, actor: true,
		},
		"worker of a closed attempt": {
			stored: append(withWorker(with(processing)), func() client.Object {
				old := jobOf(with(processing), 7)
				old.UID = "job-7"
				return old
			}()),
			kind: task.OrphanWorker, due: DefaultThreshold, writes: []string{"delete demo-7"}, state: v1alpha1.StateProcessing,
		},
		"orphan": {
			stored: []client.Object{jobOf(orphanOf, 1)}, kind: task.OrphanWorker, first: DefaultThreshold, due: 2 * DefaultThreshold,
			writes: []string{"delete gone-1"},
		},
		"orphan pod": {
			stored: []client.Object{podOf(jobOf(orphanOf, 1), nil)}, kind: task.OrphanWorker, first: DefaultThreshold,
			due: 2 * DefaultThreshold, writes: []string{"delete gone-1-pod"},
		},
		"worker of a finished Task": {
			stored: withWorker(with(succeeded)), kind: task.WorkerOfFinishedTask, due: time.Minute + DefaultThreshold,
			writes: []string{"patch demo-1-pod"}, state: v1alpha1.StateSucceeded,
		},
		"silent heartbeat": {
			stored: withWorker(with(processing, func(t *v1alpha1.Task) { t.Spec.HeartbeatTimeoutSeconds = ptr.To[int32](60) })),
			kind:   task.SilentHeartbeat, due: time.Minute + DefaultThreshold,
			writes: []string{"status demo", "patch demo-1-pod"}, state: v1alpha1.StateProcessing,
		},
		"deadline": {
			stored: withWorker(with(processing, func(t *v1alpha1.Task) { t.Spec.ActiveDeadlineSeconds = ptr.To[int32](120) })),
			kind:   task.OverdueWakeUp, due: 2*time.Minute + DefaultThreshold,
			writes: []string{"status demo", "patch demo-1-pod"}, state: v1alpha1.StateProcessing,
		},
		"TTL": {
			stored: []client.Object{with(succeeded, func(t *v1alpha1.Task) { t.Spec.TTLSecondsAfterFinished = ptr.To[int32](60) })},
			kind:   task.OverdueWakeUp, due: time.Minute + DefaultThreshold, writes: []string{"delete demo"},
		},
		"never looked at": {
			stored: []client.Object{with(func(*v1alpha1.Task) {})}, kind: task.OverdueWakeUp, due: DefaultThreshold,
			writes: []string{"create demo-1", "status demo"}, state: v1alpha1.StatePending, actor: true,
		},
		"unseen start": {
			stored: withWorker(with(pending, func(t *v1alpha1.Task) { t.Spec.StartTimeoutSeconds = ptr.To[int32](3600) })),
			kind:   task.UnseenStart, due: DefaultThreshold, writes: []string{"status demo"}, state: v1alpha1.StateProcessing, actor: true,
		},
		"cancel": {
			stored: withWorker(with(processing, func(t *v1alpha1.Task) { t.Spec.Cancel = ptr.To(true) })),
			kind:   task.UnseenRequest, first: time.Minute, due: time.Minute + DefaultThreshold,
			writes: []string{"status demo", "patch demo-1-pod"}, state: v1alpha1.StateProcessing,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBeat(t, usual, tc.stored...)
			before := counted(t, tc.kind)
			for _, early := range []time.Duration{tc.first, tc.due - time.Second} {
				b.clock.SetTime(after(early))
				if found, writes := b.pass(); len(found) > 0 || len(writes) > 0 {
					t.Fatalf("after %s: found %v, wrote %v", early, found, writes)
				}
			}
			b.clock.SetTime(after(tc.due))
			found, writes := b.pass()
			if diff := cmp.Diff(Found{tc.kind: 1}, found) + cmp.Diff(tc.writes, writes); diff != "" {
				t.Fatalf("found and wrote (-want +got):\n%s", diff)
			}
			if counted(t, tc.kind) != before+1 || !repairedEvent(b.events.Events) {
				t.Errorf("counted %v before and %v after, or no Event", before, counted(t, tc.kind))
			}
			if tc.state != "" {
				status := b.get("demo").Status
				last := status.History[len(status.History)-1].Actor
				if status.State != tc.state || (last == lifecycle.ActorPatrol) != tc.actor {
					t.Errorf("state %s by %s", status.State, last)
				}
			}
			if found, writes := b.pass(); len(found) > 0 || len(writes) > 0 {
				t.Errorf("a second pass finds %v, writes %v", found, writes)
			}
		})
	}
}

// repairedEvent tells whether an Event of a repair is among those that were told.
func repairedEvent(told <-chan string) bool {
	for {
		select {
		case e := <-told:
			if strings.Contains(e, v1alpha1.ReasonRepaired) {
				return true
			}
		default:
			return false
		}
	}
}

func counted(t *testing.T, kind task.MismatchKind) float64 {
	t.Helper()
	var m dto.Metric
	if err := mismatchesTotal.WithLabelValues(string(kind)).Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

// healthy are Tasks in all states, in which nothing is due, and strangers.
func healthy() []client.Object {
	ended := after(0)
	done := taskOf("done", succeeded)
	doneJob := jobOf(done, 1)
	kept := jobOf(taskOf("kept"), 1)
	kept.OwnerReferences = nil // by --cascade=orphan
	foreign := jobOf(taskOf("foreign"), 1)
	foreign.OwnerReferences[0].Kind = "CronTask"
	bare := podOf(jobOf(taskOf("bare"), 1), nil)
	bare.OwnerReferences = nil
	idle := taskOf("idle", func(t *v1alpha1.Task) {
		t.Spec.Suspend = ptr.To(true)
		lifecycle.Accept(t, created)
		t.Status.Reason = v1alpha1.ReasonSuspended
	})
	all := []client.Object{done, doneJob, podOf(doneJob, &ended), kept, foreign, bare, idle}
	all = append(all, withWorker(taskOf("runs", processing, longDeadline))...)
	failed := taskOf("failed", processing, func(t *v1alpha1.Task) {
		_, err := lifecycle.End(t, lifecycle.Ending{Event: lifecycle.Fail, Reason: v1alpha1.ReasonNonZeroExitCode, ExitCode: ptr.To[int32](1)},
			lifecycle.Facts{WorkerStopped: true}, created)
		must(err)
	})
	failedJob := jobOf(failed, 1)
	return append(all, failed, failedJob, podOf(failedJob, &ended))
}

func longDeadline(t *v1alpha1.Task) { t.Spec.ActiveDeadlineSeconds = ptr.To[int32](86400) }

// TestHealthyTasksAreLeftAlone: however often the patrol passes, and however low the threshold.
func TestHealthyTasksAreLeftAlone(t *testing.T) {
	for _, threshold := range []time.Duration{0, DefaultThreshold} {
		b := newBeat(t, Options{Period: DefaultPeriod, Threshold: threshold}, healthy()...)
		for i := range 20 {
			b.clock.SetTime(after(time.Duration(i) * 10 * time.Second))
			if found, writes := b.pass(); len(found) > 0 || len(writes) > 0 {
				t.Fatalf("pass %d with threshold %s: found %v, wrote %v", i, threshold, found, writes)
			}
		}
	}
}

// TestAnotherMismatchIsNew: what has no date is as old as it has been the same.
func TestAnotherMismatchIsNew(t *testing.T) {
	one := taskOf("demo", processing, longDeadline)
	one.Spec.Cancel = ptr.To(true)
	b := newBeat(t, usual, withWorker(one)...)
	b.clock.SetTime(after(time.Minute))
	b.pass()
	changed := b.get("demo")
	changed.Generation++
	if err := b.client.Update(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	b.clock.SetTime(after(time.Minute + DefaultThreshold))
	if found, _ := b.pass(); len(found) > 0 {
		t.Fatalf("found %v although the spec has changed", found)
	}
	b.clock.SetTime(after(time.Minute + 2*DefaultThreshold))
	if found, _ := b.pass(); found[task.UnseenRequest] != 1 {
		t.Fatalf("found %v", found)
	}
}

// TestAFailureEndsNothing: what cannot be mended keeps the patrol from nothing else, and is tried again; a race that is lost does not
// count; an API server that does not answer ends the pass, and no complete one is claimed.
func TestAFailureEndsNothing(t *testing.T) {
	ended := after(time.Minute)
	var stored []client.Object
	for _, name := range []string{"a", "b"} {
		one := taskOf(name, processing, longDeadline)
		job := jobOf(one, 1)
		stored = append(stored, one, job, podOf(job, &ended))
	}
	b := newBeat(t, usual, stored...)
	b.clock.SetTime(after(time.Hour))
	b.refuse = func(what string) error {
		if what == "status a" {
			return apierrors.NewServiceUnavailable("later")
		}
		return nil
	}
	if found, _ := b.pass(); found[task.FinishedWorker] != 2 || b.get("b").Status.State != v1alpha1.StateSucceeded {
		t.Errorf("found %v, b is %s", found, b.get("b").Status.State)
	}
	b.refuse = func(string) error {
		return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("tasks").GroupResource(), "a", errors.New("changed"))
	}
	if found, _ := b.pass(); len(found) != 0 {
		t.Errorf("found %v although somebody was faster", found)
	}
	b.refuse = nil
	if found, _ := b.pass(); found[task.FinishedWorker] != 1 || b.get("a").Status.State != v1alpha1.StateSucceeded {
		t.Errorf("found %v, a is %s", found, b.get("a").Status.State)
	}
	lastPass.Set(0)
	b.Live = failing{b.Live}
	if _, err := b.Pass(t.Context()); err == nil || gauge(t) != 0 {
		t.Errorf("error %v, last pass %v", err, gauge(t))
	}
}

func gauge(t *testing.T) float64 {
	t.Helper()
	var m dto.Metric
	if err := lastPass.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetGauge().GetValue()
}

// TestReadsOnlyWhatItMust: of many Tasks that have ended a pass reads a bounded part, and the next goes on from there; those that have
// not ended it reads all.
func TestReadsOnlyWhatItMust(t *testing.T) {
	var stored []client.Object
	for i := range 2 * endedPerPass {
		stored = append(stored, taskOf(fmt.Sprintf("done-%04d", i), succeeded))
	}
	for i := range tasksPerPage + 1 {
		stored = append(stored, withWorker(taskOf(fmt.Sprintf("runs-%03d", i), processing, longDeadline))...)
	}
	late := taskOf("done-9999", succeeded, func(t *v1alpha1.Task) { t.Spec.TTLSecondsAfterFinished = ptr.To[int32](60) })
	b := newBeat(t, usual, append(stored, late)...)
	b.clock.SetTime(after(time.Hour))
	for pass := range 3 {
		found, writes := b.pass()
		if want := map[bool]int{true: 1}[pass == 2]; found[task.OverdueWakeUp] != want || len(writes) != want {
			t.Errorf("pass %d: found %v, wrote %v", pass, found, writes)
		}
		asked := map[string]int{}
		for _, l := range b.lists {
			asked[l]++
		}
		want := map[string]int{
			"tasks?" + unfinished.String(): 2, "tasks?" + finished.String(): endedPerPass / tasksPerPage,
			"?": 2 * (2 + endedPerPass/tasksPerPage), "?status.successful=0": 1, "?" + notOver.String(): 1,
		}
		if pass == 2 {
			want["tasks?"+finished.String()] = 1
			want["?"] = 2*(2+1) + 2 // and those of the Task that is mended
		}
		if diff := cmp.Diff(want, asked); diff != "" {
			t.Errorf("pass %d asked (-want +got):\n%s", pass, diff)
		}
	}
}

// TestExpiredToken: where the API server has forgotten how far the last pass came, the next one goes on at the same place.
func TestExpiredToken(t *testing.T) {
	var stored []client.Object
	for i := range tasksPerPage {
		stored = append(stored, taskOf(fmt.Sprintf("done-%04d", i), succeeded))
	}
	late := taskOf("done-9999", succeeded, func(t *v1alpha1.Task) { t.Spec.TTLSecondsAfterFinished = ptr.To[int32](60) })
	b := newBeat(t, usual, append(stored, late)...)
	b.clock.SetTime(after(time.Hour))
	b.next = map[string]string{"": expired}
	found, _ := b.pass()
	again := 0
	for _, l := range b.lists {
		if l == "tasks?"+finished.String() {
			again++
		}
	}
	if found[task.OverdueWakeUp] != 1 || b.next[""] != "" || again != 2 {
		t.Errorf("found %v, goes on at %q, has asked %d times", found, b.next[""], again)
	}
}

// TestStrays: young workers, and those that somebody deletes, are not looked at.
func TestStrays(t *testing.T) {
	gone := taskOf("gone", processing)
	going := jobOf(gone, 1)
	going.DeletionTimestamp, going.Finalizers = ptr.To(metav1.NewTime(created)), []string{metav1.FinalizerDeleteDependents}
	pod := podOf(going, nil)
	b := newBeat(t, usual, going, pod)
	for range 3 {
		b.clock.SetTime(b.clock.Now().Add(DefaultThreshold))
		if found, writes := b.pass(); len(found)+len(writes) > 0 {
			t.Errorf("found %v, wrote %v", found, writes)
		}
	}
	if pod.Status.Phase != corev1.PodRunning {
		t.Error("the fixture's pod does not run")
	}
}
