package task

import (
	"context"
	"errors"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// Repairer makes passes with live reads alone, for the patrol: what it decides and does is what the Reconciler would, had it not
// missed something.
type Repairer struct {
	pass  *Reconciler
	again chan<- event.GenericEvent
}

// Repairer is one that reads from live. The Reconciler must be set up.
func (r *Reconciler) Repairer(live client.Reader) *Repairer {
	return &Repairer{again: r.again, pass: &Reconciler{
		Client: liveReads{Client: r.Client, live: live}, Live: live, Recorder: r.Recorder, Clock: r.Clock, Gateways: r.Gateways,
		actor: lifecycle.ActorPatrol, witness: r.witness, maxClockSkew: r.maxClockSkew,
	}}
}

// Look tells what a pass over a Task would mend, nil where nothing, by these Jobs and pods: others it takes for absent. It writes
// nothing.
func (p *Repairer) Look(ctx context.Context, t *v1alpha1.Task, jobs []*batchv1.Job, pods []*corev1.Pod) (*Mismatch, error) {
	b := &belongings{jobs: map[types.UID]*batchv1.Job{}, pods: map[types.UID]*corev1.Pod{}}
	for _, job := range jobs {
		b.addJob(t, job)
	}
	for _, pod := range pods {
		b.addPod(t, pod)
	}
	s := Snapshot{Task: t, Now: p.pass.Clock.Now(), MaxClockSkew: p.pass.maxClockSkew, Workers: b.workers(t)}
	align(t, s.Workers, s.Now)
	if err := p.pass.askNode(ctx, &s); err != nil {
		return nil, err
	}
	plan := decide(s)
	return mismatchOf(s, &plan), nil
}

// Repair makes a pass over a Task as it is stored now, if that mends something that due says is to be mended: it gives that, nil
// where there was nothing, or somebody was faster. Where the Task is gone the error says that it is not found.
func (p *Repairer) Repair(ctx context.Context, key client.ObjectKey, uid types.UID, due func(*Mismatch) bool) (*Mismatch, error) {
	var t v1alpha1.Task
	if err := p.pass.Live.Get(ctx, key, &t); err != nil {
		return nil, err
	}
	if t.UID != uid {
		return nil, apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("tasks").GroupResource(), key.Name)
	}
	s, err := p.pass.observe(ctx, &t, false)
	if err != nil {
		return nil, fmt.Errorf("observe: %w", err)
	}
	plan := decide(s)
	found := mismatchOf(s, &plan)
	if found == nil || !due(found) {
		return nil, nil
	}
	switch err := p.pass.apply(ctx, s, &plan); {
	case outdated(err) || errors.Is(err, errNamespaceTerminating):
		return nil, nil
	case err != nil:
		return found, err
	}
	p.tell(s, &plan, found)
	p.wake(ctx, plan.Task)
	return found, nil
}

func (p *Repairer) tell(s Snapshot, plan *Plan, found *Mismatch) {
	note := "The patrol has mended what the controller had missed: " + string(found.Kind)
	if !found.Since.IsZero() {
		note += fmt.Sprintf(" since %s", found.Since.UTC().Format(time.RFC3339))
	}
	if from, to := s.Task.Status.State, plan.Task.Status.State; from != to {
		note += fmt.Sprintf("; %s became %s", from, to)
	}
	p.pass.tell(plan.Task, corev1.EventTypeWarning, v1alpha1.ReasonRepaired, "repair", note)
}

// wake has the Reconciler look at a Task, so that somebody wakes up for what is due to it next.
func (p *Repairer) wake(ctx context.Context, t *v1alpha1.Task) {
	if p.again == nil {
		return
	}
	select {
	case p.again <- event.GenericEvent{Object: t}:
	case <-ctx.Done():
	}
}

// sign puts the actor into the history that a pass has added.
func (r *Reconciler) sign(before, after *v1alpha1.Task) {
	if r.actor == "" {
		return
	}
	added := newTransitions(before, after)
	for i := range added {
		added[i].Actor = r.actor
	}
}

// liveReads answers from the API server what a pass asks the caches.
type liveReads struct {
	client.Client
	live client.Reader
}

// Get implements client.Reader.
func (c liveReads) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	return c.live.Get(ctx, key, obj, opts...)
}

// List implements client.Reader: for the indexes of the caches it asks by what the API server can select.
func (c liveReads) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	asked := (&client.ListOptions{}).ApplyOptions(opts)
	live := &client.ListOptions{Namespace: asked.Namespace}
	for _, by := range asked.FieldSelector.Requirements() {
		switch list.(type) {
		case *corev1.EventList:
			live.FieldSelector = fields.AndSelectors(failedCreates, fields.OneTermEqualSelector("involvedObject.uid", by.Value))
		case *eventsv1.EventList:
			live.FieldSelector = fields.AndSelectors(failedMounts, fields.OneTermEqualSelector("regarding.uid", by.Value))
		default:
			client.MatchingLabels{v1alpha1.LabelTaskUID: by.Value}.ApplyToList(live)
		}
	}
	return c.live.List(ctx, list, live)
}
