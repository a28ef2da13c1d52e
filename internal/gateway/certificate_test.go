package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

var names = ServiceNames(ServiceName, "taskwarden-system")

// verify tells whether a client that knows only these authorities trusts the certificate at a time.
func verify(k *keychain, known []byte, name string, now time.Time) error {
	pair, err := tls.X509KeyPair(k.server, k.serverKey)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(known)
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now})
	return err
}

// TestCertificatesOverTheYears looks at the keychain every ten days of 40 years. A worker that was told the authorities when it
// started trusts the server for the two years that it may run, whatever is replaced meanwhile, and the keychain stays small.
func TestCertificatesOverTheYears(t *testing.T) {
	k := &keychain{}
	type client struct {
		since time.Time
		known []byte
	}
	var clients []client
	authorities, served := 0, map[string]bool{}
	var last []byte
	for d := 0; d < 40*365; d += 10 {
		now := created.Add(time.Duration(d) * day)
		if _, err := k.renew(names, now); err != nil {
			t.Fatal(err)
		}
		bundle, err := k.bundle()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(bundle, last) {
			authorities++
		}
		last = bundle
		served[string(k.server)] = true
		if d%180 == 0 {
			clients = append(clients, client{now, bundle})
		}
		clients = slices.DeleteFunc(clients, func(c client) bool { return now.Sub(c.since) > 2*365*day })
		if d%30 != 0 {
			continue
		}
		for _, c := range clients {
			if err := verify(k, c.known, names[0], now); err != nil {
				t.Fatalf("day %d: a worker that started at %s: %v", d, c.since, err)
			}
		}
		if n := len(k.authorities); n > 3 {
			t.Fatalf("day %d: %d authorities", d, n)
		}
	}
	if authorities > 20 || len(served) > 40*365/50 {
		t.Errorf("%d changes of the authorities, %d certificates", authorities, len(served))
	}
}

func TestRenewCertificate(t *testing.T) {
	now := created
	fresh := func() *keychain {
		k := &keychain{}
		if _, err := k.renew(names, now); err != nil {
			t.Fatal(err)
		}
		return k
	}
	for name, c := range map[string]struct {
		change  func(*keychain)
		names   []string
		after   time.Duration
		renewed bool
	}{
		"good":                  {after: 59 * day},
		"old":                   {after: 61 * day, renewed: true},
		"expired with its CA":   {after: 20 * 365 * day, renewed: true},
		"for other names":       {names: append(slices.Clone(names), "gateway.example.com"), renewed: true},
		"for an address, too":   {names: append(slices.Clone(names), "10.0.0.1"), renewed: true},
		"lost":                  {change: func(k *keychain) { k.server = nil }, renewed: true},
		"another's key":         {change: func(k *keychain) { k.serverKey = fresh().serverKey }, renewed: true},
		"signed by another one": {change: func(k *keychain) { o := fresh(); k.server, k.serverKey = o.server, o.serverKey }, renewed: true},
		"no certificate":        {change: func(k *keychain) { k.server = []byte("x") }, renewed: true},
	} {
		t.Run(name, func(t *testing.T) {
			k := fresh()
			before := k.server
			if c.change != nil {
				c.change(k)
			}
			want := names
			if c.names != nil {
				want = c.names
			}
			at := now.Add(c.after)
			changed, err := k.renew(want, at)
			if err != nil || changed != c.renewed || bytes.Equal(before, k.server) == c.renewed {
				t.Errorf("changed %v, %v; want %v", changed, err, c.renewed)
			}
			bundle, err := k.bundle()
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range want {
				if err := verify(k, bundle, name, at); err != nil {
					t.Error(err)
				}
			}
			data, err := k.encode()
			if err != nil {
				t.Fatal(err)
			}
			again, err := parseKeychain(data)
			if err != nil {
				t.Fatal(err)
			}
			if changed, err := again.renew(want, at); changed || err != nil {
				t.Errorf("what is read back is renewed: %v, %v", changed, err)
			}
		})
	}
}

func TestParseKeychain(t *testing.T) {
	k := &keychain{}
	if _, err := k.renew(names, created); err != nil {
		t.Fatal(err)
	}
	data, err := k.encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(map[string][]byte){
		"no PEM":          func(d map[string][]byte) { d[secretCACerts] = []byte("x") },
		"no keys":         func(d map[string][]byte) { delete(d, secretCAKeys) },
		"keys of no kind": func(d map[string][]byte) { d[secretCAKeys] = d[secretCACerts] },
		"too many":        func(d map[string][]byte) { d[secretCAKeys] = append(d[secretCAKeys], d[secretCAKeys]...) },
	} {
		t.Run(name, func(t *testing.T) {
			broken := map[string][]byte{}
			for key, value := range data {
				broken[key] = bytes.Clone(value)
			}
			change(broken)
			if _, err := parseKeychain(broken); err == nil {
				t.Error("taken")
			}
		})
	}
}

func certificatesFor(c client.Client, clk *clocktesting.FakeClock) *Certificates {
	return &Certificates{Client: c, Namespace: "taskwarden-system", Names: names, Clock: clk}
}

// TestReplicasAgree starts many at once: there is one Secret, everyone serves what is in it, and what is published verifies it.
func TestReplicasAgree(t *testing.T) {
	c := fake.NewClientBuilder().WithScheme(scheme).Build()
	clk := fakeClock()
	var replicas []*Certificates
	for range 8 {
		replicas = append(replicas, certificatesFor(c, clk))
	}
	ensure := func() {
		t.Helper()
		var wg sync.WaitGroup
		for _, r := range replicas {
			wg.Go(func() {
				if err := r.Ensure(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	for _, step := range []time.Duration{0, 61 * day, 61 * day} {
		clk.Step(step)
		ensure()
		first := replicas[0].current.Load()
		for _, r := range replicas[1:] {
			if !bytes.Equal(r.current.Load().pem, first.pem) {
				t.Error("two replicas serve different certificates")
			}
		}
	}
	var secret corev1.Secret
	var published corev1.ConfigMap
	for name, object := range map[string]client.Object{SecretName: &secret, ConfigMapName: &published} {
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "taskwarden-system", Name: name}, object); err != nil {
			t.Fatal(err)
		}
	}
	k, err := parseKeychain(secret.Data)
	if err != nil {
		t.Fatal(err)
	}
	if err := verify(k, []byte(published.Data[ConfigMapKey]), names[0], clk.Now()); err != nil {
		t.Error(err)
	}
}

// TestCertificatesAreMended: whatever was done to the two objects, they are made what they should be.
func TestCertificatesAreMended(t *testing.T) {
	c := fake.NewClientBuilder().WithScheme(scheme).Build()
	r := certificatesFor(c, fakeClock())
	ensure := func() {
		t.Helper()
		if err := r.Ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	get := func() (secret corev1.Secret, config corev1.ConfigMap) {
		t.Helper()
		for name, object := range map[string]client.Object{SecretName: &secret, ConfigMapName: &config} {
			if err := c.Get(t.Context(), client.ObjectKey{Namespace: "taskwarden-system", Name: name}, object); err != nil {
				t.Fatal(err)
			}
		}
		return secret, config
	}
	if _, err := r.GetCertificate(nil); err == nil || r.Ready() {
		t.Error("there is a certificate before there is one")
	}
	ensure()
	secret, config := get()
	good := config.Data[ConfigMapKey]
	config.Data = map[string]string{ConfigMapKey: "x", "other": "y"}
	if err := c.Update(t.Context(), &config); err != nil {
		t.Fatal(err)
	}
	ensure()
	if _, config = get(); len(config.Data) != 1 || config.Data[ConfigMapKey] != good {
		t.Errorf("the ConfigMap has %v", config.Data)
	}
	secret.Data = map[string][]byte{secretCACerts: []byte("x")}
	if err := c.Update(t.Context(), &secret); err != nil {
		t.Fatal(err)
	}
	ensure()
	served, err := r.GetCertificate(nil)
	if _, config = get(); err != nil || config.Data[ConfigMapKey] == good {
		t.Errorf("%v, and the ConfigMap has %v", err, config.Data)
	}
	ensure()
	if again, _ := r.GetCertificate(nil); again != served {
		t.Error("nothing has changed, and another certificate is served")
	}
}

// TestCAsArePublishedFirst: what clients cannot verify yet is not served.
func TestCAsArePublishedFirst(t *testing.T) {
	refuse := true
	c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).Build(), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if _, ok := obj.(*corev1.ConfigMap); ok && refuse {
				return apierrors.NewInternalError(context.DeadlineExceeded)
			}
			return c.Create(ctx, obj, opts...)
		},
	})
	r := certificatesFor(c, fakeClock())
	if err := r.Ensure(t.Context()); err == nil || r.Ready() {
		t.Errorf("ready %v, %v", r.Ready(), err)
	}
	refuse = false
	if err := r.Ensure(t.Context()); err != nil || !r.Ready() {
		t.Errorf("ready %v, %v", r.Ready(), err)
	}
}

// TestCertificatesAreLookedAfter: without a word from anyone they are replaced in time, and failures are tried again.
func TestCertificatesAreLookedAfter(t *testing.T) {
	var mu sync.Mutex
	failures := 2
	c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).Build(), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			mu.Lock()
			defer mu.Unlock()
			if failures > 0 {
				failures--
				return apierrors.NewInternalError(context.DeadlineExceeded)
			}
			return c.Get(ctx, key, obj, opts...)
		},
	})
	clk := fakeClock()
	r := certificatesFor(c, clk)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		eventually(t, clk.HasWaiters)
		clk.Step(certificateRetry)
	}
	eventually(t, r.Ready)
	first, _ := r.GetCertificate(nil)
	eventually(t, clk.HasWaiters)
	clk.Step(61 * day)
	eventually(t, func() bool { now, _ := r.GetCertificate(nil); return now != first })
	cancel()
	running.Wait()
}
