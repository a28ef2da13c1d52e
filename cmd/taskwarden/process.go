package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/apiclock"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// ownNamespaceFile is where a pod finds the name of its namespace.
const ownNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// processOptions are those of every role that goes on running.
type processOptions struct {
	metricsAddress string
	probeAddress   string
	pprofAddress   string
	qps            float32
	burst          int
	maxClockSkew   time.Duration
	log            zap.Options
}

// bind makes the flags; requests says which requests to the API server are bounded.
func (o *processOptions) bind(f *pflag.FlagSet, requests string) {
	f.StringVar(&o.metricsAddress, "metrics-bind-address", ":8080", `address of the metrics, "0" for none`)
	f.StringVar(&o.probeAddress, "health-probe-bind-address", ":8081", `address of /healthz and /readyz, "0" for none`)
	f.StringVar(&o.pprofAddress, "pprof-bind-address", "", "address of /debug/pprof (default: none)")
	f.Float32Var(&o.qps, "kube-api-qps", 200, requests+" a second, above 0")
	f.IntVar(&o.burst, "kube-api-burst", 400, requests+" at once, above 0")
	f.DurationVar(&o.maxClockSkew, "max-clock-skew", lifecycle.DefaultMaxClockSkew,
		"how far the clock of a worker that reports may be from the API server's, above 0; the same for controller and gateway")
	zapFlags := flag.NewFlagSet("zap", flag.ContinueOnError)
	o.log.BindFlags(zapFlags)
	f.AddGoFlagSet(zapFlags)
}

// connect begins the log, and finds the API server. The requests are not bounded yet.
func (o *processOptions) connect(userAgent string) (*rest.Config, *runtime.Scheme, error) {
	if o.qps <= 0 || o.burst <= 0 || o.maxClockSkew <= 0 {
		return nil, nil, errors.New("--kube-api-qps, --kube-api-burst and --max-clock-skew must be above 0")
	}
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&o.log)))
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("find the API server: %w", err)
	}
	cfg.UserAgent = userAgent
	cfg.DisableCompression = true // as kube-controller-manager: a link within the cluster costs less than gzip
	scheme := runtime.NewScheme()
	return cfg, scheme, errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme))
}

// apiClock is the API server's clock, by which this process decides; it has been read when this returns. The manager, whose metrics
// have it, keeps it right.
func apiClock(ctx context.Context, cfg *rest.Config, mgr ctrl.Manager) (*apiclock.Clock, error) {
	meter, err := apiclock.New(apiclock.Options{Config: cfg, Registerer: metrics.Registry, Log: ctrl.Log.WithName("clock")})
	if err != nil {
		return nil, err
	}
	return meter.Clock, errors.Join(meter.Synchronize(ctx), mgr.Add(meter))
}

// serving is what a manager needs to know of the process.
func (o *processOptions) serving(scheme *runtime.Scheme) ctrl.Options {
	return ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: o.metricsAddress},
		HealthProbeBindAddress: o.probeAddress, PprofBindAddress: o.pprofAddress,
	}
}

// ownNamespace is that of the pod, an error outside of one.
func ownNamespace() (string, error) {
	name, err := os.ReadFile(ownNamespaceFile)
	return strings.TrimSpace(string(name)), err
}
