package testenv

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/audit"
	"github.com/taskwarden/taskwarden/test/invariants"
)

// Env is the world of one test.
type Env struct {
	// Namespace belongs to this test alone.
	Namespace string
	// Client is an administrator's, without a cache.
	Client client.WithWatch
	// Config is an administrator's.
	Config *rest.Config
	// Clock is the operator's, and the played kubelet's. The API server's own clock is the machine's.
	Clock clock.Clock
	// Kubelet plays the nodes.
	Kubelet *Kubelet
	// Faults stand between the operator and the API server.
	Faults *Faults
	// Marks are what the played workers say of themselves.
	Marks *invariants.Memory
	// Audit is the API server's audit log of this namespace.
	Audit *audit.Log

	t       testing.TB
	ctx     context.Context // until the end of the cleanup
	options options
	log     *testLog
	waivers []invariants.Waiver

	mu         sync.Mutex
	controller *incarnation
	rival      *incarnation // a second operator
	background sync.WaitGroup
}

// New makes a namespace, starts the operator in it, and arranges for the invariants to be checked and everything to be
// removed when the test ends.
func New(t testing.TB, opts ...Option) *Env {
	t.Helper()
	shared := sharedCluster(t)
	e := &Env{
		Client: shared.client, Config: shared.config, Clock: clock.RealClock{},
		Faults: newFaults(), Marks: &invariants.Memory{}, t: t, log: &testLog{t: t},
	}
	for _, o := range opts {
		o(&e.options)
	}
	if e.options.clock != nil {
		e.Clock = e.options.clock
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	e.ctx = ctx
	e.Kubelet = newKubelet(e)
	e.createNamespace()
	log, err := audit.Follow(shared.auditLog, e.Namespace)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	e.Audit = log
	t.Cleanup(func() { e.cleanup(cancel) })
	e.waitForServiceAccount()
	if e.options.setup != nil && !e.options.stopped {
		e.StartController()
	}
	return e
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

func (e *Env) createNamespace() {
	e.t.Helper()
	name := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(e.t.Name()), "-"), "-")
	if len(name) > 40 {
		name = name[:40]
	}
	ns := &corev1.Namespace{}
	ns.GenerateName = name + "-"
	ns.Labels = e.options.labels
	if err := e.Client.Create(e.ctx, ns); err != nil {
		e.t.Fatalf("create a namespace: %v", err)
	}
	e.Namespace = ns.Name
}

// waitForServiceAccount spares the first Job of a test the refusal that a namespace without the account gives, and the
// Job controller's long wait after it.
func (e *Env) waitForServiceAccount() {
	e.t.Helper()
	Eventually(e.t, func(ctx context.Context) error {
		return e.Client.Get(ctx, client.ObjectKey{Namespace: e.Namespace, Name: "default"}, &corev1.ServiceAccount{})
	})
}

// Waive names a violation that the test provokes on purpose, and why that is right.
func (e *Env) Waive(invariant int, rule, why string) {
	e.waivers = append(e.waivers, invariants.Waiver{Invariant: invariant, Rule: rule, Why: why})
}

// Step moves a fake clock on and has the operator look at every Task: its own wake-ups come by the machine's clock.
func (e *Env) Step(d time.Duration) {
	e.t.Helper()
	fake, ok := e.Clock.(*clocktesting.FakeClock)
	if !ok {
		e.t.Fatal("Step needs WithClock and a fake clock")
	}
	fake.Step(d)
	e.TouchAll()
}

// TouchAll changes an annotation of every Task, which makes the operator look at it.
func (e *Env) TouchAll() {
	e.t.Helper()
	var tasks v1alpha1.TaskList
	if err := e.Client.List(e.t.Context(), &tasks, client.InNamespace(e.Namespace)); err != nil {
		e.t.Fatalf("list Tasks: %v", err)
	}
	for i := range tasks.Items {
		e.Touch(&tasks.Items[i])
	}
}

// userAgent tells this test's operator in the audit log.
func (e *Env) userAgent() string { return "taskwarden-controller/" + e.Namespace }

// ControllerClient writes in the operator's name, for tests that play a bad one.
func (e *Env) ControllerClient() client.Client {
	e.t.Helper()
	cfg := rest.CopyConfig(e.Config)
	cfg.UserAgent = e.userAgent()
	c, err := client.New(cfg, client.Options{Scheme: Scheme})
	if err != nil {
		e.t.Fatal(err)
	}
	return c
}

func (e *Env) isController(event *audit.Event) bool {
	return strings.HasPrefix(event.UserAgent, e.userAgent())
}

// Option changes what New makes.
type Option func(*options)

type options struct {
	setup   SetupFunc
	manager []func(*ctrl.Options)
	clock   clock.Clock
	labels  map[string]string
	stopped bool
	user    string
	budget  invariants.Budget
}

// SetupFunc registers the operator's controllers with a manager. It is called for each start. The reconciler of Tasks must be
// wrapped, so that the checker knows when it will look at a Task by itself.
type SetupFunc func(ctx context.Context, mgr ctrl.Manager, env *Env, wrap Wrap) error

// Wrap puts a reconciler around another.
type Wrap = func(reconcile.Reconciler) reconcile.Reconciler

// WithController says what the operator is. Without it there is none, the test is about the API server alone, and no
// invariants are checked when it ends.
func WithController(setup SetupFunc) Option { return func(o *options) { o.setup = setup } }

// WithManager changes the options of the operator's manager.
func WithManager(change func(*ctrl.Options)) Option {
	return func(o *options) { o.manager = append(o.manager, change) }
}

// WithClock gives the operator and the kubelet another clock. A fake one should begin at the present time: the API server
// stamps what is created with the real one.
func WithClock(c clock.Clock) Option { return func(o *options) { o.clock = c } }

// WithNamespaceLabel sets a label of the namespace, for pod security for instance.
func WithNamespaceLabel(key, value string) Option {
	return func(o *options) {
		if o.labels == nil {
			o.labels = map[string]string{}
		}
		o.labels[key] = value
	}
}

// Stopped leaves the operator to be started by the test.
func Stopped() Option { return func(o *options) { o.stopped = true } }

// WithUser makes the operator another user than an administrator.
func WithUser(name string) Option { return func(o *options) { o.user = name } }

// WithBudget gives the writes of the operator another bound (invariant 7).
func WithBudget(b invariants.Budget) Option { return func(o *options) { o.budget = b } }

func (e *Env) String() string { return fmt.Sprintf("test environment %s", e.Namespace) }
