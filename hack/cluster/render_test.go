package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func testCluster(t *testing.T, mode string) *cluster {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir()) // the slots of this test are not the machine's
	c := &cluster{Name: "test", Mode: mode, BinDir: "/bin-dir", dir: t.TempDir()}
	if err := c.prepare(extraArgs{apiserver: []string{"--v=4"}}); err != nil {
		t.Fatal(err)
	}
	return c
}

// Nothing may listen on all addresses: the machine may stand in a network.
func TestServersListenOnOwnAddress(t *testing.T) {
	for _, mode := range []string{modeNone, modeKwok, modeKubelet} {
		t.Run(mode, func(t *testing.T) {
			c := testCluster(t, mode)
			for _, name := range []string{"kube-apiserver", "kube-controller-manager"} {
				comp, err := c.component(name)
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Contains(comp.Argv, "--bind-address="+c.address()) {
					t.Errorf("%s: no --bind-address=%s in %q", name, c.address(), comp.Argv)
				}
			}
			for _, comp := range c.Components {
				if strings.Contains(strings.Join(comp.Argv, " "), "0.0.0.0") {
					t.Errorf("%s listens everywhere: %q", comp.Name, comp.Argv)
				}
			}
		})
	}
}

// The caller's arguments come last, because the last of two equal flags wins.
func TestExtraArgsComeLast(t *testing.T) {
	comp, err := testCluster(t, modeNone).component("kube-apiserver")
	if err != nil {
		t.Fatal(err)
	}
	if got := comp.Argv[len(comp.Argv)-1]; got != "--v=4" {
		t.Errorf("last argument %q, want --v=4", got)
	}
}

func TestStateSurvivesReload(t *testing.T) {
	c := testCluster(t, modeKwok)
	loaded, err := loadClusterDir(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	if loaded.Mode != c.Mode || loaded.Slot != c.Slot || len(loaded.Components) != len(c.Components) {
		t.Errorf("got %+v, want %+v", loaded, c)
	}
}

func TestRenderConfigMissingValue(t *testing.T) {
	if _, err := renderConfig("kubelet.yaml", map[string]any{}); err == nil {
		t.Error("a value is missing and nobody noticed")
	}
}

func TestImageIsReproducible(t *testing.T) {
	files := func() []imageFile {
		return []imageFile{{"/etc/b", 0o644, []byte("b")}, {"/a", 0o755, []byte("a")}}
	}
	first, err := tarLayer(files())
	if err != nil {
		t.Fatal(err)
	}
	swapped := files()
	slices.Reverse(swapped)
	second, err := tarLayer(swapped)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		t.Error("the order of files changes the image")
	}
}
