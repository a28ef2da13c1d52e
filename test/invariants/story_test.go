package invariants

import (
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/test/audit"
	"github.com/taskwarden/taskwarden/test/builders"
)

const (
	operator = "operator"
	user     = "user"
	kubelet  = "kubelet"
)

var begin = time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)

// story tells what the audit log and the workers would say of one Task. Time passes by a second with each event.
type story struct {
	t      testing.TB
	now    time.Time
	number int
	task   *v1alpha1.Task
	events []audit.Event
	marks  Memory
}

func tell(t testing.TB, b *builders.TaskBuilder) *story {
	t.Helper()
	s := &story{t: t, now: begin, number: 100, task: b.Namespace("ns").Obj()}
	s.task.TypeMeta = metav1.TypeMeta{Kind: "Task", APIVersion: v1alpha1.GroupVersion.String()}
	s.task.UID = "task-uid"
	s.task.CreationTimestamp = metav1.NewTime(s.now)
	s.storeTask(user, "create", "")
	return s
}

func (s *story) tick() {
	s.now = s.now.Add(time.Second)
	s.number++
}

func (s *story) raw(v any) json.RawMessage {
	s.t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		s.t.Fatal(err)
	}
	return raw
}

func (s *story) event(agent, verb, resource, sub, name string, code int, request, response any) {
	s.t.Helper()
	s.tick()
	e := audit.Event{
		ID: strconv.Itoa(s.number), Stage: "ResponseComplete", Verb: verb, UserAgent: agent, RequestURI: "/x",
		Object: audit.Ref{Resource: resource, Subresource: sub, Namespace: "ns", Name: name},
		Status: audit.Status{Code: code}, Received: s.now, Done: s.now,
	}
	if request != nil {
		e.Request = s.raw(request)
	}
	if response != nil {
		e.Response = s.raw(response)
	}
	s.events = append(s.events, e)
}

func (s *story) storeTask(agent, verb, sub string) {
	s.t.Helper()
	s.task.ResourceVersion = strconv.Itoa(s.number + 1)
	s.event(agent, verb, "tasks", sub, s.task.Name, 200, nil, s.task)
}

// spec is a change by the user.
func (s *story) spec(change func(*v1alpha1.Task)) *story {
	s.t.Helper()
	change(s.task)
	s.storeTask(user, "patch", "")
	return s
}

// status is a change by the operator. Several moves in one are one write.
func (s *story) status(changes ...func(*v1alpha1.Task)) *story {
	s.t.Helper()
	for _, change := range changes {
		change(s.task)
	}
	s.storeTask(operator, "update", "status")
	return s
}

func (s *story) micro() *metav1.MicroTime { return ptr.To(metav1.NewMicroTime(s.now)) }

// to is a move in the state machine, with the books that go with it.
func (s *story) to(event lifecycle.Event, to v1alpha1.State, reason string) func(*v1alpha1.Task) {
	return func(t *v1alpha1.Task) {
		st := &t.Status
		st.History = append(st.History, v1alpha1.Transition{
			Time: *s.micro(), From: st.State, Event: string(event), To: to, Attempt: st.Attempt, Reason: reason,
		})
		st.State, st.Reason = to, reason
		switch {
		case event == "":
			st.Attempt = 1
		case event == lifecycle.Start && st.StartTime == nil:
			st.StartTime = s.micro()
		case event == lifecycle.Retry:
			st.Attempt++
		}
		if lifecycle.Terminal(to) {
			st.CompletionTime = s.micro()
		}
	}
}

func (s *story) accept() func(*v1alpha1.Task) { return s.to("", v1alpha1.StatePending, "") }

// end closes the current attempt.
func (s *story) end(outcome lifecycle.Event, reason string, code int32, charged bool) func(*v1alpha1.Task) {
	return func(t *v1alpha1.Task) {
		a := v1alpha1.AttemptStatus{
			Number: t.Status.Attempt, Outcome: string(outcome), Reason: reason, FinishTime: s.micro(), ExitCode: ptr.To(code),
		}
		if outcome == lifecycle.Fail || outcome == lifecycle.Timeout {
			a.Charged = ptr.To(charged)
			if charged {
				t.Status.Charged++
			} else {
				t.Status.Uncharged++
			}
		}
		t.Status.Attempts = append(t.Status.Attempts, a)
	}
}

func (s *story) ownedJob(attempt, uid string) *batchv1.Job {
	j := &batchv1.Job{TypeMeta: metav1.TypeMeta{Kind: "Job", APIVersion: "batch/v1"}}
	j.Namespace, j.Name, j.UID = "ns", s.task.Name+"-"+attempt, types.UID(uid)
	j.Labels = map[string]string{v1alpha1.LabelAttempt: attempt, v1alpha1.LabelTaskUID: string(s.task.UID)}
	j.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "Task", Name: s.task.Name, UID: s.task.UID, Controller: ptr.To(true),
	}}
	j.ResourceVersion = strconv.Itoa(s.number + 1)
	return j
}

func (s *story) ownedPod(attempt string) *corev1.Pod {
	p := &corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}}
	p.Namespace, p.Name, p.UID = "ns", s.task.Name+"-"+attempt+"-x", types.UID("pod-"+attempt)
	p.Labels = map[string]string{v1alpha1.LabelAttempt: attempt, v1alpha1.LabelTaskUID: string(s.task.UID)}
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", UID: types.UID("job-" + attempt), Controller: ptr.To(true)}}
	return p
}

// job is the creation of an attempt's Job and pod.
func (s *story) job(attempt int) *story {
	s.t.Helper()
	n := strconv.Itoa(attempt)
	s.event(operator, "create", "jobs", "", s.task.Name+"-"+n, 201, nil, s.ownedJob(n, "job-"+n))
	s.event("job-controller", "create", "pods", "", "", 201, nil, s.ownedPod(n))
	return s
}

// podEnded is the kubelet's word that the worker has ended now.
func (s *story) podEnded(attempt int) *story {
	s.t.Helper()
	p := s.ownedPod(strconv.Itoa(attempt))
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: builders.WorkerName, State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(s.now)},
	}}}
	s.event(kubelet, "patch", "pods", "status", p.Name, 200, nil, p)
	return s
}

// podDeleted is a deletion without grace.
func (s *story) podDeleted(attempt int) *story {
	s.t.Helper()
	s.event(kubelet, "delete", "pods", "", s.ownedPod(strconv.Itoa(attempt)).Name, 200,
		&metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}, nil)
	return s
}

func (s *story) mark(event string, attempt int, run string) *story {
	s.tick()
	s.marks.Add(Mark{Task: string(s.task.UID), Attempt: int32(attempt), Host: "host", Run: run, Event: event, Time: s.now})
	return s
}

func (s *story) worker(attempt int) *story {
	run := fmt.Sprintf("pod-%d", attempt)
	return s.mark(Start, attempt, run).mark(Stop, attempt, run)
}

// exited is a worker that wrote down its exit code.
func (s *story) exited(attempt int, code int32) *story {
	s.worker(attempt)
	s.marks.marks[len(s.marks.marks)-1].Exit = &code
	return s
}

// Events implements Events.
func (s *story) Events() ([]audit.Event, error) { return s.events, nil }

func (s *story) source() Source {
	return Source{
		Namespace: "ns", Audit: s, Marks: &s.marks, Now: func() time.Time { return s.now },
		IsController: func(e *audit.Event) bool { return e.UserAgent == operator }, Settle: time.Millisecond,
	}
}
