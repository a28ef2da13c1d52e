// Package builders makes the fixtures of the tests, so that a test names only what it is about.
package builders

import (
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// TaskBuilder builds a Task.
type TaskBuilder struct {
	task v1alpha1.Task
}

// Task starts a Task that runs one container, "worker". What is not set is left to the defaults of the API.
func Task(name string) *TaskBuilder {
	b := &TaskBuilder{}
	b.task.Name = name
	b.task.Spec.Template = Pod().Obj()
	return b
}

// Obj is the Task built so far; the builder can go on.
func (b *TaskBuilder) Obj() *v1alpha1.Task { return b.task.DeepCopy() }

// Namespace sets the namespace. The API-level environment sets it by itself.
func (b *TaskBuilder) Namespace(ns string) *TaskBuilder { b.task.Namespace = ns; return b }

// Label adds a label.
func (b *TaskBuilder) Label(key, value string) *TaskBuilder {
	metav1.SetMetaDataLabel(&b.task.ObjectMeta, key, value)
	return b
}

// Annotation adds an annotation.
func (b *TaskBuilder) Annotation(key, value string) *TaskBuilder {
	metav1.SetMetaDataAnnotation(&b.task.ObjectMeta, key, value)
	return b
}

// Finalizer adds a finalizer.
func (b *TaskBuilder) Finalizer(name string) *TaskBuilder {
	b.task.Finalizers = append(b.task.Finalizers, name)
	return b
}

// Template sets the whole pod template.
func (b *TaskBuilder) Template(t corev1.PodTemplateSpec) *TaskBuilder {
	b.task.Spec.Template = t
	return b
}

// Image sets the image of the first container.
func (b *TaskBuilder) Image(image string) *TaskBuilder {
	b.task.Spec.Template.Spec.Containers[0].Image = image
	return b
}

// Command sets the command of the first container.
func (b *TaskBuilder) Command(command ...string) *TaskBuilder {
	b.task.Spec.Template.Spec.Containers[0].Command = command
	return b
}

// Env adds an environment variable to the first container.
func (b *TaskBuilder) Env(name, value string) *TaskBuilder {
	c := &b.task.Spec.Template.Spec.Containers[0]
	c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
	return b
}

// WorkerContainer names the container whose exit ends an attempt.
func (b *TaskBuilder) WorkerContainer(name string) *TaskBuilder {
	b.task.Spec.WorkerContainer = name
	return b
}

// Input sets spec.input.value to the JSON of v. It panics where v has none: a mistake of the test.
func (b *TaskBuilder) Input(v any) *TaskBuilder {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("builders: input: %v", err))
	}
	b.task.Spec.Input = &v1alpha1.TaskInput{Value: apiextensionsv1.JSON{Raw: raw}}
	return b
}

// Priority sets the priority.
func (b *TaskBuilder) Priority(p int32) *TaskBuilder { b.task.Spec.Priority = ptr.To(p); return b }

// Suspend sets spec.suspend.
func (b *TaskBuilder) Suspend() *TaskBuilder { b.task.Spec.Suspend = ptr.To(true); return b }

// Cancel sets spec.cancel.
func (b *TaskBuilder) Cancel() *TaskBuilder { b.task.Spec.Cancel = ptr.To(true); return b }

// StartTimeout sets startTimeoutSeconds.
func (b *TaskBuilder) StartTimeout(d time.Duration) *TaskBuilder {
	b.task.Spec.StartTimeoutSeconds = seconds(d)
	return b
}

// QueueTimeout sets queueTimeoutSeconds.
func (b *TaskBuilder) QueueTimeout(d time.Duration) *TaskBuilder {
	b.task.Spec.QueueTimeoutSeconds = seconds(d)
	return b
}

// ActiveDeadline sets activeDeadlineSeconds.
func (b *TaskBuilder) ActiveDeadline(d time.Duration) *TaskBuilder {
	b.task.Spec.ActiveDeadlineSeconds = seconds(d)
	return b
}

// OverallDeadline sets overallDeadlineSeconds.
func (b *TaskBuilder) OverallDeadline(d time.Duration) *TaskBuilder {
	b.task.Spec.OverallDeadlineSeconds = seconds(d)
	return b
}

// FinishGrace sets finishGraceSeconds.
func (b *TaskBuilder) FinishGrace(d time.Duration) *TaskBuilder {
	b.task.Spec.FinishGraceSeconds = seconds(d)
	return b
}

// WorkerLostTimeout sets workerLostTimeoutSeconds.
func (b *TaskBuilder) WorkerLostTimeout(d time.Duration) *TaskBuilder {
	b.task.Spec.WorkerLostTimeoutSeconds = seconds(d)
	return b
}

// Sidecar sets reporter Sidecar.
func (b *TaskBuilder) Sidecar() *TaskBuilder {
	b.task.Spec.Reporter = v1alpha1.ReporterSidecar
	return b
}

// HeartbeatTimeout sets heartbeatTimeoutSeconds.
func (b *TaskBuilder) HeartbeatTimeout(d time.Duration) *TaskBuilder {
	b.task.Spec.HeartbeatTimeoutSeconds = seconds(d)
	return b
}

// ProgressTimeout sets progressTimeoutSeconds.
func (b *TaskBuilder) ProgressTimeout(d time.Duration) *TaskBuilder {
	b.task.Spec.ProgressTimeoutSeconds = seconds(d)
	return b
}

// Stage adds a stage of weight 1; without a timeout where that is 0.
func (b *TaskBuilder) Stage(name string, timeout time.Duration) *TaskBuilder {
	s := v1alpha1.Stage{Name: name, Weight: ptr.To[int32](1)}
	if timeout > 0 {
		s.TimeoutSeconds = seconds(timeout)
	}
	b.task.Spec.Stages = append(b.task.Spec.Stages, s)
	return b
}

// WorkerRetention sets workerRetentionSeconds.
func (b *TaskBuilder) WorkerRetention(d time.Duration) *TaskBuilder {
	b.task.Spec.WorkerRetentionSeconds = seconds(d)
	return b
}

// TTL sets ttlSecondsAfterFinished.
func (b *TaskBuilder) TTL(d time.Duration) *TaskBuilder {
	b.task.Spec.TTLSecondsAfterFinished = seconds(d)
	return b
}

func seconds(d time.Duration) *int32 { return ptr.To(int32(d / time.Second)) }
