package task

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// TestC26Align: what a kubelet tells by a clock that is off is brought to the API server's, and what it tells by one that is right
// stays as it is.
func TestC26Align(t *testing.T) {
	now := after(1000)
	const off = 10 * time.Minute
	exit := func(start, finish time.Time) *Exit { return &Exit{StartTime: start, FinishTime: finish} }
	for name, c := range map[string]struct {
		reason string
		pod    PodFacts
		stored time.Time
		start  time.Time // wanted, by which it runs or has run
		finish time.Time
		ahead  time.Duration
	}{
		"in step":             {reason: "as told", pod: PodFacts{AssignTime: after(5), RunningSince: after(7)}, start: after(7)},
		"seconds are whole":   {reason: "a second is nothing", pod: PodFacts{AssignTime: after(5), RunningSince: after(4)}, start: after(4)},
		"in step, long ago":   {reason: "as told", pod: PodFacts{AssignTime: after(5), Exit: exit(after(7), after(900))}, start: after(7), finish: after(900)},
		"it waits":            {reason: "there is nothing to tell", pod: PodFacts{AssignTime: after(5)}},
		"behind, it starts":   {reason: "now is the latest moment", pod: PodFacts{AssignTime: after(995), RunningSince: after(998).Add(-off)}, start: now, ahead: 3*time.Second - off},
		"behind, seen late":   {reason: "it is behind by what shows", pod: PodFacts{AssignTime: after(700), RunningSince: after(700).Add(-off)}, start: now, ahead: -off},
		"behind, no node":     {reason: "its creation serves", pod: PodFacts{CreateTime: after(995), RunningSince: after(998).Add(-off)}, start: now, ahead: 3*time.Second - off},
		"ahead, it starts":    {reason: "it is not in the future", pod: PodFacts{AssignTime: after(995), RunningSince: after(998).Add(off)}, start: now, ahead: off - 2*time.Second},
		"ahead, stored":       {reason: "what is stored stays", pod: PodFacts{AssignTime: after(5), RunningSince: after(8).Add(off)}, stored: after(10), start: after(10), ahead: off - 2*time.Second},
		"behind, stored":      {reason: "what is stored stays", pod: PodFacts{AssignTime: after(8), RunningSince: after(8).Add(-off)}, stored: after(10), start: after(10), ahead: -off},
		"in step, stored":     {reason: "as told", pod: PodFacts{AssignTime: after(5), RunningSince: after(7)}, stored: after(7), start: after(7)},
		"ahead, it ended":     {reason: "it ran as long as it did", pod: PodFacts{AssignTime: after(5), Exit: exit(after(8).Add(off), after(508).Add(off))}, stored: after(10), start: after(10), finish: after(510), ahead: off - 2*time.Second},
		"ahead, at once":      {reason: "it ended now", pod: PodFacts{AssignTime: after(5), Exit: exit(after(900).Add(off), after(990).Add(off))}, start: after(910), finish: now, ahead: off - 10*time.Second},
		"behind, at once":     {reason: "it ended now", pod: PodFacts{AssignTime: after(900), Exit: exit(after(900).Add(-off), after(990).Add(-off))}, start: after(910), finish: now, ahead: -off},
		"its start is 1970":   {reason: "a container that never ran has none", pod: PodFacts{AssignTime: after(900), Exit: exit(time.Unix(0, 0), after(990))}, start: time.Unix(0, 0), finish: after(990)},
		"a wrong word for it": {reason: "1970 stays what it is", pod: PodFacts{AssignTime: after(900), Exit: exit(time.Unix(0, 0), after(990).Add(off))}, start: time.Unix(0, 0), finish: now, ahead: off - 10*time.Second},
	} {
		p := c.pod
		if p.CreateTime.IsZero() {
			p.CreateTime = created
		}
		var stored *metav1.MicroTime
		if !c.stored.IsZero() {
			stored = ptr.To(metav1.NewMicroTime(c.stored))
		}
		for range 2 { // from the same facts again, with what the first pass has stored
			got := p
			if p.Exit != nil {
				got.Exit = ptr.To(*p.Exit)
			}
			got.align(stored, now)
			start, finish := got.RunningSince, time.Time{}
			if got.Exit != nil {
				start, finish = got.Exit.StartTime, got.Exit.FinishTime
			}
			if !start.Equal(c.start) || !finish.Equal(c.finish) || got.ClockAhead != c.ahead {
				t.Errorf("%s: %s: from %s to %s, the clock is %s ahead; wanted %s, %s, %s", name, c.reason, start, finish, got.ClockAhead, c.start, c.finish, c.ahead)
			}
			if at := got.startedAt(); !at.IsZero() {
				stored = ptr.To(metav1.NewMicroTime(at))
			}
		}
	}
}

// TestC26AlignedTask lets a deadline count for a worker whose node is 10 minutes behind: by the clock that decides. A start that was not
// told by the kubelet is not compared with what it tells.
func TestC26AlignedTask(t *testing.T) {
	const off = 10 * time.Minute
	s := pending(active(60)).at(after(30)).runs(1, func(p *PodFacts) { p.CreateTime, p.RunningSince = after(25), after(28).Add(-off) })
	align(s.Task, s.Workers, s.Now)
	plan := decide(s.Snapshot)
	if got := plan.Task.Status; got.State != v1alpha1.StateProcessing || !got.Worker.StartTime.Time.Equal(after(30)) {
		t.Fatalf("%s since %s", got.State, got.Worker.StartTime)
	}
	next := &scene{Snapshot{Task: plan.Task}}
	next.at(after(89)).runs(1, func(p *PodFacts) { p.CreateTime, p.RunningSince = after(25), after(28).Add(-off) })
	align(next.Task, next.Workers, next.Now)
	if plan := decide(next.Snapshot); isTrue(plan.Task, v1alpha1.ConditionTerminating) || !plan.WakeAt.Equal(after(90)) {
		t.Errorf("stopped before its time: %+v, next look at %s", plan.Task.Status.Conditions, plan.WakeAt)
	}
	next.at(after(90))
	if plan := decide(next.Snapshot); findCondition(plan.Task, v1alpha1.ConditionTerminating) == nil {
		t.Error("not stopped at its time")
	}

	reported := processing(withSidecar, reportedSuccess(20)).at(after(400)).runs(1, func(p *PodFacts) { p.RunningSince = started.Add(time.Minute) })
	align(reported.Task, reported.Workers, reported.Now)
	if p := reported.Workers[0].Pods[0]; p.ClockAhead != 0 {
		t.Errorf("a clock is %s off of which nobody can know", p.ClockAhead)
	}
}

// TestC26NoteBoundsTheFinishTime: the note in the termination message is judged with the same setting as the gateway's.
func TestC26NoteBoundsTheFinishTime(t *testing.T) {
	for limit, taken := range map[time.Duration]bool{lifecycle.DefaultMaxClockSkew: false, time.Hour: true} {
		r := successOf(1)
		r.ActualFinishTime = after(21).Add(30 * time.Minute).UnixMilli()
		s := processing(withSidecar).at(after(21)).runs(1, worked(0, after(20)), over, sidecarEnded(note(r)))
		s.MaxClockSkew = limit
		if got := decide(s.Snapshot).Task.Status.Report; got == nil || (got.FinishTime != nil) != taken || got.ClockSkewSeconds != 30*60 {
			t.Errorf("limit %s: stored %+v", limit, got)
		}
	}
}
