// Package faults tries to prove that a Task can be lost, run twice at a time, or told of wrongly: it kills the operator at each of
// its writes, has each of its calls fail in each way, and lets whole populations of Tasks go through storms of faults at random.
// The API server is real; the nodes are played, and what the played workers have written down is the truth (package testenv).
//
// The short form runs by default, LONG=1 asks for the long one, SEED=n repeats the random run of that seed, and RUNS=n has so many with the
// seeds that follow.
package faults

import (
	"context"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/controllers/task"
	"github.com/taskwarden/taskwarden/internal/gateway"
	"github.com/taskwarden/taskwarden/test/testenv"
)

// long asks for the long form.
var long = os.Getenv("LONG") != ""

// newEnv is the world of a test, with the operator in it and a gateway that it can find.
func newEnv(t *testing.T, opts ...testenv.Option) *testenv.Env {
	t.Helper()
	env := testenv.New(t, append([]testenv.Option{
		testenv.Stopped(),
		testenv.WithController(func(ctx context.Context, mgr ctrl.Manager, env *testenv.Env, wrap testenv.Wrap) error {
			gateways := &task.Gateways{Reader: mgr.GetAPIReader(), Namespace: env.Namespace, Image: "taskwarden.dev/taskwarden:dev", Clock: env.Clock}
			return (&task.Reconciler{Gateways: gateways}).SetupWithManager(ctx, mgr, task.Options{
				Clock: env.Clock, Wrap: wrap, ReadsOwnWrites: task.ReadsOwnWrites(1), SkipNameValidation: true,
			})
		}),
		testenv.WithManager(func(o *ctrl.Options) {
			o.Cache.ByObject = task.CacheByObject()
			o.NewClient = task.NewClient(1)
		}),
	}, opts...)...)
	for _, object := range []client.Object{
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: env.Namespace, Name: gateway.ServiceName},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 8443}}},
		},
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: env.Namespace, Name: gateway.ConfigMapName},
			Data:       map[string]string{gateway.ConfigMapKey: "PEM"},
		},
	} {
		if err := env.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	return env
}

func TestMain(m *testing.M) { testenv.Main(m) }
