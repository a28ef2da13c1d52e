package main

import (
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// mutable are the fields of a Task's spec that may change once it exists. cancel has a rule of its own, by a marker.
var mutable = []string{"priority", "suspend", "cancel", "ttlSecondsAfterFinished"}

// addImmutability makes every other field of spec immutable, one rule a field, so that the refusal names it and a new
// field cannot be forgotten. The rules stand at spec, where old and new value are always present: at the field itself
// they would not be asked when it is added or removed.
func addImmutability(root *schema) error {
	return edit(root, []string{"spec"}, func(spec *schema) error {
		for _, name := range mutable {
			if _, ok := spec.Properties[name]; !ok {
				return fmt.Errorf("%s: no such property, yet listed as mutable", name)
			}
		}
		var names []string
		for name := range spec.Properties {
			if !slices.Contains(mutable, name) {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		for _, name := range names {
			rule := fmt.Sprintf("self.%[1]s == oldSelf.%[1]s", name)
			if !slices.Contains(spec.Required, name) {
				rule = fmt.Sprintf("has(self.%[1]s) == has(oldSelf.%[1]s) && (!has(self.%[1]s) || %[2]s)", name, rule)
			}
			addRules(spec, apiextensionsv1.ValidationRule{
				Rule: rule, Message: name + " is immutable", FieldPath: "." + name,
			})
		}
		for _, list := range []string{"containers", "initContainers"} {
			addRules(spec, sameContainers(list))
			if err := edit(spec, []string{"template", "spec", list, "[]"}, addSameEnv); err != nil {
				return err
			}
		}
		return nil
	})
}

// sameContainers and addSameEnv keep the order of containers and of their variables. Two lists with map keys are equal to
// CEL whatever their order, yet the first container is the worker, init containers run in turn, and a variable sees those
// before it.
func sameContainers(list string) apiextensionsv1.ValidationRule {
	names := "(has(%[1]s.template.spec.%[2]s) ? %[1]s.template.spec.%[2]s.map(c, c.name) : [])"
	return apiextensionsv1.ValidationRule{
		Rule:      fmt.Sprintf(names, "self", list) + " == " + fmt.Sprintf(names, "oldSelf", list),
		Message:   "template is immutable, the order of " + list + " included",
		FieldPath: ".template.spec." + list,
	}
}

func addSameEnv(container *schema) error {
	names := "(has(%[1]s.env) ? %[1]s.env.map(e, e.name) : [])"
	addRules(container, apiextensionsv1.ValidationRule{
		Rule:      fmt.Sprintf(names, "self") + " == " + fmt.Sprintf(names, "oldSelf"),
		Message:   "template is immutable, the order of env included",
		FieldPath: ".env",
	})
	return nil
}
