package gateway

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// How long certificates live. Sidecars learn the CAs when their pod is made, and never again, so one may sign only when every
// worker that does not know it yet has ended. No attempt lasts longer than two years: one until its worker starts, one from
// there on.
const (
	// caLife is how long a CA is valid.
	caLife = 10 * 365 * day
	// caRenewAt is the age of the newest CA at which the next one is made and published.
	caRenewAt = caLife / 2
	// caSignsAt is the age from which a CA signs, if there is an older one.
	caSignsAt = caLife / 4
	// certLife is how long a server certificate is valid.
	certLife = 90 * day
	// certRenewAt is the age at which it is replaced.
	certRenewAt = certLife * 2 / 3
	// backdate makes up for clocks that are behind.
	backdate = time.Hour

	day = 24 * time.Hour
)

// authority is a certificate that may sign, with its key.
type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// keychain is all that the replicas of a gateway share.
type keychain struct {
	authorities []authority // oldest first
	server      []byte      // PEM
	serverKey   []byte      // PEM
}

// renew brings a keychain to what it should be at a time, for the given names. It tells whether that has changed anything.
func (k *keychain) renew(names []string, now time.Time) (changed bool, err error) {
	before := len(k.authorities)
	k.authorities = slices.DeleteFunc(k.authorities, func(a authority) bool { return now.After(a.certificate.NotAfter) })
	changed = len(k.authorities) != before
	if n := len(k.authorities); n == 0 || age(k.authorities[n-1].certificate, now) >= caRenewAt {
		a, err := newAuthority(now)
		if err != nil {
			return changed, err
		}
		k.authorities, changed = append(k.authorities, a), true
	}
	signer := k.signer(now)
	if k.serves(signer, names, now) {
		return changed, nil
	}
	k.server, k.serverKey, err = newServerCertificate(signer, names, now)
	return true, err
}

// signer is the newest authority that has been published for long enough, else the oldest.
func (k *keychain) signer(now time.Time) authority {
	for _, a := range slices.Backward(k.authorities) {
		if age(a.certificate, now) >= caSignsAt {
			return a
		}
	}
	return k.authorities[0]
}

// serves tells whether the server certificate is good for a while yet.
func (k *keychain) serves(signer authority, names []string, now time.Time) bool {
	pair, err := tls.X509KeyPair(k.server, k.serverKey)
	if err != nil || pair.Leaf.CheckSignatureFrom(signer.certificate) != nil || age(pair.Leaf, now) >= certRenewAt {
		return false
	}
	return !slices.ContainsFunc(names, func(name string) bool { return pair.Leaf.VerifyHostname(name) != nil })
}

// bundle is what clients trust: all authorities, in PEM.
func (k *keychain) bundle() ([]byte, error) {
	var certificates []*x509.Certificate
	for _, a := range k.authorities {
		certificates = append(certificates, a.certificate)
	}
	return certutil.EncodeCertificates(certificates...)
}

func age(c *x509.Certificate, now time.Time) time.Duration { return now.Sub(c.NotBefore.Add(backdate)) }

func newAuthority(now time.Time) (authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return authority{}, err
	}
	// A name of its own, so that a client with several tells at once which one has signed.
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: fmt.Sprintf("taskwarden-gateway-ca@%d", now.Unix())},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(caLife),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	c, err := sign(template, template, key.Public(), key)
	return authority{certificate: c, key: key}, err
}

func newServerCertificate(by authority, names []string, now time.Time) (certificate, privateKey []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: names[0]},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(certLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	c, err := sign(template, by.certificate, key.Public(), by.key)
	if err != nil {
		return nil, nil, err
	}
	if certificate, err = certutil.EncodeCertificates(c); err != nil {
		return nil, nil, err
	}
	privateKey, err = keyutil.MarshalPrivateKeyToPEM(key)
	return certificate, privateKey, err
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, by crypto.Signer) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, by)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// Keys of the Secret besides tls.crt and tls.key. Both have one entry for each authority, in the same order.
const (
	secretCACerts = "ca.crt"
	secretCAKeys  = "ca.key"
	secretCert    = "tls.crt"
	secretKey     = "tls.key"
)

var errSecret = errors.New("has as many certificates in ca.crt as keys in ca.key")

// parseKeychain reads a keychain as encode has written it. Data without any is an empty keychain.
func parseKeychain(data map[string][]byte) (*keychain, error) {
	k := &keychain{server: data[secretCert], serverKey: data[secretKey]}
	if len(data[secretCACerts]) == 0 {
		return k, nil
	}
	certificates, err := certutil.ParseCertsPEM(data[secretCACerts])
	if err != nil {
		return nil, err
	}
	keys := splitPEM(data[secretCAKeys])
	if len(keys) != len(certificates) {
		return nil, fmt.Errorf("the Secret must be one that %w", errSecret)
	}
	for i, c := range certificates {
		key, err := keyutil.ParsePrivateKeyPEM(keys[i])
		if err != nil {
			return nil, err
		}
		signer, ok := key.(crypto.Signer)
		if !ok {
			return nil, fmt.Errorf("a key of type %T cannot sign", key)
		}
		k.authorities = append(k.authorities, authority{certificate: c, key: signer})
	}
	return k, nil
}

// encode writes a keychain as the data of a Secret.
func (k *keychain) encode() (map[string][]byte, error) {
	bundle, err := k.bundle()
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{secretCert: k.server, secretKey: k.serverKey, secretCACerts: bundle}
	for _, a := range k.authorities {
		key, err := keyutil.MarshalPrivateKeyToPEM(a.key)
		if err != nil {
			return nil, err
		}
		data[secretCAKeys] = append(data[secretCAKeys], key...)
	}
	return data, nil
}
