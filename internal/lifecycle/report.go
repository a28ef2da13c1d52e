package lifecycle

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/report"
)

// What a worker reports changes a Task by the functions of this file alone, whichever way the report has come. They never
// change the state: a final report is stored, and the controller moves the Task on for it.

// DefaultMaxClockSkew is how far a worker's finish time may be before the Task's creation, or after the receipt.
const DefaultMaxClockSkew = 15 * time.Minute

// ReportRefusedError says why a report changes nothing.
type ReportRefusedError struct {
	Code    report.Code
	Field   string
	Message string
}

func (e *ReportRefusedError) Error() string {
	if e.Field != "" {
		return e.Field + ": " + e.Message
	}
	return e.Message
}

func refused(code report.Code, format string, args ...any) error {
	return &ReportRefusedError{Code: code, Message: fmt.Sprintf(format, args...)}
}

func refusedField(field, format string, args ...any) error {
	return &ReportRefusedError{Code: report.InvalidReport, Field: field, Message: fmt.Sprintf(format, args...)}
}

// Origin is where a report has come from.
type Origin struct {
	// PodUID is the UID of the pod; empty where it is not known.
	PodUID types.UID
	// Source is the way by which it came.
	Source v1alpha1.ReportSource
	// ClockSkew is how far the worker's clock is known to be ahead, for a report without a finish time.
	ClockSkew time.Duration
}

// CurrentAttempt is the number of the attempt that reports are taken for: that one which the status names, and the first one
// while the operator has not written the status yet.
func CurrentAttempt(t *v1alpha1.Task) int32 {
	if !Accepted(t) {
		return 1
	}
	return t.Status.Attempt
}

// Take changes the status for a report that was received at the given time. It says whether it has changed anything; an error
// is a *ReportRefusedError. Both can be: a final report that comes too late is refused, and noted in condition ReportMismatch.
//
// maxSkew is how far ahead of the receipt the worker's finish time may be.
func Take(t *v1alpha1.Task, r *report.Report, from Origin, maxSkew time.Duration, received time.Time) (changed bool, err error) {
	if string(t.UID) != r.TaskID {
		return false, refused(report.AttemptClosed, "the Task of that UID is gone")
	}
	if r.Kind.Final() {
		return takeFinal(t, r, from, maxSkew, received)
	}
	if err := open(t, r, from); err != nil {
		return false, err
	}
	if stored := t.Status.Report; stored != nil && stored.Attempt == r.Attempt {
		return false, refused(report.AttemptClosed, "the final report of attempt %d is stored", r.Attempt)
	}
	if isFixed(t) {
		return false, refused(report.AttemptClosed, "attempt %d is being stopped", r.Attempt)
	}
	return takeNews(t, r, received)
}

// open tells whether the attempt that a report is about goes on.
func open(t *v1alpha1.Task, r *report.Report, from Origin) error {
	s := &t.Status
	current := CurrentAttempt(t)
	switch {
	case r.Attempt == current+1 && (s.State == v1alpha1.StateRetrying || s.State == v1alpha1.StateFailed):
		// Its Job is made before the write that tells of it.
		return refused(report.Unavailable, "attempt %d is about to be recorded", r.Attempt)
	case r.Attempt > current:
		return refused(report.AttemptClosed, "attempt %d is not the current one", r.Attempt)
	case r.Attempt < current, s.State != v1alpha1.StatePending && s.State != v1alpha1.StateProcessing:
		return refused(report.AttemptClosed, "attempt %d has ended", r.Attempt)
	case from.PodUID != "" && s.Worker != nil && s.Worker.PodUID != "" && s.Worker.PodUID != from.PodUID:
		return refused(report.AttemptClosed, "another pod has taken the place of this one")
	}
	return nil
}

// isFixed tells whether the operator has fixed the outcome of the current attempt.
func isFixed(t *v1alpha1.Task) bool {
	return meta.IsStatusConditionTrue(t.Status.Conditions, v1alpha1.ConditionTerminating)
}

// takeFinal stores the first final report of an attempt.
func takeFinal(t *v1alpha1.Task, r *report.Report, from Origin, maxSkew time.Duration, received time.Time) (bool, error) {
	s := &t.Status
	if stored := s.Report; stored != nil && stored.Attempt == r.Attempt {
		if stored.Sequence == r.Sequence && stored.Outcome == outcomeOf(r.Kind) {
			return false, nil // once more, its answer was lost
		}
		changed := noteContradiction(t, r, received)
		return changed, refused(report.OutcomeRecorded, "another final report of attempt %d is stored", r.Attempt)
	}
	if err := open(t, r, from); err != nil {
		return false, err
	}
	finish, err := finishTime(t, r, from.Source, maxSkew, received)
	if err != nil {
		return false, err
	}
	if isFixed(t) {
		fixed := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionTerminating)
		changed := NoteMismatch(t, "ReportedLate", fmt.Sprintf("The worker of attempt %d reported that it has %s after its outcome %s was stored",
			r.Attempt, r.Kind, fixed.Reason), received)
		return changed, refused(report.OutcomeRecorded, "the outcome of attempt %d is %s", r.Attempt, fixed.Reason)
	}
	s.Report = &v1alpha1.FinalReport{
		Attempt: r.Attempt, PodUID: from.PodUID, Sequence: r.Sequence, Outcome: outcomeOf(r.Kind), Source: from.Source,
		ReceivedTime: metav1.NewMicroTime(received), FinishTime: finish, Result: resultOf(r),
		ClockSkewSeconds: skewSeconds(cmp.Or(ClockSkew(t, r, from.Source, received), from.ClockSkew)),
	}
	switch {
	case r.Result != nil:
		s.Report.Message = Truncate(r.Result.Message)
	case r.Failure != nil:
		s.Report.Message = Truncate(r.Failure.Message)
		if r.Failure.Permanent {
			s.Report.Permanent = ptr.To(true)
		}
	}
	return true, nil
}

// noteContradiction keeps a final report that says the opposite of the one that is stored.
func noteContradiction(t *v1alpha1.Task, r *report.Report, now time.Time) bool {
	stored := t.Status.Report
	if stored.Outcome == outcomeOf(r.Kind) {
		return false
	}
	return NoteMismatch(t, "ReportedTwice", fmt.Sprintf(
		"The worker of attempt %d reported that it has %s after its report that it has %s was stored",
		r.Attempt, r.Kind, strings.ToLower(string(stored.Outcome)),
	), now)
}

func outcomeOf(k report.Kind) v1alpha1.ReportOutcome {
	if k == report.Succeeded {
		return v1alpha1.ReportSucceeded
	}
	return v1alpha1.ReportFailed
}

// finishTime is when the worker finished, brought between the Task's creation and now; what is further off than clocks may be
// is refused, unless it comes by the termination message, which cannot be sent again.
func finishTime(
	t *v1alpha1.Task, r *report.Report, source v1alpha1.ReportSource, maxSkew time.Duration, received time.Time,
) (*metav1.MicroTime, error) {
	if r.ActualFinishTime == 0 {
		return nil, nil
	}
	at, created := time.UnixMilli(r.ActualFinishTime), t.CreationTimestamp.Time
	absurd := at.Before(created.Add(-maxSkew)) || at.After(received.Add(maxSkew))
	switch {
	case absurd && source == v1alpha1.FromTerminationMessage:
		return nil, nil
	case at.Before(created.Add(-maxSkew)):
		return nil, &ReportRefusedError{Code: report.InvalidFinishTime, Field: "actual_finish_time", Message: "is before the Task's creation"}
	case at.After(received.Add(maxSkew)):
		return nil, &ReportRefusedError{
			Code: report.InvalidFinishTime, Field: "actual_finish_time", Message: fmt.Sprintf("is more than %s in the future", maxSkew),
		}
	case at.Before(created):
		at = created
	case at.After(received):
		at = received
	}
	return ptr.To(metav1.NewMicroTime(at)), nil
}

// minClockSkew is what clocks that are kept in step are not off by, and a report that is late by nothing but a busy network.
const minClockSkew = 5 * time.Second

// ClockSkew is how far the worker's clock is ahead of the API server's at least, below 0 if it is behind, as the finish time shows
// that it gave, before it is brought into bounds. One in the future says so in any case, and one before the Task's creation; any other
// could have waited long for its delivery, unless that was the first.
func ClockSkew(t *v1alpha1.Task, r *report.Report, source v1alpha1.ReportSource, received time.Time) time.Duration {
	at := time.UnixMilli(r.ActualFinishTime)
	switch {
	case r.ActualFinishTime == 0:
		return 0
	case at.After(received), r.RetryCount == 0 && source == v1alpha1.FromGateway:
		return at.Sub(received)
	}
	return min(0, at.Sub(t.CreationTimestamp.Time))
}

func skewSeconds(skew time.Duration) int64 {
	if skew.Abs() < minClockSkew {
		return 0
	}
	return int64(skew / time.Second)
}

func resultOf(r *report.Report) *v1alpha1.TaskResult {
	result := v1alpha1.TaskResult{LogURL: r.ExecutionLogURL}
	if r.Result != nil {
		result.URL = r.Result.URL
		if len(r.Result.Data) > 0 {
			result.Data = &apiextensionsv1.JSON{Raw: bytes.Clone(r.Result.Data)}
		}
	}
	if result == (v1alpha1.TaskResult{}) {
		return nil
	}
	return &result
}

// NoteMismatch keeps a worker's word that contradicts the outcome that is stored. It tells whether that is news.
func NoteMismatch(t *v1alpha1.Task, reason, message string, now time.Time) bool {
	return meta.SetStatusCondition(&t.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionReportMismatch, Status: metav1.ConditionTrue, Reason: reason, Message: Truncate(message),
		ObservedGeneration: t.Generation, LastTransitionTime: metav1.NewTime(now),
	})
}

// takeNews stores what is not final.
func takeNews(t *v1alpha1.Task, r *report.Report, received time.Time) (bool, error) {
	w := t.Status.Worker
	if w == nil {
		return false, refused(report.Unavailable, "attempt %d is about to be recorded", r.Attempt)
	}
	if r.Sequence <= w.Sequence {
		return false, nil
	}
	now := ptr.To(metav1.NewMicroTime(received))
	switch r.Kind {
	case report.Progress:
		t.Status.Progress = progressAfter(t, r.Progress, now)
	case report.Stage:
		p, err := stageAfter(t, r.Stage.Name, now)
		if err != nil {
			return false, err
		}
		t.Status.Progress = p
	case report.Checkpoint:
		t.Status.Checkpoint = &v1alpha1.TaskCheckpoint{
			Data: apiextensionsv1.JSON{Raw: bytes.Clone(r.Checkpoint)}, Attempt: r.Attempt, UpdateTime: *now,
		}
		p := progressOf(t)
		p.AdvanceTime = now
		t.Status.Progress = p
	default:
	}
	w.Sequence, w.HeartbeatTime = r.Sequence, now
	return true, nil
}

// progressOf is a copy of the current progress.
func progressOf(t *v1alpha1.Task) *v1alpha1.TaskProgress {
	if t.Status.Progress == nil {
		return &v1alpha1.TaskProgress{}
	}
	return t.Status.Progress.DeepCopy()
}

// progressAfter is the progress after a report of it.
func progressAfter(t *v1alpha1.Task, said *report.ProgressPayload, now *metav1.MicroTime) *v1alpha1.TaskProgress {
	p := progressOf(t)
	percent := said.Clamped()
	if furthest := said.BasisPoints(); furthest > ptr.Deref(p.FurthestBasisPoints, 0) {
		p.FurthestBasisPoints, p.AdvanceTime = &furthest, now
	}
	p.Percent, p.Message, p.UpdateTime = ptr.To(percent), Truncate(said.Message), now
	if p.EstimatedRemainingSeconds = said.EstimatedRemainingSeconds; p.EstimatedRemainingSeconds == nil {
		p.EstimatedRemainingSeconds = remaining(t, percent, now.Time)
	}
	return p
}

// stageAfter is the progress after the worker has entered a stage.
func stageAfter(t *v1alpha1.Task, name string, now *metav1.MicroTime) (*v1alpha1.TaskProgress, error) {
	p := progressOf(t)
	entered, current := stageIndex(t.Spec.Stages, name), stageIndex(t.Spec.Stages, p.Stage)
	switch {
	case len(t.Spec.Stages) > 0 && entered < 0:
		return nil, refusedField("stage.name", "%q is not in spec.stages", name)
	case entered < current:
		return nil, refusedField("stage.name", "%q comes before %q, which the worker is in", name, p.Stage)
	}
	if p.Stage != name {
		p.Stage, p.StageTime, p.AdvanceTime = name, now, now
	}
	p.UpdateTime = now
	if done, total := weights(t.Spec.Stages, entered); total > 0 {
		if percent := int32(100 * done / total); percent > ptr.Deref(p.Percent, -1) {
			p.Percent = &percent
			p.EstimatedRemainingSeconds = remaining(t, percent, now.Time)
		}
	}
	return p, nil
}

// weights are those of the stages before the given one, and of all.
func weights(stages []v1alpha1.Stage, before int) (done, total int64) {
	for i := range stages {
		w := int64(ptr.Deref(stages[i].Weight, DefaultStageWeight))
		if i < before {
			done += w
		}
		total += w
	}
	return done, total
}

func stageIndex(stages []v1alpha1.Stage, name string) int {
	for i := range stages {
		if stages[i].Name == name {
			return i
		}
	}
	return -1
}

// remaining is how long a worker will still take if it goes on at its pace; nil where nothing can be said.
func remaining(t *v1alpha1.Task, percent int32, now time.Time) *int64 {
	w := t.Status.Worker
	if w == nil || w.StartTime == nil || percent <= 0 {
		return nil
	}
	elapsed := max(0, now.Sub(w.StartTime.Time).Seconds())
	return ptr.To(min(int64(elapsed*float64(100-percent)/float64(percent)), report.MaxRemainingSeconds))
}
