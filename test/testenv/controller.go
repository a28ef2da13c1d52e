package testenv

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// incarnation is the operator from one start to the stop.
type incarnation struct {
	cancel    context.CancelFunc
	transport *transport
	wakes     *wakes
	done      chan struct{}
	err       error // of the manager, once done is closed
}

// StartController starts the operator and waits until its caches are filled.
func (e *Env) StartController() {
	e.t.Helper()
	e.start(&e.controller)
}

// StartRival starts a second operator beside the first: a leader that does not know yet that another one has taken over.
func (e *Env) StartRival() {
	e.t.Helper()
	e.start(&e.rival)
}

// KillRival ends the second operator as SIGKILL does. Without one it does nothing.
func (e *Env) KillRival() {
	e.t.Helper()
	e.end(&e.rival, func(one *incarnation) { one.transport.kill() })
}

func (e *Env) start(which **incarnation) {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if *which != nil {
		e.t.Fatal("the operator runs already")
	}
	one := &incarnation{done: make(chan struct{}), wakes: &wakes{clock: e.Clock, known: map[reconcile.Request]wakeUp{}}}
	cfg := rest.CopyConfig(e.Config)
	cfg.UserAgent = e.userAgent()
	cfg.Impersonate.UserName = e.options.user
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		one.transport = newTransport(e.Faults, next)
		return one.transport
	})
	ctx, cancel := context.WithCancel(e.ctx)
	one.cancel = cancel
	mgr, err := ctrl.NewManager(cfg, e.managerOptions())
	if err == nil {
		err = e.options.setup(ctx, mgr, e, one.wakes.around)
	}
	if err != nil {
		cancel()
		e.t.Fatalf("make the operator: %v", err)
	}
	go func() {
		defer close(one.done)
		one.err = mgr.Start(ctx)
	}()
	*which = one
	synced, stop := context.WithTimeout(ctx, Patience)
	defer stop()
	if !mgr.GetCache().WaitForCacheSync(synced) {
		e.t.Fatalf("the operator's caches were not filled within %s", Patience)
	}
}

func (e *Env) managerOptions() ctrl.Options {
	o := ctrl.Options{
		Scheme:                  Scheme,
		Logger:                  e.log.logger(),
		Cache:                   cache.Options{DefaultNamespaces: map[string]cache.Config{e.Namespace: {}}},
		Metrics:                 metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress:  "0",
		LeaderElection:          false,
		GracefulShutdownTimeout: ptr.To(Patience),
		// Each test has an operator in this process, and they all have the same names.
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	}
	for _, change := range e.options.manager {
		change(&o)
	}
	return o
}

// StopController ends the operator as SIGTERM does: what is under way is finished. Without one it does nothing.
func (e *Env) StopController() {
	e.t.Helper()
	e.end(&e.controller, func(*incarnation) {})
}

// KillController ends the operator as SIGKILL does: from now on nothing of it reaches the API server, and no answer reaches it.
func (e *Env) KillController() {
	e.t.Helper()
	e.end(&e.controller, func(one *incarnation) { one.transport.kill() })
}

// RestartController kills the operator and starts it again.
func (e *Env) RestartController() {
	e.t.Helper()
	e.KillController()
	e.StartController()
}

// Running tells whether the operator runs.
func (e *Env) Running() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.controller != nil
}

// wake is when the operator will look at a Task by itself.
func (e *Env) wake(t *v1alpha1.Task) (time.Time, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.controller == nil {
		return time.Time{}, errors.New("the operator does not run")
	}
	return e.controller.wakes.of(t)
}

func (e *Env) end(which **incarnation, how func(*incarnation)) {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	one := *which
	if one == nil {
		return
	}
	*which = nil
	how(one)
	one.cancel()
	select {
	case <-one.done:
	case <-time.After(Patience + 10*time.Second):
		e.t.Error("the operator did not end")
		return
	}
	if one.err != nil && !errors.Is(one.err, context.Canceled) {
		e.t.Error(fmt.Errorf("the operator ended with: %w", one.err))
	}
}

// Quiet waits until the operator has asked the API server for nothing for a while: whatever it had to do is done. Watches
// that only listen do not count.
func (e *Env) Quiet(while time.Duration) {
	e.t.Helper()
	Eventually(e.t, func(context.Context) error {
		if since := time.Since(e.Faults.lastCall()); since < while {
			return fmt.Errorf("the operator's last request was %s ago", since)
		}
		return nil
	})
}
