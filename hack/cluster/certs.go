package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

// authority signs the certificates of one cluster.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
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

// identities are the users that a cluster's bootstrap RBAC roles are made for, and the
// kubeconfig file each one gets.
var identities = []struct {
	file    string
	subject pkix.Name
}{
	{"kubeconfig", pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}},
	{"config/kube-controller-manager.kubeconfig", pkix.Name{CommonName: "system:kube-controller-manager"}},
	{"config/kube-scheduler.kubeconfig", pkix.Name{CommonName: "system:kube-scheduler"}},
	{"config/kube-proxy.kubeconfig", pkix.Name{CommonName: "system:kube-proxy"}},
	{"config/kwok.kubeconfig", pkix.Name{CommonName: "kwok", Organization: []string{"system:masters"}}},
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
	files := map[string][]byte{"ca.crt": ca.pem, "front-proxy-ca.crt": front.pem}
	caKey, err := marshalKey(ca.key.(*ecdsa.PrivateKey))
	if err != nil {
		return err
	}
	files["ca.key"] = caKey
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if files["service-account.key"], err = marshalKey(key); err != nil {
		return err
	}
	pair := func(signer *authority, name string, subject pkix.Name, hosts ...string) error {
		cert, key, err := signer.issue(subject, hosts...)
		files[name+".crt"], files[name+".key"] = cert, key
		return err
	}
	net := slotNetwork(c.Slot)
	nodeHosts := []string{c.address(), "127.0.0.1", "localhost"}
	apiHosts := append([]string{
		net.apiService().String(), "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	}, nodeHosts...)
	for _, err := range []error{
		pair(ca, "kube-apiserver", pkix.Name{CommonName: "kube-apiserver"}, apiHosts...),
		pair(ca, "kube-controller-manager", pkix.Name{CommonName: "kube-controller-manager"}, nodeHosts...),
		pair(ca, "kube-scheduler", pkix.Name{CommonName: "kube-scheduler"}, nodeHosts...),
		pair(ca, "kubelet", pkix.Name{CommonName: c.nodeName()}, append(nodeHosts, c.nodeName())...),
		pair(ca, "apiserver-kubelet-client", pkix.Name{CommonName: "kube-apiserver-kubelet-client", Organization: []string{"system:masters"}}),
		pair(front, "front-proxy-client", pkix.Name{CommonName: "front-proxy-client"}),
	} {
		if err != nil {
			return err
		}
	}
	for name, content := range files {
		if err := os.WriteFile(c.path("pki", name), content, 0o600); err != nil {
			return err
		}
	}
	users := append(identities[:len(identities):len(identities)], struct {
		file    string
		subject pkix.Name
	}{"config/kubelet.kubeconfig", pkix.Name{CommonName: "system:node:" + c.nodeName(), Organization: []string{"system:nodes"}}})
	for _, user := range users {
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
			return fmt.Errorf("kubeconfig of %s: %w", user.subject.CommonName, err)
		}
	}
	// The admin's pair is also kept as files: this program speaks HTTP without client-go.
	cert, key2, err := ca.issue(identities[0].subject)
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.path("pki", "admin.crt"), cert, 0o600); err != nil {
		return err
	}
	return os.WriteFile(c.path("pki", "admin.key"), key2, 0o600)
}
