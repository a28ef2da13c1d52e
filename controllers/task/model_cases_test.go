package task

import (
	"strings"
	"testing"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// TestModelCases are the smallest cases of faults that the model has found.
func TestModelCases(t *testing.T) {
	pass := func(c *cluster) bool { c.pass(disturbance{}); return true }
	exits0 := func(c *cluster) bool { return c.work(0) }
	pod, bind, run, count := (*cluster).createPod, (*cluster).bind, (*cluster).run, (*cluster).finishJob
	cases := map[string][]func(*cluster) bool{
		"a Job is deleted before it is told of, and its pod runs": {pass, pod, bind, jobDeleted.do, pass, pod, bind, run, run},
		"the same, and the user cancels":                          {pass, pod, bind, run, jobDeleted.do, pass, userCancels.do},
		"a Job has ended before its pod is seen":                  {pass, noPods.do, pod, bind, run, exits0, count, pass},
		"a silent watch hides a success from a cancel":            {pass, pod, bind, run, pass, pass, userCancels.do, noPods.do, exits0, pass},
		"a silent watch hides a success from a suspend":           {pass, pod, bind, run, pass, pass, userSuspends.do, noPods.do, exits0, pass},
		"a silent watch hides a success from a deadline": {
			pass, pod, bind, run, pass, pass, noPods.do, exits0, (*cluster).elapse, pass,
		},
	}
	for name, script := range cases {
		t.Run(name, func(t *testing.T) {
			s := newSearch(t, &shape{changes: []change{limit(1), active(50)}, exits: []int32{0}})
			c := s.first()
			for _, do := range script {
				do(c)
				c.deliver()
				c.check()
				if len(c.faults) > 0 {
					t.Fatal(strings.Join(c.faults, "\n"))
				}
			}
			s.endsWell(c, 0)
		})
	}
}

// TestPodReplacedWhilePending: a Job has made another pod for one that somebody has taken away, and is complete. That is a start
// and a success, although the pod that is recorded never ran.
func TestPodReplacedWhilePending(t *testing.T) {
	s := pending(func(t *v1alpha1.Task) { t.Status.Worker.PodUID = "taken away" }).at(after(20))
	s.job(1, completed).pod(1, exits(0, after(18)), over)
	plan := decide(s.Snapshot)
	if state := plan.Task.Status.State; state != v1alpha1.StateSucceeded || len(plan.Refused) > 0 {
		t.Errorf("%s, refused: %v", state, plan.Refused)
	}
}
