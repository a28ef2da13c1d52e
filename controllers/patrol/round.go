package patrol

import (
	"context"
	"errors"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/controllers/task"
)

const (
	// tasksPerPage bounds what is held at a time: so many Tasks, with all their Jobs and pods. Their UIDs make a URL of 4 KiB.
	tasksPerPage = 100
	// endedPerPass is how many Tasks that have ended a pass looks at, in each namespace or in all together. They owe little, a TTL or
	// the answer to a retry by hand, and there may be very many.
	endedPerPass = 500
)

// The Tasks that have not ended, and those that have.
var (
	unfinished = notInState(v1alpha1.StateSucceeded, v1alpha1.StateFailed, v1alpha1.StateCancelled)
	finished   = notInState(v1alpha1.StatePending, v1alpha1.StateProcessing, v1alpha1.StateRetrying)
)

func notInState(states ...v1alpha1.State) client.MatchingFieldsSelector {
	var not []fields.Selector
	for _, s := range states {
		not = append(not, fields.OneTermNotEqualSelector("status.state", string(s)))
	}
	return client.MatchingFieldsSelector{Selector: fields.AndSelectors(not...)}
}

// round is one pass.
type round struct {
	*Patrol
	// open are the UIDs of the Tasks that have not ended.
	open map[types.UID]bool
	// seen are the mismatches without a date.
	seen  map[types.UID]sight
	found Found
}

func (r *round) everywhere(ctx context.Context) error {
	namespaces := r.Options.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{""} // all
	}
	for _, ns := range namespaces {
		if err := r.unfinished(ctx, ns); err != nil {
			return fmt.Errorf("unfinished Tasks: %w", err)
		}
		if err := r.workers(ctx, ns); err != nil {
			return fmt.Errorf("workers: %w", err)
		}
		if err := r.ended(ctx, ns); err != nil {
			return fmt.Errorf("finished Tasks: %w", err)
		}
	}
	return nil
}

// unfinished looks at all Tasks that have not ended.
func (r *round) unfinished(ctx context.Context, ns string) error {
	for next := ""; ; {
		var page v1alpha1.TaskList
		if err := r.Live.List(ctx, &page, client.InNamespace(ns), unfinished, client.Limit(tasksPerPage), client.Continue(next)); err != nil {
			return err
		}
		for i := range page.Items {
			r.open[page.Items[i].UID] = true
		}
		if err := r.look(ctx, ns, page.Items); err != nil {
			return err
		}
		if next = page.Continue; next == "" {
			return nil
		}
	}
}

// ended looks at some of the Tasks that have ended: the next pass goes on with the others.
func (r *round) ended(ctx context.Context, ns string) error {
	next := r.next[ns]
	for range endedPerPass / tasksPerPage {
		var page v1alpha1.TaskList
		err := r.Live.List(ctx, &page, client.InNamespace(ns), finished, client.Limit(tasksPerPage), client.Continue(next))
		if next != "" && apierrors.IsResourceExpired(err) {
			next = goOn(err) // the API server forgets within minutes what it had counted by
			continue
		}
		if err != nil {
			return err
		}
		if err := r.look(ctx, ns, page.Items); err != nil {
			return err
		}
		if next = page.Continue; next == "" {
			break
		}
	}
	if r.next == nil {
		r.next = map[string]string{}
	}
	r.next[ns] = next
	return nil
}

// goOn is where a list goes on whose token has expired: at the same place, by what is stored now.
func goOn(expired error) string {
	var status apierrors.APIStatus
	if errors.As(expired, &status) {
		return status.Status().Continue
	}
	return ""
}

// look judges a page of Tasks by their Jobs and pods.
func (r *round) look(ctx context.Context, ns string, tasks []v1alpha1.Task) error {
	if len(tasks) == 0 {
		return nil
	}
	var uids []string
	for i := range tasks {
		uids = append(uids, string(tasks[i].UID))
	}
	theirs, err := labels.NewRequirement(v1alpha1.LabelTaskUID, selection.In, uids)
	if err != nil {
		return err
	}
	by := client.MatchingLabelsSelector{Selector: labels.NewSelector().Add(*theirs)}
	var jobs batchv1.JobList
	var pods corev1.PodList
	if err := errors.Join(r.Live.List(ctx, &jobs, client.InNamespace(ns), by), r.Live.List(ctx, &pods, client.InNamespace(ns), by)); err != nil {
		return err
	}
	jobsOf, podsOf := map[string][]*batchv1.Job{}, map[string][]*corev1.Pod{}
	for i := range jobs.Items {
		uid := jobs.Items[i].Labels[v1alpha1.LabelTaskUID]
		jobsOf[uid] = append(jobsOf[uid], &jobs.Items[i])
	}
	for i := range pods.Items {
		uid := pods.Items[i].Labels[v1alpha1.LabelTaskUID]
		podsOf[uid] = append(podsOf[uid], &pods.Items[i])
	}
	for i := range tasks {
		t := &tasks[i]
		found, err := r.Repairer.Look(ctx, t, jobsOf[string(t.UID)], podsOf[string(t.UID)])
		if err != nil {
			return err
		}
		if found != nil && r.due(t.UID, found) {
			_ = r.repair(ctx, client.ObjectKeyFromObject(t), t.UID) // gone: its workers are looked at below
		}
	}
	return nil
}

// due tells whether a mismatch is as old as the threshold: by its date, else by how long the patrol has seen it.
func (r *round) due(uid types.UID, m *task.Mismatch) bool {
	now := r.Clock.Now()
	if !m.Since.IsZero() {
		return now.Sub(m.Since) >= r.Options.Threshold
	}
	known, ok := r.sights[uid]
	if !ok || known.what != *m {
		known = sight{what: *m, first: now}
	}
	r.seen[uid] = known
	return now.Sub(known.first) >= r.Options.Threshold
}

// repair mends one Task, and tells whether there still is one.
func (r *round) repair(ctx context.Context, key client.ObjectKey, uid types.UID) (exists bool) {
	found, err := r.Repairer.Repair(ctx, key, uid, func(m *task.Mismatch) bool { return r.due(uid, m) })
	if found != nil {
		delete(r.seen, uid) // it is mended, or counts anew
		r.count(found.Kind)
	}
	log := r.Log.WithValues("namespace", key.Namespace, "task", key.Name)
	switch {
	case found == nil && apierrors.IsNotFound(err):
		return false
	case err != nil:
		log.Error(err, "Could not mend the Task")
	case found != nil:
		log.Info("Mended what the controller had missed", "kind", found.Kind, "since", found.Since.UTC().Format(time.RFC3339))
	}
	return true
}

func (r *round) count(kind task.MismatchKind) {
	r.found[kind]++
	mismatchesTotal.WithLabelValues(string(kind)).Inc()
}
