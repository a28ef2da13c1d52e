package main

import (
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// addUnreachableRule refuses a retry rule that can never match, because each of its exit codes, or each of its reasons,
// already stands in a rule before it. Exit codes count for certain reasons only; after all of these they are out of reach, too.
// The rule is written out for each place in the list: CEL knows no index of a loop in all the versions of Kubernetes that this
// is for, and the message is to name the rule.
func addUnreachableRule(root *schema) error {
	return edit(root, []string{"spec", "retry", "rules"}, func(rules *schema) error {
		if rules.MaxItems == nil {
			return fmt.Errorf("has no maxItems")
		}
		var earlier []string
		for i := range *rules.MaxItems {
			if i > 0 {
				addRules(rules, reachable(i, "["+strings.Join(earlier, ", ")+"]"))
			}
			earlier = append(earlier, fmt.Sprint(i))
		}
		return nil
	})
}

func reachable(i int64, earlier string) apiextensionsv1.ValidationRule {
	covered := func(list string) string {
		return fmt.Sprintf("(has(self[%[1]d].%[2]s) && self[%[1]d].%[2]s.all(v, %[3]s.exists(j, "+
			"has(self[j].%[2]s) && v in self[j].%[2]s)))", i, list, earlier)
	}
	ownExits := fmt.Sprintf("(has(self[%d].exitCodes) && %s.all(r, %s.exists(j, has(self[j].reasons) && r in self[j].reasons)))",
		i, quoted(lifecycle.OwnExits), earlier)
	return apiextensionsv1.ValidationRule{
		Rule:    fmt.Sprintf("size(self) <= %d || !(%s || %s || %s)", i, covered("exitCodes"), covered("reasons"), ownExits),
		Message: fmt.Sprintf("rules[%d] can never match: all that it names already stands in earlier rules", i),
	}
}

// quoted writes a list of words in CEL.
func quoted(words []string) string { return "['" + strings.Join(words, "', '") + "']" }
