package testenv

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/test/invariants"
)

// Behaviour is how a pod plays itself. The zero value runs at once and exits with 0 at once. All durations are by the
// test's clock.
type Behaviour struct {
	// Manual leaves the pod to the test.
	Manual bool
	// Node to which it is bound. Default NodeName.
	Node string
	// Unschedulable keeps it without a node, with the scheduler's text.
	Unschedulable string
	// Waiting and WaitingMessage keep its containers from starting: ImagePullBackOff, say.
	Waiting, WaitingMessage string
	// StartAfter is the time from its binding to running containers.
	StartAfter time.Duration
	// RunFor is how long the worker works before Exit. Negative: until it is stopped.
	RunFor time.Duration
	// LastWord is what the worker does right before Exit: it reports, say. Its context is the test's.
	LastWord func(context.Context, *corev1.Pod)
	// Exit is how it ends by itself.
	Exit Exit
	// StopAfter is how long it takes to react to SIGTERM, cut off by the pod's grace period with SIGKILL.
	StopAfter time.Duration
	// StopCode is the exit code after SIGTERM. Default 143; -1 stands for 0.
	StopCode int32
	// Deaf makes its node unreachable once it runs: it reports nothing more, and nothing stops it.
	Deaf bool
}

// UntilStopped works until it is told to end.
var UntilStopped = Behaviour{RunFor: -1}

// Auto has every pod of the namespace play itself, present ones and those to come. Like a kubelet it obeys the pod's own
// activeDeadlineSeconds, also when that is lowered while it runs, and deletion.
func (k *Kubelet) Auto(behave func(*corev1.Pod) Behaviour) {
	a := &auto{kubelet: k, behave: behave, actors: map[types.UID]*actor{}}
	k.env.background.Go(func() { a.watch(k.env.ctx) })
}

// AutoAll has every pod behave the same way.
func (k *Kubelet) AutoAll(b Behaviour) { k.Auto(func(*corev1.Pod) Behaviour { return b }) }

type auto struct {
	kubelet *Kubelet
	behave  func(*corev1.Pod) Behaviour
	actors  map[types.UID]*actor
	playing sync.WaitGroup
}

// watch hands each pod's news to its actor, and lists again whenever the watch ends.
func (a *auto) watch(ctx context.Context) {
	defer a.playing.Wait()
	for ctx.Err() == nil {
		if err := a.once(ctx); err != nil && ctx.Err() == nil {
			a.kubelet.env.log.logger().Info("The played kubelet watches again", "cause", err.Error())
			select {
			case <-ctx.Done():
			case <-time.After(pollEvery):
			}
		}
	}
}

func (a *auto) once(ctx context.Context) error {
	c, ns := a.kubelet.env.Client, client.InNamespace(a.kubelet.env.Namespace)
	var pods corev1.PodList
	if err := c.List(ctx, &pods, ns); err != nil {
		return err
	}
	there := map[types.UID]bool{}
	for i := range pods.Items {
		there[pods.Items[i].UID] = true
		a.tell(ctx, &pods.Items[i], false)
	}
	for uid, one := range a.actors {
		if !there[uid] {
			one.gone()
		}
	}
	w, err := c.Watch(ctx, &corev1.PodList{}, ns, fromVersion(pods.ResourceVersion))
	if err != nil {
		return err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		if !ok {
			return apierrors.FromObject(event.Object)
		}
		a.tell(ctx, pod, event.Type == watch.Deleted)
	}
	return nil
}

func (a *auto) tell(ctx context.Context, pod *corev1.Pod, deleted bool) {
	one := a.actors[pod.UID]
	if one == nil {
		if deleted || ended(pod) {
			return
		}
		one = newActor(a.kubelet, pod)
		a.actors[pod.UID] = one
		behaviour := a.behave(pod.DeepCopy())
		a.playing.Go(func() { one.play(ctx, behaviour) })
	}
	if deleted {
		one.gone()
		return
	}
	one.news(pod)
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

type fromVersion string

// ApplyToList begins a watch where a list ended.
func (v fromVersion) ApplyToList(o *client.ListOptions) {
	if o.Raw == nil {
		o.Raw = &metav1.ListOptions{}
	}
	o.Raw.ResourceVersion = string(v)
}

// actor plays one pod.
type actor struct {
	kubelet *Kubelet
	pod     *corev1.Pod   // as it was first seen
	bindTo  string        // the node that it is given, "" for the default
	changed chan struct{} // holds one token when there is news
	mu      sync.Mutex
	latest  *corev1.Pod
	removed chan struct{}
	gone    func()
}

func newActor(k *Kubelet, pod *corev1.Pod) *actor {
	a := &actor{kubelet: k, pod: pod, latest: pod, changed: make(chan struct{}, 1), removed: make(chan struct{})}
	a.gone = sync.OnceFunc(func() { close(a.removed) })
	return a
}

// node is where the pod is, or goes.
func (a *actor) node() string { return cmp.Or(a.pod.Spec.NodeName, a.bindTo, NodeName) }

func (a *actor) news(pod *corev1.Pod) {
	a.mu.Lock()
	a.latest = pod
	a.mu.Unlock()
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

func (a *actor) now() *corev1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.latest
}

// The ways in which a wait of an actor ends.
type wake int

const (
	elapsed  wake = iota
	deleted       // the pod is to go, with its grace
	deadline      // the pod's own activeDeadlineSeconds is over
	vanished      // the object is no longer there, or the test is over
)

// wait waits for a time, for ever where it is negative, or until something ends the pod.
func (a *actor) wait(ctx context.Context, d time.Duration) wake {
	clk := a.kubelet.env.Clock
	until := clk.Now().Add(d)
	for {
		cut := a.kubelet.cutOff(a.node())
		next, why := a.next(d, until, cut != nil)
		if next <= 0 {
			return why
		}
		timer := clk.NewTimer(next)
		select {
		case <-timer.C():
		case <-a.changed:
		case <-cut:
		case <-a.removed:
			timer.Stop()
			return vanished
		case <-ctx.Done():
			timer.Stop()
			return vanished
		}
		timer.Stop()
	}
}

// next is how long to wait, and why no longer. On a node that is cut off only the work itself ends.
func (a *actor) next(d time.Duration, until time.Time, cut bool) (time.Duration, wake) {
	pod, left := a.now(), until.Sub(a.kubelet.env.Clock.Now())
	if d < 0 {
		left = time.Hour
	}
	if cut {
		return left, elapsed
	}
	if pod.DeletionTimestamp != nil {
		return 0, deleted
	}
	if end, ok := a.deadlineIn(pod); ok && (d < 0 || end <= left) {
		return end, deadline
	}
	return left, elapsed
}

// deadlineIn is how long the pod's own deadline leaves. One that was lowered is over at once: the real one-second wait
// would need the test's clock to move.
func (a *actor) deadlineIn(pod *corev1.Pod) (time.Duration, bool) {
	limit, first := pod.Spec.ActiveDeadlineSeconds, a.pod.Spec.ActiveDeadlineSeconds
	switch {
	case limit == nil || pod.Spec.NodeName == "":
		return 0, false
	case first == nil || *limit < *first:
		return 0, true
	case pod.Status.StartTime == nil:
		return 0, false
	}
	end := pod.Status.StartTime.Add(time.Duration(*limit) * time.Second)
	return end.Sub(a.kubelet.env.Clock.Now()), true
}

func (a *actor) play(ctx context.Context, b Behaviour) {
	if b.Manual {
		return
	}
	if err := a.act(ctx, b); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil && !errors.Is(err, context.Canceled) {
		a.kubelet.env.t.Errorf("the played kubelet, pod %s: %v", a.pod.Name, err)
	}
}

func (a *actor) act(ctx context.Context, b Behaviour) error {
	k, pod := a.kubelet, a.pod
	if b.Unschedulable != "" {
		if err := k.unschedulable(ctx, pod, b.Unschedulable); err != nil {
			return err
		}
		return a.endBeforeStart(ctx, a.wait(ctx, -1))
	}
	if pod.Spec.NodeName == "" {
		a.bindTo = b.Node
		switch err := k.schedule(ctx, pod, a.node()); {
		case apierrors.IsConflict(err): // it is being deleted, as its news will say
			return a.endBeforeStart(ctx, a.wait(ctx, -1))
		case err != nil:
			return err
		}
	}
	if err := k.reach(ctx, a.node()); err != nil {
		return err
	}
	startAfter := b.StartAfter
	if b.Waiting != "" {
		startAfter = -1
		if err := k.waiting(ctx, pod, b.Waiting, b.WaitingMessage); err != nil {
			return err
		}
	}
	if why := a.wait(ctx, startAfter); why != elapsed {
		return a.endBeforeStart(ctx, why)
	}
	if err := k.run(ctx, pod); err != nil {
		return err
	}
	if b.Deaf {
		return nil
	}
	if why := a.wait(ctx, b.RunFor); why != elapsed {
		return a.stop(ctx, b, why)
	}
	if b.LastWord != nil {
		b.LastWord(ctx, pod)
	}
	return k.exit(ctx, pod, b.Exit)
}

// endBeforeStart ends a pod whose containers never ran.
func (a *actor) endBeforeStart(ctx context.Context, why wake) error {
	k := a.kubelet
	switch why {
	case deleted:
		return k.deleteNow(ctx, a.pod)
	case deadline:
		return k.status(ctx, a.pod, func(p *corev1.Pod) error {
			k.endAll(p, deadlineExit(Exit{}))
			return nil
		})
	case elapsed, vanished: // nothing is left to end
	}
	return nil
}

// stop is SIGTERM and what follows it.
func (a *actor) stop(ctx context.Context, b Behaviour, why wake) error {
	k := a.kubelet
	if why == vanished {
		if ctx.Err() == nil { // deleted by force: the kubelet kills what is left
			k.mark(a.pod, invariants.Stop, ptr.To[int32](ExitSIGKILL))
		}
		return nil
	}
	exit := Exit{Code: ExitSIGTERM, Message: b.Exit.Message}
	switch {
	case b.StopCode > 0:
		exit.Code = b.StopCode
	case b.StopCode < 0:
		exit.Code = 0
	}
	takes := b.StopAfter
	grace := time.Duration(ptr.Deref(a.now().Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)) * time.Second
	if takes > grace {
		takes, exit.Code = grace, ExitSIGKILL
	}
	select { // nothing shortens the grace but the end of the object
	case <-a.after(takes):
	case <-a.removed:
		k.mark(a.pod, invariants.Stop, ptr.To[int32](ExitSIGKILL))
		return nil
	case <-ctx.Done():
		return nil
	}
	if why == deleted || a.now().DeletionTimestamp != nil {
		return k.remove(ctx, a.pod, exit)
	}
	return k.exit(ctx, a.pod, deadlineExit(exit))
}

// after is the clock's After, at once where there is nothing to wait for: a fake clock needs a step even for that.
func (a *actor) after(d time.Duration) <-chan time.Time {
	if d > 0 {
		return a.kubelet.env.Clock.After(d)
	}
	over := make(chan time.Time)
	close(over)
	return over
}

func deadlineExit(e Exit) Exit {
	e.PodReason = "DeadlineExceeded"
	e.PodMessage = "Pod was active on the node longer than the specified deadline"
	return e
}
