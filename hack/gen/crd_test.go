package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// maxCRDBytes keeps clear of the 262144 bytes that all annotations of an object may have: a client-side kubectl apply
// stores the whole object in one.
const maxCRDBytes = 200_000

func TestC61EveryCRDFitsIntoPlainApply(t *testing.T) {
	files, err := filepath.Glob("../../config/crd/taskwarden.dev_*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs found: %v", err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		asJSON, err := yaml.YAMLToJSON(content)
		if err != nil {
			t.Fatal(err)
		}
		if len(asJSON) > maxCRDBytes {
			t.Errorf("%s has %d bytes as JSON, the limit is %d", filepath.Base(file), len(asJSON), maxCRDBytes)
		}
	}
}

// TestOwnDescriptionsStay guards kubectl explain: only the texts below the pod template may go.
func TestOwnDescriptionsStay(t *testing.T) {
	root := taskSchema(t)
	for _, part := range []string{"spec", "status"} {
		for name, property := range root.Properties[part].Properties {
			if property.Description == "" {
				t.Errorf("%s.%s has no description", part, name)
			}
		}
	}
	podSpec, err := json.Marshal(root.Properties["spec"].Properties["template"].Properties["spec"])
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(podSpec), `"description":"`) {
		t.Error("a description below spec.template is left")
	}
}

func TestEveryFieldOfSpecIsImmutableOrListed(t *testing.T) {
	spec := taskSchema(t).Properties["spec"]
	ruled := map[string]bool{}
	for name, field := range spec.Properties {
		for _, r := range field.XValidations {
			ruled[name] = ruled[name] || r.Rule == "self == oldSelf"
		}
		// Without a default it could come or go, which the rule at the field does not see.
		kept := field.Default != nil || slices.Contains(spec.Required, name) || slices.ContainsFunc(spec.XValidations,
			func(r apiextensionsv1.ValidationRule) bool {
				return r.FieldPath == "."+name && strings.Contains(r.Rule, "== has(oldSelf.")
			})
		if ruled[name] && !kept {
			t.Errorf("spec.%s is immutable, yet can be added and removed", name)
		}
	}
	for _, name := range mutable {
		if ruled[name] {
			t.Errorf("%s is both mutable and immutable", name)
		}
		ruled[name] = true
	}
	for name := range spec.Properties {
		if !ruled[name] {
			t.Errorf("spec.%s has no rule about change", name)
		}
	}
}

func TestGenerationIsStable(t *testing.T) {
	first, err := statesDoc()
	if err != nil {
		t.Fatal(err)
	}
	law := stateLaw()
	for range 20 {
		again, err := statesDoc()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first, again) {
			t.Fatal("docs/states.md differs from run to run")
		}
		if !reflect.DeepEqual(stateLaw(), law) {
			t.Fatal("the state law differs from run to run")
		}
	}
}

func TestEditNamesWhatIsMissing(t *testing.T) {
	s := &schema{Properties: map[string]schema{"spec": {}}}
	for _, path := range [][]string{{"status"}, {"spec", "x"}, {"spec", "[]"}} {
		err := edit(s, path, func(*schema) error { return nil })
		if err == nil || !strings.Contains(err.Error(), path[len(path)-1]) {
			t.Errorf("edit(%v) = %v, want an error that names the last step", path, err)
		}
	}
}

func taskSchema(t *testing.T) *schema {
	t.Helper()
	content, err := os.ReadFile("../../config/crd/taskwarden.dev_tasks.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(content, &crd); err != nil {
		t.Fatal(err)
	}
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema
}
