package task

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// TestC40WantsToCreate: which Tasks get a Job. The guard at its creation then asks whether this is still the Task.
func TestC40WantsToCreate(t *testing.T) {
	over := func(s *scene) *scene { return s.at(after(30)) }
	answered := func(t *v1alpha1.Task) {
		t.Status.LastHandledRetry = &v1alpha1.HandledRetry{RequestedAt: "1", Outcome: v1alpha1.RetryAccepted}
	}
	cases := map[string]struct {
		scene *scene
		want  bool
	}{
		"first attempt, not accepted yet": {fresh(), true},
		"first attempt, accepted":         {accepted(), true},
		"first attempt, cancelled":        {fresh(cancel), false},
		"first attempt, suspended":        {accepted(suspend), false},
		"first attempt, deleted":          {fresh(goes), false},
		"first attempt, its Job exists":   {pending(), false},
		"first attempt, tried before":     {uncreated(), true},
		"first attempt, being stopped":    {uncreated(terminating(v1alpha1.ReasonCancelled, after(5))), false},
		"first attempt, it runs":          {processing(), false},
		"next attempt, due":               {over(retrying()), true},
		"next attempt, cancelled":         {over(retrying(cancel)), false},
		"next attempt, suspended":         {over(retrying(suspend)), false},
		"succeeded":                       {ended(lifecycle.Succeed), false},
		"cancelled":                       {ended(lifecycle.Cancel), false},
		"by hand, asked for":              {ended(lifecycle.Fail, askRetry("1")), true},
		"by hand, not asked for":          {ended(lifecycle.Fail), false},
		"by hand, answered":               {ended(lifecycle.Fail, askRetry("1"), answered), false},
		"by hand, cancelled":              {ended(lifecycle.Fail, askRetry("1"), cancel), false},
		"by hand, succeeded":              {ended(lifecycle.Succeed, askRetry("1")), false},
	}
	for name, tc := range cases {
		if got := decide(tc.scene.Snapshot).Create; got != tc.want {
			t.Errorf("%s: creates is %v", name, got)
		}
	}
}

// TestC09C10CreateFailed: a refusal for good ends the Task at once; all else is tried again, ever more slowly.
func TestC09C10CreateFailed(t *testing.T) {
	jobs := schema.GroupResource{Group: "batch", Resource: "jobs"}
	kind := schema.GroupKind{Group: "batch", Kind: "Job"}
	cases := map[string]struct {
		err    error
		state  v1alpha1.State
		reason string
	}{
		"invalid":       {invalidJob("demo-1"), failedState, v1alpha1.ReasonInvalidTemplate},
		"policy's 422":  {apierrors.NewInvalid(kind, "demo-1", field.ErrorList{{Type: field.ErrorTypeForbidden, Detail: "denied"}}), pendingState, v1alpha1.ReasonAdmissionDenied},
		"webhook's 422": {webhookInvalid(), pendingState, v1alpha1.ReasonAdmissionDenied},
		"webhook":       {apierrors.NewBadRequest("admission webhook denied the request"), pendingState, v1alpha1.ReasonAdmissionDenied},
		"policy":        {apierrors.NewForbidden(jobs, "demo-1", errors.New("denied by policy")), pendingState, v1alpha1.ReasonAdmissionDenied},
		"quota":         {apierrors.NewForbidden(jobs, "demo-1", errors.New("exceeded quota: count")), pendingState, v1alpha1.ReasonQuotaExceeded},
		"stranger":      {&strangerError{name: "demo-1"}, pendingState, v1alpha1.ReasonNameConflict},
		"internal":      {apierrors.NewInternalError(errors.New("etcdserver: leader changed")), pendingState, v1alpha1.ReasonCreatePending},
		"unavailable":   {apierrors.NewServiceUnavailable("later"), pendingState, v1alpha1.ReasonCreatePending},
		"slow down":     {apierrors.NewTooManyRequests("later", 7), pendingState, v1alpha1.ReasonCreatePending},
		"timed out":     {apierrors.NewServerTimeout(jobs, "create", 0), pendingState, v1alpha1.ReasonCreatePending},
		"gateway":       {apierrors.NewGenericServerResponse(http.StatusBadGateway, "create", jobs, "demo-1", "bad gateway", 0, true), pendingState, v1alpha1.ReasonCreatePending},
		"no answer":     {errors.New("connection reset by peer"), pendingState, v1alpha1.ReasonCreatePending},
		"unauthorized":  {apierrors.NewUnauthorized("who are you"), pendingState, v1alpha1.ReasonCreatePending},
	}
	for name, tc := range cases {
		for _, age := range []time.Duration{0, time.Second, 10 * time.Second, 5 * time.Minute} {
			s := pending(func(t *v1alpha1.Task) { t.Status.Worker.JobUID = "" }).at(created.Add(age))
			plan := decide(s.Snapshot)
			if !plan.Create {
				t.Fatalf("%s: no creation to fail", name)
			}
			createFailed(s.Now, &plan, tc.err)
			st := &plan.Task.Status
			if st.State != tc.state || st.Reason != tc.reason || !strings.Contains(st.Message, firstWords(tc.err)) {
				t.Errorf("%s: %s, %s, %q", name, st.State, st.Reason, st.Message)
			}
			if st.Attempt != 1 || tc.state == pendingState && (st.Charged != 0 || st.Uncharged != 0) {
				t.Errorf("%s: counted as an attempt", name)
			}
			if tc.state != pendingState {
				continue
			}
			if wait := plan.WakeAt.Sub(s.Now); wait < time.Second || wait > 30*time.Second {
				t.Errorf("%s: tried again after %s, at age %s", name, wait, age)
			}
		}
	}
}

// invalidJob is what the API server's own validation answers.
func invalidJob(name string) error {
	return apierrors.NewInvalid(schema.GroupKind{Group: "batch", Kind: "Job"}, name, field.ErrorList{
		field.NotFound(field.NewPath("spec", "template", "spec", "containers").Index(0).Child("volumeMounts"), "nowhere"),
	})
}

// webhookInvalid is the same from a webhook, as the API server passes it on.
func webhookInvalid() error {
	var err *apierrors.StatusError
	errors.As(invalidJob("demo-1"), &err)
	err.ErrStatus.Message = `admission webhook "v.example.com" denied the request: ` + err.ErrStatus.Message
	return err
}

func firstWords(err error) string {
	text := err.Error()
	return text[:min(len(text), 30)]
}

func TestCreateFailedHeedsTheServer(t *testing.T) {
	s := uncreated()
	plan := decide(s.Snapshot)
	createFailed(s.Now, &plan, apierrors.NewTooManyRequests("later", 20))
	if wait := plan.WakeAt.Sub(s.Now); wait != 20*time.Second {
		t.Errorf("tried again after %s, the server asked for 20s", wait)
	}
}

// TestC18TextIsStable: of texts with one reason the first stays, whatever counters they carry.
func TestC18CreateTextIsStable(t *testing.T) {
	s := uncreated()
	jobs := schema.GroupResource{Group: "batch", Resource: "jobs"}
	var first string
	for i, text := range []string{"exceeded quota: count, used: 4", "exceeded quota: count, used: 5"} {
		plan := decide(s.Snapshot)
		createFailed(s.Now, &plan, apierrors.NewForbidden(jobs, "demo-1", errors.New(text)))
		if i == 0 {
			first = plan.Task.Status.Message
		} else if plan.Task.Status.Message != first {
			t.Errorf("the message changes from %q to %q", first, plan.Task.Status.Message)
		}
		s.Task = plan.Task
	}
}

// TestC10RefusedInTheFirstPass: the pass that accepts a Task stores that; the next one meets the refusal again and ends it.
func TestC10RefusedInTheFirstPass(t *testing.T) {
	s := retrying().at(after(30))
	refusal := invalidJob("demo-2")
	for _, want := range []v1alpha1.State{pendingState, failedState} {
		plan := decide(s.Snapshot)
		createFailed(s.Now, &plan, refusal)
		if st := &plan.Task.Status; st.State != want || st.Reason != v1alpha1.ReasonInvalidTemplate {
			t.Fatalf("%s, %s, want %s", st.State, st.Reason, want)
		}
		if !plan.WakeAt.Equal(s.Now) {
			t.Errorf("the next pass is at %v", plan.WakeAt)
		}
		s.Task = plan.Task
	}
}

func TestStrangerIsNamed(t *testing.T) {
	var err error = &strangerError{name: "demo-1"}
	if !strings.Contains(err.Error(), "demo-1") {
		t.Errorf("the message does not name it: %v", err)
	}
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		t.Error("a stranger is no terminating namespace")
	}
	if apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		t.Error("a stranger is no answer of the API server")
	}
}
