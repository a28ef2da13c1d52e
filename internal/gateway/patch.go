package gateway

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// operation is one of a JSON patch (RFC 6902). A test with the value null is one for absence: the API server's library takes a
// missing member for null.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// newsPatch is the change from one status to another as far as reports that are not final make it, on the condition that what
// they were decided on is still so. It leaves everything else to others, above all the state.
func newsPatch(before, after *v1alpha1.Task) (client.Patch, error) {
	was, is := &before.Status, &after.Status
	ops := []operation{
		{"test", "/metadata/uid", before.UID},
		{"test", "/status/attempt", orAbsent(was.Attempt)},
		{"test", "/status/state", orAbsent(was.State)},
		{"test", "/status/worker/sequence", orAbsent(was.Worker.Sequence)},
		noReport(was),
	}
	if !equality.Semantic.DeepEqual(was.Progress, is.Progress) {
		ops = append(ops, operation{"add", "/status/progress", is.Progress})
	}
	if !equality.Semantic.DeepEqual(was.Checkpoint, is.Checkpoint) {
		ops = append(ops, operation{"add", "/status/checkpoint", is.Checkpoint})
	}
	ops = append(ops,
		operation{"add", "/status/worker/heartbeatTime", is.Worker.HeartbeatTime},
		operation{"add", "/status/worker/sequence", is.Worker.Sequence},
	)
	return jsonPatch(ops)
}

// finalPatch stores what a final report has changed, on the condition that the Task is the one that was read and has not
// changed since. It is no merge patch, in which a null within a worker's data would mean that the member goes. It names what it
// writes, so that a gateway which is older than the CRD drops no field that it does not know.
func finalPatch(before, after *v1alpha1.Task) (client.Patch, error) {
	was, is := &before.Status, &after.Status
	ops := []operation{
		{"test", "/metadata/uid", before.UID},
		{"test", "/metadata/resourceVersion", before.ResourceVersion},
	}
	if equality.Semantic.DeepEqual(was, &v1alpha1.TaskStatus{}) {
		// A Task that nobody has looked at yet has no status to add a member to.
		return jsonPatch(append(ops, operation{"add", "/status", is}))
	}
	if !equality.Semantic.DeepEqual(was.Report, is.Report) {
		ops = append(ops, operation{"add", "/status/report", is.Report})
	}
	if !equality.Semantic.DeepEqual(was.Conditions, is.Conditions) {
		ops = append(ops, operation{"add", "/status/conditions", is.Conditions})
	}
	return jsonPatch(ops)
}

func jsonPatch(ops []operation) (client.Patch, error) {
	body, err := json.Marshal(ops)
	if err != nil {
		return nil, err
	}
	return client.RawPatch(types.JSONPatchType, body), nil
}

// noReport is the test that no final report of this attempt is stored. One of an earlier attempt may be there.
func noReport(s *v1alpha1.TaskStatus) operation {
	if s.Report == nil {
		return operation{"test", "/status/report", nil}
	}
	return operation{"test", "/status/report/attempt", s.Report.Attempt}
}

// orAbsent is how a value stands in the stored object, where zero is left out.
func orAbsent[T comparable](value T) any {
	var zero T
	if value == zero {
		return nil
	}
	return value
}
