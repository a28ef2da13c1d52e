package invariants

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/test/audit"
	"github.com/taskwarden/taskwarden/test/builders"
)

// processing tells of a Task up to its running worker.
func processing(t testing.TB, b *builders.TaskBuilder) *story {
	t.Helper()
	s := tell(t, b)
	s.status(s.accept()).job(1)
	return s.status(s.to(lifecycle.Start, v1alpha1.StateProcessing, v1alpha1.ReasonWorkerRunning))
}

func succeed(s *story) []func(*v1alpha1.Task) {
	return []func(*v1alpha1.Task){
		s.end(lifecycle.Succeed, v1alpha1.ReasonCompleted, 0, false),
		s.to(lifecycle.Succeed, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted),
	}
}

func fail(s *story, to v1alpha1.State, charged bool) []func(*v1alpha1.Task) {
	return []func(*v1alpha1.Task){
		s.end(lifecycle.Fail, v1alpha1.ReasonNonZeroExitCode, 1, charged),
		s.to(lifecycle.Fail, to, v1alpha1.ReasonNonZeroExitCode),
	}
}

func succeeded(t testing.TB) *story {
	t.Helper()
	s := processing(t, task())
	s.worker(1)
	return s.status(succeed(s)...)
}

// failed tells of a Task whose only attempt failed.
func failed(t testing.TB) *story {
	t.Helper()
	s := processing(t, task().Retry(0))
	s.worker(1)
	return s.status(fail(s, v1alpha1.StateFailed, true)...)
}

// again tells on from a Retrying Task to the running worker of its next attempt.
func again(s *story) *story {
	s.status(s.to(lifecycle.Retry, v1alpha1.StatePending, ""))
	s.job(int(s.task.Status.Attempt))
	return s.status(s.to(lifecycle.Start, v1alpha1.StateProcessing, v1alpha1.ReasonWorkerRunning))
}

func task() *builders.TaskBuilder { return builders.Task("t") }

func byHand(s *story) func(*v1alpha1.Task) {
	return func(t *v1alpha1.Task) {
		s.to(lifecycle.Retry, v1alpha1.StatePending, "")(t)
		t.Status.CompletionTime, t.Status.Charged = nil, 0
		t.Status.LastHandledRetry = &v1alpha1.HandledRetry{RequestedAt: "now", Outcome: v1alpha1.RetryAccepted}
	}
}

func ask(t *v1alpha1.Task) {
	metav1.SetMetaDataAnnotation(&t.ObjectMeta, v1alpha1.AnnotationRetryRequestedAt, "now")
}

func workerLost(t *v1alpha1.Task) {
	t.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionWorkerStopped, Status: metav1.ConditionUnknown,
		Message: fmt.Sprintf("The worker of attempt %d on node \"n\" may still run", t.Status.Attempt),
	}}
}

func workerHeardOf(t *v1alpha1.Task) { t.Status.Conditions[0].Status = metav1.ConditionTrue }

// Stories in which all is well.
// suspendedSince is a Task that was suspended when it was new, and got its Job so many seconds later.
func suspendedSince(t *testing.T, seconds int) *story {
	t.Helper()
	s := tell(t, task()).spec(func(t *v1alpha1.Task) { t.Spec.Suspend = ptr.To(true) })
	for range seconds {
		s.tick()
	}
	return s.job(1)
}

var good = map[string]func(*testing.T) *story{
	"Job for a new Task whose suspend is not heard of yet": func(t *testing.T) *story { return suspendedSince(t, 6) },
	"success": func(t *testing.T) *story { return succeeded(t) },
	"failure": func(t *testing.T) *story { return failed(t) },
	"a worker so fast that its start and end are one write": func(t *testing.T) *story {
		s := tell(t, task())
		s.status(s.accept()).job(1).worker(1)
		return s.status(append([]func(*v1alpha1.Task){s.to(lifecycle.Start, v1alpha1.StateProcessing, "")}, succeed(s)...)...)
	},
	"retry, then success": func(t *testing.T) *story {
		s := processing(t, task())
		s.worker(1).status(fail(s, v1alpha1.StateRetrying, true)...)
		again(s).worker(2)
		return s.status(succeed(s)...)
	},
	"retry by hand whose Job comes before the answer": func(t *testing.T) *story {
		s := failed(t)
		return s.spec(ask).job(2).status(byHand(s)).status(s.to(lifecycle.Start, v1alpha1.StateProcessing, v1alpha1.ReasonWorkerRunning))
	},
	"retry by hand": func(t *testing.T) *story {
		s := failed(t)
		s.spec(ask).status(byHand(s)).job(2)
		s.status(s.to(lifecycle.Start, v1alpha1.StateProcessing, "")).worker(2)
		return s.status(succeed(s)...)
	},
	"worker killed without a mark, its end known by its pod": func(t *testing.T) *story {
		s := processing(t, task())
		s.mark(Start, 1, "pod-1").podEnded(1).status(fail(s, v1alpha1.StateRetrying, true)...)
		return again(s).mark(Start, 2, "pod-2")
	},
	"the same, and an API server that was killed has not logged the creations": func(t *testing.T) *story {
		s := processing(t, task())
		s.events = slices.DeleteFunc(s.events, func(e audit.Event) bool { return e.Verb == "create" && e.Object.Resource != "tasks" })
		s.event("job-controller", "update", "jobs", "status", s.task.Name+"-1", 200, nil, s.ownedJob("1", "job-1"))
		s.mark(Start, 1, "pod-1").podEnded(1).status(fail(s, v1alpha1.StateRetrying, true)...)
		return again(s).mark(Start, 2, "pod-2")
	},
	"worker killed without a mark, its pod deleted": func(t *testing.T) *story {
		s := processing(t, task())
		s.mark(Start, 1, "pod-1").podDeleted(1).status(fail(s, v1alpha1.StateRetrying, true)...)
		return again(s).mark(Start, 2, "pod-2")
	},
	"worker written off": func(t *testing.T) *story {
		s := processing(t, task())
		s.mark(Start, 1, "pod-1").status(append(fail(s, v1alpha1.StateRetrying, true), workerLost)...)
		return again(s).mark(Start, 2, "pod-2").mark(Stop, 1, "pod-1")
	},
	"worker written off that outlives two others": func(t *testing.T) *story {
		s := processing(t, task())
		s.mark(Start, 1, "pod-1").status(append(fail(s, v1alpha1.StateRetrying, true), workerLost)...)
		again(s).worker(2).status(append(fail(s, v1alpha1.StateRetrying, true), func(t *v1alpha1.Task) { t.Status.Conditions = nil })...)
		return again(s).worker(3).mark(Stop, 1, "pod-1")
	},
	"a Job that raced with the cancel": func(t *testing.T) *story {
		s := tell(t, task())
		return s.status(s.accept()).spec(func(t *v1alpha1.Task) { t.Spec.Cancel = ptr.To(true) }).job(1)
	},
	"forty transitions": func(t *testing.T) *story {
		s := tell(t, task().Retry(100))
		s.status(s.accept())
		for n := 1; n <= 13; n++ {
			s.job(n).worker(n).status(s.to(lifecycle.Start, v1alpha1.StateProcessing, ""))
			s.status(append(fail(s, v1alpha1.StateRetrying, true), bounded)...)
			s.status(s.to(lifecycle.Retry, v1alpha1.StatePending, ""), bounded)
		}
		return s
	},
}

// bounded cuts the lists of a status as the operator does.
func bounded(t *v1alpha1.Task) {
	st := &t.Status
	st.History = st.History[max(0, len(st.History)-v1alpha1.MaxHistory):]
	st.Attempts = st.Attempts[max(0, len(st.Attempts)-v1alpha1.MaxAttempts):]
}

func TestGoodStories(t *testing.T) {
	for name, story := range good {
		t.Run(name, func(t *testing.T) {
			found, err := Find(context.Background(), story(t).source())
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range found {
				t.Errorf("nothing is wrong, yet: %s", v)
			}
		})
	}
}

// Stories in each of which one thing is wrong, by the rule that must find it.
var bad = map[string]struct {
	rules string // all that are broken: what breaks one may well break another
	story func(*testing.T) *story
}{
	"two workers at a time": {"1 one-worker", func(t *testing.T) *story {
		s := processing(t, task())
		s.mark(Start, 1, "pod-1").status(fail(s, v1alpha1.StateRetrying, true)...)
		return again(s).mark(Start, 2, "pod-2").mark(Stop, 1, "pod-1").mark(Stop, 2, "pod-2")
	}},
	"next worker while nobody knows the end of the one before": {"1 one-worker", func(t *testing.T) *story {
		s := processing(t, task())
		s.mark(Start, 1, "pod-1").status(fail(s, v1alpha1.StateRetrying, true)...)
		return again(s).worker(2)
	}},
	"worker replaced before it was written off": {"1 one-worker", func(t *testing.T) *story {
		s := processing(t, task())
		s.mark(Start, 1, "pod-1").status(fail(s, v1alpha1.StateRetrying, true)...)
		again(s).mark(Start, 2, "pod-2")
		return s.status(workerLost, func(t *v1alpha1.Task) { t.Status.Conditions[0].Message = "The worker of attempt 1 is lost" }).mark(Stop, 2, "pod-2")
	}},
	"worker replaced after another one was written off": {"1 one-worker", func(t *testing.T) *story {
		s := processing(t, task())
		s.mark(Start, 1, "pod-1").status(append(fail(s, v1alpha1.StateRetrying, true), workerLost)...)
		again(s).mark(Stop, 1, "pod-1").mark(Start, 2, "pod-2")
		s.status(fail(s, v1alpha1.StateRetrying, true)...)
		return again(s).worker(3).mark(Stop, 2, "pod-2")
	}},
	"worker replaced after it was heard of again": {"1 one-worker", func(t *testing.T) *story {
		s := processing(t, task())
		s.mark(Start, 1, "pod-1").status(append(fail(s, v1alpha1.StateRetrying, true), workerLost)...)
		s.status(workerHeardOf)
		return again(s).worker(2)
	}},
	"worker replaced although the policy is to wait": {"1 one-worker", func(t *testing.T) *story {
		s := processing(t, task().OnWorkerLost(v1alpha1.WaitForLostWorker))
		s.mark(Start, 1, "pod-1").status(append(fail(s, v1alpha1.StateRetrying, true), workerLost)...)
		return again(s).worker(2)
	}},
	"one attempt ran twice": {"1 run-twice", func(t *testing.T) *story {
		s := processing(t, task())
		return s.worker(1).mark(Start, 1, "pod-1b").mark(Stop, 1, "pod-1b")
	}},
	"two Jobs for one attempt": {"1 job-twice", func(t *testing.T) *story {
		s := processing(t, task())
		s.event(operator, "create", "jobs", "", "other", 201, nil, s.ownedJob("1", "job-1b"))
		return s
	}},
	"Job without an attempt": {"1 job-attempt", func(t *testing.T) *story {
		s := processing(t, task())
		s.event(operator, "create", "jobs", "", "other", 201, nil, s.ownedJob("", "job-x"))
		return s
	}},
	"Job for a Task that has ended":                  {"2 job-after-end,6 attempt-missing", func(t *testing.T) *story { return succeeded(t).job(2) }},
	"Job for a Task that was not asked to run again": {"2 job-after-end,6 attempt-missing", func(t *testing.T) *story { return failed(t).job(2) }},
	"Job for a Task that was cancelled long ago": {"2 job-unwanted", func(t *testing.T) *story {
		s := tell(t, task().Cancel())
		s.status(s.accept())
		s.tick()
		s.tick()
		return s.job(1)
	}},
	"Job for a Task that was suspended long ago": {"2 job-unwanted", func(t *testing.T) *story {
		s := tell(t, task().Suspend())
		s.status(s.accept())
		s.tick()
		s.tick()
		return s.job(1)
	}},
	"Job for a Task that is no longer new, suspended long ago": {"2 job-unwanted", func(t *testing.T) *story { return suspendedSince(t, 11) }},
	"success taken back": {"2 completion,2 terminal-state,3 history-state,3 state-table", func(t *testing.T) *story {
		return succeeded(t).status(func(t *v1alpha1.Task) { t.Status.State = v1alpha1.StateProcessing })
	}},
	"status cleared": {"2 terminal-state,2 start-once,3 history-rewritten,3 state-table,6 attempt-lost,6 attempt-number", func(t *testing.T) *story {
		return succeeded(t).status(func(t *v1alpha1.Task) { t.Status = v1alpha1.TaskStatus{} })
	}},
	"retry that nobody asked for": {"2 terminal-state", func(t *testing.T) *story {
		s := failed(t)
		return s.status(byHand(s))
	}},
	"retry that the operator asked itself for": {"2 terminal-state", func(t *testing.T) *story {
		s := failed(t)
		return s.status(ask).status(byHand(s))
	}},
	"one request, two retries": {"2 terminal-state", func(t *testing.T) *story {
		s := failed(t)
		s.spec(ask).status(byHand(s)).job(2).worker(2)
		s.status(append([]func(*v1alpha1.Task){s.to(lifecycle.Start, v1alpha1.StateProcessing, "")}, fail(s, v1alpha1.StateFailed, true)...)...)
		return s.status(byHand(s))
	}},
	"retry of a cancelled Task": {"2 terminal-state", func(t *testing.T) *story {
		s := failed(t)
		s.spec(ask).spec(func(t *v1alpha1.Task) { t.Spec.Cancel = ptr.To(true) })
		return s.status(byHand(s))
	}},
	"result changed after the end": {"2 terminal-result", func(t *testing.T) *story {
		return succeeded(t).status(func(t *v1alpha1.Task) { t.Status.Result = &v1alpha1.TaskResult{URL: "x"} })
	}},
	"reason changed after the end": {"2 terminal-reason", func(t *testing.T) *story {
		return failed(t).status(func(t *v1alpha1.Task) { t.Status.Reason = v1alpha1.ReasonJobDeleted })
	}},
	"end moved": {"2 terminal-completionTime", func(t *testing.T) *story {
		s := succeeded(t)
		return s.status(func(t *v1alpha1.Task) { t.Status.CompletionTime = s.micro() })
	}},
	"start moved": {"2 start-once", func(t *testing.T) *story {
		s := processing(t, task())
		return s.status(func(t *v1alpha1.Task) { t.Status.StartTime = s.micro() })
	}},
	"start before creation": {"2 start-before-creation", func(t *testing.T) *story {
		s := tell(t, task())
		s.status(s.accept()).job(1)
		return s.status(s.to(lifecycle.Start, v1alpha1.StateProcessing, ""), func(t *v1alpha1.Task) {
			t.Status.StartTime = ptr.To(metav1.NewMicroTime(begin.Add(-time.Second)))
		})
	}},
	"end before start": {"2 finish-before-start", func(t *testing.T) *story {
		s := processing(t, task())
		return s.worker(1).status(append(succeed(s), func(t *v1alpha1.Task) {
			t.Status.CompletionTime = ptr.To(metav1.NewMicroTime(t.Status.StartTime.Add(-time.Second)))
		})...)
	}},
	"end without a time": {"2 completion", func(t *testing.T) *story {
		s := processing(t, task())
		return s.worker(1).status(append(succeed(s), func(t *v1alpha1.Task) { t.Status.CompletionTime = nil })...)
	}},
	"change that is not in the table": {"3 history-chain,3 state-table", func(t *testing.T) *story {
		s := tell(t, task())
		s.status(s.accept())
		return s.status(s.to(lifecycle.Retry, v1alpha1.StateRetrying, "")).
			status(s.to(lifecycle.Start, v1alpha1.StateProcessing, ""))
	}},
	"first state that is no beginning": {"3 history-chain,3 state-table", func(t *testing.T) *story {
		s := tell(t, task())
		return s.status(func(t *v1alpha1.Task) { t.Status.Attempt = 1 }, s.to(lifecycle.Start, v1alpha1.StateProcessing, ""))
	}},
	"change without history": {"3 history-state", func(t *testing.T) *story {
		s := tell(t, task())
		s.status(s.accept()).job(1)
		return s.status(func(t *v1alpha1.Task) { t.Status.State = v1alpha1.StateProcessing })
	}},
	"history without a change": {"3 history-chain", func(t *testing.T) *story {
		s := processing(t, task())
		return s.status(func(t *v1alpha1.Task) {
			t.Status.History = append(t.Status.History, v1alpha1.Transition{From: v1alpha1.StateRetrying, To: v1alpha1.StatePending})
		})
	}},
	"history rewritten": {"3 history-rewritten", func(t *testing.T) *story {
		return processing(t, task()).status(func(t *v1alpha1.Task) { t.Status.History[0].Reason = "other" })
	}},
	"more charged attempts than the limit allows": {"6 budget", func(t *testing.T) *story {
		s := processing(t, task().Retry(0))
		s.worker(1).status(fail(s, v1alpha1.StateRetrying, true)...)
		again(s).worker(2)
		return s.status(fail(s, v1alpha1.StateFailed, true)...)
	}},
	"counter set back": {"6 count", func(t *testing.T) *story {
		s := processing(t, task())
		s.worker(1).status(fail(s, v1alpha1.StateRetrying, true)...)
		return s.status(func(t *v1alpha1.Task) { t.Status.Charged = 0 })
	}},
	"more uncharged attempts than their limit allows": {"6 uncharged-budget", func(t *testing.T) *story {
		return processing(t, task().UnchargedLimit(2)).status(func(t *v1alpha1.Task) { t.Status.Uncharged = 4 })
	}},
	"attempt missing": {"6 attempt-missing", func(t *testing.T) *story {
		s := processing(t, task())
		return s.worker(1).status(s.to(lifecycle.Succeed, v1alpha1.StateSucceeded, ""))
	}},
	"attempt number set back": {"6 attempt-number", func(t *testing.T) *story {
		return processing(t, task()).status(func(t *v1alpha1.Task) { t.Status.Attempt = 0 })
	}},
	"attempts out of order": {"6 attempt-order", func(t *testing.T) *story {
		return processing(t, task()).status(func(t *v1alpha1.Task) {
			t.Status.Attempts = append(t.Status.Attempts, v1alpha1.AttemptStatus{Number: 1}, v1alpha1.AttemptStatus{Number: 1})
		})
	}},
	"closed attempt without a reason": {"6 attempt-incomplete", func(t *testing.T) *story {
		s := processing(t, task())
		return s.worker(1).status(s.end(lifecycle.Succeed, "", 0, false), s.to(lifecycle.Succeed, v1alpha1.StateSucceeded, ""))
	}},
	"failed attempt that is neither charged nor not": {"6 attempt-charge", func(t *testing.T) *story {
		s := processing(t, task())
		return s.worker(1).status(append(fail(s, v1alpha1.StateRetrying, false), func(t *v1alpha1.Task) { t.Status.Attempts[0].Charged = nil })...)
	}},
	"exit without a code": {"6 attempt-exit", func(t *testing.T) *story {
		s := processing(t, task())
		return s.worker(1).status(append(succeed(s), func(t *v1alpha1.Task) { t.Status.Attempts[0].ExitCode = nil })...)
	}},
	"success stored of a worker that failed": {"6 exit-mismatch", func(t *testing.T) *story {
		s := processing(t, task())
		return s.exited(1, 3).status(succeed(s)...)
	}},
	"failure stored of a worker that succeeded": {"6 exit-mismatch", func(t *testing.T) *story {
		s := processing(t, task())
		return s.exited(1, 0).status(fail(s, v1alpha1.StateRetrying, true)...)
	}},
	"attempt that ends before it begins": {"6 attempt-times", func(t *testing.T) *story {
		s := processing(t, task())
		return s.worker(1).status(append(succeed(s), func(t *v1alpha1.Task) {
			a := &t.Status.Attempts[0]
			a.StartTime = ptr.To(metav1.NewMicroTime(a.FinishTime.Add(time.Second)))
		})...)
	}},
	"closed attempt changed": {"6 attempt-changed", func(t *testing.T) *story {
		return failed(t).status(func(t *v1alpha1.Task) { t.Status.Attempts[0].Reason = v1alpha1.ReasonDisrupted })
	}},
	"closed attempt dropped": {"6 attempt-lost", func(t *testing.T) *story {
		s := processing(t, task())
		s.worker(1).status(fail(s, v1alpha1.StateRetrying, false)...)
		return s.status(func(t *v1alpha1.Task) { t.Status.Attempts = nil })
	}},
	"writes without end": {"7 writes", func(t *testing.T) *story {
		s := processing(t, task())
		for range 40 {
			s.status(func(t *v1alpha1.Task) { t.Status.Message += "." })
		}
		return s
	}},
	"refused writes without end": {"7 writes", func(t *testing.T) *story {
		s := tell(t, task())
		s.status(s.accept())
		for range 40 {
			s.event(operator, "create", "jobs", "", "t-1", 409, s.ownedJob("1", ""), &metav1.Status{})
		}
		return s
	}},
	"status that grows": {"7 status-size", func(t *testing.T) *story {
		return processing(t, task()).status(func(t *v1alpha1.Task) { t.Status.Message = strings.Repeat("x", maxStatusBytes) })
	}},
}

func TestBadStories(t *testing.T) {
	for name, tc := range bad {
		t.Run(name, func(t *testing.T) {
			found, err := Find(context.Background(), tc.story(t).source())
			if err != nil {
				t.Fatal(err)
			}
			if got, want := rules(found), sortedRules(tc.rules); got != want {
				t.Errorf("found %s, wanted %s:", got, want)
				for _, v := range found {
					t.Log(v)
				}
			}
		})
	}
}

func rules(found []Violation) string {
	var all []string
	for _, v := range found {
		all = append(all, fmt.Sprintf("%d %s", v.Invariant, v.Rule))
	}
	return sortedRules(strings.Join(all, ","))
}

func sortedRules(list string) string {
	all := strings.Split(list, ",")
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ",")
}

func TestWaiver(t *testing.T) {
	for name, tc := range map[string]struct {
		waiver Waiver
		left   int
	}{
		"rule":           {Waiver{2, "terminal-result", "on purpose"}, 0},
		"invariant":      {Waiver{2, "", "on purpose"}, 0},
		"another rule":   {Waiver{2, "terminal-reason", "on purpose"}, 1},
		"another number": {Waiver{3, "", "on purpose"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			src := bad["result changed after the end"].story(t).source()
			src.Waivers = []Waiver{tc.waiver}
			found, err := Find(context.Background(), src)
			if err != nil || len(found) != tc.left {
				t.Errorf("found %v, %v, wanted %d", found, err, tc.left)
			}
		})
	}
}

func TestSourceMustBeComplete(t *testing.T) {
	src := succeeded(t).source()
	src.IsController = nil
	if _, err := Find(context.Background(), src); err == nil {
		t.Error("a source that cannot tell the operator's requests was accepted")
	}
}

func TestAnswerMissing(t *testing.T) {
	s := succeeded(t)
	s.event(user, "patch", "tasks", "", "t", 200, nil, nil)
	if _, err := Find(context.Background(), s.source()); err == nil {
		t.Error("a log without the answers was accepted")
	}
}
