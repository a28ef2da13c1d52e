package invariants

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/audit"
)

// Weights of what others do, in writes that it may cost the operator.
const (
	weightTaskChange  = 3
	weightChildChange = 1
)

// reader turns the events of a log into records. Names are resolved to the object that had them at that time, since a
// refused request carries no UID.
type reader struct {
	history
	isController func(*audit.Event) bool
	tasks        map[string]*record // by name
	jobs         map[string]*record // by name and by UID
	pods         map[string]*record // by name
	podByName    map[string]*pod
}

func reconstruct(events []audit.Event, isController func(*audit.Event) bool) (*history, error) {
	r := &reader{
		isController: isController,
		tasks:        map[string]*record{}, jobs: map[string]*record{},
		pods: map[string]*record{}, podByName: map[string]*pod{},
	}
	for i := range events {
		e := &events[i]
		if !e.Write() {
			continue
		}
		if err := r.take(e); err != nil {
			return nil, fmt.Errorf("audit event %s (%s %s): %w", e.ID, e.Verb, e.RequestURI, err)
		}
	}
	for _, rec := range r.records {
		slices.SortStableFunc(rec.versions, func(a, b version) int { return cmp.Compare(a.number, b.number) })
		rec.versions = slices.CompactFunc(rec.versions, func(a, b version) bool { return a.number == b.number })
	}
	return &r.history, nil
}

func (r *reader) take(e *audit.Event) error {
	switch e.Object.Resource {
	case "tasks":
		return r.takeTask(e)
	case "jobs":
		return r.takeJob(e)
	case "pods":
		return r.takePod(e)
	}
	return nil
}

func (r *reader) takeTask(e *audit.Event) error {
	switch {
	case e.Verb == "delete":
		r.deleteTask(e)
	case e.Verb == "deletecollection":
		for _, rec := range r.tasks {
			rec.deletion = deletion{at: e.Done, orphaned: orphans(e)}
		}
	}
	if e.Stored() {
		if err := r.storeTask(e); err != nil {
			return err
		}
	}
	r.charge(r.tasks[e.Object.Name], e, weightTaskChange)
	return nil
}

// storeTask adds the version in the answer, where there is one: a deletion may be answered with a mere Status.
func (r *reader) storeTask(e *audit.Event) error {
	var answer struct {
		metav1.TypeMeta `json:",inline"`
		Status          json.RawMessage `json:"status"`
	}
	if err := json.Unmarshal(e.Response, &answer); err != nil {
		return fmt.Errorf("answer: %w (the audit policy must keep the answers to writes of Tasks)", err)
	}
	if answer.Kind != "Task" {
		return nil
	}
	task := &v1alpha1.Task{}
	if err := json.Unmarshal(e.Response, task); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	number, err := strconv.ParseUint(task.ResourceVersion, 10, 64)
	if err != nil {
		return fmt.Errorf("resourceVersion: %w", err)
	}
	rec := r.byUID(string(task.UID))
	if rec == nil {
		rec = &record{uid: string(task.UID), namespace: task.Namespace, name: task.Name}
		r.records = append(r.records, rec)
	}
	r.tasks[task.Name] = rec
	verb := e.Verb
	if e.Object.Subresource != "" {
		verb += " " + e.Object.Subresource
	}
	rec.versions = append(rec.versions, version{
		number: number, at: e.Done, task: task, statusSize: len(answer.Status),
		controller: r.isController(e), verb: verb + " by " + e.UserAgent,
	})
	return nil
}

func (r *reader) deleteTask(e *audit.Event) {
	if rec := r.tasks[e.Object.Name]; rec != nil && e.Stored() {
		rec.deletion = deletion{at: e.Done, orphaned: orphans(e)}
	}
}

func orphans(e *audit.Event) bool {
	var options metav1.DeleteOptions
	if json.Unmarshal(e.Request, &options) != nil || options.PropagationPolicy == nil { // also where there is no body
		return false
	}
	return *options.PropagationPolicy == metav1.DeletePropagationOrphan
}

func (r *reader) takeJob(e *audit.Event) error {
	rec := r.jobs[e.Object.Name]
	if e.Verb == "create" {
		created, err := meta(e)
		if err != nil {
			return err
		}
		rec = r.byUID(ownerUID(created, "Task"))
		if rec != nil && e.Stored() {
			number, err := strconv.ParseUint(created.ResourceVersion, 10, 64)
			if err != nil {
				return fmt.Errorf("resourceVersion: %w", err)
			}
			r.jobs[created.Name], r.jobs[string(created.UID)] = rec, rec
			rec.jobs = append(rec.jobs, job{
				uid: string(created.UID), name: created.Name, attempt: created.Labels[v1alpha1.LabelAttempt],
				version: number, at: e.Received,
			})
		}
	}
	if rec == nil && changes(e) {
		if err := r.learnJob(e); err != nil {
			return err
		}
		rec = r.jobs[e.Object.Name]
	}
	// What the Job controller writes costs the operator nothing; that somebody deletes a Job does.
	weight := 0
	if e.Verb == "delete" {
		weight = weightTaskChange
	}
	r.charge(rec, e, weight)
	return nil
}

func (r *reader) takePod(e *audit.Event) error {
	created := e.Verb == "create" && e.Object.Subresource == "" && e.Stored()
	if created || r.podByName[e.Object.Name] == nil && changes(e) {
		if err := r.createPod(e); err != nil {
			return err
		}
	}
	if p := r.podByName[e.Object.Name]; p != nil && e.Stored() {
		if err := r.changePod(p, e); err != nil {
			return err
		}
	}
	r.charge(r.pods[e.Object.Name], e, weightChildChange)
	return nil
}

// changes tells of a write that its answer is the object as it is stored then. An API server that is killed may have stored an object
// whose creation it has not logged: such an object is known by its first change.
func changes(e *audit.Event) bool { return e.Stored() && (e.Verb == "update" || e.Verb == "patch") }

// learnJob remembers whose a Job is.
func (r *reader) learnJob(e *audit.Event) error {
	stored, err := meta(e)
	if err != nil {
		return err
	}
	if rec := r.byUID(ownerUID(stored, "Task")); rec != nil {
		r.jobs[stored.Name], r.jobs[string(stored.UID)] = rec, rec
	}
	return nil
}

func (r *reader) createPod(e *audit.Event) error {
	created, err := meta(e)
	if err != nil {
		return err
	}
	owner := ownerUID(created, "Job")
	rec := r.jobs[owner]
	if rec == nil {
		return nil
	}
	p := &pod{uid: string(created.UID), name: created.Name, attempt: created.Labels[v1alpha1.LabelAttempt], job: owner}
	r.pods[created.Name], r.podByName[created.Name] = rec, p
	rec.pods = append(rec.pods, p)
	return nil
}

// changePod notes what proves that the worker has ended.
func (r *reader) changePod(p *pod, e *audit.Event) error {
	if e.Verb == "delete" {
		var options metav1.DeleteOptions
		if json.Unmarshal(e.Request, &options) == nil && options.GracePeriodSeconds != nil && *options.GracePeriodSeconds == 0 {
			p.removed = e.Done
		}
		return nil
	}
	if e.Object.Subresource != "status" {
		return nil
	}
	stored := &corev1.Pod{}
	if err := json.Unmarshal(e.Response, stored); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	task := r.pods[p.name].last()
	if task == nil || string(stored.UID) != p.uid {
		return nil
	}
	worker := workerName(task)
	for _, c := range stored.Status.ContainerStatuses {
		if c.Name == worker && c.State.Terminated != nil {
			p.ended = c.State.Terminated.FinishedAt.Time
		}
	}
	return nil
}

func workerName(t *v1alpha1.Task) string {
	if t.Spec.WorkerContainer != "" || len(t.Spec.Template.Spec.Containers) == 0 {
		return t.Spec.WorkerContainer
	}
	return t.Spec.Template.Spec.Containers[0].Name
}

// charge notes a write of the operator, or one of others that may cause some.
func (r *reader) charge(rec *record, e *audit.Event, weight int) {
	switch {
	case rec == nil:
	case r.isController(e):
		rec.writes = append(rec.writes, e.Received)
	case weight > 0 && e.Stored():
		rec.outside = append(rec.outside, outside{e.Received, weight})
	}
}

// meta is the metadata of what was, or should have been, created.
func meta(e *audit.Event) (*metav1.PartialObjectMetadata, error) {
	body := e.Response
	if !e.Stored() {
		body = e.Request
	}
	object := &metav1.PartialObjectMetadata{}
	if err := json.Unmarshal(body, object); err != nil {
		return nil, fmt.Errorf("body: %w (the audit policy must keep it)", err)
	}
	return object, nil
}

func ownerUID(object metav1.Object, kind string) string {
	if owner := metav1.GetControllerOf(object); owner != nil && owner.Kind == kind {
		return string(owner.UID)
	}
	return ""
}

// within tells whether t lies in the window that ends at end.
func within(t, end time.Time, window time.Duration) bool {
	return !t.After(end) && t.After(end.Add(-window))
}
