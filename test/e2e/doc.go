// Package e2e tests the operator on a real cluster: its image, installed as a user installs it, and workers in real
// containers. `make test-e2e` brings such a cluster up and runs the tests.
//
// Each test has a namespace of its own, and shares a folder with its workers, in which they write down when they ran. When
// it ends, the invariants are checked by that and by the API server's audit log, and the deletion of all its Tasks must
// leave nothing. Tests that stop or kill the operator do not run in parallel, so no other test sees that.
package e2e
