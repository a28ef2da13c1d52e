package main

import (
	"errors"
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// addStateLaw makes the API server refuse every change of status.state that is not in the table, from whomever it comes.
// A status is always there, by its default, which is also why the first state needs no rule; and a status always has a state,
// since that is required here. So the rule at the field is always asked. What a status put back to its default would lose is
// the history, which tells that the operator knows the Task.
func addStateLaw(root *schema) error {
	return edit(root, []string{"status"}, func(status *schema) error {
		if status.Default == nil {
			return errors.New("status has no default: without a status the rules are not asked")
		}
		status.Required = append(status.Required, "state")
		addRules(status, apiextensionsv1.ValidationRule{
			Rule:      "!has(oldSelf.history) || has(self.history)",
			Message:   "a history that has been stored is never removed",
			FieldPath: ".history",
		})
		return edit(status, []string{"state"}, func(s *schema) error {
			addRules(s, stateLaw()...)
			return nil
		})
	})
}

// stateLaw has one rule for each state that may be stored, so that a refusal says what is allowed instead.
func stateLaw() []apiextensionsv1.ValidationRule {
	next := lifecycle.AllowedNext()
	var rules []apiextensionsv1.ValidationRule
	for _, from := range lifecycle.States {
		message := fmt.Sprintf("%s may only be followed by %s", from, join(next[from]))
		if len(next[from]) == 0 {
			message = fmt.Sprintf("%s is final", from)
		}
		rules = append(rules, stateRule(fmt.Sprintf("oldSelf.orValue('') != '%s' || self in %s",
			from, list(append([]v1alpha1.State{from}, next[from]...))), message))
	}
	return append(rules, stateRule(fmt.Sprintf("!oldSelf.hasValue() || self == oldSelf.value() || oldSelf.value() in %s",
		list(lifecycle.States)), "the stored state is not known to this version"))
}

func stateRule(rule, message string) apiextensionsv1.ValidationRule {
	return apiextensionsv1.ValidationRule{Rule: rule, Message: message, OptionalOldSelf: ptr.To(true)}
}

// list writes states as a CEL list.
func list(states []v1alpha1.State) string {
	var quoted []string
	for _, s := range states {
		quoted = append(quoted, "'"+string(s)+"'")
	}
	return "[" + strings.Join(quoted, ", ") + "]"
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
