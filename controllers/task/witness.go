package task

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
)

// witness remembers, of pods that are gone, that their containers had stopped before. It only shortens a wait: what it has
// forgotten, or never saw, is waited for.
type witness struct{ pods *lru.Cache }

// witnessed is how many pods are remembered.
const witnessed = 4096

func newWitness() *witness { return &witness{pods: lru.New(witnessed)} }

// deleted notes the last state of a pod that went.
func (w *witness) deleted(pod *corev1.Pod) {
	if facts := factsOfPod(pod, ""); !facts.MayRun {
		w.pods.Add(pod.UID, struct{}{})
	}
}

func (w *witness) stopped(pod types.UID) bool {
	_, ok := w.pods.Get(pod)
	return ok
}
