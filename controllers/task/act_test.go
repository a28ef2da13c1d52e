package task

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestRefusedStopBecomesADeletion: where the gentle way to stop a pod is forbidden, it is stopped all the same. An error that
// may pass is no refusal.
func TestRefusedStopBecomesADeletion(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	cases := map[string]struct {
		answer  error
		deleted bool
		fails   bool
	}{
		"done":            {nil, false, false},
		"a policy":        {apierrors.NewForbidden(pods, "pod-1", errors.New("denied")), true, false},
		"an invalid one":  {apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "pod-1", nil), true, false},
		"a bad request":   {apierrors.NewBadRequest("no"), true, false},
		"gone":            {apierrors.NewNotFound(pods, "pod-1"), false, false},
		"another pod":     {apierrors.NewConflict(pods, "pod-1", errors.New("uid")), false, false},
		"a server's moan": {apierrors.NewServiceUnavailable("later"), false, true},
	}
	for name, tc := range cases {
		deleted := false
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "pod-1", UID: "uid-1"}}
		r := &Reconciler{Client: fake.NewClientBuilder().WithObjects(pod).WithInterceptorFuncs(interceptor.Funcs{
			Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
				return tc.answer
			},
			Delete: func(_ context.Context, _ client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
				o := (&client.DeleteOptions{}).ApplyOptions(opts)
				deleted = obj.GetName() == pod.Name && o.Preconditions != nil && *o.Preconditions.UID == pod.UID
				return nil
			},
		}).Build()}
		err := r.stop(t.Context(), pod.Namespace, Stop{ObjectKey: ObjectKey{Name: pod.Name, UID: pod.UID}, By: StopByDeadline})
		if deleted != tc.deleted || (err != nil) != tc.fails {
			t.Errorf("%s: deleted is %v, error %v", name, deleted, err)
		}
	}
}
