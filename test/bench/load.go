package main

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/benchkit"
)

const (
	workerName = "worker"
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

func (b *bench) createPlainJobs(ctx context.Context, namespace string, n int) error {
	return benchkit.InParallel(ctx, n, b.creators, "creating Jobs", func(ctx context.Context, i int) error {
		return b.cluster.Create(ctx, newPlainJob(namespace, i))
	})
}

func (b *bench) createTasks(ctx context.Context, namespace string, n int, retention int32) error {
	return benchkit.InParallel(ctx, n, b.creators, "creating Tasks", func(ctx context.Context, i int) error {
		return b.cluster.Create(ctx, newTask(namespace, i, retention))
	})
}

// waitJobs waits until all Jobs are Complete. Their successes, which can be asked for cheaply, are stored shortly before.
func waitJobs(ctx context.Context, c *benchkit.Cluster, namespace string, total int, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := c.WaitNone(ctx, "Jobs going", benchkit.JobList(), limit, total,
		client.InNamespace(namespace), client.MatchingFields{"status.successful": "0"}); err != nil {
		return err
	}
	return wait.PollUntilContextCancel(ctx, benchkit.Look, true, func(ctx context.Context) (bool, error) {
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
		benchkit.Doing("Jobs not Complete yet: %d of %d", going, total)
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
