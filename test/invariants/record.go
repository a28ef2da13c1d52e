package invariants

import (
	"fmt"
	"slices"
	"time"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// history is everything that the audit log says of the Tasks of a namespace.
type history struct {
	records []*record // in order of creation
}

func (h *history) byUID(uid string) *record {
	i := slices.IndexFunc(h.records, func(r *record) bool { return r.uid == uid })
	if i < 0 {
		return nil
	}
	return h.records[i]
}

// record is everything that the audit log says of one Task.
type record struct {
	uid, namespace, name string

	first    *version  // what was stored before; nil for a Task that is seen from its creation on
	versions []version // each stored version, by resourceVersion
	jobs     []job
	pods     []*pod
	writes   []time.Time // by the operator, refused ones too
	outside  []outside
	deletion deletion
}

func (r *record) String() string { return fmt.Sprintf("%s/%s (%s)", r.namespace, r.name, r.uid) }

// version is one stored version of a Task. Versions of all kinds can be compared: they count the writes of one etcd.
type version struct {
	number     uint64
	at         time.Time
	task       *v1alpha1.Task
	statusSize int
	controller bool
	verb       string
}

func (v *version) String() string {
	return fmt.Sprintf("version %d (%s at %s)", v.number, v.verb, stamp(v.at))
}

// job is the creation of a worker Job.
type job struct {
	uid, name, attempt string
	version            uint64
	at                 time.Time // when the request came in
}

// pod is what is known of a worker pod.
type pod struct {
	uid, name, attempt string
	job                string    // UID
	ended              time.Time // of the worker container, as the kubelet says, to the second
	removed            time.Time // when it was deleted without grace: a kubelet's last word, or force
}

// outside is something that others did and that may cost the operator writes.
type outside struct {
	at     time.Time
	weight int
}

type deletion struct {
	at       time.Time
	orphaned bool // its dependents were meant to stay
}

// last is the newest version, nil where none is known.
func (r *record) last() *v1alpha1.Task {
	if len(r.versions) == 0 {
		return nil
	}
	return r.versions[len(r.versions)-1].task
}

// pairs calls f with each version and the one before it, which is an empty Task at its creation.
func (r *record) pairs(f func(old, cur *version)) {
	old := r.first
	if old == nil {
		old = &version{task: &v1alpha1.Task{}}
	}
	for i := range r.versions {
		f(old, &r.versions[i])
		old = &r.versions[i]
	}
}

// before is the version of the Task that was stored when version number of anything was.
func (r *record) before(number uint64) *version {
	for i := len(r.versions) - 1; i >= 0; i-- {
		if r.versions[i].number < number {
			return &r.versions[i]
		}
	}
	return nil
}
