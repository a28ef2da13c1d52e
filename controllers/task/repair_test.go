package task

import (
	"context"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// asked notes what a list was asked for.
type asked struct {
	client.Reader
	selectors string
}

func (a *asked) List(_ context.Context, _ client.ObjectList, opts ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(opts)
	a.selectors = o.Namespace
	if o.LabelSelector != nil {
		a.selectors += " " + o.LabelSelector.String()
	}
	if o.FieldSelector != nil {
		a.selectors += " " + o.FieldSelector.String()
	}
	return nil
}

// TestLiveReads: what a pass finds in the caches by an index the API server finds by a selector that it knows.
func TestLiveReads(t *testing.T) {
	for index, tc := range map[string]struct {
		list client.ObjectList
		want string
	}{
		indexTaskUID:         {&batchv1.JobList{}, "ns taskwarden.dev/task-uid=uid"},
		indexTaskUID + " ":   {&corev1.PodList{}, "ns taskwarden.dev/task-uid=uid"},
		indexRegarding:       {&corev1.EventList{}, "ns involvedObject.kind=Job,reason=FailedCreate,involvedObject.uid=uid"},
		indexRegarding + " ": {&eventsv1.EventList{}, "ns regarding.kind=Pod,reason=FailedMount,regarding.uid=uid"},
	} {
		a := &asked{}
		if err := (liveReads{live: a}).List(t.Context(), tc.list, client.InNamespace("ns"), client.MatchingFields{index: "uid"}, notWaiting); err != nil {
			t.Fatal(err)
		}
		if a.selectors != tc.want {
			t.Errorf("%T by %s asks for %q, wanted is %q", tc.list, index, a.selectors, tc.want)
		}
	}
}

// TestRepairHandsOver: a Task that was mended is handed to the controller, which wakes up for what is due next; one that another has
// the name of by now is not touched.
func TestRepairHandsOver(t *testing.T) {
	s := retrying()
	s.Task.Name, s.Task.ResourceVersion = "demo", ""
	w := &writes{}
	live := newLiveReader(t, s.Task)
	r := w.reconciler(t, after(900), live)
	handed := make(chan event.GenericEvent, 1)
	r.again, r.witness = handed, newWitness()
	p := r.Repairer(live)
	always := func(*Mismatch) bool { return true }
	if found, err := p.Repair(t.Context(), client.ObjectKeyFromObject(s.Task), "another", always); found != nil || client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("found %v, error %v", found, err)
	}
	found, err := p.Repair(t.Context(), client.ObjectKeyFromObject(s.Task), s.Task.UID, always)
	if err != nil || found == nil || found.Kind != OverdueWakeUp || len(w.done) != 2 {
		t.Fatalf("found %+v, error %v, wrote %v", found, err, w.done)
	}
	got, ok := (<-handed).Object.(*v1alpha1.Task)
	if !ok || got.Name != s.Task.Name {
		t.Fatalf("handed over %v", got)
	}
	if last := got.Status.History[len(got.Status.History)-1]; last.Actor != lifecycle.ActorPatrol {
		t.Errorf("the last entry is %+v", last)
	}
}
