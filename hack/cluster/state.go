package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
)

// A cluster's mode says who plays the node.
const (
	modeNone    = "none"    // nobody: the test writes pod status itself
	modeKwok    = "kwok"    // simulated nodes
	modeKubelet = "kubelet" // a real node with real containers
)

// cluster is what is written down about one cluster. It is saved before each step that
// leaves something behind, so that a run that was cut off can be cleaned by the next.
type cluster struct {
	Name   string `json:"name"`
	Mode   string `json:"mode"`
	Slot   int    `json:"slot"`
	Nodes  int    `json:"nodes,omitempty"` // simulated nodes
	BinDir string `json:"binDir"`
	Ready  bool   `json:"ready"` // `up` came to its end
	// Node is process 1 of the namespaces that a kubelet cluster lives in.
	Node       *process     `json:"node,omitempty"`
	Components []*component `json:"components"`

	dir string
}

// component is one server process and how to start it again.
type component struct {
	Name    string   `json:"name"`
	Argv    []string `json:"argv"`
	Env     []string `json:"env,omitempty"`
	Process *process `json:"process,omitempty"`
}

func (c *cluster) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}
func (c *cluster) bin() binaries      { return binaries{dir: c.BinDir} }
func (c *cluster) kubeconfig() string { return c.path("kubeconfig") }
func (c *cluster) auditLog() string   { return c.path("audit.log") }
func (c *cluster) logFile(component string) string {
	return c.path("logs", component+".log")
}

func (c *cluster) component(name string) (*component, error) {
	var names []string
	for _, comp := range c.Components {
		if comp.Name == name {
			return comp, nil
		}
		names = append(names, comp.Name)
	}
	return nil, fmt.Errorf("cluster %s has no component %q; it has %v", c.Name, name, names)
}

// save replaces the file in one step: a half-written state would orphan processes.
func (c *cluster) save() error {
	content, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	tmp := c.path(".cluster.json")
	if err := os.WriteFile(tmp, append(content, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, c.path("cluster.json"))
}

var errNoCluster = errors.New("no such cluster")

func loadCluster(name string) (*cluster, error) {
	dir, err := clusterDir(name)
	if err != nil {
		return nil, err
	}
	return loadClusterDir(dir)
}

func loadClusterDir(dir string) (*cluster, error) {
	content, err := os.ReadFile(filepath.Join(dir, "cluster.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", errNoCluster, filepath.Base(dir))
	}
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: dir}
	if err := json.Unmarshal(content, c); err != nil {
		return nil, fmt.Errorf("%s: %w", c.path("cluster.json"), err)
	}
	return c, nil
}

func listClusters() ([]*cluster, error) {
	dir, err := clustersDir()
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*", "cluster.json"))
	if err != nil {
		return nil, err
	}
	sort.Strings(files)
	var all []*cluster
	for _, file := range files {
		c, err := loadClusterDir(filepath.Dir(file))
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}
