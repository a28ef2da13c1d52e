// Package docs checks what the documents say of the code.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const top = "../.."

var (
	named   = regexp.MustCompile("`(Test[A-Za-z0-9_]+)`")
	defined = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)\(`)
)

// tests are the names of all tests of the repository.
func tests(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != top:
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		code, err := os.ReadFile(path)
		for _, m := range defined.FindAllStringSubmatch(string(code), -1) {
			found[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestNamedTestsExist: a promise that names a test which is gone is shown by nothing.
func TestNamedTestsExist(t *testing.T) {
	known := tests(t)
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/adr/*.md"} {
		found, err := filepath.Glob(filepath.Join(top, pattern))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	checked := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			checked++
			if !known[m[1]] {
				t.Errorf("%s names %s, which is no test", page, m[1])
			}
		}
	}
	if checked == 0 {
		t.Error("no document names a test")
	}
}
