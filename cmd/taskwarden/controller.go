package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/controllers/task"
)

// Variables by which the pod is told who it is.
const (
	envPodName      = "POD_NAME"
	envPodNamespace = "POD_NAMESPACE"
)

type controllerOptions struct {
	leaderElect          bool
	leaderElectNamespace string
	metricsAddress       string
	probeAddress         string
	pprofAddress         string
	qps                  float32
	burst                int
	concurrency          int
	namespaces           []string
	gatewayNamespace     string
	reporterImage        string
	log                  zap.Options
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
	f.StringVar(&o.metricsAddress, "metrics-bind-address", ":8080", `address of the metrics, "0" for none`)
	f.StringVar(&o.probeAddress, "health-probe-bind-address", ":8081", `address of /healthz and /readyz, "0" for none`)
	f.StringVar(&o.pprofAddress, "pprof-bind-address", "", "address of /debug/pprof (default: none)")
	f.Float32Var(&o.qps, "kube-api-qps", 200, "requests a second to the API server, above 0")
	f.IntVar(&o.burst, "kube-api-burst", 400, "requests at once to the API server, above 0")
	f.IntVar(&o.concurrency, "concurrency", task.DefaultConcurrency, "Tasks reconciled at once, above 0")
	f.StringSliceVar(&o.namespaces, "namespace", nil, "namespaces to watch (default: all)")
	f.StringVar(&o.gatewayNamespace, "gateway-namespace", os.Getenv(envPodNamespace),
		"namespace of the gateway, to which sidecars report (default: that of the pod)")
	f.StringVar(&o.reporterImage, "reporter-image", "", "image of the sidecars (default: that of the pod)")
	zapFlags := flag.NewFlagSet("zap", flag.ContinueOnError)
	o.log.BindFlags(zapFlags)
	f.AddGoFlagSet(zapFlags)
	return cmd
}

func (o *controllerOptions) run(ctx context.Context) error {
	if o.qps <= 0 || o.burst <= 0 || o.concurrency <= 0 {
		return errors.New("--kube-api-qps, --kube-api-burst and --concurrency must be above 0")
	}
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&o.log)))
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	cfg.QPS, cfg.Burst = o.qps, o.burst
	cfg.UserAgent = "taskwarden-controller"
	cfg.DisableCompression = true // as kube-controller-manager: a link within the cluster costs less than gzip
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         cache.Options{ByObject: task.CacheByObject(), DefaultNamespaces: namespaces(o.namespaces)},
		NewClient:                     task.NewClient(len(o.namespaces)),
		Metrics:                       metricsserver.Options{BindAddress: o.metricsAddress},
		HealthProbeBindAddress:        o.probeAddress,
		PprofBindAddress:              o.pprofAddress,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              "taskwarden-controller",
		LeaderElectionNamespace:       o.leaderElectNamespace,
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       ptr.To(20 * time.Second),
	})
	if err != nil {
		return err
	}
	options := task.Options{Concurrency: o.concurrency, ReadsOwnWrites: task.ReadsOwnWrites(len(o.namespaces))}
	gateways := &task.Gateways{
		Reader: mgr.GetAPIReader(), Namespace: o.gatewayNamespace, Image: o.reporterImage, Pod: os.Getenv(envPodName), Clock: clock.RealClock{},
	}
	if err := (&task.Reconciler{Gateways: gateways}).SetupWithManager(ctx, mgr, options); err != nil {
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
