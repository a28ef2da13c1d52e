package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

const (
	workerName = "worker"
	// look is how often the state of a run is asked for; the figures come from the audit log and do not depend on it.
	look = 2 * time.Second
	// runLimit bounds the wait for one run. 500 Jobs take two and a half minutes with the controller manager's defaults.
	runLimit = 20 * time.Minute
	// cleanLimit bounds the wait for deletions.
	cleanLimit = 10 * time.Minute
	// longRetention keeps the Jobs of a run, so that their deletion does not fall into the next one.
	longRetention = 24 * 60 * 60
)

// template is a pod that a simulated node runs for one second. Its nodes have no taints and bear any image.
func template() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Containers:    []corev1.Container{{Name: workerName, Image: "worker.example/worker:1"}},
	}}
}

// newTask is a Task of a run.
func newTask(namespace string, i int, retention int32) *v1alpha1.Task {
	return &v1alpha1.Task{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("task-%05d", i)},
		Spec:       v1alpha1.TaskSpec{Template: template(), WorkerRetentionSeconds: ptr.To(retention)},
	}
}

// newPlainJob is the Job that the operator would make for such a Task, without its owner: as many labels, variables and
// rules, so that the API server and the controller manager have the same work with it.
func newPlainJob(namespace string, i int) *batchv1.Job {
	name := fmt.Sprintf("plain-%05d", i)
	labels := map[string]string{
		"bench.taskwarden.dev/task":     name,
		"bench.taskwarden.dev/task-uid": "00000000-0000-0000-0000-000000000000",
		"bench.taskwarden.dev/attempt":  "1",
		"app.kubernetes.io/managed-by":  "taskwarden-bench",
	}
	t := template()
	t.Labels = labels
	t.Spec.ActiveDeadlineSeconds = ptr.To[int64](2490)
	t.Spec.Containers[0].Env = []corev1.EnvVar{
		{Name: v1alpha1.EnvAttempt, Value: "1"},
		{Name: v1alpha1.EnvTaskUID, Value: "00000000-0000-0000-0000-000000000000"},
		{Name: v1alpha1.EnvTaskNamespace, Value: namespace},
		{Name: v1alpha1.EnvTaskName, Value: name},
	}
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec: batchv1.JobSpec{
			BackoffLimit:         ptr.To[int32](0),
			PodReplacementPolicy: ptr.To(batchv1.Failed),
			PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
				Action: batchv1.PodFailurePolicyActionFailJob,
				OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{
					Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
				}},
			}}},
			Template: t,
		},
	}
}

// inParallel calls do for 0 to n-1, some at once, until one fails.
func inParallel(ctx context.Context, n, workers int, what string, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next, done atomic.Int64
	var group sync.WaitGroup
	for range min(workers, n) {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := do(ctx, i); err != nil {
					cancel(err)
					return
				}
				doing("%s: %d of %d", what, done.Add(1), n)
			}
		})
	}
	group.Wait()
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func (b *bench) createPlainJobs(ctx context.Context, namespace string, n int) error {
	return inParallel(ctx, n, b.creators, "creating Jobs", func(ctx context.Context, i int) error {
		return b.cluster.Create(ctx, newPlainJob(namespace, i))
	})
}

func (b *bench) createTasks(ctx context.Context, namespace string, n int, retention int32) error {
	return inParallel(ctx, n, b.creators, "creating Tasks", func(ctx context.Context, i int) error {
		return b.cluster.Create(ctx, newTask(namespace, i, retention))
	})
}

// waitTasks waits until all Tasks are terminal.
func (c *cluster) waitTasks(ctx context.Context, namespace string, total int) error {
	var going []fields.Selector
	for _, s := range []v1alpha1.State{v1alpha1.StateSucceeded, v1alpha1.StateFailed, v1alpha1.StateCancelled} {
		going = append(going, fields.OneTermNotEqualSelector("status.state", string(s)))
	}
	return c.waitNone(ctx, "Tasks going", taskList(), runLimit, total,
		client.InNamespace(namespace), client.MatchingFieldsSelector{Selector: fields.AndSelectors(going...)})
}

// waitJobs waits until all Jobs are Complete. Their successes, which can be asked for cheaply, are stored shortly before.
func (c *cluster) waitJobs(ctx context.Context, namespace string, total int, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := c.waitNone(ctx, "Jobs going", jobList(), limit, total,
		client.InNamespace(namespace), client.MatchingFields{"status.successful": "0"}); err != nil {
		return err
	}
	return wait.PollUntilContextCancel(ctx, look, true, func(ctx context.Context) (bool, error) {
		var jobs batchv1.JobList
		if err := c.List(ctx, &jobs, client.InNamespace(namespace)); err != nil {
			return false, err
		}
		going := 0
		for i := range jobs.Items {
			if !complete(jobs.Items[i].Status.Conditions) {
				going++
			}
		}
		doing("Jobs not Complete yet: %d of %d", going, total)
		return going == 0, nil
	})
}

func complete(conditions []batchv1.JobCondition) bool {
	for _, c := range conditions {
		if c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

// waitNone waits until a list is empty.
func (c *cluster) waitNone(ctx context.Context, what string, list *metav1.PartialObjectMetadataList, limit time.Duration, total int, o ...client.ListOption) error {
	left := -1
	err := wait.PollUntilContextTimeout(ctx, look, limit, true, func(ctx context.Context) (bool, error) {
		if err := c.List(ctx, list, o...); err != nil {
			return false, err
		}
		left = len(list.Items)
		doing("%s: %d of %d", what, left, total)
		return left == 0, nil
	})
	if err != nil {
		return fmt.Errorf("%s: %d of %d: %w", what, left, total, err)
	}
	return nil
}

func taskList() *metav1.PartialObjectMetadataList {
	l := &metav1.PartialObjectMetadataList{}
	l.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("TaskList"))
	return l
}

func jobList() *metav1.PartialObjectMetadataList {
	l := &metav1.PartialObjectMetadataList{}
	l.SetGroupVersionKind(batchv1.SchemeGroupVersion.WithKind("JobList"))
	return l
}

func podList() *metav1.PartialObjectMetadataList {
	l := &metav1.PartialObjectMetadataList{}
	l.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	return l
}

// clear deletes everything of a run. Owners and owned are deleted alike, since the garbage collector of a controller
// manager with its default limits would take minutes.
func (c *cluster) clear(ctx context.Context, namespace string) error {
	doing("deleting what is in %s", namespace)
	background := client.PropagationPolicy(metav1.DeletePropagationBackground)
	err := errors.Join(
		c.DeleteAllOf(ctx, &v1alpha1.Task{}, client.InNamespace(namespace), background),
		c.DeleteAllOf(ctx, &batchv1.Job{}, client.InNamespace(namespace), background),
		c.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(namespace), client.GracePeriodSeconds(0)),
	)
	if err != nil {
		return fmt.Errorf("clear %s: %w", namespace, err)
	}
	for what, list := range map[string]*metav1.PartialObjectMetadataList{"Tasks": taskList(), "Jobs": jobList(), "pods": podList()} {
		if err := c.waitNone(ctx, what+" to be deleted", list, cleanLimit, len(list.Items), client.InNamespace(namespace)); err != nil {
			return err
		}
	}
	return c.quiet(ctx)
}

// quiet waits until the control plane has written nothing for a while.
func (c *cluster) quiet(ctx context.Context) error {
	const while = 5 * time.Second
	var size int64
	since := time.Now()
	err := wait.PollUntilContextTimeout(ctx, 250*time.Millisecond, cleanLimit, true, func(context.Context) (bool, error) {
		now, err := c.log.size()
		if err != nil {
			return false, err
		}
		if now != size {
			size, since = now, time.Now()
		}
		doing("waiting until the control plane is quiet")
		return time.Since(since) >= while, nil
	})
	if err != nil {
		return fmt.Errorf("wait until the control plane is quiet: %w", err)
	}
	return nil
}
