package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Names of the gateway's objects. The manifests have the same.
const (
	// ServiceName is the default name of its Service, for which its certificate is.
	ServiceName = "taskwarden-gateway"
	// SecretName is the Secret with its certificate and the keys of its CAs.
	SecretName = "taskwarden-gateway-tls"
	// ConfigMapName is the ConfigMap with the CAs that its certificate may be signed by, in key ConfigMapKey.
	ConfigMapName = "taskwarden-gateway-ca"
	// ConfigMapKey is the key of that ConfigMap.
	ConfigMapKey = "ca.crt"
)

const (
	// certificateCheck is how often the age of the certificates is looked at, if nobody touches the Secret.
	certificateCheck = time.Hour
	// certificateRetry is the wait after a failure.
	certificateRetry = 5 * time.Second
)

// errNoCertificate is the answer to a client that comes before there is one.
var errNoCertificate = errors.New("no certificate yet")

// Certificates makes the gateway's certificate and its CA, keeps them in a Secret that all replicas share, replaces them in
// time, and publishes the CA in a ConfigMap. It starts no earlier than it is started, and ends with its context.
type Certificates struct {
	// Client asks the API server, without a cache.
	Client client.Client
	// Cache tells of changes of the Secret and the ConfigMap; see CertificateCache. Nil: they are seen within an hour.
	Cache cache.Cache
	// Namespace is that of the gateway.
	Namespace string
	// Names are the DNS names and addresses that the certificate is for; at least one.
	Names []string
	// Clock is what ages are reckoned by.
	Clock clock.Clock
	// Log is where replacements and failures are told.
	Log logr.Logger

	current atomic.Pointer[served]
}

// served is a certificate that is in use.
type served struct {
	pem  []byte
	pair *tls.Certificate
}

// CertificateCache restricts a cache to the two objects, so that the gateway needs no right to any other.
func CertificateCache(namespace string) map[client.Object]cache.ByObject {
	only := func(name string) cache.ByObject {
		return cache.ByObject{
			Namespaces: map[string]cache.Config{namespace: {}},
			Field:      fields.OneTermEqualSelector("metadata.name", name),
		}
	}
	return map[client.Object]cache.ByObject{&corev1.Secret{}: only(SecretName), &corev1.ConfigMap{}: only(ConfigMapName)}
}

// ServiceNames are the names by which a Service is reached from within the cluster, the full ones first.
func ServiceNames(service, namespace string) []string {
	short := service + "." + namespace
	return []string{short + ".svc", short + ".svc.cluster.local", short, service}
}

// GetCertificate gives the current certificate to a TLS server.
func (c *Certificates) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if s := c.current.Load(); s != nil {
		return s.pair, nil
	}
	return nil, errNoCertificate
}

// Ready tells whether there is a certificate.
func (c *Certificates) Ready() bool { return c.current.Load() != nil }

// NeedLeaderElection says that every replica does this for itself: the API server sees to it that only one writes.
func (c *Certificates) NeedLeaderElection() bool { return false }

// Start looks after the certificates until the context ends.
func (c *Certificates) Start(ctx context.Context) error {
	changed, err := c.watch(ctx)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		next := certificateCheck
		if err := c.Ensure(ctx); err != nil && ctx.Err() == nil {
			c.Log.Error(err, "The certificates of the gateway could not be looked after")
			next = certificateRetry
		}
		timer := c.Clock.NewTimer(next)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-timer.C():
		}
		timer.Stop()
	}
	return nil
}

// watch gives a channel that tells of changes; never one where there is no cache.
func (c *Certificates) watch(ctx context.Context) (<-chan struct{}, error) {
	if c.Cache == nil {
		return nil, nil
	}
	changed := make(chan struct{}, 1)
	tell := func() {
		select {
		case changed <- struct{}{}:
		default: // it has been told
		}
	}
	handler := toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { tell() }, UpdateFunc: func(any, any) { tell() }, DeleteFunc: func(any) { tell() },
	}
	for _, object := range []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}} {
		informer, err := c.Cache.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, fmt.Errorf("watch the gateway's certificates: %w", err)
		}
		if _, err := informer.AddEventHandler(handler); err != nil {
			return nil, fmt.Errorf("watch the gateway's certificates: %w", err)
		}
	}
	return changed, nil
}

// Ensure reads the Secret, brings it and the ConfigMap to what they should be, and begins to serve what is in it. The CAs are
// published before anything is served that they have signed.
func (c *Certificates) Ensure(ctx context.Context) error {
	for range maxTries {
		err := c.ensure(ctx)
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return err
		}
		// Another replica was faster.
	}
	return errCrowded
}

func (c *Certificates) ensure(ctx context.Context) error {
	keys, err := c.ensureSecret(ctx)
	if err != nil {
		return err
	}
	bundle, err := keys.bundle()
	if err != nil {
		return err
	}
	if err := c.publish(ctx, string(bundle)); err != nil {
		return err
	}
	return c.serve(keys)
}

func (c *Certificates) ensureSecret(ctx context.Context) (*keychain, error) {
	secret := &corev1.Secret{}
	err := c.Client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: SecretName}, secret)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return nil, err
	}
	keys, err := parseKeychain(secret.Data)
	if err != nil {
		// Nothing else can be done with what nobody can read; workers that trust what was in it are lost in any case.
		c.Log.Error(err, "The Secret of the gateway cannot be read, and is made anew", "secret", SecretName)
		keys = &keychain{}
	}
	changed, err := keys.renew(c.Names, c.Clock.Now())
	if err != nil || !changed {
		return keys, err
	}
	data, err := keys.encode()
	if err != nil {
		return nil, err
	}
	if missing {
		secret = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: SecretName}, Type: corev1.SecretTypeTLS, Data: data,
		}
		err = c.Client.Create(ctx, secret, client.FieldOwner(FieldOwner))
	} else {
		secret.Data = data
		err = c.Client.Update(ctx, secret, client.FieldOwner(FieldOwner))
	}
	if err == nil {
		c.Log.Info("Made a new certificate for the gateway", "authorities", len(keys.authorities))
	}
	return keys, err
}

// publish writes the ConfigMap, where it is not so already.
func (c *Certificates) publish(ctx context.Context, bundle string) error {
	want := map[string]string{ConfigMapKey: bundle}
	config := &corev1.ConfigMap{}
	err := c.Client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: ConfigMapName}, config)
	switch {
	case apierrors.IsNotFound(err):
		config = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: ConfigMapName}, Data: want}
		err = c.Client.Create(ctx, config, client.FieldOwner(FieldOwner))
	case err == nil && !maps.Equal(config.Data, want):
		config.Data = want
		err = c.Client.Update(ctx, config, client.FieldOwner(FieldOwner))
	}
	return err
}

func (c *Certificates) serve(k *keychain) error {
	if s := c.current.Load(); s != nil && bytes.Equal(s.pem, k.server) {
		return nil
	}
	pair, err := tls.X509KeyPair(k.server, k.serverKey)
	if err != nil {
		return err
	}
	c.current.Store(&served{pem: k.server, pair: &pair})
	return nil
}

// splitPEM gives the blocks of a PEM text one by one.
func splitPEM(text []byte) [][]byte {
	var blocks [][]byte
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		blocks = append(blocks, pem.EncodeToMemory(block))
	}
	return blocks
}
