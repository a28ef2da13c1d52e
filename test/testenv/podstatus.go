package testenv

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/invariants"
)

// The functions of this file write what a scheduler and a kubelet write. They return errors, so that they can be used
// outside the goroutine of the test.

func (k *Kubelet) now() metav1.Time { return metav1.NewTime(k.env.Clock.Now()) }

func (k *Kubelet) schedule(ctx context.Context, pod *corev1.Pod, node string) error {
	return k.env.Client.SubResource("binding").Create(ctx, pod.DeepCopy(), &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	})
}

func (k *Kubelet) unschedulable(ctx context.Context, pod *corev1.Pod, message string) error {
	return k.status(ctx, pod, func(p *corev1.Pod) error {
		setPodCondition(p, corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable, message)
		return nil
	})
}

func (k *Kubelet) waiting(ctx context.Context, pod *corev1.Pod, reason, message string) error {
	return k.status(ctx, pod, func(p *corev1.Pod) error {
		k.accept(p)
		p.Status.ContainerStatuses = statuses(p.Spec.Containers, func(corev1.Container) corev1.ContainerState {
			return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
		})
		return nil
	})
}

// accept is what a kubelet notes when it first sees a pod: the pod's own deadline counts from it.
func (k *Kubelet) accept(p *corev1.Pod) {
	if p.Status.StartTime == nil {
		p.Status.StartTime = ptr.To(k.now())
	}
}

// run starts all containers. The worker begins before anybody can write that it does.
func (k *Kubelet) run(ctx context.Context, pod *corev1.Pod) error {
	k.mark(pod, invariants.Start, nil)
	return k.status(ctx, pod, func(p *corev1.Pod) error {
		k.startAll(p)
		return nil
	})
}

func (k *Kubelet) startAll(p *corev1.Pod) {
	k.accept(p)
	p.Status.Phase = corev1.PodRunning
	p.Status.PodIP, p.Status.PodIPs = "192.0.2.1", []corev1.PodIP{{IP: "192.0.2.1"}}
	running := func(corev1.Container) corev1.ContainerState {
		return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: k.now()}}
	}
	p.Status.ContainerStatuses = statuses(p.Spec.Containers, running)
	p.Status.InitContainerStatuses = statuses(p.Spec.InitContainers, func(c corev1.Container) corev1.ContainerState {
		if ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways {
			return running(c)
		}
		return k.terminated(running(c), Exit{})
	})
	for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		setPodCondition(p, kind, corev1.ConditionTrue, "", "")
	}
}

// flash runs and ends all containers in one write: a worker so fast that nobody sees it run.
func (k *Kubelet) flash(ctx context.Context, pod *corev1.Pod, exit Exit) error {
	k.mark(pod, invariants.Start, nil)
	k.mark(pod, invariants.Stop, ptr.To(exit.Code))
	return k.status(ctx, pod, func(p *corev1.Pod) error {
		k.startAll(p)
		k.endAll(p, exit)
		return nil
	})
}

// exit ends containers. The worker ends before anybody can write that it has.
func (k *Kubelet) exit(ctx context.Context, pod *corev1.Pod, exit Exit) error {
	if exit.Container == "" || exit.Container == workerOf(pod) {
		k.mark(pod, invariants.Stop, ptr.To(exit.Code))
	}
	return k.status(ctx, pod, func(p *corev1.Pod) error {
		if exit.Container == "" {
			k.endAll(p, exit)
			return nil
		}
		for _, list := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
			for i := range list {
				if c := &list[i]; c.Name == exit.Container {
					c.State, c.Ready, c.Started = k.terminated(c.State, exit), false, ptr.To(false)
					return nil
				}
			}
		}
		return errors.New("it runs no container " + exit.Container)
	})
}

// endAll ends the pod. The code is the worker's; the others end well, as long as they have run at all.
func (k *Kubelet) endAll(p *corev1.Pod, exit Exit) {
	worker := workerOf(p)
	for _, list := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
		for i := range list {
			c := &list[i]
			if c.State.Running == nil {
				continue
			}
			own := Exit{At: exit.At}
			if c.Name == worker {
				own = exit
			}
			c.State, c.Ready, c.Started = k.terminated(c.State, own), false, ptr.To(false)
		}
	}
	p.Status.Phase = corev1.PodSucceeded
	for _, c := range p.Status.ContainerStatuses {
		if t := c.State.Terminated; t == nil || t.ExitCode != 0 {
			p.Status.Phase = corev1.PodFailed
		}
	}
	if exit.PodReason != "" {
		p.Status.Phase = corev1.PodFailed
		p.Status.Reason, p.Status.Message = exit.PodReason, exit.PodMessage
	}
	for _, kind := range []corev1.PodConditionType{corev1.ContainersReady, corev1.PodReady} {
		setPodCondition(p, kind, corev1.ConditionFalse, "PodCompleted", "")
	}
}

// remove ends what runs of a deleted pod and lets the object go.
func (k *Kubelet) remove(ctx context.Context, pod *corev1.Pod, exit Exit) error {
	if err := k.exit(ctx, pod, exit); err != nil {
		return err
	}
	return k.deleteNow(ctx, pod)
}

func (k *Kubelet) terminated(was corev1.ContainerState, exit Exit) corev1.ContainerState {
	finished := k.now()
	if !exit.At.IsZero() {
		finished = metav1.NewTime(exit.At)
	}
	reason := exit.Reason
	switch {
	case reason != "":
	case exit.Code == 0:
		reason = "Completed"
	default:
		reason = "Error"
	}
	ended := &corev1.ContainerStateTerminated{ExitCode: exit.Code, Reason: reason, Message: exit.Message, FinishedAt: finished}
	if was.Running != nil {
		ended.StartedAt = was.Running.StartedAt
	}
	return corev1.ContainerState{Terminated: ended}
}

func statuses(containers []corev1.Container, state func(corev1.Container) corev1.ContainerState) []corev1.ContainerStatus {
	var all []corev1.ContainerStatus
	for _, c := range containers {
		s := state(c)
		all = append(all, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, State: s, Ready: s.Running != nil, Started: ptr.To(s.Running != nil),
		})
	}
	return all
}

// workerOf is the worker container: the one that is told of which Task it is.
func workerOf(p *corev1.Pod) string {
	for _, c := range p.Spec.Containers {
		if slices.ContainsFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == v1alpha1.EnvTaskUID }) {
			return c.Name
		}
	}
	return p.Spec.Containers[0].Name
}

func setPodCondition(p *corev1.Pod, kind corev1.PodConditionType, status corev1.ConditionStatus, reason, message string) {
	c := corev1.PodCondition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.Now()}
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == kind {
			p.Status.Conditions[i] = c
			return
		}
	}
	p.Status.Conditions = append(p.Status.Conditions, c)
}
