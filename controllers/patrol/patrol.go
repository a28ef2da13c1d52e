package patrol

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/taskwarden/taskwarden/controllers/task"
)

const (
	// DefaultPeriod is the time from the begin of one pass to that of the next.
	DefaultPeriod = 5 * time.Minute
	// DefaultThreshold is how old a mismatch must be. It is far above the time that a busy controller takes.
	DefaultThreshold = 10 * time.Minute

	// requestsPerSecond bounds the patrol's reads. They are made one after the other and have a limit of their own, so that the
	// controller's never wait for them.
	requestsPerSecond = 50
	// shortestLimit is the least time that a pass is given.
	shortestLimit = time.Minute
)

// Options of the patrol.
type Options struct {
	// Period is the time from the begin of one pass to that of the next; the first begins one period after the start, since the
	// controller looks at every Task then. 0: no patrol.
	Period time.Duration
	// Threshold is how old a mismatch must be to be mended. 0: as soon as it is seen.
	Threshold time.Duration
	// Namespaces that are looked at. Default: all.
	Namespaces []string
}

// Patrol finds and mends what the controller has missed. It makes one pass at a time.
type Patrol struct {
	// Live reads past the caches.
	Live client.Reader
	// Client deletes workers whose Task is gone.
	Client client.Writer
	// Recorder writes Kubernetes Events.
	Recorder events.EventRecorder
	// Clock is the source of the current time.
	Clock clock.PassiveClock
	// Log is told of each repair. Default: nobody is.
	Log logr.Logger
	// Repairer makes the decisions about Tasks.
	Repairer *task.Repairer
	// Options of this patrol.
	Options Options

	// sights are the mismatches without a date that the last pass has seen.
	sights map[types.UID]sight
	// next says by namespace where the next pass takes up the Tasks that have ended.
	next map[string]string
}

// sight is a mismatch, and when it was seen for the first time.
type sight struct {
	what  task.Mismatch
	first time.Time
}

// SetupWithManager adds a patrol to the manager, unless its period is 0. The Reconciler must have been set up before.
func SetupWithManager(mgr ctrl.Manager, r *task.Reconciler, o Options) error {
	if o.Period < 0 || o.Threshold < 0 {
		return fmt.Errorf("the patrol's period %s and threshold %s must not be below 0", o.Period, o.Threshold)
	}
	if o.Period == 0 {
		return nil
	}
	p, err := New(mgr, r, o)
	if err != nil {
		return err
	}
	return mgr.Add(p)
}

// New makes a patrol that somebody else has pass. The Reconciler must have been set up before.
func New(mgr ctrl.Manager, r *task.Reconciler, o Options) (*Patrol, error) {
	cfg := rest.CopyConfig(mgr.GetConfig())
	cfg.QPS, cfg.Burst, cfg.RateLimiter = requestsPerSecond, requestsPerSecond, nil
	live, err := client.New(cfg, client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return nil, fmt.Errorf("the patrol's client: %w", err)
	}
	return &Patrol{
		Live: live, Client: r.Client, Recorder: r.Recorder, Clock: r.Clock, Log: mgr.GetLogger().WithName("patrol"),
		Repairer: r.Repairer(live), Options: o,
	}, nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (p *Patrol) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (p *Patrol) Start(ctx context.Context) error {
	// Its only error is that of the context, which is the end of the process.
	_ = wait.PollUntilContextCancel(ctx, p.Options.Period, false, func(ctx context.Context) (bool, error) {
		if _, err := p.Pass(ctx); err != nil && ctx.Err() == nil {
			p.Log.Error(err, "The pass did not come to its end; the next one begins anew")
		}
		return false, nil
	})
	return nil
}

// Found counts mismatches by kind.
type Found map[task.MismatchKind]int

// Pass makes one pass. A Task that cannot be mended does not keep it from the others; that it could not be read does.
func (p *Patrol) Pass(ctx context.Context) (Found, error) {
	ctx, cancel := context.WithTimeout(logf.IntoContext(ctx, p.Log), max(p.Options.Period, shortestLimit))
	defer cancel()
	began := p.Clock.Now()
	r := &round{Patrol: p, open: map[types.UID]bool{}, seen: map[types.UID]sight{}, found: Found{}}
	if err := r.everywhere(ctx); err != nil {
		if p.sights == nil {
			p.sights = map[types.UID]sight{}
		}
		maps.Copy(p.sights, r.seen) // what it has not come to may still be so
		return r.found, err
	}
	p.sights = r.seen
	end := p.Clock.Now()
	lastPass.Set(float64(end.UnixMilli()) / 1000)
	lastDuration.Set(end.Sub(began).Seconds())
	p.Log.V(1).Info("Pass complete", "unfinished", len(r.open), "mismatches", r.found, "duration", end.Sub(began).String())
	return r.found, nil
}
