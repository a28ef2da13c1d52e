package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/internal/gateway"
	"github.com/taskwarden/taskwarden/internal/report"
	"github.com/taskwarden/taskwarden/test/testenv"
)

// gatewayAccount gives an account of the test's namespace the rights that config/gateway gives to the gateway, and no others.
func gatewayAccount(t *testing.T, env *testenv.Env) *rest.Config {
	t.Helper()
	var everywhere rbacv1.ClusterRole
	readManifest(t, &everywhere, "gateway", "role.yaml")
	var own rbacv1.Role
	readManifest(t, &own, "gateway", "certificates_role.yaml")
	everywhere.Name, own.Namespace = env.Namespace, env.Namespace
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: env.Namespace, Name: "gateway"}}
	everywhereBinding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: env.Namespace}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: everywhere.Name},
	}
	ownBinding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: env.Namespace, Name: own.Name}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: own.Name},
	}
	for _, object := range []client.Object{&everywhere, everywhereBinding, &own, ownBinding} {
		mustCreate(t, env, object)
	}
	t.Cleanup(func() {
		for _, object := range []client.Object{&everywhere, everywhereBinding} {
			if err := env.Client.Delete(context.WithoutCancel(t.Context()), object); err != nil {
				t.Errorf("delete %T: %v", object, err)
			}
		}
	})
	cfg := rest.CopyConfig(env.Config)
	cfg.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + env.Namespace + ":gateway", Groups: []string{"system:serviceaccounts", "system:authenticated"},
	}
	return cfg
}

// startGateway starts a replica, with port and certificates, and gives its address.
func startGateway(ctx context.Context, t *testing.T, env *testenv.Env, cfg *rest.Config) string {
	t.Helper()
	c, err := client.New(cfg, client.Options{Scheme: testenv.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	news, err := cache.New(cfg, cache.Options{Scheme: testenv.Scheme, ByObject: gateway.CertificateCache(env.Namespace)})
	if err != nil {
		t.Fatal(err)
	}
	certificates := &gateway.Certificates{
		Client: c, Cache: news, Namespace: env.Namespace, Names: gateway.ServiceNames(gateway.ServiceName, env.Namespace), Clock: clock.RealClock{},
	}
	listener, err := gateway.Listen(ctx, "127.0.0.1:0", certificates.GetCertificate)
	if err != nil {
		t.Fatal(err)
	}
	server := gateway.NewServer(gateway.New(gateway.Options{Client: c, WriteInterval: time.Millisecond}).Handler())
	var running sync.WaitGroup
	running.Go(func() { _ = news.Start(ctx) })
	running.Go(func() {
		if err := certificates.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	running.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		_ = server.Close()
		running.Wait()
	})
	return listener.Addr().String()
}

// trusting is a client that trusts what the gateway's ConfigMap has, as a sidecar does, and dials the given address.
func trusting(t *testing.T, env *testenv.Env, address string) *http.Client {
	t.Helper()
	pool := x509.NewCertPool()
	testenv.Eventually(t, func(ctx context.Context) error {
		var published corev1.ConfigMap
		if err := env.Client.Get(ctx, client.ObjectKey{Namespace: env.Namespace, Name: gateway.ConfigMapName}, &published); err != nil {
			return err
		}
		if !pool.AppendCertsFromPEM([]byte(published.Data[gateway.ConfigMapKey])) {
			return fmt.Errorf("no certificate in %v", published.Data)
		}
		return nil
	})
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// TestReportsOverTLS runs two replicas with the rights of the manifests and no others: they agree on a certificate, take reports that
// come over it, and make it anew where somebody has deleted it.
func TestReportsOverTLS(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	task, pod := processing(t, env, "far")
	token := workerToken(t, env, pod)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	cfg := gatewayAccount(t, env)
	addresses := []string{startGateway(ctx, t, env, cfg), startGateway(ctx, t, env, cfg)}
	url := "https://" + gateway.ServiceName + "." + env.Namespace + ".svc:8443" + report.GatewayPath
	sequence := int64(0)
	deliver := func(to *http.Client, kind report.Kind) error {
		sequence++
		body, err := json.Marshal(reportFor(task, kind, sequence))
		if err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(string(body)))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+token)
		response, err := to.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("answered with %s", response.Status)
		}
		return nil
	}
	for _, address := range addresses {
		sidecar := trusting(t, env, address)
		testenv.Eventually(t, func(context.Context) error { return deliver(sidecar, report.Progress) })
	}
	before := &corev1.Secret{}
	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: env.Namespace, Name: gateway.SecretName}, before); err != nil {
		t.Fatal(err)
	}
	if before.Generation > 1 || before.Type != corev1.SecretTypeTLS {
		t.Errorf("the Secret is %+v", before.ObjectMeta)
	}
	mustDelete(t, env, before)
	for _, address := range addresses {
		testenv.Eventually(t, func(context.Context) error { return deliver(trusting(t, env, address), report.Progress) })
	}
	if err := deliver(trusting(t, env, addresses[1]), report.Succeeded); err != nil {
		t.Error(err)
	}
	if r := env.Get(task).Status.Report; r == nil {
		t.Error("nothing is stored")
	}
}
