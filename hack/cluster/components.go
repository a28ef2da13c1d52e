package main

import (
	"fmt"
	"strconv"
	"strings"
)

// address is where the servers listen: the node's own address, or loopback where there is
// no node. Never all addresses: the machine may stand in a network.
func (c *cluster) address() string {
	if c.Mode == modeKubelet {
		return slotNetwork(c.Slot).node.String()
	}
	return "127.0.0.1"
}

// ports are the well-known ones where the cluster has a network namespace to itself.
func (c *cluster) ports() ports {
	if c.Mode == modeKubelet {
		return ports{etcd: 2379, etcdPeer: 2380, apiserver: 6443, controllerManager: 10257, scheduler: 10259}
	}
	return slotPortsOf(c.Slot)
}

func (c *cluster) apiURL() string {
	return fmt.Sprintf("https://%s:%d", c.address(), c.ports().apiserver)
}

func (c *cluster) nodeName() string { return c.Name + "-node" }

// extraArgs are what the caller adds to servers, a benchmark its request limits for example.
type extraArgs struct{ apiserver, controllerManager, scheduler []string }

// describeComponents lists the servers of the cluster's mode in the order they start.
func (c *cluster) describeComponents(extra extraArgs) []*component {
	list := []*component{c.etcd(), c.apiserver(extra.apiserver), c.controllerManager(extra.controllerManager)}
	if c.Mode != modeNone {
		list = append(list, c.scheduler(extra.scheduler))
	}
	switch c.Mode {
	case modeKwok:
		list = append(list, c.kwok())
	case modeKubelet:
		list = append(list, c.containerd(), c.kubelet(), c.kubeProxy())
	}
	return list
}

func (c *cluster) etcd() *component {
	p := c.ports()
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", p.etcd), fmt.Sprintf("http://127.0.0.1:%d", p.etcdPeer)
	return &component{Name: "etcd", Argv: []string{
		c.bin().path("etcd"), "--name=default", "--data-dir=" + c.path("etcd"),
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=default=" + peer,
		"--log-level=warn", "--quota-backend-bytes=8589934592",
		// A killed process loses nothing by this, only a crashed machine does.
		"--unsafe-no-fsync",
	}}
}

func (c *cluster) apiserver(extra []string) *component {
	p := c.ports()
	pki := func(name string) string { return c.path("pki", name) }
	args := []string{
		"--etcd-servers=http://127.0.0.1:" + strconv.Itoa(p.etcd),
		"--bind-address=" + c.address(), "--advertise-address=" + c.address(), "--secure-port=" + strconv.Itoa(p.apiserver),
		"--service-cluster-ip-range=" + slotNetwork(c.Slot).services.String(),
		"--client-ca-file=" + pki("ca.crt"), "--cert-dir=" + c.path("pki"),
		"--tls-cert-file=" + pki("kube-apiserver.crt"), "--tls-private-key-file=" + pki("kube-apiserver.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + pki("service-account.key"), "--service-account-signing-key-file=" + pki("service-account.key"),
		"--requestheader-client-ca-file=" + pki("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + pki("front-proxy-client.crt"), "--proxy-client-key-file=" + pki("front-proxy-client.key"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--audit-policy-file=" + c.path("config", "audit-policy.yaml"), "--audit-log-path=" + c.auditLog(),
		"--audit-log-format=json", "--audit-log-maxsize=10240", // megabytes: one file, whatever a bench writes
	}
	if c.Mode == modeKubelet {
		args = append(args,
			"--kubelet-client-certificate="+pki("apiserver-kubelet-client.crt"), "--kubelet-client-key="+pki("apiserver-kubelet-client.key"),
			"--kubelet-certificate-authority="+pki("ca.crt"), "--kubelet-preferred-address-types=InternalIP")
	} else {
		// Loopback is refused as the endpoint of a Service, and nothing here could use it.
		args = append(args, "--endpoint-reconciler-type=none")
	}
	return c.kube("kube-apiserver", append(args, extra...))
}

// withoutNode are the controllers that would interfere where a test writes the status of
// nodes and pods itself: they taint and evict for lack of heartbeats and delete pods whose
// node does not exist.
var withoutNode = []string{
	"node-lifecycle-controller", "node-ipam-controller", "pod-garbage-collector-controller",
	"taint-eviction-controller", "device-taint-eviction-controller",
}

func (c *cluster) controllerManager(extra []string) *component {
	pki := func(name string) string { return c.path("pki", name) }
	args := append(c.controlPlaneClient("kube-controller-manager", c.ports().controllerManager),
		"--use-service-account-credentials=true",
		"--service-account-private-key-file="+pki("service-account.key"), "--root-ca-file="+pki("ca.crt"),
		"--cluster-signing-cert-file="+pki("ca.crt"), "--cluster-signing-key-file="+pki("ca.key"),
	)
	if c.Mode == modeNone {
		args = append(args, "--controllers=*,-"+strings.Join(withoutNode, ",-"))
	} else {
		args = append(args, "--allocate-node-cidrs=true", "--cluster-cidr="+slotNetwork(c.Slot).podRange().String(),
			"--service-cluster-ip-range="+slotNetwork(c.Slot).services.String())
	}
	return c.kube("kube-controller-manager", append(args, extra...))
}

func (c *cluster) scheduler(extra []string) *component {
	return c.kube("kube-scheduler", append(c.controlPlaneClient("kube-scheduler", c.ports().scheduler), extra...))
}

// controlPlaneClient are the arguments that controller manager and scheduler share. There
// is one of each, so an election would only cost time.
func (c *cluster) controlPlaneClient(name string, port int) []string {
	kubeconfig := c.path("config", name+".kubeconfig")
	return []string{
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=" + c.address(), "--secure-port=" + strconv.Itoa(port), "--leader-elect=false",
		"--tls-cert-file=" + c.path("pki", name+".crt"), "--tls-private-key-file=" + c.path("pki", name+".key"),
	}
}

func (c *cluster) containerd() *component {
	return &component{Name: "containerd", Argv: []string{"containerd", "--config", c.path("config", "containerd.toml")}}
}

func (c *cluster) kubelet() *component {
	return c.kube("kubelet", []string{
		"--config=" + c.path("config", "kubelet.yaml"), "--kubeconfig=" + c.path("config", "kubelet.kubeconfig"),
		"--root-dir=/var/lib/kubelet", "--cert-dir=/var/lib/kubelet/pki",
		"--hostname-override=" + c.nodeName(), "--node-ip=" + c.address(),
	})
}

func (c *cluster) kubeProxy() *component {
	return c.kube("kube-proxy", []string{"--config=" + c.path("config", "kube-proxy.yaml")})
}

func (c *cluster) kube(name string, args []string) *component {
	return &component{Name: name, Argv: append([]string{c.bin().path(name)}, args...)}
}
