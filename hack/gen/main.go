// Command gen finishes what controller-gen begins. From controller-gen's CRDs and the table of internal/lifecycle it
// writes the CRDs that are installed, with the state law in them, and docs/states.md.
//
//	controller-gen crd:generateEmbeddedObjectMeta=true paths=./api/... output:crd:dir=bin/crd
//	go run ./hack/gen
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	raw := flag.String("raw", "bin/crd", "folder with the CRDs as controller-gen writes them")
	crds := flag.String("crd", "config/crd", "folder that the finished CRDs are written to")
	docs := flag.String("docs", "docs", "folder that states.md is written to")
	flag.Parse()
	if err := run(*raw, *crds, *docs); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(raw, crds, docs string) error {
	files, err := filepath.Glob(filepath.Join(raw, "*.yaml"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("no CRDs in %s: run controller-gen first", raw)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		finished, err := finishCRD(content)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := write(filepath.Join(crds, filepath.Base(file)), finished); err != nil {
			return err
		}
	}
	states, err := statesDoc()
	if err != nil {
		return err
	}
	return write(filepath.Join(docs, "states.md"), states)
}

func write(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}
