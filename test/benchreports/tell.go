package main

import (
	"slices"

	"github.com/taskwarden/taskwarden/test/benchkit"
)

// tell draws the figures of a phase.
func (b *bench) tell(r *round, suffix string) {
	add := func(name string, value float64) { b.figures.Add(name+suffix, value) }
	r.tellResults(add)
	r.tellWrites(add)
	r.tellTimes(add)
	r.tellRetries(add)
}

func (r *round) tellResults(add func(string, float64)) {
	v := r.verdict
	if len(v.faults) > 0 {
		benchkit.Say("%d faults, the first of them:\n  %s", len(v.faults), v.some())
	}
	add("results_lost", float64(v.lost))
	add("results_lost_after_acknowledgement", float64(v.lostAcknowledged))
	add("results_wrong", float64(v.wrong))
	add("results_twice", float64(v.twice))
	add("exits_overtaking_reports", float64(v.overtaken))
	add("results_by_note", float64(v.byNote))
	if asked := r.rivals.asked.Load(); asked > 0 {
		benchkit.Say("%d final reports were brought to the other replica as well", asked)
		add("replica_disagreements", float64(r.rivals.disagreed.Load()))
	}
}

func (r *round) tellWrites(add func(string, float64)) {
	w := r.ledger.writing()
	made, unheard, refused := 0, 0, 0
	for _, one := range r.all() {
		made, unheard = made+one.reports, unheard+one.unheard
		if one.refused != nil {
			refused++
		}
	}
	add("final_reports_not_taken", float64(refused))
	add("progress_reports_not_taken", float64(unheard))
	took := r.ended.Sub(r.began).Seconds()
	benchkit.Say("%d reports of progress were made, %.0f a second; %d writes stored them, %.0f a second",
		made, float64(made)/took, w.writes, float64(w.writes)/took)
	benchkit.Say("writes of the gateways that others were faster than: %d of final reports, %d of progress",
		r.ledger.finalConflicts, r.ledger.newsConflicts)
	add("status_writes_per_task_second", w.rate)
	if len(w.gaps) > 0 {
		add("status_write_gap_min_seconds", slices.Min(w.gaps))
		add("status_write_gap_p50_seconds", benchkit.Percentile(w.gaps, 50))
		add("status_write_gaps_too_short_share", w.share(leastGap))
	}
}

func (r *round) tellTimes(add func(string, float64)) {
	var acknowledged, lag []float64
	for _, w := range r.all() {
		if w.took > 0 {
			acknowledged = append(acknowledged, w.took.Seconds())
		}
	}
	for _, s := range r.ledger.tasks {
		if at := s.lastReport(); !at.IsZero() {
			lag = append(lag, max(0, since(at, s.terminal)))
		}
	}
	add("final_report_p50_seconds", benchkit.Percentile(acknowledged, 50))
	add("final_report_p99_seconds", benchkit.Percentile(acknowledged, 99))
	add("final_report_max_seconds", benchkit.Percentile(acknowledged, 100))
	// Of the time until the acknowledgement, what passes in the gateway, and of that what passes in the API server.
	if n := r.after.finals - r.before.finals; n > 0 {
		add("final_report_in_gateway_mean_seconds", (r.after.finalSeconds-r.before.finalSeconds)/n)
	}
	add("final_report_write_p50_seconds", benchkit.Percentile(r.ledger.finalWrites, 50))
	add("final_report_write_p99_seconds", benchkit.Percentile(r.ledger.finalWrites, 99))
	add("controller_lag_p50_seconds", benchkit.Percentile(lag, 50))
	add("controller_lag_p99_seconds", benchkit.Percentile(lag, 99))
}

func (r *round) tellRetries(add func(string, float64)) {
	var delivered, failed, aside int64
	for _, w := range r.all() {
		delivered, failed, aside = delivered+w.last.DeliveredRetries, failed+w.last.Retries, aside+w.last.SetAside
	}
	counted := r.after.since(r.before)
	difference := counted.retries - float64(delivered)
	add("callback_retry_total", counted.retries)
	add("sidecar_retries_of_delivered", float64(delivered))
	add("sidecar_retries_of_all", float64(failed))
	add("callback_retry_difference", max(difference, -difference))
	add("sidecar_reports_set_aside", float64(aside))
	refused := -float64(r.rivals.refused.Load())
	for _, n := range counted.refused {
		refused += n
	}
	add("reports_refused", refused)
	if len(counted.refused) > 0 {
		benchkit.Say("refused requests, those included that were sent to be refused: %v", counted.refused)
	}
}
