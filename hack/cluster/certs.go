package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"time"
)

// authority signs the certificates of one cluster.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := certTemplate(pkix.Name{CommonName: name})
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key, pem: pemBlock("CERTIFICATE", der)}, nil
}

func certTemplate(subject pkix.Name) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err) // crypto/rand does not fail on a working machine
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.AddDate(1, 0, 0),
	}
}

// issue makes a certificate that serves as server and as client, which spares a pair of
// files where a program is both.
func (a *authority) issue(subject pkix.Name, hosts ...string) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := certTemplate(subject)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	keyPEM, err = marshalKey(key)
	return pemBlock("CERTIFICATE", der), keyPEM, err
}

func marshalKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	return pemBlock("EC PRIVATE KEY", der), err
}

func pemBlock(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// identity is a user and the kubeconfig file it gets.
type identity struct {
	file    string
	subject pkix.Name
}

var admin = identity{"kubeconfig", pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}}

// identities are the users that a cluster's bootstrap RBAC roles are made for.
func (c *cluster) identities() []identity {
	return []identity{
		admin,
		{"config/kube-controller-manager.kubeconfig", pkix.Name{CommonName: "system:kube-controller-manager"}},
		{"config/kube-scheduler.kubeconfig", pkix.Name{CommonName: "system:kube-scheduler"}},
		{"config/kube-proxy.kubeconfig", pkix.Name{CommonName: "system:kube-proxy"}},
		{"config/kwok.kubeconfig", pkix.Name{CommonName: "kwok", Organization: []string{"system:masters"}}},
		{"config/kubelet.kubeconfig", pkix.Name{CommonName: "system:node:" + c.nodeName(), Organization: []string{"system:nodes"}}},
	}
}

// writeCredentials makes the cluster's keys, certificates and kubeconfig files.
func (c *cluster) writeCredentials() error {
	ca, err := newAuthority("taskwarden-" + c.Name)
	if err != nil {
		return err
	}
	front, err := newAuthority("taskwarden-" + c.Name + "-front-proxy")
	if err != nil {
		return err
	}
	for name, a := range map[string]*authority{"ca": ca, "front-proxy-ca": front} {
		key, err := marshalKey(a.key)
		if err != nil {
			return err
		}
		if err := c.writePair(name, a.pem, key); err != nil {
			return err
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serviceAccountKey, err := marshalKey(key)
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.path("pki", "service-account.key"), serviceAccountKey, 0o600); err != nil {
		return err
	}
	if err := c.writeCertificates(ca, front); err != nil {
		return err
	}
	return c.writeKubeconfigs(ca)
}

func (c *cluster) writeCertificates(ca, front *authority) error {
	nodeHosts := []string{c.address(), "127.0.0.1", "localhost", c.nodeName()}
	apiHosts := append([]string{
		slotNetwork(c.Slot).apiService().String(),
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	}, nodeHosts...)
	masters := []string{"system:masters"}
	for _, cert := range []struct {
		signer  *authority
		file    string
		subject pkix.Name
		hosts   []string
	}{
		{ca, "kube-apiserver", pkix.Name{CommonName: "kube-apiserver"}, apiHosts},
		{ca, "kube-controller-manager", pkix.Name{CommonName: "kube-controller-manager"}, nodeHosts},
		{ca, "kube-scheduler", pkix.Name{CommonName: "kube-scheduler"}, nodeHosts},
		{ca, "kubelet", pkix.Name{CommonName: c.nodeName()}, nodeHosts},
		{ca, "apiserver-kubelet-client", pkix.Name{CommonName: "kube-apiserver-kubelet-client", Organization: masters}, nil},
		{front, "front-proxy-client", pkix.Name{CommonName: "front-proxy-client"}, nil},
		// The admin's pair is also in the kubeconfig; this program speaks HTTP without
		// client-go and reads it from here.
		{ca, "admin", admin.subject, nil},
	} {
		certPEM, keyPEM, err := cert.signer.issue(cert.subject, cert.hosts...)
		if err != nil {
			return err
		}
		if err := c.writePair(cert.file, certPEM, keyPEM); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) writePair(name string, certPEM, keyPEM []byte) error {
	if err := os.WriteFile(c.path("pki", name+".crt"), certPEM, 0o600); err != nil {
		return err
	}
	return os.WriteFile(c.path("pki", name+".key"), keyPEM, 0o600)
}

func (c *cluster) writeKubeconfigs(ca *authority) error {
	for _, user := range c.identities() {
		cert, key, err := ca.issue(user.subject)
		if err != nil {
			return err
		}
		content, err := renderConfig("kubeconfig.yaml", map[string]any{
			"Cluster": "taskwarden-" + c.Name, "Server": c.apiURL(), "User": user.subject.CommonName, "CA": ca.pem, "Cert": cert, "Key": key,
		})
		if err != nil {
			return err
		}
		if err := os.WriteFile(c.path(user.file), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}
