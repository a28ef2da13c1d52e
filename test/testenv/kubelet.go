package testenv

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/invariants"
)

// NodeName is the node to which pods are bound by default. There is no Node object of that name unless CreateNode makes it.
const NodeName = "node-1"

// Exit codes of a process that a signal ended.
const (
	ExitSIGKILL = 137
	ExitSIGTERM = 143
)

// Kubelet plays the scheduler and the nodes: its methods write what those would, and write down as the worker's own truth
// when a worker begins and ends. Its methods fail the test on errors; see Auto for pods that play themselves.
type Kubelet struct {
	env *Env

	mu   sync.Mutex
	live map[types.UID]bool       // pods whose worker runs
	cut  map[string]chan struct{} // nodes that are out of reach; closed when they are back
}

func newKubelet(e *Env) *Kubelet {
	return &Kubelet{env: e, live: map[types.UID]bool{}, cut: map[string]chan struct{}{}}
}

// Partition cuts a node off until the result is called: its workers go on, nobody hears of them, and they hear of nothing. The
// pods that play themselves know of it, and so do all writes about pods that are bound to the node.
func (k *Kubelet) Partition(node string) (heal func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	back := make(chan struct{})
	k.cut[node] = back
	return sync.OnceFunc(func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.cut[node] == back { // else it was cut off again
			delete(k.cut, node)
		}
		close(back)
	})
}

// cutOff is nil where a node can be reached, else it is closed when that is so again.
func (k *Kubelet) cutOff(node string) <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if back := k.cut[node]; back != nil {
		return back
	}
	return nil
}

// reach waits until a node can be reached.
func (k *Kubelet) reach(ctx context.Context, node string) error {
	for back := k.cutOff(node); back != nil; back = k.cutOff(node) {
		select {
		case <-back:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// WaitPod waits for the pod of an attempt.
func (k *Kubelet) WaitPod(task *v1alpha1.Task, attempt int) *corev1.Pod {
	k.env.t.Helper()
	var pod corev1.Pod
	Eventually(k.env.t, func(ctx context.Context) error {
		var pods corev1.PodList
		if err := k.env.Client.List(ctx, &pods, client.InNamespace(k.env.Namespace)); err != nil {
			return err
		}
		i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool {
			return p.Labels[v1alpha1.LabelTaskUID] == string(task.UID) && attemptOf(&p) == attempt
		})
		if i < 0 {
			return fmt.Errorf("no pod for attempt %d of Task %s", attempt, task.Name)
		}
		pod = pods.Items[i]
		return nil
	})
	return &pod
}

// Get reads a pod live.
func (k *Kubelet) Get(pod *corev1.Pod) *corev1.Pod {
	k.env.t.Helper()
	live := &corev1.Pod{}
	if err := k.env.Client.Get(k.env.t.Context(), client.ObjectKeyFromObject(pod), live); err != nil {
		k.env.t.Fatalf("get pod %s: %v", pod.Name, err)
	}
	return live
}

// Schedule binds a pod to a node, as the scheduler does.
func (k *Kubelet) Schedule(pod *corev1.Pod, node string) *corev1.Pod {
	k.env.t.Helper()
	k.must("schedule", pod, k.schedule(k.env.t.Context(), pod, node))
	return k.Get(pod)
}

// Run binds a pod to NodeName, where it is not bound yet, and starts its containers.
func (k *Kubelet) Run(pod *corev1.Pod) *corev1.Pod {
	k.env.t.Helper()
	if k.Get(pod).Spec.NodeName == "" {
		k.Schedule(pod, NodeName)
	}
	k.must("run", pod, k.run(k.env.t.Context(), pod))
	return k.Get(pod)
}

// Exit is how a container ends.
type Exit struct {
	Code int32
	// Message is the termination message.
	Message string
	// Reason of the container. Default: Completed or Error, by the code.
	Reason string
	// At is when. Default: now, by the test's clock.
	At time.Time
	// Container alone ends. Default: all of them end, and so does the pod; the others end with code 0.
	Container string
	// PodReason and PodMessage are set on the pod, as the kubelet does when it ends a pod: DeadlineExceeded, Evicted.
	PodReason, PodMessage string
}

// Exit ends the containers of a running pod.
func (k *Kubelet) Exit(pod *corev1.Pod, exit Exit) *corev1.Pod {
	k.env.t.Helper()
	k.must("end", pod, k.exit(k.env.t.Context(), pod, exit))
	return k.Get(pod)
}

// Flash runs and ends a pod in one write: a worker so fast that nobody sees it run.
func (k *Kubelet) Flash(pod *corev1.Pod, exit Exit) *corev1.Pod {
	k.env.t.Helper()
	if k.Get(pod).Spec.NodeName == "" {
		k.Schedule(pod, NodeName)
	}
	k.must("flash", pod, k.flash(k.env.t.Context(), pod, exit))
	return k.Get(pod)
}

// OOM ends a pod as the kernel does when its memory is used up.
func (k *Kubelet) OOM(pod *corev1.Pod) *corev1.Pod {
	k.env.t.Helper()
	return k.Exit(pod, Exit{Code: ExitSIGKILL, Reason: "OOMKilled"})
}

// Waiting keeps the containers of a bound pod from starting: ImagePullBackOff, CreateContainerConfigError and the like.
func (k *Kubelet) Waiting(pod *corev1.Pod, reason, message string) *corev1.Pod {
	k.env.t.Helper()
	if k.Get(pod).Spec.NodeName == "" {
		k.Schedule(pod, NodeName)
	}
	k.must("keep waiting", pod, k.waiting(k.env.t.Context(), pod, reason, message))
	return k.Get(pod)
}

// Unschedulable says of a pod what the scheduler says when it finds no node.
func (k *Kubelet) Unschedulable(pod *corev1.Pod, message string) *corev1.Pod {
	k.env.t.Helper()
	k.must("mark unschedulable", pod, k.unschedulable(k.env.t.Context(), pod, message))
	return k.Get(pod)
}

// Disrupt marks a pod as about to be ended for reasons that are not its own. EvictionByEvictionAPI, PreemptionByScheduler,
// DeletionByTaintManager and TerminationByKubelet are the usual reasons. The end itself is for the test to play.
func (k *Kubelet) Disrupt(pod *corev1.Pod, reason string) *corev1.Pod {
	k.env.t.Helper()
	k.must("disrupt", pod, k.status(k.env.t.Context(), pod, func(p *corev1.Pod) error {
		setPodCondition(p, corev1.DisruptionTarget, corev1.ConditionTrue, reason, "the test disrupts this pod")
		return nil
	}))
	return k.Get(pod)
}

// Unreachable says of a pod what the control plane says when its node is not heard of. Its worker goes on.
func (k *Kubelet) Unreachable(pod *corev1.Pod) *corev1.Pod {
	k.env.t.Helper()
	k.must("lose", pod, k.status(k.env.t.Context(), pod, func(p *corev1.Pod) error {
		setPodCondition(p, corev1.PodReady, corev1.ConditionFalse, "NodeLost", "Node is unresponsive")
		p.Status.Reason = "NodeLost"
		return nil
	}))
	return k.Get(pod)
}

// Remove ends a pod that is being deleted, as its kubelet does: its worker ends by SIGTERM, then the object goes.
func (k *Kubelet) Remove(pod *corev1.Pod) {
	k.env.t.Helper()
	k.must("remove", pod, k.remove(k.env.t.Context(), pod, Exit{Code: ExitSIGTERM}))
}

// Vanish deletes a pod by force, while nobody has seen its worker end.
func (k *Kubelet) Vanish(pod *corev1.Pod) {
	k.env.t.Helper()
	k.mark(pod, invariants.Stop, nil) // a kubelet that finds a pod gone kills what is left of it
	k.must("delete", pod, k.deleteNow(k.env.t.Context(), pod))
}

// CreateNode makes a Node object, which goes with the test.
func (k *Kubelet) CreateNode(name string) *corev1.Node {
	k.env.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := k.env.Client.Create(k.env.t.Context(), node); err != nil {
		k.env.t.Fatalf("create node %s: %v", name, err)
	}
	k.env.t.Cleanup(func() {
		if err := k.env.Client.Delete(context.WithoutCancel(k.env.t.Context()), node); client.IgnoreNotFound(err) != nil {
			k.env.t.Errorf("delete node %s: %v", name, err)
		}
	})
	return node
}

func (k *Kubelet) must(what string, pod *corev1.Pod, err error) {
	k.env.t.Helper()
	if err != nil {
		k.env.t.Fatalf("%s pod %s: %v", what, pod.Name, err)
	}
}

// mark writes down that the worker of a pod begins or ends; once each.
func (k *Kubelet) mark(pod *corev1.Pod, event string, exit *int32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.live[pod.UID] == (event == invariants.Start) {
		return
	}
	k.live[pod.UID] = event == invariants.Start
	k.env.Marks.Add(invariants.Mark{
		Task: pod.Labels[v1alpha1.LabelTaskUID], Attempt: int32(attemptOf(pod)), Host: pod.Name, Run: string(pod.UID),
		Event: event, Time: time.Now(), Exit: exit, // the worker's own clock, whatever the test does to the operator's
	})
}

// status changes the status of a pod as it is stored now.
func (k *Kubelet) status(ctx context.Context, pod *corev1.Pod, change func(*corev1.Pod) error) error {
	for {
		live := &corev1.Pod{}
		if err := k.env.Client.Get(ctx, client.ObjectKeyFromObject(pod), live); err != nil {
			if k.unanswered(ctx, err) {
				continue
			}
			return err
		}
		if live.UID != pod.UID {
			return apierrors.NewNotFound(corev1.Resource("pods"), pod.Name)
		}
		if k.cutOff(live.Spec.NodeName) != nil {
			if err := k.reach(ctx, live.Spec.NodeName); err != nil {
				return err
			}
			continue
		}
		if err := change(live); err != nil {
			return err
		}
		err := k.env.Client.Status().Update(ctx, live)
		if !apierrors.IsConflict(err) && !k.unanswered(ctx, err) {
			return err
		}
	}
}

// unanswered tells of an error that it says nothing but that the control plane is down, and waits a little before it is asked again.
func (k *Kubelet) unanswered(ctx context.Context, err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonUnknown, metav1.StatusReasonInternalError, metav1.StatusReasonServiceUnavailable, metav1.StatusReasonTimeout:
	default:
		return false
	}
	if err == nil {
		return false
	}
	select {
	case <-time.After(pollEvery):
		return true
	case <-ctx.Done():
		return false
	}
}

func (k *Kubelet) deleteNow(ctx context.Context, pod *corev1.Pod) error {
	deletion := func() error {
		return k.env.Client.Delete(ctx, pod.DeepCopy(), client.GracePeriodSeconds(0), client.Preconditions{UID: ptr.To(pod.UID)})
	}
	err := deletion()
	for k.unanswered(ctx, err) {
		err = deletion()
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // gone, or another one has its name
	}
	return err
}
