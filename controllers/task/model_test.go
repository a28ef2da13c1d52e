package task

import (
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// shape is a Task, and what may happen to it.
type shape struct {
	changes []change
	// wishes are what the user may do, and how often.
	wishes  []action
	wishing int
	// exits are the codes with which its worker ends by itself; the first one where nothing is disturbed. Without any it hangs.
	exits []int32
	// words are the final reports that it may make; the first one where nothing is disturbed.
	words []v1alpha1.ReportOutcome
	// disturbances beside those of passes, and how many of all there may be; long is for the long form.
	faults             []action
	disturbances, long int
	// atLeast is how many states there must be, so that the search cannot become trivial unnoticed.
	atLeast int
}

// action is one thing that may happen. It tells whether there was anything to do.
type action struct {
	name string
	do   func(*cluster) bool
}

func wish(name string, change func(*v1alpha1.Task)) action {
	return action{name, func(c *cluster) bool {
		if c.task == nil {
			return false
		}
		before := c.task.Spec
		c.changeSpec(change)
		return !ptr.Equal(before.Cancel, c.task.Spec.Cancel) || !ptr.Equal(before.Suspend, c.task.Spec.Suspend)
	}}
}

var (
	userCancels  = wish("the user cancels", cancel)
	userSuspends = wish("the user suspends", suspend)
	userResumes  = wish("the user resumes", func(t *v1alpha1.Task) { t.Spec.Suspend = nil })
	userRetries  = action{"the user retries", func(c *cluster) bool {
		if c.task == nil || c.task.Status.State != failedState {
			return false
		}
		c.changeTask(func(t *v1alpha1.Task) {
			t.Annotations = map[string]string{v1alpha1.AnnotationRetryRequestedAt: fmt.Sprint(c.wished)}
		})
		return true
	}}
	userDeletes = action{"the user deletes the Task", func(c *cluster) bool {
		gone := c.task != nil
		c.task = nil
		return gone
	}}
)

// upkeep is what the cluster does by itself, in the order in which it does so where nothing is disturbed.
var upkeep = []action{
	{"the garbage collector deletes", (*cluster).collect},
	{"a deleted pod goes", (*cluster).reap},
	{"the Job controller counts a pod", (*cluster).finishJob},
	{"the kubelet ends a worker that has no pod", (*cluster).kill},
	{"the worker obeys", func(c *cluster) bool { return c.obey(143) }},
	{"the sidecar delivers", (*cluster).send},
	{"the sidecar ends", (*cluster).silence},
	{"the Job controller makes a pod", (*cluster).createPod},
	{"the scheduler binds", (*cluster).bind},
	{"the kubelet runs a pod", (*cluster).run},
}

var obeysWell = action{"the worker obeys and exits with 0", func(c *cluster) bool { return c.obey(0) }}

// The disturbances from outside.
var (
	jobDeleted = action{"somebody deletes the Job", func(c *cluster) bool {
		if len(c.jobs) == 0 {
			return false
		}
		c.deleteJob(c.jobs[len(c.jobs)-1], metav1.DeletePropagationBackground)
		return true
	}}
	podDeleted = onPod("somebody deletes the pod", (*cluster).deletePod)
	// A pod that is taken away from a node that is cut off before the Task has its name leaves no trace: nobody can wait for it.
	podErased = action{"somebody takes the pod away", func(c *cluster) bool {
		if len(c.pods) == 0 {
			return false
		}
		pod := c.pods[len(c.pods)-1]
		if t := c.task; c.node.down && (t == nil || t.Status.Worker == nil || t.Status.Worker.PodUID != pod.UID) {
			return false
		}
		c.erase(pod)
		return true
	}}
	podEvicted = onPod("the pod is evicted", func(c *cluster, pod *corev1.Pod) {
		pod = c.changePod(pod, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(c.now),
			}}
		})
		c.deletePod(pod)
	})
	nodeLost = action{"the node is cut off", (*cluster).nodeDown}
	noTasks  = hold("Tasks", watchTasks)
	noJobs   = hold("Jobs", watchJobs)
	noPods   = hold("pods", watchPods)
	slowness = action{"the cluster becomes slow", func(c *cluster) bool {
		was := c.slow
		c.slow = true
		return !was
	}}
	outside    = []action{slowness, jobDeleted, podDeleted, podErased, podEvicted, nodeLost}
	watches    = []action{noTasks, noJobs, noPods}
	everything = slices.Concat(outside, watches)
)

func onPod(name string, do func(*cluster, *corev1.Pod)) action {
	return action{name, func(c *cluster) bool {
		if len(c.pods) == 0 || c.pods[len(c.pods)-1].DeletionTimestamp != nil {
			return false
		}
		do(c, c.pods[len(c.pods)-1])
		return true
	}}
}

func hold(name string, watch int) action {
	return action{"the watch of " + name + " falls silent", func(c *cluster) bool {
		was := c.held[watch]
		c.held[watch] = true
		return !was
	}}
}

// heal are the ends of disturbances.
var heal = []action{
	{"the cluster is swift again", func(c *cluster) bool {
		was := c.slow
		c.slow = false
		return was
	}},
	{"the watches go on", func(c *cluster) bool {
		was := c.held != [3]bool{}
		c.held = [3]bool{}
		return was
	}},
	{"the node is back", (*cluster).nodeUp},
}

// search is one exhaustive search.
type search struct {
	*shape
	t       *testing.T
	budget  int // of disturbances
	most    int // states to visit
	visited map[[16]byte]bool
	calm    map[[16]byte]bool // from here the Task comes to its end
	steps   []step            // how each state was first reached
	open    []reached
	passes  int
}

type step struct {
	before int
	name   string
}

type reached struct {
	*cluster
	at int // its step
}

// A search visits the nearest states first, at most so many.
const (
	mostStates     = 6000
	mostStatesLong = 300_000
)

// longest is how many steps a Task may take to its end once nothing is disturbed any more.
const longest = 150

func newSearch(t *testing.T, what *shape) *search {
	return &search{
		shape: what, t: t, budget: what.disturbances, most: mostStates, visited: map[[16]byte]bool{}, calm: map[[16]byte]bool{},
		steps: []step{{before: -1, name: "the Task is created"}},
	}
}

// first is the state in which nobody has looked at the Task yet.
func (s *search) first() *cluster {
	c := &cluster{now: created, version: 1, node: node{ready: true, since: created}}
	c.task = fresh(append([]change{soon}, s.changes...)...).Task
	c.sidecar = hasSidecar(c.task)
	c.deliver()
	return c
}

// run visits every state that the shape can come to, the nearest ones first.
func (s *search) run() {
	s.reach(s.first(), 0)
	for len(s.open) > 0 && !s.t.Failed() {
		if len(s.visited) >= s.most {
			s.t.Logf("stopped at %d states, %d are open; the last one:\n%s", s.most, len(s.open), s.story(s.open[len(s.open)-1].at))
			return
		}
		r := s.open[0]
		s.open[0] = reached{}
		s.open = s.open[1:]
		s.expand(r)
	}
}

// reach checks a state, and keeps it for what may follow if it is new.
func (s *search) reach(c *cluster, at int) {
	if s.t.Failed() {
		return
	}
	if len(c.faults) > 0 {
		s.t.Errorf("%s\n%s", strings.Join(c.faults, "\n"), s.story(at))
		return
	}
	key := c.key(true)
	if s.visited[key] {
		return
	}
	s.visited[key] = true
	s.endsWell(c, at)
	if !s.over(c) {
		s.open = append(s.open, reached{c, at})
	}
}

// try lets one thing happen in a copy of a state, and tells whether there was anything to do.
func (s *search) try(r reached, name string, do func(*cluster) bool) bool {
	c := r.clone()
	if !do(c) {
		return false
	}
	c.deliver()
	c.check()
	s.steps = append(s.steps, step{r.at, name})
	s.reach(c, len(s.steps)-1)
	return true
}

// over tells that a Task has ended, and that nothing runs any more or will: what may follow is told by the way to its rest.
func (s *search) over(c *cluster) bool {
	return (c.task == nil || lifecycle.Terminal(c.task.Status.State) && c.wished == s.wishing) && c.shown.task == c.task &&
		len(c.served) == len(c.jobs) && !slices.ContainsFunc(c.processes, func(p process) bool { return p.live || c.sidecar && !p.mute })
}

// expand lets everything happen that may happen next.
func (s *search) expand(r reached) {
	around, busy := s.around(), false
	for i, a := range around {
		did := s.try(r, a.name, a.do)
		busy = busy || did && i < len(upkeep)
	}
	if r.wished < s.wishing {
		for _, a := range s.wishes {
			s.try(r, a.name, func(c *cluster) bool { c.wished++; return a.do(c) })
		}
	}
	for _, a := range heal {
		s.try(r, a.name, a.do)
	}
	switch {
	case r.due():
		s.passFrom(r)
	case !busy || r.slow:
		s.try(r, "time passes", (*cluster).elapse)
	}
	if r.disturbed < s.budget {
		s.disturb(r)
	}
}

// around is what cluster and worker may do.
func (s *search) around() []action {
	all := slices.Concat(upkeep, []action{obeysWell})
	for _, code := range s.exits {
		all = append(all, action{fmt.Sprintf("the worker exits with %d", code), func(c *cluster) bool { return c.work(code) }})
	}
	for _, word := range s.words {
		all = append(all, action{fmt.Sprintf("the worker says that it has %s", word), func(c *cluster) bool { return c.say(word) }})
	}
	return all
}

var fates = map[fate]string{conflict: "meets a conflict", broken: "fails", lost: "gets no answer", killed: "is its last"}

func (s *search) passFrom(r reached) {
	var calls *api
	s.passes++
	s.try(r, "a pass", func(c *cluster) bool { calls = c.pass(disturbance{}); return true })
	if r.disturbed == s.budget {
		return
	}
	disturbed := func(name string, d disturbance) {
		s.passes++
		s.try(r, name, func(c *cluster) bool { c.disturbed++; c.pass(d); return true })
	}
	for n := 1; n <= calls.reads; n++ {
		disturbed(fmt.Sprintf("a pass, its live read %d fails", n), disturbance{read: n})
	}
	for n := 1; n <= calls.writes; n++ {
		for f := conflict; f <= killed; f++ {
			disturbed(fmt.Sprintf("a pass, its write %d %s", n, fates[f]), disturbance{write: n, fate: f})
		}
		between := slices.Concat(s.around(), s.wishes, []action{{"another controller makes a pass", func(c *cluster) bool {
			other := *c
			other.restart()
			other.held, other.disturbed = [3]bool{}, s.budget
			other.deliver()
			other.pass(disturbance{})
			c.task, c.jobs, c.pods, c.processes = other.task, other.jobs, other.pods, other.processes
			c.version, c.made, c.faults = other.version, other.made, other.faults
			return true
		}}})
		for _, a := range between {
			happens := false
			c := r.clone()
			c.disturbed++
			c.pass(disturbance{write: n, fate: raced, race: func(c *cluster) { happens = a.do(c) }})
			s.passes++
			if happens {
				s.try(r, fmt.Sprintf("a pass, and before its write %d %s", n, a.name), func(next *cluster) bool { *next = *c; return true })
			}
		}
	}
}

func (s *search) disturb(r reached) {
	for _, a := range s.faults {
		s.try(r, a.name, func(c *cluster) bool { c.disturbed++; return a.do(c) })
	}
	s.try(r, "the controller is started again", func(c *cluster) bool { c.disturbed++; c.restart(); return true })
	if r.due() {
		s.try(r, "time passes while the controller is down", func(c *cluster) bool { c.disturbed++; return c.elapse() })
	}
}

// endsWell: once nothing is disturbed any more, the Task comes to its end, and nothing of it runs on.
func (s *search) endsWell(c *cluster, at int) {
	c = c.clone()
	var path [][16]byte
	var names []string
	for range longest {
		key := c.key(false)
		if s.calm[key] {
			break
		}
		path = append(path, key)
		name := s.next(c)
		if name == "" {
			s.atRest(c, at, names)
			break
		}
		names = append(names, name)
		c.deliver()
		c.check()
		if len(c.faults) > 0 {
			s.t.Errorf("%s\n%s%s", strings.Join(c.faults, "\n"), s.story(at), calmly(names))
			return
		}
	}
	if len(path) == longest {
		s.t.Errorf("no end within %d steps\n%s%s", longest, s.story(at), calmly(names))
	}
	for _, key := range path {
		s.calm[key] = true
	}
}

// next does what comes next where nothing is disturbed.
func (s *search) next(c *cluster) string {
	if c.task != nil && ptr.Deref(c.task.Spec.Suspend, false) && !lifecycle.Terminal(c.task.Status.State) {
		userResumes.do(c)
		return userResumes.name
	}
	for _, a := range heal {
		if a.do(c) {
			return a.name
		}
	}
	if c.due() {
		s.passes++
		c.pass(disturbance{})
		return "a pass"
	}
	for _, a := range upkeep {
		if a.do(c) {
			return a.name
		}
	}
	switch {
	case len(s.words) > 0 && c.say(s.words[0]):
		return "the worker says that it has " + string(s.words[0])
	case len(s.exits) > 0 && c.work(s.exits[0]):
		return fmt.Sprintf("the worker exits with %d", s.exits[0])
	case c.elapse():
		return "time passes"
	}
	return ""
}

// atRest asks what must hold where nothing happens any more.
func (s *search) atRest(c *cluster, at int, names []string) {
	wrong := ""
	switch {
	case slices.ContainsFunc(c.processes, func(p process) bool { return p.live }):
		wrong = "a worker runs on for ever"
	case c.task == nil && len(c.jobs)+len(c.pods) > 0:
		wrong = "a deleted Task leaves something"
	case c.task != nil && !lifecycle.Terminal(c.task.Status.State):
		wrong = fmt.Sprintf("nobody will move the Task, which is %s (%s)", c.task.Status.State, c.task.Status.Reason)
	}
	if wrong != "" {
		s.t.Errorf("%s\n%s%s", wrong, s.story(at), calmly(names))
	}
}

// story is how a state was reached.
func (s *search) story(at int) string {
	var lines []string
	for ; at >= 0; at = s.steps[at].before {
		lines = append(lines, "  "+s.steps[at].name)
	}
	slices.Reverse(lines)
	return strings.Join(lines, "\n")
}

func calmly(names []string) string {
	return "\n  from here on undisturbed:\n    " + strings.Join(names, "\n    ")
}

// farPast is a time so long ago that nothing counts from it any more.
const farPast = -100 * time.Second

// key is what of a state can matter for what follows. Times count from now.
func (c *cluster) key(budgets bool) [16]byte {
	var b strings.Builder
	since := func(t time.Time) {
		if t.IsZero() {
			b.WriteString("-,")
			return
		}
		fmt.Fprintf(&b, "%d,", int(max(t.Sub(c.now), farPast)/time.Second))
	}
	c.keyOfTask(&b, c.task, since)
	if c.shown.task != c.task {
		c.keyOfTask(&b, c.shown.task, since)
		fmt.Fprint(&b, c.ownWrite > versionOfTask(c.shown.task))
	}
	fmt.Fprint(&b, c.leads != "", c.witness, c.held, c.slow, c.queued, c.node.down, c.node.ready, len(c.faults), "|")
	since(c.wakeAt)
	since(c.node.since)
	if c.node.down {
		since(c.node.at)
	}
	keyOfJobs(&b, c.jobs, since)
	keyOfPods(&b, c.pods, since)
	if !slices.Equal(c.shown.jobs, c.jobs) {
		b.WriteString("jobs")
		keyOfJobs(&b, c.shown.jobs, since)
	}
	if !slices.Equal(c.shown.pods, c.pods) {
		b.WriteString("pods")
		keyOfPods(&b, c.shown.pods, since)
	}
	for i := range c.processes {
		p := &c.processes[i]
		fmt.Fprint(&b, p.pod, p.live, p.code, p.own, p.said, p.sent, p.mute, p.writtenOff, p.recorded, p.onRecord)
		since(p.stopAt)
		since(p.ended)
	}
	fmt.Fprint(&b, c.acked, c.served)
	if budgets {
		fmt.Fprint(&b, "|", c.disturbed, c.wished)
	}
	sum := sha256.Sum256([]byte(b.String()))
	return [16]byte(sum[:16])
}

func (c *cluster) keyOfTask(b *strings.Builder, t *v1alpha1.Task, since func(time.Time)) {
	if t == nil {
		b.WriteString("none;")
		return
	}
	s := &t.Status
	micro := func(t *metav1.MicroTime) {
		if t == nil {
			since(time.Time{})
			return
		}
		since(t.Time)
	}
	fmt.Fprint(b, ptr.Deref(t.Spec.Cancel, false), ptr.Deref(t.Spec.Suspend, false), t.Annotations, t.Generation == s.ObservedGeneration,
		s.State, s.Reason, s.Attempt, s.Charged, s.Uncharged, len(s.History) > 0, s.LastHandledRetry != nil && retryRequest(t) == s.LastHandledRetry.RequestedAt)
	fmt.Fprint(b, c.now.Sub(t.CreationTimestamp.Time) < newFor)
	if t.Spec.OverallDeadlineSeconds != nil {
		micro(s.RunStartTime)
	}
	micro(s.NextRetryTime)
	micro(s.CompletionTime)
	if w := s.Worker; w != nil {
		fmt.Fprint(b, w.JobUID, w.PodUID, w.NodeName)
		micro(w.CreateTime)
		micro(w.StartTime)
		micro(w.ExitSeenTime)
	}
	if s.Report != nil {
		fmt.Fprint(b, s.Report.Attempt, s.Report.PodUID, s.Report.Outcome)
	}
	for i := range s.Attempts {
		a := &s.Attempts[i]
		fmt.Fprint(b, a.Number, a.Outcome, a.Reason, ptr.Deref(a.ExitCode, -1), ptr.Deref(a.Reported, false), a.NodeName)
		micro(a.FinishTime)
	}
	for i := range s.Conditions {
		k := &s.Conditions[i]
		fmt.Fprint(b, k.Type, k.Status, k.Reason)
		if k.Type == v1alpha1.ConditionTerminating || k.Type == v1alpha1.ConditionWorkerStopped {
			since(k.LastTransitionTime.Time)
		}
	}
	b.WriteByte(';')
}

func keyOfJobs(b *strings.Builder, jobs []*batchv1.Job, since func(time.Time)) {
	for _, j := range jobs {
		f := factsOfJob(j)
		fmt.Fprint(b, f.UID, f.Deleting, f.Complete, f.Failed, f.Disrupted)
		since(f.CreateTime)
	}
	b.WriteByte(';')
}

func keyOfPods(b *strings.Builder, pods []*corev1.Pod, since func(time.Time)) {
	for _, p := range pods {
		f := factsOfPod(p, "")
		fmt.Fprint(b, f.UID, f.NodeName, f.Phase, f.Reason, f.Deleting, f.StopAsked, f.Disruption != nil, f.RunningSince.IsZero(), f.MayRun)
		since(f.StartTime)
		since(f.DeleteTime)
		if f.Exit != nil {
			fmt.Fprint(b, f.Exit.Code)
			since(f.Exit.FinishTime)
		}
		if f.Sidecar != nil {
			fmt.Fprint(b, *f.Sidecar)
		}
	}
	b.WriteByte(';')
}

func soon(t *v1alpha1.Task) {
	t.Spec.StartTimeoutSeconds = ptr.To[int32](60)
	t.Spec.FinishGraceSeconds = ptr.To[int32](20)
	t.Spec.WorkerLostTimeoutSeconds = ptr.To[int32](60)
	t.Spec.WorkerRetentionSeconds = ptr.To[int32](30)
}

// shapes are the Tasks of the model.
var shapes = map[string]*shape{
	"success": {changes: []change{limit(0)}, exits: []int32{0, 1}, faults: everything, disturbances: 1, long: 2, atLeast: 2000},
	"retry":   {changes: []change{limit(1)}, exits: []int32{1, 0}, faults: everything, disturbances: 1, long: 2, atLeast: 2000},
	"timeout": {changes: []change{limit(0), active(50)}, exits: []int32{}, faults: everything, disturbances: 1, long: 2, atLeast: 2000},
	"edge of the deadline": {
		changes: []change{limit(1), active(50)}, exits: []int32{0}, faults: watches, disturbances: 1, long: 2, atLeast: 2000,
	},
	"overall": {changes: []change{limit(1), active(50), overall(100)}, exits: []int32{1, 0}, faults: everything, disturbances: 1, long: 2, atLeast: 2000},
	"cancel": {
		changes: []change{limit(1)}, exits: []int32{1, 0}, faults: everything, wishes: []action{userCancels}, wishing: 1,
		disturbances: 1, long: 2, atLeast: 2000,
	},
	"suspend": {
		changes: []change{limit(0)}, exits: []int32{0, 1}, faults: everything, wishes: []action{userSuspends, userResumes}, wishing: 1,
		disturbances: 1, long: 2, atLeast: 2000,
	},
	"by hand": {
		changes: []change{limit(0)}, exits: []int32{1, 0}, faults: everything, wishes: []action{userRetries, userCancels}, wishing: 1,
		disturbances: 1, long: 2, atLeast: 2000,
	},
	"deleted": {
		changes: []change{limit(1)}, exits: []int32{1, 0}, faults: everything, wishes: []action{userDeletes}, wishing: 1,
		disturbances: 1, long: 2, atLeast: 2000,
	},
	"report": {
		changes: []change{limit(1), withSidecar}, exits: []int32{0, 1}, faults: everything,
		words:        []v1alpha1.ReportOutcome{v1alpha1.ReportSucceeded, v1alpha1.ReportFailed},
		disturbances: 1, long: 2, atLeast: 2000,
	},
	"lost": {
		changes: []change{limit(1), active(50)}, exits: []int32{0}, faults: []action{nodeLost, podErased, podEvicted, jobDeleted},
		disturbances: 2, long: 3, atLeast: 2000,
	},
	"lost, wait": {
		changes: []change{limit(1), active(50), waitForLost}, exits: []int32{0}, faults: []action{nodeLost, podErased, podEvicted, jobDeleted},
		disturbances: 2, long: 3, atLeast: 2000,
	},
}

// TestModel visits every state that a small cluster with one Task can come to, with a few disturbances at any moment. In each
// of them the invariants hold, and from each of them the Task comes to its end once nothing is disturbed any more.
//
// The decisions, the writes and the handlers of events are the controller's own; only what surrounds it is a model.
func TestModel(t *testing.T) {
	for name, shape := range shapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSearch(t, shape)
			if os.Getenv("LONG") != "" {
				s.budget, s.most = shape.long, mostStatesLong
			}
			began := time.Now()
			s.run()
			t.Logf("%d states, %d passes, %s", len(s.visited), s.passes, time.Since(began).Round(time.Millisecond))
			if !t.Failed() && len(s.visited) < shape.atLeast {
				t.Errorf("only %d states: the search has become trivial", len(s.visited))
			}
		})
	}
}
