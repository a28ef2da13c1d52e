// Package benchkit is what the benchmarks share: a cluster with simulated nodes, the operator as processes, the audit log, and
// figures with their bounds.
package benchkit
