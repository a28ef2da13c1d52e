// Package task reconciles Tasks: it carries each one from Pending to its end by worker Jobs.
//
// One pass is: gather everything into a Snapshot (observe.go), decide purely from it (decide.go and the decide_*.go
// beside it), then act on the Plan (act.go). The decision fires events of package lifecycle, which alone changes the state.
//
// The order of concerns in a pass, and why:
//  1. what a finished Task still owes: answers, retention, TTL (decide_finished.go);
//  2. the current attempt: the worker's own word before anybody else's (decide_running.go);
//  3. between attempts: cancel and deadlines before a new start (decide_idle.go);
//  4. pods of ended attempts that outstay their grace, so that nothing leaks.
//
// A pass stores at most one change of state (a start and an end that are seen together count as one), creates a Job before the
// write that tells of it, so that a crash between the two leaves a Job to adopt, and destroys only after the write.
package task
