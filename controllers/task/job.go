package task

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

const (
	// maxJobName is the longest name whose Job is valid: the Job controller copies it into a label of the pod.
	maxJobName = 63
	// backstopSlack is added to the pod's own deadline, so that it fires only where the operator does not.
	backstopSlack = 60

	// handedVolume holds what is handed to the worker as files.
	handedVolume   = "taskwarden-input"
	handedDir      = "/var/run/taskwarden"
	inputFile      = "input.json"
	checkpointFile = "checkpoint.json"
)

// JobName is the name of an attempt's Job: "<task>-<attempt>", the task's part cut and hashed where that is too long.
func JobName(task string, attempt int32) string {
	return shorten(task, maxJobName, "-"+strconv.Itoa(int(attempt)))
}

// shorten appends suffix to name and cuts name, putting a hash of all of it in the place, so that the whole fits.
func shorten(name string, limit int, suffix string) string {
	if len(name)+len(suffix) <= limit {
		return name + suffix
	}
	sum := sha256.Sum256([]byte(name))
	hash := "-" + hex.EncodeToString(sum[:6])
	return strings.TrimRight(name[:limit-len(hash)-len(suffix)], "-.") + hash + suffix
}

// newJob is the Job of the Task's current attempt. The gateway is asked for only with reporter Sidecar.
func newJob(t *v1alpha1.Task, gateway *Gateway) *batchv1.Job {
	template := t.Spec.Template.DeepCopy()
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	labels := map[string]string{
		v1alpha1.LabelTask:      shorten(t.Name, maxJobName, ""),
		v1alpha1.LabelTaskUID:   string(t.UID),
		v1alpha1.LabelAttempt:   strconv.Itoa(int(t.Status.Attempt)),
		v1alpha1.LabelManagedBy: v1alpha1.ManagedBy,
	}
	template.Labels = merged(template.Labels, labels)
	worker := workerContainer(&template.Spec, t.Spec.WorkerContainer)
	lifecycle.MergeResources(&worker.Resources, t.Status.Resources)
	handFiles(t, template, worker)
	if hasSidecar(t) {
		addSidecar(t, template, worker, gateway)
	}
	setEnv(worker, corev1.EnvVar{Name: v1alpha1.EnvTaskName, Value: t.Name})
	setEnv(worker, corev1.EnvVar{Name: v1alpha1.EnvTaskNamespace, Value: t.Namespace})
	setEnv(worker, corev1.EnvVar{Name: v1alpha1.EnvTaskUID, Value: string(t.UID)})
	setEnv(worker, corev1.EnvVar{Name: v1alpha1.EnvAttempt, Value: strconv.Itoa(int(t.Status.Attempt))})

	backstop := backstopSeconds(t)
	if own := template.Spec.ActiveDeadlineSeconds; own == nil || *own > backstop {
		template.Spec.ActiveDeadlineSeconds = ptr.To(backstop)
	}
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name: JobName(t.Name, t.Status.Attempt), Namespace: t.Namespace, Labels: labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(t, v1alpha1.GroupVersion.WithKind("Task"))},
		},
		Spec: batchv1.JobSpec{
			BackoffLimit:         ptr.To(int32(0)),
			PodReplacementPolicy: ptr.To(batchv1.Failed),
			// Keeps the evidence of a disruption in the Job while nobody watches the pod.
			PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
				Action: batchv1.PodFailurePolicyActionFailJob,
				OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{
					Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
				}},
			}}},
			Template: *template,
		},
	}
}

// backstopSeconds is the pod's own deadline: the kubelet counts it from the pod's start, so it covers the start, the work
// and the grace, and stops a worker even when the operator is down.
func backstopSeconds(t *v1alpha1.Task) int64 {
	start := int64(ptr.Deref(t.Spec.StartTimeoutSeconds, lifecycle.DefaultStartTimeoutSeconds))
	return start + int64(lifecycle.ActiveSeconds(t)) + int64(podGrace(t).Seconds()) + backstopSlack
}

// handFiles hands the input, and what an earlier attempt has left as its checkpoint, to the worker: annotations of the pod, mounted
// as files, so that there is no ConfigMap to leak.
func handFiles(t *v1alpha1.Task, template *corev1.PodTemplateSpec, worker *corev1.Container) {
	var files []corev1.DownwardAPIVolumeFile
	hand := func(annotation, content, file, env string) {
		template.Annotations = merged(template.Annotations, map[string]string{annotation: content})
		files = append(files, corev1.DownwardAPIVolumeFile{
			Path:     file,
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: fmt.Sprintf("metadata.annotations['%s']", annotation)},
		})
		setEnv(worker, corev1.EnvVar{Name: env, Value: handedDir + "/" + file})
	}
	if t.Spec.Input != nil {
		hand(v1alpha1.AnnotationInput, string(compactInput(t)), inputFile, v1alpha1.EnvInput)
	}
	if t.Status.Checkpoint != nil {
		hand(v1alpha1.AnnotationCheckpoint, string(compact(t.Status.Checkpoint.Data.Raw)), checkpointFile, v1alpha1.EnvCheckpoint)
	}
	if len(files) == 0 {
		return
	}
	template.Spec.Volumes = append(template.Spec.Volumes, corev1.Volume{
		Name: handedVolume, VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: files}},
	})
	worker.VolumeMounts = append(worker.VolumeMounts, corev1.VolumeMount{Name: handedVolume, MountPath: handedDir, ReadOnly: true})
}

// workerContainer is the named container, the first one where the name is empty. The API server has checked that it exists.
func workerContainer(spec *corev1.PodSpec, name string) *corev1.Container {
	if i := slices.IndexFunc(spec.Containers, func(c corev1.Container) bool { return c.Name == name }); i >= 0 {
		return &spec.Containers[i]
	}
	return &spec.Containers[0]
}

// setEnv sets a variable at the front, so that the template's own variables can refer to it as $(NAME).
func setEnv(c *corev1.Container, v corev1.EnvVar) {
	c.Env = slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == v.Name })
	c.Env = append([]corev1.EnvVar{v}, c.Env...)
}

// merged is base overlaid with over.
func merged(base, over map[string]string) map[string]string {
	m := make(map[string]string, len(base)+len(over))
	maps.Copy(m, base)
	maps.Copy(m, over)
	return m
}
