package main

import (
	"encoding/json"
	"fmt"
	"regexp"
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

var sha256Text = regexp.MustCompile(`^[0-9a-f]{64}$`)

// checkResult checks the result of a successful imaging Task against what its input asked for.
func checkResult(t *v1alpha1.Task) error {
	if t.Status.State != v1alpha1.StateSucceeded || t.Spec.Input == nil || !strings.Contains(string(t.Spec.Input.Value.Raw), `"sizes"`) {
		return nil
	}
	var input struct {
		Sizes []json.RawMessage `json:"sizes"`
	}
	if err := json.Unmarshal(t.Spec.Input.Value.Raw, &input); err != nil {
		return err
	}
	if t.Status.Result == nil || t.Status.Result.Data == nil {
		return fmt.Errorf("there is none")
	}
	var result struct {
		Outputs []picture `json:"outputs"`
	}
	if err := json.Unmarshal(t.Status.Result.Data.Raw, &result); err != nil {
		return err
	}
	if len(result.Outputs) != len(input.Sizes) {
		return fmt.Errorf("%d pictures, %d asked for", len(result.Outputs), len(input.Sizes))
	}
	for _, p := range result.Outputs {
		if p.Size <= 0 || p.Width <= 0 || p.Height <= 0 || !sha256Text.MatchString(p.SHA256) {
			return fmt.Errorf("picture %s is not whole: %+v", p.Path, p)
		}
	}
	return nil
}
