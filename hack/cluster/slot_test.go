package main

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

func TestReserveSlot(t *testing.T) {
	dir, home := t.TempDir(), t.TempDir()
	free := func(int) error { return nil }
	reserve := func(name string, free func(int) error) int {
		t.Helper()
		c := &cluster{Name: name, dir: filepath.Join(home, name)}
		if err := os.MkdirAll(c.dir, 0o755); err != nil {
			t.Fatal(err)
		}
		slot, err := reserveSlot(dir, c.dir, free)
		if err != nil {
			t.Fatal(err)
		}
		c.Slot = slot
		if err := c.save(); err != nil {
			t.Fatal(err)
		}
		return slot
	}
	if got := reserve("a", free); got != 0 {
		t.Errorf("first cluster: slot %d, want 0", got)
	}
	if got := reserve("b", func(slot int) error {
		if slot == 1 {
			return errors.New("in use by somebody else")
		}
		return nil
	}); got != 2 {
		t.Errorf("slot 1 is in use: got slot %d, want 2", got)
	}
	// The folder of a was deleted by hand: its slot is nobody's any more.
	if err := os.RemoveAll(filepath.Join(home, "a")); err != nil {
		t.Fatal(err)
	}
	if got := reserve("c", free); got != 0 {
		t.Errorf("slot of a vanished cluster: got %d, want 0", got)
	}
	releaseSlot(dir, filepath.Join(home, "c"), 2)
	if got := reserve("d", free); got != 1 {
		t.Errorf("c must not release the slot of b: got %d, want 1", got)
	}
	releaseSlot(dir, filepath.Join(home, "b"), 2)
	if got := reserve("e", free); got != 2 {
		t.Errorf("released slot: got %d, want 2", got)
	}
}

func TestReserveSlotNoneFree(t *testing.T) {
	cause := errors.New("address in use")
	_, err := reserveSlot(t.TempDir(), t.TempDir(), func(int) error { return cause })
	if !errors.Is(err, cause) {
		t.Errorf("got %v, want the reason the last slot was refused", err)
	}
}

func TestSlotNetworks(t *testing.T) {
	for slot := range slots {
		n := slotNetwork(slot)
		for _, part := range []netip.Prefix{n.pods, n.podRange(), n.services, netip.PrefixFrom(n.host, 32), netip.PrefixFrom(n.node, 32)} {
			if !n.all.Contains(part.Addr()) || part.Bits() < n.all.Bits() {
				t.Errorf("slot %d: %s is outside of %s", slot, part, n.all)
			}
		}
		if n.podRange().Overlaps(n.services) || n.services.Contains(n.host) || n.podRange().Contains(n.node) {
			t.Errorf("slot %d: ranges overlap: %+v", slot, n)
		}
		if slot > 0 && slotNetwork(slot-1).all.Overlaps(n.all) {
			t.Errorf("slots %d and %d overlap", slot-1, slot)
		}
	}
}

func TestRouteOverlaps(t *testing.T) {
	const table = `Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	010200C0	0003	0	0	0	00000000	0	0	0
tun0	0000C90A	00000000	0001	0	0	0	0000FFFF	0	0	0
`
	tests := map[string]struct {
		prefix string
		want   bool
		reason string
	}{
		"default route": {"10.200.0.0/16", false, "the default route leads everywhere and claims nothing"},
		"same range":    {"10.201.0.0/16", true, "the route is to 10.201.0.0/16"},
		"part of it":    {"10.201.7.0/24", true, "a smaller range inside is taken too"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if _, got := routeOverlaps(table, netip.MustParsePrefix(tt.prefix)); got != tt.want {
				t.Errorf("got %v, want %v: %s", got, tt.want, tt.reason)
			}
		})
	}
}
