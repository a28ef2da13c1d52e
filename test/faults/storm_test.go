package faults

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/invariants"
	"github.com/taskwarden/taskwarden/test/testenv"
)

// The environment variables of the random runs: the first seed, and how many runs there are. Each run has the next seed.
const (
	seedEnv = "SEED"
	runsEnv = "RUNS"
)

// form is how large a random run is.
type form struct {
	runs, tasks int
	// lasts is for how long faults happen; then all is well, and everything has to come to its end.
	lasts time.Duration
	// every is the mean time between two of them, other than errors of calls.
	every time.Duration
}

var (
	shortForm = form{runs: 1, tasks: 60, lasts: 40 * time.Second, every: time.Second}
	longForm  = form{runs: 4, tasks: 300, lasts: 5 * time.Minute, every: time.Second}
)

// TestStorm lets a population of Tasks of mixed kinds go through faults at random. Then every Task must have come to the end that
// its worker really had, by what the workers have written down themselves, and all invariants hold.
func TestStorm(t *testing.T) {
	t.Parallel()
	f, seed := shortForm, 1 // the same in each run of CI
	if long {
		f, seed = longForm, int(time.Now().UnixNano()%1e9)
	}
	runs, first := number(t, runsEnv, f.runs), number(t, seedEnv, seed)
	for seed := first; seed < first+runs; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			storm(t, f, uint64(seed))
		})
	}
}

// number is that in an environment variable.
func number(t *testing.T, env string, otherwise int) int {
	t.Helper()
	s := os.Getenv(env)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("%s: %v", env, err)
	}
	return n
}

// weather is one random run.
type weather struct {
	*testenv.Env
	t      *testing.T
	form   form
	seed   uint64
	random *rand.Rand // of the test's goroutine
	mouth  *mouth

	tasks   []*member
	stopped []func() // what ends the faults that last

	mu       sync.Mutex
	calls    map[string]int             // how often each call has been made
	taken    map[types.UID]map[int]bool // final reports that the gateway has taken, by attempt
	shaken   map[types.UID]map[int]bool // attempts whose worker, pod or Job was meddled with
	happened map[string]int
}

func storm(t *testing.T, f form, seed uint64) {
	t.Logf("to repeat it: %s=%d %s=1 make test-faults GOTESTFLAGS='-run TestStorm'", seedEnv, seed, runsEnv)
	w := &weather{
		Env: newEnv(t, testenv.WithBudget(invariants.Budget{Base: 100, PerAttempt: 40})), // each call may fail, and is tried again
		t:   t, form: f, seed: seed, random: rand.New(rand.NewPCG(seed, seed)),           //nolint:gosec // a seed that can be given again, no secret
		calls: map[string]int{}, taken: map[types.UID]map[int]bool{}, shaken: map[types.UID]map[int]bool{}, happened: map[string]int{},
	}
	w.Waive(6, "attempt-exit", "pods that have just ended are deleted, and with them what nobody has read; judge knows which")
	w.mouth = newMouth(t, w.Env)
	w.Kubelet.Auto(w.behave)
	w.StartController()
	w.Faults.On("* *", testenv.Fault{Before: w.before, After: w.after})
	w.play(append(w.people(), w.faults()...))
	w.calm()
	w.settle()
	w.judge()
	t.Logf("seed %d: %d Tasks, faults %v", seed, len(w.tasks), w.happened)
}

// at is something that happens at a moment of the run.
type at struct {
	when time.Duration
	do   func()
}

// play has everything happen in its time.
func (w *weather) play(plan []at) {
	w.t.Helper()
	slices.SortStableFunc(plan, func(a, b at) int { return int(a.when - b.when) })
	begin := time.Now()
	for _, one := range plan {
		pause(w.t, time.Until(begin.Add(one.when)))
		one.do()
	}
	pause(w.t, time.Until(begin.Add(w.form.lasts)))
}

// moment is one between the given parts of the run.
func (w *weather) moment(from, to float64) time.Duration {
	return time.Duration((from + (to-from)*w.random.Float64()) * float64(w.form.lasts))
}

// short is a time of up to so many milliseconds.
func (w *weather) short(ms int) time.Duration {
	return time.Duration(w.random.IntN(ms)) * time.Millisecond
}

// note writes down that a fault happens.
func (w *weather) note(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.happened[what]++
}

// chance is a number from 0 to 999 that depends on the seed and what it is for alone.
func (w *weather) chance(what string) int {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, w.seed, what)                         // never fails
	return rand.New(rand.NewPCG(h.Sum64(), w.seed)).IntN(1000) //nolint:gosec // no secret
}

// nth counts a call. What happens to it depends on the seed, the call and this number, not on what else goes on.
func (w *weather) nth(c testenv.Call, what string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	name := what + c.String()
	w.calls[name]++
	return fmt.Sprint(name, w.calls[name])
}

// before has one call in twenty fail, and one watch in five resume where nothing is known any more.
func (w *weather) before(_ context.Context, c testenv.Call) error {
	switch n := w.chance(w.nth(c, "")); {
	case c.Verb == "watch" && n < 200:
		w.note("410")
		return apierrors.NewResourceExpired("injected")
	case n < 50:
		one := failures[n%len(failures)]
		if one.stored || apierrors.IsConflict(one.err) && !c.Writes() {
			return nil
		}
		w.note(one.name)
		return one.err
	}
	return nil
}

// after loses the answer to one call in fifty.
func (w *weather) after(_ context.Context, c testenv.Call, _ int) error {
	if n := w.chance(w.nth(c, "answer to ")); n < 20 {
		one := failures[len(failures)-1-n%2]
		w.note(one.name)
		return one.err
	}
	return nil
}

// faults are those of the run, other than errors of calls.
func (w *weather) faults() []at {
	kinds := []func(){
		w.killController, w.killController, w.rival, w.silence, w.silence, w.cutWatches,
		w.deletePod, w.vanish, w.evict, w.deleteJob, w.partition,
	}
	var plan []at
	for when := time.Second; when < w.form.lasts; when += w.form.every/2 + time.Duration(w.random.Int64N(int64(w.form.every))) {
		plan = append(plan, at{when, kinds[w.random.IntN(len(kinds))]})
	}
	return plan
}

func (w *weather) killController() {
	w.note("operator killed")
	w.KillController()
	pause(w.t, w.short(3000))
	w.thaw() // or it would wait for its caches
	w.StartController()
}

// rival starts a second operator, or kills it.
func (w *weather) rival() {
	w.note("second operator")
	w.KillRival()
	if w.random.IntN(3) > 0 {
		w.thaw()
		w.StartRival()
	}
}

// thaw ends what lasts.
func (w *weather) thaw() {
	for _, stop := range w.stopped {
		stop()
	}
	w.stopped = nil
}

// silence keeps the news of some resources from the operator, until the next fault of this kind or its restart.
func (w *weather) silence() {
	w.note("silent watches")
	w.thaw()
	for _, resource := range []string{"tasks", "jobs", "pods", "events"} {
		if w.random.IntN(2) == 0 {
			w.stopped = append(w.stopped, w.Faults.FreezeWatch(resource))
		}
	}
}

func (w *weather) cutWatches() {
	w.note("watches cut")
	for _, resource := range []string{"tasks", "jobs", "pods", "events"} {
		w.Faults.CutWatch(resource)
	}
}

// partition cuts a node off for a while, or brings it back: shorter than a lost worker is waited for.
func (w *weather) partition() {
	w.note("node cut off")
	heal := w.Kubelet.Partition(nodeName(w.random.IntN(nodes)))
	back := time.AfterFunc(2*time.Second+w.short(10000), heal)
	w.t.Cleanup(func() { back.Stop(); heal() })
}

// victim is a pod that runs, of a worker whose loss can be waited for.
func (w *weather) victim() *corev1.Pod {
	var pods corev1.PodList
	if err := w.Client.List(w.t.Context(), &pods, client.InNamespace(w.Namespace)); err != nil {
		w.t.Fatal(err)
	}
	running := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
		return p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil || len(p.Spec.InitContainers) > 0
	})
	if len(running) == 0 {
		return nil
	}
	p := &running[w.random.IntN(len(running))]
	w.mark(w.shaken, p)
	return p
}

// mark notes an attempt.
func (w *weather) mark(where map[types.UID]map[int]bool, pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	uid := types.UID(pod.Labels[v1alpha1.LabelTaskUID])
	if where[uid] == nil {
		where[uid] = map[int]bool{}
	}
	where[uid][attemptOf(pod)] = true
}

func (w *weather) delete(what string, object client.Object, options ...client.DeleteOption) {
	w.note(what)
	if err := w.Client.Delete(w.t.Context(), object, options...); client.IgnoreNotFound(err) != nil {
		w.t.Errorf("%s: %v", what, err)
	}
}

func (w *weather) deletePod() {
	if p := w.victim(); p != nil {
		w.delete("pod deleted", p)
	}
}

// vanish deletes a pod by force.
func (w *weather) vanish() {
	if p := w.victim(); p != nil {
		w.delete("pod deleted by force", p, client.GracePeriodSeconds(0))
	}
}

// evict deletes a pod as an eviction does.
func (w *weather) evict() {
	p := w.victim()
	if p == nil {
		return
	}
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", LastTransitionTime: metav1.Now(),
	})
	if err := w.Client.Status().Update(w.t.Context(), p); err != nil {
		return // it has changed: no eviction this time
	}
	w.delete("pod evicted", p)
}

func (w *weather) deleteJob() {
	p := w.victim()
	if p == nil || metav1.GetControllerOf(p) == nil {
		return
	}
	job := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: metav1.GetControllerOf(p).Name}}
	job.SetGroupVersionKind(jobKind)
	how := []metav1.DeletionPropagation{
		metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan,
	}[w.random.IntN(3)]
	w.delete("Job deleted, "+string(how), job, client.PropagationPolicy(how))
}

// calm ends all faults.
func (w *weather) calm() {
	w.thaw()
	w.cutWatches()
	w.KillRival()
	w.Faults.Clear()
	if !w.Running() {
		w.StartController()
	}
}

// settle waits until each Task has come to its end.
func (w *weather) settle() {
	w.t.Helper()
	begin := time.Now()
	testenv.EventuallyWithin(w.t, 4*time.Minute, func(ctx context.Context) error {
		var live v1alpha1.TaskList
		if err := w.Client.List(ctx, &live, client.InNamespace(w.Namespace)); err != nil {
			return err
		}
		byName := map[string]*v1alpha1.Task{}
		for i := range live.Items {
			byName[live.Items[i].Name] = &live.Items[i]
		}
		var open []error
		for _, m := range w.tasks {
			if err := w.over(m, byName[m.task.Name]); err != nil {
				open = append(open, fmt.Errorf("Task %s: %w", m.task.Name, err))
			}
		}
		return errors.Join(open...)
	})
	w.t.Logf("all Tasks have ended %s after the storm", time.Since(begin).Round(time.Second))
	w.removeOrphans()
}

// removeOrphans removes the pods that somebody has orphaned: they are theirs to remove.
func (w *weather) removeOrphans() {
	var pods corev1.PodList
	if err := w.Client.List(w.t.Context(), &pods, client.InNamespace(w.Namespace)); err != nil {
		w.t.Fatal(err)
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; metav1.GetControllerOf(p) == nil && p.Status.Phase != corev1.PodRunning {
			w.delete("orphan removed", p, client.GracePeriodSeconds(0), client.Preconditions{UID: ptr.To(p.UID)})
		}
	}
}
