package testenv

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// annotationTouch is changed to make the operator look at a Task.
const annotationTouch = "test.taskwarden.dev/touched"

// Create stores a Task in the test's namespace and gives it as it was stored.
func (e *Env) Create(task *v1alpha1.Task) *v1alpha1.Task {
	e.t.Helper()
	task = task.DeepCopy()
	task.Namespace = e.Namespace
	if err := e.Client.Create(e.t.Context(), task); err != nil {
		e.t.Fatalf("create Task %s: %v", task.Name, err)
	}
	return task
}

// Get reads a Task live.
func (e *Env) Get(task *v1alpha1.Task) *v1alpha1.Task {
	e.t.Helper()
	live := &v1alpha1.Task{}
	if err := e.Client.Get(e.t.Context(), client.ObjectKeyFromObject(task), live); err != nil {
		e.t.Fatalf("get Task %s: %v", task.Name, err)
	}
	return live
}

// Change changes a Task as it is stored now, and again where somebody else was faster.
func (e *Env) Change(task *v1alpha1.Task, change func(*v1alpha1.Task)) *v1alpha1.Task {
	e.t.Helper()
	var live *v1alpha1.Task
	Eventually(e.t, func(ctx context.Context) error {
		live = e.Get(task)
		change(live)
		err := e.Client.Update(ctx, live)
		if err != nil && !apierrors.IsConflict(err) {
			e.t.Fatalf("update Task %s: %v", task.Name, err)
		}
		return err
	})
	return live
}

// Touch changes an annotation of a Task, which makes the operator look at it.
func (e *Env) Touch(task *v1alpha1.Task) {
	e.t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, annotationTouch, strconv.FormatInt(time.Now().UnixNano(), 10))
	err := e.Client.Patch(e.t.Context(), task.DeepCopy(), client.RawPatch("application/merge-patch+json", patch))
	if client.IgnoreNotFound(err) != nil {
		e.t.Fatalf("touch Task %s: %v", task.Name, err)
	}
}

// Cancel sets spec.cancel.
func (e *Env) Cancel(task *v1alpha1.Task) {
	e.t.Helper()
	e.mergeSpec(task, `{"cancel":true}`)
}

// Suspend sets spec.suspend.
func (e *Env) Suspend(task *v1alpha1.Task, suspend bool) {
	e.t.Helper()
	e.mergeSpec(task, fmt.Sprintf(`{"suspend":%t}`, suspend))
}

func (e *Env) mergeSpec(task *v1alpha1.Task, spec string) {
	e.t.Helper()
	patch := []byte(`{"spec":` + spec + `}`)
	if err := e.Client.Patch(e.t.Context(), task.DeepCopy(), client.RawPatch("application/merge-patch+json", patch)); err != nil {
		e.t.Fatalf("patch Task %s with %s: %v", task.Name, patch, err)
	}
}

// RetryByHand asks for a retry, as kubectl annotate would.
func (e *Env) RetryByHand(task *v1alpha1.Task, request string) {
	e.t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationRetryRequestedAt, request)
	if err := e.Client.Patch(e.t.Context(), task.DeepCopy(), client.RawPatch("application/merge-patch+json", patch)); err != nil {
		e.t.Fatalf("ask for a retry of Task %s: %v", task.Name, err)
	}
}

// WaitState waits until a Task is in one of the states.
func (e *Env) WaitState(task *v1alpha1.Task, states ...v1alpha1.State) *v1alpha1.Task {
	e.t.Helper()
	return e.WaitTask(task, func(t *v1alpha1.Task) error {
		if slices.Contains(states, t.Status.State) {
			return nil
		}
		return fmt.Errorf("state is %q (%s: %s), wanted is one of %v", t.Status.State, t.Status.Reason, t.Status.Message, states)
	})
}

// WaitCondition waits until a condition has a status and, unless it is "", a reason.
func (e *Env) WaitCondition(task *v1alpha1.Task, kind string, status metav1.ConditionStatus, reason string) *v1alpha1.Task {
	e.t.Helper()
	return e.WaitTask(task, func(t *v1alpha1.Task) error {
		for _, c := range t.Status.Conditions {
			if c.Type == kind && c.Status == status && (reason == "" || c.Reason == reason) {
				return nil
			}
		}
		return fmt.Errorf("no condition %s=%s with reason %q, but %v", kind, status, reason, t.Status.Conditions)
	})
}

// WaitTask waits until check gives no error for a Task.
func (e *Env) WaitTask(task *v1alpha1.Task, check func(*v1alpha1.Task) error) *v1alpha1.Task {
	e.t.Helper()
	live := &v1alpha1.Task{}
	Eventually(e.t, func(ctx context.Context) error {
		if err := e.Client.Get(ctx, client.ObjectKeyFromObject(task), live); err != nil {
			return err
		}
		return check(live)
	})
	return live
}

// WaitGone waits until an object is no longer stored, or another one has its name.
func (e *Env) WaitGone(object client.Object) {
	e.t.Helper()
	uid := object.GetUID()
	Eventually(e.t, func(ctx context.Context) error {
		live, ok := object.DeepCopyObject().(client.Object)
		if !ok {
			return fmt.Errorf("%T is no object", object)
		}
		err := e.Client.Get(ctx, client.ObjectKeyFromObject(object), live)
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		case live.GetUID() != uid:
			return nil
		}
		return fmt.Errorf("%T %s is still there, deleted at %v, finalizers %v", object, object.GetName(), live.GetDeletionTimestamp(), live.GetFinalizers())
	})
}

// Jobs are the Jobs that a Task controls, in order of their attempts.
func (e *Env) Jobs(task *v1alpha1.Task) []batchv1.Job {
	e.t.Helper()
	var all batchv1.JobList
	if err := e.Client.List(e.t.Context(), &all, client.InNamespace(e.Namespace)); err != nil {
		e.t.Fatalf("list Jobs: %v", err)
	}
	jobs := slices.DeleteFunc(all.Items, func(j batchv1.Job) bool { return !metav1.IsControlledBy(&j, task) })
	slices.SortFunc(jobs, func(a, b batchv1.Job) int { return attemptOf(&a) - attemptOf(&b) })
	return jobs
}

// WaitJob waits for the Job of an attempt.
func (e *Env) WaitJob(task *v1alpha1.Task, attempt int) *batchv1.Job {
	e.t.Helper()
	var job batchv1.Job
	Eventually(e.t, func(context.Context) error {
		jobs := e.Jobs(task)
		i := slices.IndexFunc(jobs, func(j batchv1.Job) bool { return attemptOf(&j) == attempt })
		if i < 0 {
			return fmt.Errorf("no Job for attempt %d of Task %s", attempt, task.Name)
		}
		job = jobs[i]
		return nil
	})
	return &job
}

func attemptOf(object client.Object) int {
	n, err := strconv.Atoi(object.GetLabels()[v1alpha1.LabelAttempt])
	if err != nil {
		return 0
	}
	return n
}

// ChangeStatus changes the status of a Task as it is stored now, and again where somebody else was faster.
func (e *Env) ChangeStatus(task *v1alpha1.Task, change func(*v1alpha1.Task) error) {
	e.t.Helper()
	Eventually(e.t, func(ctx context.Context) error {
		live := e.Get(task)
		if err := change(live); err != nil {
			return err
		}
		err := e.Client.Status().Update(ctx, live)
		if err != nil && !apierrors.IsConflict(err) {
			e.t.Fatalf("update the status of Task %s: %v", task.Name, err)
		}
		return err
	})
}
