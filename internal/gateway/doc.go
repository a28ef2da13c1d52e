// Package gateway is the operator's front door for what comes from outside: it takes the workers' reports over HTTP, finds out
// who sends them, and writes them into the status of their Tasks. It writes what a worker has said and never moves a Task to
// another state; that is the controller's alone.
//
// A request goes through the files in this order: server.go (is it a request that may be made?), authenticate.go (whose token
// is it?), binding.go (which attempt of which Task is that?), reports.go (what does it say?), then write.go for final reports,
// or coalesce.go and patch.go for all others.
package gateway
