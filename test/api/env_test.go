// Package api tests the operator against a real API server. See package testenv for how.
package api

import (
	"context"
	"testing"

	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/taskwarden/taskwarden/controllers/task"
	"github.com/taskwarden/taskwarden/test/testenv"
)

// newEnv is the world of a test, with the operator in it.
func newEnv(t *testing.T, opts ...testenv.Option) *testenv.Env {
	t.Helper()
	return testenv.New(t, append(operatorFor(1), opts...)...)
}

// operatorFor makes the operator what it is for so many named namespaces. For more than one its reads may be older than its
// writes.
func operatorFor(namespaces int) []testenv.Option {
	return operatorWith(namespaces, func(_ context.Context, _ ctrl.Manager, env *testenv.Env) (clock.PassiveClock, error) {
		return env.Clock, nil
	})
}

// operatorWith makes an operator with a clock of its own, which is made at each start.
func operatorWith(namespaces int, clockOf func(context.Context, ctrl.Manager, *testenv.Env) (clock.PassiveClock, error)) []testenv.Option {
	return []testenv.Option{
		testenv.WithController(func(ctx context.Context, mgr ctrl.Manager, env *testenv.Env, wrap testenv.Wrap) error {
			clk, err := clockOf(ctx, mgr, env)
			if err != nil {
				return err
			}
			gateways := &task.Gateways{Reader: mgr.GetAPIReader(), Namespace: env.Namespace, Image: "taskwarden.dev/taskwarden:dev", Clock: clk}
			return (&task.Reconciler{Gateways: gateways}).SetupWithManager(ctx, mgr, task.Options{
				Clock: clk, Wrap: wrap, ReadsOwnWrites: task.ReadsOwnWrites(namespaces), SkipNameValidation: true,
			})
		}),
		testenv.WithManager(func(o *ctrl.Options) {
			o.Cache.ByObject = task.CacheByObject()
			o.NewClient = task.NewClient(namespaces)
		}),
	}
}

func TestMain(m *testing.M) { testenv.Main(m) }
