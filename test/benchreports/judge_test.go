package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// done is a Task that the word of its worker has ended.
func done(w *word) *v1alpha1.Task {
	t := &v1alpha1.Task{}
	t.Name = "a"
	result := &v1alpha1.TaskResult{URL: w.url, Data: &apiextensionsv1.JSON{Raw: []byte(w.data)}}
	t.Status = v1alpha1.TaskStatus{
		State: v1alpha1.StateSucceeded, Result: result,
		Report:   &v1alpha1.FinalReport{Attempt: w.attempt, PodUID: w.podUID, Source: v1alpha1.FromGateway, Result: result},
		Attempts: []v1alpha1.AttemptStatus{{Reported: ptr.To(true)}},
		History:  []v1alpha1.Transition{{To: v1alpha1.StateProcessing}, {To: v1alpha1.StateSucceeded}},
	}
	return t
}

func TestJudge(t *testing.T) {
	w := word{podUID: "p", attempt: 1, url: "https://x.example", data: `{"a":1}`, acknowledged: true}
	key := finalKey{Attempt: 1, PodUID: "p", Sequence: 3}
	for _, c := range []struct {
		reason string
		change func(*v1alpha1.Task, *story)
		want   verdict
	}{
		{"everything as it was said", func(*v1alpha1.Task, *story) {}, verdict{}},
		{"by the note", func(t *v1alpha1.Task, _ *story) {
			t.Status.Report.Source = v1alpha1.FromTerminationMessage
		}, verdict{byNote: 1}},
		{"the exit was faster", func(t *v1alpha1.Task, s *story) {
			t.Status.Report, t.Status.Result, t.Status.Attempts[0].Reported, s.reports = nil, nil, nil, nil
		}, verdict{lost: 1, lostAcknowledged: 1, overtaken: 1}},
		{"no data", func(t *v1alpha1.Task, _ *story) { t.Status.Result = nil }, verdict{lost: 1, lostAcknowledged: 1}},
		{"the result of another", func(t *v1alpha1.Task, _ *story) {
			t.Status.Result.Data.Raw = []byte(`{"a":2}`)
		}, verdict{wrong: 1}},
		{"from another pod", func(t *v1alpha1.Task, _ *story) { t.Status.Report.PodUID = "q" }, verdict{wrong: 1}},
		{"of another attempt", func(t *v1alpha1.Task, _ *story) { t.Status.Report.Attempt = 2 }, verdict{wrong: 1}},
		{"two reports were stored", func(_ *v1alpha1.Task, s *story) {
			s.reports[finalKey{Attempt: 1, PodUID: "p", Sequence: 4}] = at(2)
		}, verdict{twice: 1}},
		{"ended twice", func(t *v1alpha1.Task, _ *story) {
			t.Status.History = append(t.Status.History, v1alpha1.Transition{To: v1alpha1.StateSucceeded})
		}, verdict{twice: 1}},
	} {
		task, l := done(&w), newLedger()
		s := l.task("a")
		s.reports = map[finalKey]time.Time{key: at(1)}
		c.change(task, s)
		got := judge(map[string]word{"a": w}, map[string]*v1alpha1.Task{"a": task}, l)
		if diff := cmp.Diff(*got, c.want, cmp.AllowUnexported(verdict{}), cmpopts.IgnoreFields(verdict{}, "faults")); diff != "" {
			t.Errorf("%s (-got +want):\n%s", c.reason, diff)
		}
	}
	if got := judge(map[string]word{"a": w}, nil, newLedger()); got.lost != 1 || len(got.faults) != 1 {
		t.Errorf("of a Task that is gone: got %+v", got)
	}
}
