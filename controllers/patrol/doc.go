// Package patrol looks for Tasks that the controller of package task has missed something about, because a watch was silent or a
// wake-up lost, and mends them.
//
// A pass reads past all caches and in pages: the Tasks that have not ended with their Jobs and pods, then the workers of all other
// Tasks, then some of those that have ended. What it finds is judged by the very decisions of package task. It is a mismatch when they
// should have been made longer ago than the threshold; then the patrol makes them, by a pass over that Task which reads it again.
// docs/patrol.md says what a user sees of it.
package patrol
