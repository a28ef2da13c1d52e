package invariants

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/test/audit"
)

// Events gives the finished requests of a namespace since before its first Task. *audit.Log is one.
type Events interface {
	Events() ([]audit.Event, error)
}

// Source is what the checker looks at.
type Source struct {
	// Namespace that is checked.
	Namespace string
	// Audit is the audit log.
	Audit Events
	// IsController tells which requests are the operator's own.
	IsController func(*audit.Event) bool
	// Marks are what the workers say of themselves. Nil where no worker leaves marks.
	Marks Marks
	// Client reads what is live now, past all caches. Nil checks the log alone.
	Client client.Reader
	// Config is for the table that kubectl get shows. Nil leaves that out.
	Config *rest.Config
	// Running tells that the operator runs, so that what is due to be done will be done.
	Running bool
	// Wake is when the operator will look at a Task although nothing happens; zero where it will not. Nil leaves that out.
	Wake func(*v1alpha1.Task) (time.Time, error)
	// Now is the operator's clock. Default time.Now.
	Now func() time.Time
	// Settle bounds the wait for what is due, the garbage collector's work for instance. Default one minute.
	Settle time.Duration
	// Budget bounds the operator's writes. The zero value is DefaultBudget.
	Budget Budget
	// Allowed maps each state to what one write may put in its place. Default lifecycle.AllowedNext.
	Allowed map[v1alpha1.State][]v1alpha1.State
	// Waivers are the violations that the test provokes on purpose.
	Waivers []Waiver
}

// Check fails the test for each violation. Wait for the audit log to be complete before (see audit.Log.Sync).
func Check(t testing.TB, src Source) {
	t.Helper()
	// The context of a test is over when its cleanup runs.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Minute)
	defer cancel()
	found, err := Find(ctx, src)
	if err != nil {
		t.Errorf("invariants could not be checked: %v", err)
	}
	for _, v := range found {
		t.Errorf("%s", v)
	}
}

// Find gives all violations that are not waived.
func Find(ctx context.Context, src Source) ([]Violation, error) {
	src.setDefaults()
	if src.Audit == nil || src.IsController == nil {
		return nil, errors.New("a source needs an audit log and a way to tell the operator's requests in it")
	}
	events, err := src.Audit.Events()
	if err != nil {
		return nil, err
	}
	h, err := reconstruct(events, src.IsController)
	if err != nil {
		return nil, err
	}
	marks, err := src.marks()
	if err != nil {
		return nil, err
	}
	var all []Violation
	for _, r := range h.records {
		all = append(all, src.checkRecord(r, marks[r.uid])...)
	}
	live, err := src.checkLive(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("live reads: %w", err)
	}
	all = append(all, live...)
	var found []Violation
	for _, v := range sorted(all) {
		if !waived(v, src.Waivers) {
			found = append(found, v)
		}
	}
	return found, nil
}

// checkRecord asks everything that can be told of one Task from what has been written down about it.
func (s *Source) checkRecord(r *record, marks []Mark) []Violation {
	f := &finding{task: r.String()}
	checkWorkers(f, r, marks)
	checkJobs(f, r)
	checkFrozen(f, r)
	checkTimes(f, r)
	checkStates(f, r, s.Allowed)
	checkHistory(f, r, s.Allowed)
	checkBudget(f, r)
	checkAttempts(f, r)
	checkExits(f, r, marks)
	checkWrites(f, r, s.Budget)
	checkSize(f, r)
	return f.list
}

func (s *Source) setDefaults() {
	if s.Now == nil {
		s.Now = time.Now
	}
	if s.Settle == 0 {
		s.Settle = time.Minute
	}
	if s.Budget == (Budget{}) {
		s.Budget = DefaultBudget
	}
	if s.Allowed == nil {
		s.Allowed = lifecycle.AllowedNext()
	}
}

func (s *Source) marks() (map[string][]Mark, error) {
	byTask := map[string][]Mark{}
	if s.Marks == nil {
		return byTask, nil
	}
	all, err := s.Marks.All()
	if err != nil {
		return nil, fmt.Errorf("worker marks: %w", err)
	}
	for _, m := range all {
		byTask[m.Task] = append(byTask[m.Task], m)
	}
	return byTask, nil
}
