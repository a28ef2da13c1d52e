package main

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"
)

const (
	maxContainers = 64
	maxEnv        = 512
	maxEnvName    = 253
	// A pod's annotations may take 256 KiB together, of which spec.input needs up to 64. A rule can only count characters;
	// what has more bytes than that the API server refuses in the worker's Job.
	maxAnnotations      = 512
	maxAnnotationsChars = 180_000

	dnsLabel   = `^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	labelValue = `^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$`
)

// finishPodTemplate says of the embedded pod template what its Go type cannot: what the API server would refuse in the
// worker's Job anyway is refused when the Task is applied, with the field's path, and so is what a worker must not be.
// The bounds also keep the cost of the rules within what the API server allows.
func finishPodTemplate(root *schema) error {
	template := []string{"spec", "template"}
	for _, step := range []struct {
		path   []string
		change func(*schema) error
	}{
		{nil, func(s *schema) error { dropDescriptions(s); s.Required = append(s.Required, "spec"); return nil }},
		{[]string{"metadata"}, finishTemplateMetadata},
		{[]string{"spec"}, finishPodSpec},
		{[]string{"spec", "activeDeadlineSeconds"}, forbid("use spec.activeDeadlineSeconds of the Task")},
		{[]string{"spec", "terminationGracePeriodSeconds"}, func(s *schema) error { s.Minimum = ptr.To(0.0); return nil }},
		{[]string{"spec", "ephemeralContainers"}, forbid("a pod template has no ephemeral containers")},
		{[]string{"spec", "restartPolicy"}, func(s *schema) error {
			addRules(s, apiextensionsv1.ValidationRule{
				Rule:    "self == 'Never'",
				Message: "must be Never, or left out: the exit of a worker ends its attempt; what follows is in spec.retry",
			})
			return nil
		}},
		{[]string{"spec", "containers"}, func(s *schema) error {
			s.MinItems, s.MaxItems = ptr.To[int64](1), ptr.To[int64](maxContainers)
			return nil
		}},
		{[]string{"spec", "containers", "[]"}, finishContainer},
		{[]string{"spec", "containers", "[]", "restartPolicy"}, forbid(noRestart)},
		{[]string{"spec", "containers", "[]", "restartPolicyRules"}, forbid(noRestart)},
		{[]string{"spec", "initContainers"}, func(s *schema) error {
			s.MaxItems = ptr.To[int64](maxContainers)
			return nil
		}},
		{[]string{"spec", "initContainers", "[]"}, finishContainer},
		{[]string{"spec", "initContainers", "[]", "restartPolicyRules"}, func(s *schema) error {
			s.MaxItems = ptr.To[int64](20)
			addRules(s.Items.Schema, apiextensionsv1.ValidationRule{
				Rule:      "self.action != 'RestartAllContainers'",
				Message:   "must not be RestartAllContainers: the worker runs once an attempt",
				FieldPath: ".action",
			})
			return nil
		}},
		{[]string{"spec", "volumes", "[]", "name"}, finishName},
	} {
		if err := edit(root, append(append([]string{}, template...), step.path...), step.change); err != nil {
			return err
		}
	}
	return nil
}

func finishTemplateMetadata(s *schema) error {
	for _, step := range []struct {
		property string
		change   func(*schema) error
	}{
		{"annotations", func(s *schema) error {
			s.MaxProperties = ptr.To[int64](maxAnnotations)
			addRules(s, apiextensionsv1.ValidationRule{
				Rule:    fmt.Sprintf("self.map(k, size(k) + size(self[k])).sum() <= %d", maxAnnotationsChars),
				Message: fmt.Sprintf("must have at most %d characters together: a pod's annotations also hold spec.input", maxAnnotationsChars),
			})
			return nil
		}},
		{"labels", func(s *schema) error {
			s.AdditionalProperties.Schema.MaxLength = ptr.To[int64](63)
			s.AdditionalProperties.Schema.Pattern = labelValue
			return nil
		}},
	} {
		if err := edit(s, []string{step.property}, step.change); err != nil {
			return err
		}
	}
	return nil
}

func finishPodSpec(s *schema) error {
	addRules(s,
		apiextensionsv1.ValidationRule{
			Rule:      "!has(self.initContainers) || self.initContainers.all(i, !self.containers.exists(c, c.name == i.name))",
			Message:   "must not have the name of a container",
			FieldPath: ".initContainers",
		},
	)
	return nil
}

func finishContainer(s *schema) error {
	s.Required = append(s.Required, "image")
	if err := edit(s, []string{"name"}, finishName); err != nil {
		return err
	}
	if err := edit(s, []string{"image"}, func(s *schema) error { s.MinLength = ptr.To[int64](1); return nil }); err != nil {
		return err
	}
	if err := edit(s, []string{"env"}, func(s *schema) error { s.MaxItems = ptr.To[int64](maxEnv); return nil }); err != nil {
		return err
	}
	return edit(s, []string{"env", "[]", "name"}, func(s *schema) error {
		s.MinLength, s.MaxLength = ptr.To[int64](1), ptr.To[int64](maxEnvName)
		addRules(s, apiextensionsv1.ValidationRule{
			Rule:    "!self.startsWith('TASKWARDEN_')",
			Message: "must not begin with TASKWARDEN_: the operator sets these variables",
		})
		return nil
	})
}

func finishName(s *schema) error {
	s.MaxLength, s.Pattern = ptr.To[int64](63), dnsLabel
	return nil
}

// noRestart is why a container has no rules of its own about its restart.
const noRestart = "the exit of a container is its end; native sidecars go to initContainers"

// forbid refuses a field, whatever its value. The rule stands at the field and costs nothing where that is absent.
func forbid(why string) func(*schema) error {
	return func(s *schema) error {
		addRules(s, apiextensionsv1.ValidationRule{Rule: "false", Message: "must not be set: " + why})
		return nil
	}
}

// dropDescriptions removes the texts below the template. They are those of any pod (kubectl explain pod.spec), and with
// them the CRD would not fit into the annotation that a client-side kubectl apply writes.
func dropDescriptions(s *schema) {
	for name, property := range s.Properties {
		clearDescriptions(&property)
		s.Properties[name] = property
	}
}

func clearDescriptions(s *schema) {
	s.Description = ""
	dropDescriptions(s)
	if s.Items != nil && s.Items.Schema != nil {
		clearDescriptions(s.Items.Schema)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		clearDescriptions(s.AdditionalProperties.Schema)
	}
}
