// Package lifecycle is the state machine of a Task: the table of transitions, their guards, what follows an attempt, and
// when. It is pure: it reads and changes values and knows no client, recorder, logger, metric or clock.
//
// Read table.go first: it is the only place where the transitions are written. The rule in the CRD by which the API
// server refuses every other change, docs/states.md and the exhaustive tests are generated from it.
package lifecycle
