package builders

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// WorkerName is the container of a new pod template.
const WorkerName = "worker"

// PodBuilder builds a pod template.
type PodBuilder struct {
	template corev1.PodTemplateSpec
}

// Pod starts a pod template of one container, WorkerName. Its image does not exist: no test of the API level pulls it.
func Pod() *PodBuilder {
	b := &PodBuilder{}
	b.template.Spec.Containers = []corev1.Container{{Name: WorkerName, Image: "worker.example/worker:1"}}
	return b
}

// Obj is the template built so far; the builder can go on.
func (b *PodBuilder) Obj() corev1.PodTemplateSpec { return *b.template.DeepCopy() }

// Label adds a label.
func (b *PodBuilder) Label(key, value string) *PodBuilder {
	metav1.SetMetaDataLabel(&b.template.ObjectMeta, key, value)
	return b
}

// Annotation adds an annotation.
func (b *PodBuilder) Annotation(key, value string) *PodBuilder {
	metav1.SetMetaDataAnnotation(&b.template.ObjectMeta, key, value)
	return b
}

// NoContainers removes all containers.
func (b *PodBuilder) NoContainers() *PodBuilder { b.template.Spec.Containers = nil; return b }

// Container adds a container.
func (b *PodBuilder) Container(name, image string) *PodBuilder {
	b.template.Spec.Containers = append(b.template.Spec.Containers, corev1.Container{Name: name, Image: image})
	return b
}

// Sidecar adds a native sidecar: an init container that is restarted always.
func (b *PodBuilder) Sidecar(name, image string) *PodBuilder {
	b.template.Spec.InitContainers = append(b.template.Spec.InitContainers, corev1.Container{
		Name: name, Image: image, RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways),
	})
	return b
}

// RestartPolicy sets the restart policy.
func (b *PodBuilder) RestartPolicy(p corev1.RestartPolicy) *PodBuilder {
	b.template.Spec.RestartPolicy = p
	return b
}

// GracePeriod sets terminationGracePeriodSeconds.
func (b *PodBuilder) GracePeriod(secs int64) *PodBuilder {
	b.template.Spec.TerminationGracePeriodSeconds = ptr.To(secs)
	return b
}

// Memory sets request and limit of the first container's memory.
func (b *PodBuilder) Memory(quantity string) *PodBuilder {
	list := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(quantity)}
	b.template.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list.DeepCopy()}
	return b
}

// Privileged makes the first container privileged, which policies refuse.
func (b *PodBuilder) Privileged() *PodBuilder {
	b.template.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
	return b
}

// Spec changes the pod spec in a way that the builder has no word for.
func (b *PodBuilder) Spec(change func(*corev1.PodSpec)) *PodBuilder {
	change(&b.template.Spec)
	return b
}
