package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// picture is one output of the imaging worker, as it stands in its result.
type picture struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	Width  int    `json:"width"`
	Height int    `json:"height"`
}

// checkExpected checks a result against the members that a sample names: a JSON object, or nothing.
func checkExpected(want string, got *v1alpha1.TaskResult) error {
	if want == "" {
		return nil
	}
	raw, err := json.Marshal(got)
	if err != nil {
		return err
	}
	var wanted, members map[string]any
	if err := errors.Join(json.Unmarshal([]byte(want), &wanted), json.Unmarshal(raw, &members)); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if !reflect.DeepEqual(wanted[name], members[name]) {
			return fmt.Errorf("%s is %v, want %v", name, members[name], wanted[name])
		}
	}
	return nil
}

// size is a picture that is asked for: a width, whose height follows from the source, or both.
type size struct {
	Width  int `json:"width"`
	Height int `json:"height"`
}

func (s *size) UnmarshalJSON(raw []byte) error {
	if raw[0] != '{' {
		return json.Unmarshal(raw, &s.Width)
	}
	type plain size
	return json.Unmarshal(raw, (*plain)(s))
}

var sha256Text = regexp.MustCompile(`^[0-9a-f]{64}$`)

// checkResult checks the result of a successful imaging Task against what its input asked for. The pictures themselves are
// gone with the worker's pod.
func checkResult(t *v1alpha1.Task) error {
	if t.Status.State != v1alpha1.StateSucceeded || t.Spec.Input == nil || !strings.Contains(string(t.Spec.Input.Value.Raw), `"sizes"`) {
		return nil
	}
	var input struct {
		Source    string `json:"source"`
		Sizes     []size `json:"sizes"`
		OutputDir string `json:"outputDir"`
	}
	if err := json.Unmarshal(t.Spec.Input.Value.Raw, &input); err != nil {
		return err
	}
	if t.Status.Result == nil || t.Status.Result.Data == nil {
		return errors.New("there is none")
	}
	var result struct {
		Outputs []picture `json:"outputs"`
		Source  picture   `json:"source"`
	}
	if err := json.Unmarshal(t.Status.Result.Data.Raw, &result); err != nil {
		return err
	}
	if !result.Source.whole() || result.Source.Path != input.Source {
		return fmt.Errorf("source %+v, want %s", result.Source, input.Source)
	}
	return checkPictures(result.Outputs, result.Source, input.Sizes, input.OutputDir)
}

func checkPictures(pictures []picture, source picture, sizes []size, dir string) error {
	if len(pictures) != len(sizes) {
		return fmt.Errorf("%d pictures, %d asked for", len(pictures), len(sizes))
	}
	digests := map[string]bool{source.SHA256: true}
	for i, p := range pictures {
		switch {
		case !p.whole():
			return fmt.Errorf("picture %s is not whole: %+v", p.Path, p)
		case path.Dir(p.Path) != dir:
			return fmt.Errorf("picture %s is not in %s", p.Path, dir)
		case !sizes[i].fits(p, source):
			return fmt.Errorf("picture %s has %dx%d pixels, asked for was %+v of %dx%d",
				p.Path, p.Width, p.Height, sizes[i], source.Width, source.Height)
		case digests[p.SHA256]:
			return fmt.Errorf("picture %s has the digest of another one", p.Path)
		}
		digests[p.SHA256] = true
	}
	return nil
}

func (p picture) whole() bool {
	return p.Size > 0 && p.Width > 0 && p.Height > 0 && sha256Text.MatchString(p.SHA256)
}

// fits tells whether p has this size; a height that was not asked for keeps the source's proportions, to the nearest pixel.
func (s size) fits(p, source picture) bool {
	if p.Width != s.Width || s.Height != 0 {
		return p.Width == s.Width && p.Height == s.Height
	}
	off := p.Height*source.Width - p.Width*source.Height
	return 2*max(off, -off) <= source.Width
}
