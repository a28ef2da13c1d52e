package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
)

// cacheDir holds binaries and clusters. It is outside the checkout so that several
// checkouts share the one build that takes minutes.
func cacheDir() (string, error) {
	if dir := os.Getenv("TASKWARDEN_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	base := os.Getenv("XDG_CACHE_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("no cache folder: set TASKWARDEN_CACHE: %w", err)
		}
		base = filepath.Join(home, ".cache")
	}
	return filepath.Join(base, "taskwarden"), nil
}

// clustersDir holds one folder per cluster.
func clustersDir() (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "clusters"), nil
}

// Names end up in cgroup paths and file names, and the folder must stay short enough for
// the unix sockets inside it.
var clusterName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`)

func clusterDir(name string) (string, error) {
	if !clusterName.MatchString(name) {
		return "", fmt.Errorf("cluster name %q: use up to 32 lower-case letters, digits and dashes", name)
	}
	dir, err := clustersDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, name), nil
}

// sourceDir finds hack/cluster, whose modules the binaries are built from: above the
// working directory, or else where this program itself was compiled.
func sourceDir() (string, error) {
	isSource := func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, "kube", "go.mod"))
		return err == nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		for _, candidate := range []string{dir, filepath.Join(dir, "hack", "cluster")} {
			if isSource(candidate) {
				return candidate, nil
			}
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	if _, file, _, ok := runtime.Caller(0); ok && isSource(filepath.Dir(file)) {
		return filepath.Dir(file), nil
	}
	return "", errors.New("the folder hack/cluster was not found above the working directory; run this inside the checkout")
}
