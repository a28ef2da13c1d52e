// Package testenv runs the operator against a real API server whose nodes are played by the test.
//
// The control plane has etcd, the API server and the controller manager, with its Job controller and garbage collector, but
// no scheduler and no kubelet: the test itself says when a pod is bound, runs, ends, is evicted or lost, so that every
// order of events can be made to happen. Each test has a namespace and an operator of its own and can run in parallel
// with the others. Faults are injected between the operator and the API server, where they also happen in life.
//
// Every test with an operator asserts the invariants (package invariants) when it ends, by itself.
package testenv
