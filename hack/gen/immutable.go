package main

import (
	"fmt"
	"maps"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// mutable are the fields of a Task's spec that may change once it exists. cancel has a rule of its own, by a marker.
var mutable = []string{"priority", "suspend", "cancel", "ttlSecondsAfterFinished"}

// addImmutability makes every other field of spec immutable, one rule a field, so that the refusal names it and a new
// field cannot be forgotten. The rules stand at the fields: the API server pays for each access to a field of an object
// with many, and asks all rules again at each write of the status. A rule at a field is not asked when the field is added
// or removed, so where there is no default to keep it in place, one at spec asks only for that.
func addImmutability(root *schema) error {
	return edit(root, []string{"spec"}, func(spec *schema) error {
		for _, name := range mutable {
			if _, ok := spec.Properties[name]; !ok {
				return fmt.Errorf("%s: no such property, yet listed as mutable", name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(spec.Properties)) {
			if slices.Contains(mutable, name) {
				continue
			}
			field := spec.Properties[name]
			same := apiextensionsv1.ValidationRule{Rule: "self == oldSelf", Message: name + " is immutable"}
			addRules(&field, same)
			spec.Properties[name] = field
			if field.Default == nil && !slices.Contains(spec.Required, name) {
				same.Rule, same.FieldPath = fmt.Sprintf("has(self.%[1]s) == has(oldSelf.%[1]s)", name), "."+name
				addRules(spec, same)
			}
		}
		return keepOrder(spec)
	})
}

// keepOrder keeps the order of lists whose items have names. Two such lists are equal to CEL whatever their order, yet the first
// container is the worker, init containers run in turn, a variable sees those before it, and so do stages.
func keepOrder(spec *schema) error {
	containers, initContainers := []string{"template", "spec", "containers"}, []string{"template", "spec", "initContainers"}
	for _, path := range [][]string{
		containers, initContainers, append(slices.Clone(containers), "[]", "env"), append(slices.Clone(initContainers), "[]", "env"), {"stages"},
	} {
		if err := edit(spec, path, func(list *schema) error {
			addRules(list, apiextensionsv1.ValidationRule{
				Rule:    "self.map(v, v.name) == oldSelf.map(v, v.name)",
				Message: path[0] + " is immutable, the order of " + path[len(path)-1] + " included",
			})
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}
