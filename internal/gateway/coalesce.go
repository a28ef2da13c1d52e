package gateway

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/internal/report"
)

const (
	// defaultHeartbeatInterval is how often heartbeats are stored where the Task has no heartbeatTimeoutSeconds: only people
	// look.
	defaultHeartbeatInterval = time.Minute
	// maxUnread is how long heartbeats are answered without a look at the Task: so late may a worker learn that it should stop.
	maxUnread = 10 * time.Second
	// maxRest is the longest rest after a write; it is as long as the write was.
	maxRest = 2 * time.Second
	// maxHeld is how many reports of one Task may wait for its next write.
	maxHeld = 16
	// forgetAfter is how long a Task of which nothing is heard is remembered.
	forgetAfter = 10 * time.Minute
	// maxTasks is how many Tasks are remembered; then the one that has been silent for longest is forgotten. One that is
	// forgotten is read again before its next write.
	maxTasks = 4096
)

// coalescer writes what is not final: of all reports of a Task that come within one interval it makes one write, for which they
// all wait. So many Tasks as there may be, only so many writes run at once; what cannot be written yet goes on gathering.
type coalescer struct {
	options *Options
	writes  *semaphore.Weighted

	mu    sync.Mutex
	tasks map[types.UID]*gathering
	bytes int64 // of all reports that wait or are being written
	swept time.Time
}

// gathering is what is known of one Task.
type gathering struct {
	batch   []*news
	running bool      // a goroutine will write the batch
	written time.Time // when the last write began
	used    time.Time
	// Heartbeats of this attempt that come before quiet are neither stored nor is the Task read for them.
	quiet   time.Time
	attempt int32
	// known is the Task as the last write has left it, without what no report depends on; nil where it must be read.
	known *v1alpha1.Task
}

// news is a report that waits.
type news struct {
	*delivery
	done      chan outcome // takes one
	size      int64        // what it counts in coalescer.bytes
	abandoned bool         // its request has given up
}

func newCoalescer(o *Options) *coalescer {
	return &coalescer{
		options: o, writes: semaphore.NewWeighted(o.MaxWrites), tasks: map[types.UID]*gathering{}, swept: o.Clock.Now(),
	}
}

// take waits until a report is stored, ignored or refused.
func (c *coalescer) take(ctx context.Context, d *delivery) outcome {
	n, o := c.enter(d)
	if n == nil {
		return o
	}
	select {
	case o := <-n.done:
		return o
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.Canceled) {
			c.withdraw(n)
			return outcome{err: errLeft}
		}
		// It may still be written; another try is then answered as one that is known.
		c.mu.Lock()
		n.abandoned = true
		c.mu.Unlock()
		return outcome{err: errBusy}
	}
}

// withdraw drops what its sender no longer waits for, a final report has overtaken it, say, unless it is being written already. A stage
// was entered and a checkpoint left, whatever follows.
func (c *coalescer) withdraw(n *news) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n.abandoned = true
	g := c.tasks[n.worker.TaskUID]
	if g == nil || n.report.Kind != report.Progress && n.report.Kind != report.Heartbeat {
		return
	}
	if i := slices.Index(g.batch, n); i >= 0 {
		g.batch = slices.Delete(g.batch, i, i+1)
		c.finish(n, outcome{err: errLeft})
	}
}

// enter puts a report into the next write of its Task, or gives its outcome where it needs none.
func (c *coalescer) enter(d *delivery) (*news, outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.options.Clock.Now()
	c.sweep(now)
	g := c.remember(d.worker.TaskUID)
	if g == nil {
		return nil, outcome{err: errBusy}
	}
	g.used = now
	if d.report.Kind == report.Heartbeat && g.attempt == d.report.Attempt && now.Before(g.quiet) {
		return nil, outcome{}
	}
	c.supersede(g, d)
	n := &news{delivery: d, done: make(chan outcome, 1), size: d.held.size}
	if len(g.batch) >= maxHeld || c.bytes+n.size > c.options.MaxBodyMemory/2 {
		return nil, outcome{err: errBusy}
	}
	// The memory is held until the report is written or dropped, however long its request waits.
	d.held.retain()
	c.bytes += n.size
	g.batch = append(g.batch, n)
	if !g.running {
		g.running = true
		// Not the request's context: the write is for all who wait, and goes on when one of them has given up.
		go c.run(context.Background(), g)
	}
	return n, outcome{}
}

// remember gives what is known of a Task; nil where there is no room for one more.
func (c *coalescer) remember(uid types.UID) *gathering {
	if g := c.tasks[uid]; g != nil {
		return g
	}
	if len(c.tasks) >= maxTasks && !c.forgetOne() {
		return nil
	}
	g := &gathering{}
	c.tasks[uid] = g
	return g
}

// forgetOne forgets the Task that has been silent for longest. Those with something to write stay.
func (c *coalescer) forgetOne() bool {
	var oldest types.UID
	for uid, g := range c.tasks {
		if !g.running && (oldest == "" || g.used.Before(c.tasks[oldest].used)) {
			oldest = uid
		}
	}
	delete(c.tasks, oldest)
	return oldest != ""
}

// supersede drops what need not be written any more once a report has come: an earlier delivery of the same, and what nobody
// waits for and says less than it. While the API server does not answer, the same reports come again and again.
func (c *coalescer) supersede(g *gathering, d *delivery) {
	g.batch = slices.DeleteFunc(g.batch, func(n *news) bool {
		if n.worker.PodUID != d.worker.PodUID {
			return false
		}
		drop := n.report.Sequence == d.report.Sequence || n.abandoned && saysLess(n.report, d.report)
		if drop {
			c.finish(n, outcome{err: errBusy})
		}
		return drop
	})
}

// saysLess tells whether a report needs not be stored where another one is.
func saysLess(r, than *report.Report) bool {
	if r.Sequence > than.Sequence {
		return false
	}
	switch r.Kind {
	case report.Heartbeat:
		return true
	case report.Progress, report.Checkpoint:
		return r.Kind == than.Kind
	default:
		return false // a stage was entered, whatever follows
	}
}

// finish tells the request of a report, if it still waits, and gives the memory back. The lock is held.
func (c *coalescer) finish(n *news, o outcome) {
	c.bytes -= n.size
	n.held.release()
	n.done <- o
}

// run writes the batches of one Task until there is nothing left to write.
func (c *coalescer) run(ctx context.Context, g *gathering) {
	for {
		c.mu.Lock()
		if len(g.batch) == 0 {
			g.running = false
			c.mu.Unlock()
			return
		}
		due := g.written.Add(c.options.WriteInterval)
		c.mu.Unlock()
		_ = wait(ctx, c.options.Clock, due.Sub(c.options.Clock.Now())) // the context has no end
		_ = c.writes.Acquire(ctx, 1)
		began := c.options.Clock.Now()
		c.flush(ctx, g)
		// The slower the API server, the longer the rest: it has final reports and the controller to serve.
		_ = wait(ctx, c.options.Clock, min(c.options.Clock.Since(began), maxRest))
		c.writes.Release(1)
	}
}

// flush writes what has gathered, also while the write had to wait, and tells everyone.
func (c *coalescer) flush(ctx context.Context, g *gathering) {
	c.mu.Lock()
	batch := g.batch
	g.batch = nil
	if len(batch) > 0 {
		g.written = c.options.Clock.Now()
	}
	c.mu.Unlock()
	if len(batch) == 0 {
		return // all of it was dropped
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.RequestTimeout)
	defer cancel()
	slices.SortStableFunc(batch, func(a, b *news) int { return cmp.Compare(a.report.Sequence, b.report.Sequence) })
	outcomes, quiet := c.write(ctx, g, batch)
	c.mu.Lock()
	defer c.mu.Unlock()
	g.quiet, g.attempt = quiet, batch[len(batch)-1].report.Attempt
	for i, n := range batch {
		c.finish(n, outcomes[i])
	}
}

// write decides about a batch and stores what it changes. It also gives the time until which heartbeats alone are not needed.
//
// What the last write has left is good enough to decide on if a write follows, which fails where it is no longer so. It saves every
// second request. Nobody is refused or ignored without a look at the Task.
func (c *coalescer) write(ctx context.Context, g *gathering, batch []*news) (outcomes []outcome, quiet time.Time) {
	for try := range maxTries {
		if err := pause(ctx, c.options.Clock, try); err != nil {
			return all(batch, unavailable(err)), time.Time{}
		}
		before, after, outcomes := c.decideOnKnown(batch)
		if after == nil {
			var err error
			if before, err = readTask(ctx, c.options.NewsClient, batch[0].worker); err != nil {
				return all(batch, err), time.Time{}
			}
			after = before.DeepCopy()
			var changed bool
			if outcomes, changed = c.decide(after, batch); !changed {
				return outcomes, time.Time{}
			}
			if due := heartbeatDue(before); onlyHeartbeats(batch) && c.options.Clock.Now().Before(due) {
				return ignored(outcomes), c.unread(due)
			}
		}
		c.mu.Lock()
		g.written = c.options.Clock.Now() // what came before may have taken a while
		c.mu.Unlock()
		err := c.patch(ctx, before, after)
		switch {
		case err == nil:
			quiet := c.unread(heartbeatDue(after))
			c.keep(g, after)
			return outcomes, quiet
		case apierrors.IsInvalid(err), apierrors.IsConflict(err):
			continue // a test of the patch has failed: something has changed since the read
		case apierrors.IsNotFound(err):
			return all(batch, errGone), time.Time{}
		default:
			return all(batch, unavailable(err)), time.Time{}
		}
	}
	return all(batch, unavailable(errCrowded)), time.Time{}
}

// patch stores the difference between two statuses, and brings the second one to what is stored then.
func (c *coalescer) patch(ctx context.Context, before, after *v1alpha1.Task) error {
	patch, err := newsPatch(before, after)
	if err != nil {
		return err
	}
	return c.options.NewsClient.Status().Patch(ctx, after, patch, client.FieldOwner(FieldOwner))
}

// decideOnKnown decides on what the last write has left, once, and gives nothing where that does not lead to another write.
func (c *coalescer) decideOnKnown(batch []*news) (before, after *v1alpha1.Task, outcomes []outcome) {
	if onlyHeartbeats(batch) {
		return nil, nil, nil
	}
	if before = c.recall(batch[0].worker.TaskUID); before == nil {
		return nil, nil, nil
	}
	after = before.DeepCopy()
	outcomes, _ = c.decide(after, batch)
	if slices.ContainsFunc(outcomes, func(o outcome) bool { return !o.stored }) {
		return nil, nil, nil
	}
	return before, after, outcomes
}

// recall gives what the last write has left of a Task, once, as far as worthKnowing has kept it.
func (c *coalescer) recall(uid types.UID) (known *v1alpha1.Task) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.tasks[uid]; g != nil {
		known, g.known = g.known, nil
	}
	return known
}

// keep remembers what a write has left.
func (c *coalescer) keep(g *gathering, t *v1alpha1.Task) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g.known = worthKnowing(t)
}

// worthKnowing is what is kept of a Task: what reports are decided on. Nothing is kept of one that takes no more reports. Its
// checkpoint, which may be large, decides nothing: a new one is written whatever was there.
func worthKnowing(t *v1alpha1.Task) *v1alpha1.Task {
	if t.Status.Report != nil || meta.IsStatusConditionTrue(t.Status.Conditions, v1alpha1.ConditionTerminating) {
		return nil
	}
	known := &v1alpha1.Task{}
	known.Namespace, known.Name, known.UID = t.Namespace, t.Name, t.UID
	known.ResourceVersion, known.CreationTimestamp = t.ResourceVersion, t.CreationTimestamp
	known.Spec.Stages, known.Spec.HeartbeatTimeoutSeconds = t.Spec.Stages, t.Spec.HeartbeatTimeoutSeconds
	s := &t.Status
	known.Status = v1alpha1.TaskStatus{
		State: s.State, Attempt: s.Attempt, Progress: s.Progress, Worker: s.Worker,
		History: make([]v1alpha1.Transition, min(1, len(s.History))), // whether there is one is all that counts
	}
	return known
}

// decide takes the reports of a batch one after the other, in their order.
func (c *coalescer) decide(task *v1alpha1.Task, batch []*news) (outcomes []outcome, changes bool) {
	for _, n := range batch {
		again := task.Status.Worker != nil && task.Status.Worker.Sequence == n.report.Sequence
		changed, err := decide(task, n.delivery, c.options.MaxClockSkew)
		changes = changes || changed
		outcomes = append(outcomes, outcome{stored: changed, again: again && !changed && err == nil, err: err})
	}
	return outcomes, changes
}

// unread bounds the time for which heartbeats are answered without a look at the Task.
func (c *coalescer) unread(due time.Time) time.Time {
	return lifecycle.Earliest(due, c.options.Clock.Now().Add(maxUnread))
}

// heartbeatDue is when the next heartbeat must be stored.
func heartbeatDue(t *v1alpha1.Task) time.Time {
	last := t.Status.Worker.HeartbeatTime
	if last == nil {
		return time.Time{}
	}
	interval := defaultHeartbeatInterval
	if limit := ptr.Deref(t.Spec.HeartbeatTimeoutSeconds, 0); limit > 0 {
		interval = time.Duration(limit) * time.Second / 3
	}
	return last.Add(interval)
}

func onlyHeartbeats(batch []*news) bool {
	return !slices.ContainsFunc(batch, func(n *news) bool { return n.report.Kind != report.Heartbeat })
}

// ignored are the outcomes of reports that are not written after all.
func ignored(outcomes []outcome) []outcome {
	for i := range outcomes {
		outcomes[i].stored = false
	}
	return outcomes
}

// all is the same refusal for everyone.
func all(batch []*news, err error) []outcome {
	if errors.Is(err, context.DeadlineExceeded) {
		err = errBusy
	}
	outcomes := make([]outcome, len(batch))
	for i := range outcomes {
		outcomes[i].err = err
	}
	return outcomes
}

// sweep forgets Tasks of which nothing is heard any more.
func (c *coalescer) sweep(now time.Time) {
	if now.Sub(c.swept) < forgetAfter/10 {
		return
	}
	c.swept = now
	for uid, g := range c.tasks {
		if !g.running && now.Sub(g.used) > forgetAfter {
			delete(c.tasks, uid)
		}
	}
}
