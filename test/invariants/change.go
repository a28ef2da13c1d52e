package invariants

import "github.com/taskwarden/taskwarden/api/v1alpha1"

// Change gives the violations of one stored change of a Task, for tests that see each write themselves and need no audit log. A
// request for a retry by hand in the annotations counts as a user's.
func Change(old, cur *v1alpha1.Task) []Violation {
	r := &record{
		uid: string(cur.UID), namespace: cur.Namespace, name: cur.Name,
		first: &version{task: old}, versions: []version{{task: cur, verb: "update"}},
	}
	src := &Source{}
	src.setDefaults()
	return src.checkRecord(r, nil)
}
