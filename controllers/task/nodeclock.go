package task

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/apiclock"
)

// clockSkewWarning is how far the clock of a worker may be off before an Event tells of it.
const clockSkewWarning = 5 * time.Minute

// terminationByKubelet is the reason of a disruption of which a node tells by itself, by its own clock.
const terminationByKubelet = "TerminationByKubelet"

// align brings what the kubelets have told to the API server's clock, by which the deadlines count: a node whose clock is late would
// otherwise have its workers stopped before their time, and one that is ahead theirs taken for late.
func align(t *v1alpha1.Task, workers []Worker, now time.Time) {
	for i := range workers {
		for j := range workers[i].Pods {
			workers[i].Pods[j].align(storedStart(t, &workers[i].Pods[j]), now)
		}
	}
}

// storedStart is when this pod's worker has started, as it is stored; nil where that is not from what its kubelet has told.
func storedStart(t *v1alpha1.Task, p *PodFacts) *metav1.MicroTime {
	s := &t.Status
	if s.Worker == nil || s.Worker.PodUID != p.UID || s.Report != nil && s.Report.Attempt == s.Attempt {
		return nil
	}
	return s.Worker.StartTime
}

// align moves the kubelet's times where its clock is off: a worker that started before its pod had a node, or in the future. Then it
// started, or ended, now, and what lies between the two is right. What was stored so stays so: the distance to it is how far the clock
// is off, as long as the worker lives.
func (p *PodFacts) align(stored *metav1.MicroTime, now time.Time) {
	started := p.startedAt()
	if started.IsZero() {
		return
	}
	last := started
	if p.Exit != nil {
		last = p.Exit.FinishTime
	}
	early := started.Sub(later(p.CreateTime, p.AssignTime))
	var ahead time.Duration
	switch {
	case stored != nil:
		ahead = started.Sub(stored.Time)
	case early <= -apiclock.Ignored || last.Sub(now) >= apiclock.Ignored:
		ahead = last.Sub(now)
	}
	if ahead.Abs() < apiclock.Ignored {
		return
	}
	p.ClockAhead = ahead
	if ahead < 0 {
		p.ClockAhead = max(ahead, min(early, 0)) // it may have started a while ago
	}
	times := []*time.Time{&p.RunningSince, &p.StartTime, &p.Deadline}
	if p.Exit != nil {
		times = append(times, &p.Exit.StartTime, &p.Exit.FinishTime)
	}
	if p.Disruption != nil && p.Disruption.Reason == terminationByKubelet {
		times = append(times, &p.Disruption.Time)
	}
	for _, at := range times {
		if !at.IsZero() && at.Unix() != 0 {
			*at = at.Add(-ahead)
		}
	}
}

// nodeAhead is how far the clock of the current worker's node is ahead.
func (s *Snapshot) nodeAhead() time.Duration {
	for i := range s.Workers {
		if w := &s.Workers[i]; w.Attempt == s.Task.Status.Attempt && len(w.Pods) > 0 {
			return w.Pods[0].ClockAhead
		}
	}
	return 0
}

// startedAt is when the worker container began to run, as the kubelet says; of one that nobody saw begin, when it ended; zero where
// it has done neither.
func (p *PodFacts) startedAt() time.Time {
	switch {
	case !p.RunningSince.IsZero():
		return p.RunningSince
	case p.Exit == nil:
		return time.Time{}
	case p.Exit.StartTime.IsZero() || p.Exit.StartTime.Unix() == 0:
		return p.Exit.FinishTime
	}
	return p.Exit.StartTime
}
