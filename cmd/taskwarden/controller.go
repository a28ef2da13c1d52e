package main

import (
	"context"
	"errors"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"github.com/taskwarden/taskwarden/controllers/patrol"
	"github.com/taskwarden/taskwarden/controllers/task"
)

// envPodName is the variable by which the pod is told its name.
const envPodName = "POD_NAME"

type controllerOptions struct {
	processOptions
	leaderElect          bool
	leaderElectNamespace string
	concurrency          int
	namespaces           []string
	gatewayNamespace     string
	reporterImage        string
	patrolPeriod         time.Duration
	patrolThreshold      time.Duration
}

func newControllerCommand() *cobra.Command {
	var o controllerOptions
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Carry Tasks through their states",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.leaderElect, "leader-elect", false, "let one of several replicas lead")
	f.StringVar(&o.leaderElectNamespace, "leader-elect-namespace", "", "namespace of the Lease (default: that of the pod)")
	o.bind(f, "requests to the API server")
	f.IntVar(&o.concurrency, "concurrency", task.DefaultConcurrency, "Tasks reconciled at once, above 0")
	f.StringSliceVar(&o.namespaces, "namespace", nil, "namespaces to watch (default: all)")
	f.StringVar(&o.gatewayNamespace, "gateway-namespace", "",
		"namespace of the gateway, to which sidecars report (default: that of the pod)")
	f.DurationVar(&o.patrolPeriod, "patrol-period", patrol.DefaultPeriod, "time from one patrol for what was missed to the next, 0 for none")
	f.DurationVar(&o.patrolThreshold, "patrol-threshold", patrol.DefaultThreshold, "how long ago the patrol's finds should have been acted on")
	f.StringVar(&o.reporterImage, "reporter-image", "", "image of the sidecars (default: that of the pod)")
	return cmd
}

func (o *controllerOptions) run(ctx context.Context) error {
	if o.concurrency <= 0 {
		return errors.New("--concurrency must be above 0")
	}
	if o.gatewayNamespace == "" {
		// Outside of a pod there is none: then a Task that needs the gateway says so.
		o.gatewayNamespace, _ = ownNamespace()
	}
	cfg, scheme, err := o.connect("taskwarden-controller")
	if err != nil {
		return err
	}
	cfg.QPS, cfg.Burst = o.qps, o.burst
	serving := o.serving(scheme)
	serving.Cache = cache.Options{ByObject: task.CacheByObject(), DefaultNamespaces: namespaces(o.namespaces)}
	serving.NewClient = task.NewClient(len(o.namespaces))
	serving.LeaderElection, serving.LeaderElectionID = o.leaderElect, "taskwarden-controller"
	serving.LeaderElectionNamespace = o.leaderElectNamespace
	serving.LeaderElectionReleaseOnCancel = true
	serving.GracefulShutdownTimeout = ptr.To(20 * time.Second)
	mgr, err := ctrl.NewManager(cfg, serving)
	if err != nil {
		return err
	}
	clk, err := apiClock(ctx, cfg, mgr)
	if err != nil {
		return err
	}
	options := task.Options{Clock: clk, MaxClockSkew: o.maxClockSkew, Concurrency: o.concurrency, ReadsOwnWrites: task.ReadsOwnWrites(len(o.namespaces))}
	gateways := &task.Gateways{
		Reader: mgr.GetAPIReader(), Namespace: o.gatewayNamespace, Image: o.reporterImage, Pod: os.Getenv(envPodName), Clock: clk,
	}
	reconciler := &task.Reconciler{Gateways: gateways}
	if err := reconciler.SetupWithManager(ctx, mgr, options); err != nil {
		return err
	}
	patrols := patrol.Options{Period: o.patrolPeriod, Threshold: o.patrolThreshold, Namespaces: o.namespaces}
	if err := patrol.SetupWithManager(mgr, reconciler, patrols); err != nil {
		return err
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	if err := mgr.AddReadyzCheck("caches", cachesSynced(mgr.GetCache())); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// cachesSynced is ready once the caches show the cluster; a replica that does not lead is ready, too.
func cachesSynced(c cache.Cache) healthz.Checker {
	return func(req *http.Request) error {
		ctx, cancel := context.WithTimeout(req.Context(), 500*time.Millisecond)
		defer cancel()
		if !c.WaitForCacheSync(ctx) {
			return errors.New("the caches are not filled yet")
		}
		return nil
	}
}

func namespaces(names []string) map[string]cache.Config {
	if len(names) == 0 {
		return nil
	}
	m := map[string]cache.Config{}
	for _, n := range names {
		m[n] = cache.Config{}
	}
	return m
}
