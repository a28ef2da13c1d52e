package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/taskwarden/taskwarden/internal/gateway"
)

// gatewayGrace is how long requests that are under way may take when the gateway is told to end.
const gatewayGrace = 20 * time.Second

type gatewayOptions struct {
	processOptions
	address     string
	maxRequests int
	maxWrites   int64
	namespace   string
	serviceName string
	extraNames  []string
	certFile    string
	keyFile     string
}

func newGatewayCommand() *cobra.Command {
	var o gatewayOptions
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Take the reports of workers",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&o.address, "bind-address", ":8443", "address of the report endpoint")
	o.bind(f, "requests to the API server for reports that are not final")
	f.IntVar(&o.maxRequests, "max-requests", gateway.DefaultMaxRequests,
		"requests that are handled at once, above 0; more are answered with 429")
	f.Int64Var(&o.maxWrites, "max-writes", gateway.DefaultMaxWrites, "writes at once of reports that are not final, above 0")
	f.StringVar(&o.namespace, "namespace", "",
		"namespace of the gateway's Service, Secret and ConfigMap (default: that of the pod)")
	f.StringVar(&o.serviceName, "service-name", gateway.ServiceName,
		"name of the gateway's Service, for which its certificate is made")
	f.StringSliceVar(&o.extraNames, "tls-extra-name", nil, "further DNS names and addresses that the certificate is made for")
	f.StringVar(&o.certFile, "tls-cert-file", "",
		"certificate in PEM, read again when it changes (default: the gateway makes its own)")
	f.StringVar(&o.keyFile, "tls-key-file", "", "key of that certificate in PEM")
	return cmd
}

// check completes the options and says what is wrong with them.
func (o *gatewayOptions) check() error {
	if o.maxRequests <= 0 || o.maxWrites <= 0 {
		return errors.New("--max-requests and --max-writes must be above 0")
	}
	if (o.certFile == "") != (o.keyFile == "") {
		return errors.New("--tls-cert-file and --tls-key-file go together")
	}
	if o.namespace == "" && o.certFile == "" {
		own, err := ownNamespace()
		if err != nil {
			return fmt.Errorf("outside of a pod --namespace is needed: %w", err)
		}
		o.namespace = own
	}
	return nil
}

func (o *gatewayOptions) run(ctx context.Context) error {
	if err := o.check(); err != nil {
		return err
	}
	cfg, scheme, err := o.connect("taskwarden-gateway")
	if err != nil {
		return err
	}
	// What is final is bounded by the requests at once alone: it must not wait for a rate.
	cfg.QPS = -1
	serving := o.serving(scheme)
	serving.Cache = cache.Options{ByObject: gateway.CertificateCache(o.namespace)}
	serving.GracefulShutdownTimeout = ptr.To(gatewayGrace + 5*time.Second)
	mgr, err := ctrl.NewManager(cfg, serving)
	if err != nil {
		return err
	}
	api, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	limited := rest.CopyConfig(cfg)
	limited.QPS, limited.Burst = o.qps, o.burst
	news, err := client.New(limited, client.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	clk, err := apiClock(ctx, cfg, mgr)
	if err != nil {
		return err
	}
	certificate, err := o.addCertificates(mgr, api, clk)
	if err != nil {
		return err
	}
	g := gateway.New(gateway.Options{
		Client: api, NewsClient: news, Clock: clk, MaxClockSkew: o.maxClockSkew, MaxRequests: o.maxRequests, MaxWrites: o.maxWrites,
		Registerer: metrics.Registry, Log: ctrl.Log.WithName("gateway"),
	})
	listener, err := gateway.Listen(ctx, o.address, certificate)
	if err != nil {
		return err
	}
	server := &manager.Server{
		Name: "reports", Server: gateway.NewServer(g.Handler()), Listener: listener, ShutdownTimeout: ptr.To(gatewayGrace),
	}
	if err := errors.Join(mgr.Add(server), mgr.AddHealthzCheck("ping", healthz.Ping)); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// addCertificates has the manager look after the certificates, and gives where the server gets them from.
func (o *gatewayOptions) addCertificates(mgr ctrl.Manager, api client.Client, clk clock.Clock) (gateway.GetCertificate, error) {
	if o.certFile != "" {
		files, err := certwatcher.New(o.certFile, o.keyFile)
		if err != nil {
			return nil, fmt.Errorf("read the certificate: %w", err)
		}
		return files.GetCertificate, errors.Join(mgr.Add(files), mgr.AddReadyzCheck("ping", healthz.Ping))
	}
	own := &gateway.Certificates{
		Client: api, Cache: mgr.GetCache(), Clock: clk, Log: ctrl.Log.WithName("certificates"),
		Namespace: o.namespace,
		Names:     append(gateway.ServiceNames(o.serviceName, o.namespace), o.extraNames...),
	}
	ready := func(*http.Request) error {
		if !own.Ready() {
			return errors.New("there is no certificate yet")
		}
		return nil
	}
	return own.GetCertificate, errors.Join(mgr.Add(own), mgr.AddReadyzCheck("certificate", ready))
}
