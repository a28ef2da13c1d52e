package invariants

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// fixed answers every list with the same objects.
type fixed struct {
	client.Reader
	tasks []v1alpha1.Task
	jobs  []batchv1.Job
	pods  []corev1.Pod
}

func (f *fixed) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch l := list.(type) {
	case *v1alpha1.TaskList:
		l.Items = f.tasks
	case *batchv1.JobList:
		l.Items = f.jobs
	case *corev1.PodList:
		l.Items = f.pods
	default:
		return fmt.Errorf("no %T here", list)
	}
	return nil
}

// after is a story of a Task that succeeded, and what is stored of it an hour later.
func after(t *testing.T) (*story, *fixed) {
	t.Helper()
	s := succeeded(t)
	s.now = s.now.Add(time.Hour)
	pod := s.ownedPod("1")
	pod.Status.Phase = corev1.PodSucceeded
	return s, &fixed{tasks: []v1alpha1.Task{*s.task}, jobs: []batchv1.Job{*s.ownedJob("1", "job-1")}, pods: []corev1.Pod{*pod}}
}

func TestLive(t *testing.T) {
	for name, tc := range map[string]struct {
		rules  string
		change func(*story, *fixed, *Source)
	}{
		"Job kept, its pod ended": {"", func(*story, *fixed, *Source) {}},
		"pod runs on":             {"5 active-pod", func(_ *story, f *fixed, _ *Source) { f.pods[0].Status.Phase = corev1.PodRunning }},
		"pod runs on, within its graces": {"", func(s *story, f *fixed, _ *Source) {
			f.pods[0].Status.Phase = corev1.PodRunning
			s.now = s.task.Status.CompletionTime.Add(time.Minute)
		}},
		"pod runs on, and the operator is down": {"", func(_ *story, f *fixed, src *Source) {
			f.pods[0].Status.Phase = corev1.PodRunning
			src.Running = false
		}},
		"pod runs on, on a node that is out of reach": {"", func(_ *story, f *fixed, _ *Source) {
			f.pods[0].Status.Phase = corev1.PodRunning
			workerLost(&f.tasks[0])
		}},
		"pod is being deleted": {"", func(_ *story, f *fixed, _ *Source) {
			f.pods[0].Status.Phase = corev1.PodRunning
			f.pods[0].DeletionTimestamp = ptr.To(metav1.Now())
		}},
		"Job without a pod that may make one": {"5 active-job", func(_ *story, f *fixed, _ *Source) { f.pods = nil }},
		"Job without a pod that has ended": {"", func(_ *story, f *fixed, _ *Source) {
			f.pods = nil
			f.jobs[0].Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue}}
		}},
		"Task gone, Job left":               {"5 orphan", func(_ *story, f *fixed, _ *Source) { f.tasks = nil }},
		"Task gone, also from the log":      {"5 orphan", func(s *story, f *fixed, _ *Source) { f.tasks, s.events = nil, nil }},
		"Task gone, Job meant to stay":      {"", func(s *story, f *fixed, _ *Source) { f.tasks = nil; s.delete(metav1.DeletePropagationOrphan) }},
		"Task gone, Job left by background": {"5 orphan", func(s *story, f *fixed, _ *Source) { f.tasks = nil; s.delete(metav1.DeletePropagationBackground) }},
		"Task kept by our finalizer": {"5 finalizer", func(_ *story, f *fixed, _ *Source) {
			f.tasks[0].DeletionTimestamp, f.tasks[0].Finalizers = ptr.To(metav1.Now()), []string{"taskwarden.dev/x"}
		}},
		"Task kept by another's finalizer": {"", func(_ *story, f *fixed, _ *Source) {
			f.tasks[0].DeletionTimestamp, f.tasks[0].Finalizers = ptr.To(metav1.Now()), []string{"example.com/x"}
		}},
		"Job gone, pod runs on": {"5 active-pod", func(_ *story, f *fixed, _ *Source) { runsOn(f) }},
		"Job gone, pod runs on, within its graces": {"", func(s *story, f *fixed, _ *Source) {
			runsOn(f)
			s.now = s.task.Status.CompletionTime.Add(time.Minute)
		}},
		"Job gone, pod runs on, on a node that is out of reach": {"", func(_ *story, f *fixed, _ *Source) {
			runsOn(f)
			workerLost(&f.tasks[0])
		}},
		"Job gone, pod has ended":     {"", func(_ *story, f *fixed, _ *Source) { f.jobs = nil }},
		"Task and Job gone, pod left": {"5 orphan", func(_ *story, f *fixed, _ *Source) { f.tasks, f.jobs = nil, nil }},
		"Task and Job gone, pod going": {"", func(_ *story, f *fixed, _ *Source) {
			f.tasks, f.jobs = nil, nil
			f.pods[0].DeletionTimestamp = ptr.To(metav1.Now())
		}},
		"Task and Job gone, pod orphaned, runs on": {"5 orphan", func(_ *story, f *fixed, _ *Source) {
			runsOn(f)
			f.tasks, f.pods[0].OwnerReferences = nil, nil
		}},
		"Task and Job gone, pod orphaned, has ended": {"", func(_ *story, f *fixed, _ *Source) {
			f.tasks, f.jobs, f.pods[0].OwnerReferences = nil, nil, nil
		}},
		"pod of somebody else with our label": {"", func(_ *story, f *fixed, _ *Source) {
			runsOn(f)
			f.pods[0].UID, f.jobs = "by-hand", nil
		}},
		"no wake-up":      {"10 wake", wakes(v1alpha1.StatePending, time.Time{}, nil)},
		"wake-up to come": {"", wakes(v1alpha1.StatePending, begin, nil)},
		"wake-up not known": {"10 wake", func(s *story, f *fixed, src *Source) {
			wakes(v1alpha1.StatePending, begin, nil)(s, f, src)
			src.Wake = func(*v1alpha1.Task) (time.Time, error) { return time.Time{}, errors.New("never looked at") }
		}},
		"no wake-up after the end": {"", wakes(v1alpha1.StateSucceeded, time.Time{}, nil)},
		"no wake-up, to be resumed": {"", wakes(v1alpha1.StateRetrying, time.Time{}, func(t *v1alpha1.Task, _ time.Time) {
			t.Spec.Suspend = ptr.To(true)
		})},
		"no wake-up, to be resumed, with a deadline": {"10 wake", wakes(v1alpha1.StateRetrying, time.Time{}, func(t *v1alpha1.Task, _ time.Time) {
			t.Spec.Suspend, t.Spec.OverallDeadlineSeconds = ptr.To(true), ptr.To[int32](86400)
		})},
		"no wake-up, suspended and running": {"10 wake", wakes(v1alpha1.StateProcessing, time.Time{}, func(t *v1alpha1.Task, _ time.Time) {
			t.Spec.Suspend = ptr.To(true)
		})},
		"no wake-up, a lost worker's pod is watched": {"", func(s *story, f *fixed, src *Source) {
			wakes(v1alpha1.StateRetrying, time.Time{}, func(t *v1alpha1.Task, _ time.Time) { workerLost(t) })(s, f, src)
			f.pods[0].Status.Phase = corev1.PodRunning
		}},
		"no wake-up, a lost worker's pod has ended": {"10 wake", wakes(v1alpha1.StateRetrying, time.Time{}, func(t *v1alpha1.Task, _ time.Time) { workerLost(t) })},
		"wake-up at the next retry":                 {"", wakes(v1alpha1.StateRetrying, begin.Add(3*time.Hour), nextRetry)},
		"wake-up after the next retry":              {"10 wake-late", wakes(v1alpha1.StateRetrying, begin.Add(4*time.Hour), nextRetry)},
		"wake-up after the deadline": {"10 wake-late", wakes(v1alpha1.StateProcessing, begin.Add(4*time.Hour), func(t *v1alpha1.Task, now time.Time) {
			t.Status.Worker = &v1alpha1.WorkerStatus{StartTime: ptr.To(metav1.NewMicroTime(now))}
		})},
		"wake-up after the deadline of what is being stopped": {"", wakes(v1alpha1.StateProcessing, begin.Add(4*time.Hour), func(t *v1alpha1.Task, now time.Time) {
			t.Status.Worker = &v1alpha1.WorkerStatus{StartTime: ptr.To(metav1.NewMicroTime(now))}
			t.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionTerminating, Status: metav1.ConditionTrue}}
		})},
	} {
		t.Run(name, func(t *testing.T) {
			s, f := after(t)
			src := s.source()
			src.Client, src.Running = f, true
			tc.change(s, f, &src)
			found, err := Find(context.Background(), src)
			if err != nil {
				t.Fatal(err)
			}
			if got := rules(found); got != tc.rules {
				t.Errorf("found %v, wanted %q", found, tc.rules)
			}
		})
	}
}

// runsOn leaves a running pod and takes its Job away.
func runsOn(f *fixed) {
	f.pods[0].Status.Phase = corev1.PodRunning
	f.jobs = nil
}

// wakes is a Task in a state that the operator will look at again at a moment.
func wakes(state v1alpha1.State, at time.Time, change func(t *v1alpha1.Task, now time.Time)) func(*story, *fixed, *Source) {
	return func(s *story, f *fixed, src *Source) {
		f.tasks[0].Status.State = state
		if change != nil {
			change(&f.tasks[0], s.now)
		}
		src.Wake = func(*v1alpha1.Task) (time.Time, error) { return at, nil }
	}
}

func nextRetry(t *v1alpha1.Task, _ time.Time) {
	t.Status.NextRetryTime = ptr.To(metav1.NewMicroTime(begin.Add(3 * time.Hour)))
}

// delete tells that the user deleted the Task.
func (s *story) delete(how metav1.DeletionPropagation) {
	s.t.Helper()
	s.event(user, "delete", "tasks", "", s.task.Name, 200, &metav1.DeleteOptions{PropagationPolicy: &how},
		&metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status"}})
}

func TestColumns(t *testing.T) {
	row := func(cells string) string {
		raw, err := json.Marshal(succeeded(t).task)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`{"columnDefinitions":[{"name":"Name"},{"name":"State"},{"name":"Reason"},{"name":"Attempt"},
			{"name":"Age"},{"name":"Node"},{"name":"Started"},{"name":"Finished"},{"name":"Message"}],
			"rows":[{"cells":%s,"object":%s}]}`, cells, raw)
	}
	for name, tc := range map[string]struct{ table, rules string }{
		"all well":          {row(`["t","Succeeded","Completed",1,"5s",null,"4s","1s",null]`), ""},
		"old state":         {row(`["t","Processing","Completed",1,"5s",null,"4s","1s",null]`), "8 column"},
		"no end":            {row(`["t","Succeeded","Completed",1,"5s",null,"4s",null,null]`), "8 column"},
		"end that is wrong": {row(`["t","Succeeded","Completed",1,"5s",null,"4s","<invalid>",null]`), "8 column"},
		"node from nowhere": {row(`["t","Succeeded","Completed",1,"5s","node-1","4s","1s",null]`), "8 column"},
		"column missing": {
			strings.Replace(row(`["t","Succeeded","Completed",1,"5s",null,"4s","1s",null]`), `"Reason"`, `"Why"`, 1), "8 column-missing",
		},
	} {
		t.Run(name, func(t *testing.T) {
			table := &metav1.Table{}
			if err := json.Unmarshal([]byte(tc.table), table); err != nil {
				t.Fatal(err)
			}
			found, err := compareTable(table)
			if err != nil || rules(found) != tc.rules {
				t.Errorf("found %v, %v, wanted %q", found, err, tc.rules)
			}
		})
	}
}
