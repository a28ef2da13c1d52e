package main

import (
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// addStateLaw makes the API server refuse every change of status.state that is not in the table, from whomever it comes.
// Two rules are needed: one at the field, which is not asked where the field is absent, and one at the root, which sees
// to it that a stored state does not become absent by whatever way (the field, the whole status, null).
func addStateLaw(root *schema) error {
	addRules(root, apiextensionsv1.ValidationRule{
		Rule: "!has(oldSelf.status) || !has(oldSelf.status.state) || " +
			"(has(self.status) && has(self.status.state))",
		Message:   "a state that has been stored is never removed",
		FieldPath: ".status.state",
	})
	return edit(root, []string{"status", "state"}, func(s *schema) error {
		addRules(s, stateLaw())
		return nil
	})
}

func stateLaw() apiextensionsv1.ValidationRule {
	next := lifecycle.AllowedNext()
	stored := append([]v1alpha1.State{""}, lifecycle.States...)
	var allowed, texts []string
	for _, from := range stored {
		var to []string
		for _, s := range next[from] {
			to = append(to, quote(string(s)))
		}
		allowed = append(allowed, fmt.Sprintf("%s: [%s]", quote(string(from)), strings.Join(to, ", ")))
		texts = append(texts, fmt.Sprintf("%s: %s", quote(string(from)), quote(lawText(from, next[from]))))
	}
	return apiextensionsv1.ValidationRule{
		Rule: fmt.Sprintf("(oldSelf.hasValue() && self == oldSelf.value()) || self in {%s}[oldSelf.orValue('')]",
			strings.Join(allowed, ", ")),
		Message:           "this change of state is not in the table of docs/states.md",
		MessageExpression: fmt.Sprintf("{%s}[oldSelf.orValue('')]", strings.Join(texts, ", ")),
		OptionalOldSelf:   ptr.To(true),
	}
}

// lawText says what may follow a stored state.
func lawText(from v1alpha1.State, to []v1alpha1.State) string {
	switch {
	case from == "":
		return "the first state is " + join(to)
	case len(to) == 0:
		return fmt.Sprintf("%s is final", from)
	}
	return fmt.Sprintf("%s may only be followed by %s", from, join(to))
}

// join writes a list of states for people.
func join(states []v1alpha1.State) string {
	var b strings.Builder
	for i, s := range states {
		switch {
		case i == 0:
		case i == len(states)-1:
			b.WriteString(" or ")
		default:
			b.WriteString(", ")
		}
		b.WriteString(string(s))
	}
	return b.String()
}

// quote makes a CEL string of a text without quotes.
func quote(text string) string { return "'" + text + "'" }
