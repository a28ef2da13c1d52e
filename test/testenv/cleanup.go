package testenv

import (
	"context"
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/invariants"
)

// cleanup checks the invariants, then that the deletion of all Tasks leaves nothing, and removes the world of the test.
func (e *Env) cleanup(cancel context.CancelFunc) {
	e.t.Helper()
	defer cancel()
	e.Faults.Clear() // the cleanup meets a world in order
	e.KillRival()
	if e.options.setup != nil { // the invariants are the operator's to keep
		if err := e.check(); err != nil {
			e.t.Errorf("the audit log is not complete, so the invariants cannot be checked: %v", err)
		}
	}
	if err := e.deleteTasks(); err != nil {
		e.t.Errorf("invariant 5 (deletion leaves nothing): %v", err)
	}
	e.StopController()
	if err := e.Client.Delete(e.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: e.Namespace}}); client.IgnoreNotFound(err) != nil {
		e.t.Errorf("delete namespace %s: %v", e.Namespace, err)
	}
	cancel()
	e.background.Wait()
	e.log.close()
	if err := e.Audit.Close(); err != nil {
		e.t.Errorf("close the audit log: %v", err)
	}
}

func (e *Env) check() error {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.ctx, Patience)
	defer cancel()
	if err := e.Audit.Sync(ctx, e.Client); err != nil {
		return err
	}
	src := e.source()
	if e.t.Failed() {
		src.Settle = time.Second // the cause is known, what is left over may help to see it
	}
	invariants.Check(e.t, src)
	return nil
}

// Violations gives what the checker finds wrong now, waived or not.
func (e *Env) Violations() []invariants.Violation {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), Patience)
	defer cancel()
	if err := e.Audit.Sync(ctx, e.Client); err != nil {
		e.t.Fatal(err)
	}
	src := e.source()
	src.Waivers, src.Settle = nil, time.Second
	found, err := invariants.Find(ctx, src)
	if err != nil {
		e.t.Fatal(err)
	}
	return found
}

func (e *Env) source() invariants.Source {
	return invariants.Source{
		Namespace: e.Namespace, Audit: e.Audit, IsController: e.isController, Marks: e.Marks,
		Client: e.Client, Config: e.Config, Running: e.Running(), Wake: e.wake, Now: e.Clock.Now,
		Settle: time.Minute, Budget: e.options.budget, Waivers: e.waivers,
	}
}

// deleteTasks deletes all Tasks, as a user would, and waits until nothing of them is left.
func (e *Env) deleteTasks() error {
	ctx, cancel := context.WithTimeout(e.ctx, 2*Patience)
	defer cancel()
	err := e.Client.DeleteAllOf(ctx, &v1alpha1.Task{}, client.InNamespace(e.Namespace), client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	return poll(ctx, 2*Patience, e.nothingLeft)
}

// nothingLeft gives an error while something of a Task is stored. Meanwhile it plays the kubelet for pods that are being
// deleted and removes the finalizers that tests have set.
func (e *Env) nothingLeft(ctx context.Context) error {
	var left []string
	var tasks v1alpha1.TaskList
	var jobs batchv1.JobList
	var pods corev1.PodList
	for _, list := range []client.ObjectList{&pods, &jobs, &tasks} {
		if err := e.Client.List(ctx, list, client.InNamespace(e.Namespace)); err != nil {
			return err
		}
	}
	for i := range tasks.Items {
		left = append(left, "Task "+tasks.Items[i].Name+" "+strings.Join(tasks.Items[i].Finalizers, ","))
		if err := e.dropForeignFinalizers(ctx, &tasks.Items[i]); err != nil {
			return err
		}
	}
	for i := range jobs.Items {
		if owner := metav1.GetControllerOf(&jobs.Items[i]); owner != nil && owner.Kind == "Task" {
			left = append(left, "Job "+jobs.Items[i].Name)
		}
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Labels[v1alpha1.LabelTaskUID] == "" {
			continue
		}
		left = append(left, "pod "+p.Name)
		if p.DeletionTimestamp != nil {
			e.Kubelet.mark(p, invariants.Stop, nil)
			if err := e.Kubelet.deleteNow(ctx, p); err != nil {
				return err
			}
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("still there: %s", strings.Join(left, "; "))
	}
	return nil
}

func (e *Env) dropForeignFinalizers(ctx context.Context, t *v1alpha1.Task) error {
	var own []string
	for _, name := range t.Finalizers {
		if strings.HasPrefix(name, v1alpha1.GroupVersion.Group+"/") {
			own = append(own, name)
		}
	}
	if len(own) == len(t.Finalizers) {
		return nil
	}
	t.Finalizers = own
	err := e.Client.Update(ctx, t)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
