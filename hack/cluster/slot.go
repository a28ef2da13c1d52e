package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A slot is a small number that a cluster's ports, address range and interface name are
// derived from, so that clusters side by side never meet.
const (
	slots        = 40
	slotPorts    = 10
	firstPort    = 21000 // below the ephemeral range, so no client socket sits there by chance
	firstNetwork = 200   // 10.200.0.0/16 and up
)

// slotsDir is one for the machine and not for the cache: addresses and interface names
// are the machine's, whichever cache folder a cluster lives in.
func slotsDir() string { return filepath.Join(os.TempDir(), "taskwarden-slots") }

// reserveSlot takes the first slot that no cluster holds and whose resources are free.
func reserveSlot(dir, clusterDir string, free func(slot int) error) (int, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return 0, err
	}
	_ = os.Chmod(dir, 0o777|os.ModeSticky) // shared by users like the temporary folder itself; fails for all but its owner
	var last error
	for slot := range slots {
		file := filepath.Join(dir, strconv.Itoa(slot))
		if owner, err := os.ReadFile(file); err == nil && !slotHeld(string(owner), slot) {
			_ = os.Remove(file)
		}
		f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		_, err = f.WriteString(clusterDir)
		if err := errors.Join(err, f.Close()); err != nil {
			return 0, err
		}
		if last = free(slot); last == nil {
			return slot, nil
		}
		_ = os.Remove(file)
	}
	if last != nil {
		return 0, fmt.Errorf("no free slot: %w", last)
	}
	return 0, errors.New("no free slot: too many clusters; end some with `down`")
}

// slotHeld tells whether the cluster folder named in a lock file still claims the slot.
// A folder without a state yet belongs to an `up` that is just starting.
func slotHeld(owner string, slot int) bool {
	if _, err := os.Stat(owner); err != nil {
		return false
	}
	c, err := loadClusterDir(owner)
	if errors.Is(err, errNoCluster) {
		return true
	}
	return err == nil && c.Slot == slot
}

// releaseSlot gives the slot back if it is this cluster's.
func releaseSlot(dir, clusterDir string, slot int) {
	file := filepath.Join(dir, strconv.Itoa(slot))
	if owner, err := os.ReadFile(file); err == nil && string(owner) == clusterDir {
		_ = os.Remove(file)
		_ = os.Remove(dir) // works only when it is empty
	}
}

// ports of the clusters that live on loopback.
type ports struct{ etcd, etcdPeer, apiserver, controllerManager, scheduler, kwok int }

func slotPortsOf(slot int) ports {
	p := firstPort + slot*slotPorts
	return ports{p, p + 1, p + 2, p + 3, p + 4, p + 5}
}

func portsFree(slot int) error {
	for i := range slotPorts {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(firstPort+slot*slotPorts+i)))
		if err != nil {
			return err
		}
		l.Close()
	}
	return nil
}

// network is the address plan of a cluster with a real node: a link between the machine
// and the node, the node's pods, and the Services.
type network struct {
	all, pods, services netip.Prefix
	host, node          netip.Addr // the two ends of the link
	linkBits            int
	hostLink            string
}

func slotNetwork(slot int) network {
	addr := func(third, fourth byte) netip.Addr {
		return netip.AddrFrom4([4]byte{10, byte(firstNetwork + slot), third, fourth})
	}
	return network{
		all:      netip.PrefixFrom(addr(0, 0), 16),
		pods:     netip.PrefixFrom(addr(0, 0), 24),
		services: netip.PrefixFrom(addr(128, 0), 20),
		host:     addr(255, 1),
		node:     addr(255, 2),
		linkBits: 30,
		hostLink: fmt.Sprintf("twc%d", slot),
	}
}

// podRange is what nodes get their part of; the first /24 is the real node's.
func (n network) podRange() netip.Prefix { return netip.PrefixFrom(n.all.Addr(), 17) }

// apiService is the address of the Service kubernetes.default.
func (n network) apiService() netip.Addr { return n.services.Addr().Next() }

// networkFree refuses a slot whose addresses the machine already uses or routes.
func networkFree(slot int) error {
	n := slotNetwork(slot)
	ifaces, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, iface := range ifaces {
		if iface.Name == n.hostLink {
			return fmt.Errorf("the interface %s exists", iface.Name)
		}
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Masked().Overlaps(n.all) {
			return fmt.Errorf("the address %s overlaps %s", a, n.all)
		}
	}
	routes, err := os.ReadFile("/proc/net/route")
	if err != nil {
		return nil //nolint:nilerr // no IPv4 at all is for the caller's later steps to find
	}
	if route, taken := routeOverlaps(string(routes), n.all); taken {
		return fmt.Errorf("the route to %s overlaps %s", route, n.all)
	}
	return nil
}

// routeOverlaps looks through the kernel's route table (hexadecimal, little endian). The
// default route overlaps everything and means nothing here.
func routeOverlaps(table string, with netip.Prefix) (netip.Prefix, bool) {
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 8 {
			continue
		}
		dest, err1 := strconv.ParseUint(fields[1], 16, 32)
		mask, err2 := strconv.ParseUint(fields[7], 16, 32)
		if err1 != nil || err2 != nil || mask == 0 {
			continue
		}
		bits := 0
		for m := mask; m != 0; m >>= 1 {
			bits += int(m & 1)
		}
		addr := netip.AddrFrom4([4]byte{byte(dest), byte(dest >> 8), byte(dest >> 16), byte(dest >> 24)})
		if prefix := netip.PrefixFrom(addr, bits); prefix.Overlaps(with) {
			return prefix, true
		}
	}
	return netip.Prefix{}, false
}
