package api

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/testenv"
)

const plainTemplate = "template: {spec: {containers: [{name: worker, image: busybox}]}}\n"

// specCase is a spec in YAML and what the API server says to it: nothing, or a text with all of these parts.
type specCase struct {
	spec    string // without a template it gets a plain one
	refused []string
}

func refused(spec string, parts ...string) specCase { return specCase{spec, parts} }

func accepted(spec string) specCase { return specCase{spec: spec} }

// container is a spec whose only container has these fields besides name and image.
func container(fields string) string {
	return "template: {spec: {containers: [{name: worker, image: busybox, " + fields + "}]}}"
}

// podSpec is a spec whose pod has these fields besides a plain container.
func podSpec(fields string) string {
	return "template: {spec: {containers: [{name: worker, image: busybox}], " + fields + "}}"
}

func rules(list string) string { return "retry: {rules: [" + list + "]}" }

func newObject(t *testing.T, namespace, spec string) *unstructured.Unstructured {
	t.Helper()
	if !strings.Contains(spec, "template:") {
		spec = plainTemplate + spec
	}
	var parsed map[string]any
	if err := yaml.Unmarshal([]byte(spec), &parsed); err != nil {
		t.Fatalf("%v in\n%s", err, spec)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"spec": parsed}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Task"))
	u.SetNamespace(namespace)
	u.SetGenerateName("case-")
	return u
}

// runSpecCases creates each spec, without storing it.
func runSpecCases(t *testing.T, cases map[string]specCase) {
	t.Helper()
	env := newBareEnv(t)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := createStrictly(t, env, newObject(t, env.Namespace, c.spec), true)
			if len(c.refused) == 0 {
				wantAccepted(t, err)
				return
			}
			wantRefused(t, err, c.refused...)
		})
	}
}

// createStrictly creates as kubectl apply does: an unknown field is an error.
func createStrictly(t *testing.T, env *testenv.Env, u *unstructured.Unstructured, dryRun bool) error {
	t.Helper()
	options := &client.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	return env.Client.Create(t.Context(), u, options)
}

func TestC10TemplateThatCannotBecomeAWorker(t *testing.T) {
	t.Parallel()
	const path = "spec.template.spec."
	sidecar := "initContainers: [{name: side, image: busybox, restartPolicy: Always}]"
	runSpecCases(t, map[string]specCase{
		"plain":                          accepted(plainTemplate),
		"no template":                    refused("template: null", "spec.template"),
		"template without spec":          refused("template: {}", "spec.template.spec", "Required"),
		"template without containers":    refused("template: {spec: {}}", path+"containers", "Required"),
		"no container in the list":       refused("template: {spec: {containers: []}}", path+"containers", "at least 1"),
		"container without name":         refused("template: {spec: {containers: [{image: busybox}]}}", path+"containers[0].name", "Required"),
		"container with an empty name":   refused("template: {spec: {containers: [{name: '', image: busybox}]}}", path+"containers[0].name"),
		"container with a bad name":      refused("template: {spec: {containers: [{name: Work_er, image: busybox}]}}", path+"containers[0].name"),
		"container with a long name":     refused("template: {spec: {containers: [{name: "+strings.Repeat("a", 64)+", image: busybox}]}}", path+"containers[0].name", "63"),
		"container without image":        refused("template: {spec: {containers: [{name: worker}]}}", path+"containers[0].image", "Required"),
		"container with an empty image":  refused("template: {spec: {containers: [{name: worker, image: ''}]}}", path+"containers[0].image"),
		"two containers of one name":     refused("template: {spec: {containers: [{name: a, image: b}, {name: a, image: b}]}}", path+"containers[1]", "Duplicate"),
		"too many containers":            refused(manyContainers(65), path+"containers", "64"),
		"as many containers as may be":   accepted(manyContainers(64)),
		"two volumes of one name":        refused(podSpec("volumes: [{name: a, emptyDir: {}}, {name: a, emptyDir: {}}]"), path+"volumes[1]", "Duplicate"),
		"a volume of a bad name":         refused(podSpec("volumes: [{name: A_b, emptyDir: {}}]"), path+"volumes[0].name"),
		"restartPolicy Always":           refused(podSpec("restartPolicy: Always"), path+"restartPolicy", "must be Never"),
		"restartPolicy OnFailure":        refused(podSpec("restartPolicy: OnFailure"), path+"restartPolicy", "must be Never"),
		"restartPolicy Never":            accepted(podSpec("restartPolicy: Never")),
		"a container that is restarted":  refused(container("restartPolicy: Always"), path+"containers[0].restartPolicy", "must not be set"),
		"a container with restart rules": refused(container("restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [1]}}]"), path+"containers[0].restartPolicyRules", "must not be set"),
		"a native sidecar":               accepted(podSpec(sidecar)),
		"an init container with rules":   accepted(podSpec("initContainers: [{name: i, image: b, restartPolicy: Never, restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [1]}}]}]")),
		"an init container that restarts all": refused(podSpec("initContainers: [{name: i, image: b, restartPolicy: Never, restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [1]}}]}]"),
			path+"initContainers[0].restartPolicyRules[0].action", "must not be RestartAllContainers"),
		"init container with a container's name": refused(podSpec("initContainers: [{name: worker, image: busybox}]"), path+"initContainers", "must not have the name of a container"),
		"a negative grace":                       refused(podSpec("terminationGracePeriodSeconds: -3"), path+"terminationGracePeriodSeconds", "greater than or equal to 0"),
		"ephemeral containers":                   refused(podSpec("ephemeralContainers: [{name: e, image: b}]"), path+"ephemeralContainers", "must not be set"),
		"the pod's own deadline":                 refused(podSpec("activeDeadlineSeconds: 10"), path+"activeDeadlineSeconds", "spec.activeDeadlineSeconds of the Task"),
		"variables of the operator":              refused(container("env: [{name: A, value: b}, {name: TASKWARDEN_ATTEMPT, value: '7'}]"), path+"containers[0].env[1].name", "TASKWARDEN_"),
		"variables of the operator, in a sidecar": refused(podSpec("initContainers: [{name: i, image: b, env: [{name: TASKWARDEN_INPUT, value: x}]}]"),
			path+"initContainers[0].env[0].name", "TASKWARDEN_"),
		"a variable without a name":         refused(container("env: [{name: '', value: b}]"), path+"containers[0].env[0].name"),
		"a variable with a long name":       refused(container("env: [{name: "+strings.Repeat("A", 254)+"}]"), path+"containers[0].env[0].name", "253"),
		"too many variables":                refused(container("env: ["+strings.Repeat("{name: A}, ", 513)+"]"), path+"containers[0].env", "512"),
		"init container without an image":   refused(podSpec("initContainers: [{name: i}]"), path+"initContainers[0].image", "Required"),
		"init container, empty image":       refused(podSpec("initContainers: [{name: i, image: ''}]"), path+"initContainers[0].image"),
		"init container with a bad name":    refused(podSpec("initContainers: [{name: I_, image: b}]"), path+"initContainers[0].name"),
		"init container with a long name":   refused(podSpec("initContainers: [{name: "+strings.Repeat("a", 64)+", image: b}]"), path+"initContainers[0].name", "63"),
		"a volume with a long name":         refused(podSpec("volumes: [{name: "+strings.Repeat("a", 64)+", emptyDir: {}}]"), path+"volumes[0].name", "63"),
		"a label value that is too long":    refused("template: {metadata: {labels: {a: "+strings.Repeat("b", 64)+"}}, spec: {containers: [{name: worker, image: busybox}]}}", "spec.template.metadata.labels.a", "63"),
		"variables like those":              accepted(container("env: [{name: MY_TASKWARDEN_ATTEMPT, value: '7'}]")),
		"a quantity that is none":           refused(container("resources: {limits: {memory: lots}}"), path+"containers[0].resources.limits.memory"),
		"a port of another type":            refused(container("ports: [{containerPort: http}]"), path+"containers[0].ports[0].containerPort"),
		"C61 a field that does not exist":   refused(container("imagePulPolicy: Never"), `unknown field "spec.template.spec.containers[0].imagePulPolicy"`),
		"a label value that is none":        refused("template: {metadata: {labels: {a: 'not a label'}}, spec: {containers: [{name: worker, image: busybox}]}}", "spec.template.metadata.labels.a"),
		"annotations near the limit":        accepted(annotated(170_000)),
		"annotations over the limit":        refused(annotated(181_000), "spec.template.metadata.annotations", "180000"),
		"workerContainer":                   accepted(podSpec("hostNetwork: false") + "\nworkerContainer: worker"),
		"workerContainer that is none":      refused("workerContainer: helper", "spec.workerContainer", "name of a container"),
		"workerContainer that is a sidecar": refused(podSpec(sidecar)+"\nworkerContainer: side", "spec.workerContainer", "name of a container"),
		"workerContainer without a name":    refused("workerContainer: ''", "spec.workerContainer"),
	})
}

func manyContainers(n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("{name: c%d, image: busybox}", i))
	}
	return "template: {spec: {containers: [" + strings.Join(list, ", ") + "]}}"
}

func annotated(bytes int) string {
	return "template: {metadata: {annotations: {a: " + strings.Repeat("x", bytes) + "}}, spec: {containers: [{name: worker, image: busybox}]}}"
}

// TestC23Timeouts walks every number of the spec over its bounds.
func TestC23Timeouts(t *testing.T) {
	t.Parallel()
	const year, day = 31536000, 86400
	cases := map[string]specCase{}
	for field, bounds := range map[string][2]int64{
		"priority":                 {-1_000_000_000, 1_000_000_000},
		"startTimeoutSeconds":      {1, year},
		"queueTimeoutSeconds":      {1, year},
		"activeDeadlineSeconds":    {1, year},
		"overallDeadlineSeconds":   {1, year},
		"finishGraceSeconds":       {0, day},
		"workerLostTimeoutSeconds": {1, day},
		"workerRetentionSeconds":   {0, year},
		"ttlSecondsAfterFinished":  {0, year},
		"retry.limit":              {0, 100},
		"retry.unchargedLimit":     {0, 1000},
		"retry.backoff.maxSeconds": {1, day},
		"retry.backoff.initialSeconds": {
			1, day,
		},
		"retry.backoff.jitterPercent": {0, 100},
	} {
		with := func(value any) string { return numberSpec(field, value) }
		low, high := bounds[0], bounds[1]
		cases[field+" lowest"] = accepted(with(low))
		cases[field+" highest"] = accepted(with(high))
		cases[field+" below"] = refused(with(low-1), "spec."+field, fmt.Sprintf("greater than or equal to %d", low))
		cases[field+" above"] = refused(with(high+1), "spec."+field, fmt.Sprintf("less than or equal to %d", high))
		cases[field+" negative"] = refused(with(-2_000_000_000), "spec."+field)
		cases[field+" over int32"] = refused(with(int64(math.MaxInt32)+1), "spec."+field)
		cases[field+" over int64"] = refused(with("99999999999999999999"), "spec."+field)
		cases[field+" a duration"] = refused(with(`"10s"`), "spec."+field, "integer")
		cases[field+" a fraction"] = refused(with("1.5"), "spec."+field, "integer")
	}
	cases["active as long as overall"] = accepted("activeDeadlineSeconds: 60\noverallDeadlineSeconds: 60")
	cases["active above overall"] = refused("activeDeadlineSeconds: 7200\noverallDeadlineSeconds: 3600",
		"spec.activeDeadlineSeconds", "must not exceed overallDeadlineSeconds")
	cases["active by default above overall"] = refused("overallDeadlineSeconds: 60", "spec.activeDeadlineSeconds", "1800")
	cases["max below initial"] = refused("retry: {backoff: {initialSeconds: 20, maxSeconds: 10}}",
		"spec.retry.backoff.maxSeconds", "must not be below initialSeconds")
	cases["max by default below initial"] = refused("retry: {backoff: {initialSeconds: 301}}", "spec.retry.backoff.maxSeconds", "300")
	cases["max as long as initial"] = accepted("retry: {backoff: {initialSeconds: 10, maxSeconds: 10}}")
	runSpecCases(t, cases)
}

// numberSpec sets one number, and what stands in a relation to it so that it is only its own bounds that count.
func numberSpec(field string, value any) string {
	path := strings.Split(field, ".")
	switch {
	case field == "overallDeadlineSeconds":
		return fmt.Sprintf("activeDeadlineSeconds: 1\n%s: %v", field, value)
	case field == "retry.backoff.initialSeconds":
		return fmt.Sprintf("retry: {backoff: {initialSeconds: %v, maxSeconds: 86400}}", value)
	case field == "retry.backoff.maxSeconds":
		return fmt.Sprintf("retry: {backoff: {initialSeconds: 1, maxSeconds: %v}}", value)
	}
	return strings.Join(path[:len(path)-1], ": {") + strings.Repeat(": {", min(1, len(path)-1)) +
		fmt.Sprintf("%s: %v", path[len(path)-1], value) + strings.Repeat("}", len(path)-1)
}

func TestC32BackoffFactor(t *testing.T) {
	t.Parallel()
	cases := map[string]specCase{}
	for _, factor := range []string{"1", "1.0", "1.5", "2", "9.99", "99", "99.99", "100", "100.00"} {
		cases[factor] = accepted(fmt.Sprintf("retry: {backoff: {factor: %q}}", factor))
	}
	for _, factor := range []string{"", "0", "0.5", "-1", "101", "100.01", "1e3", "NaN", "Inf", "two", "1.555", " 2"} {
		cases["not "+factor] = refused(fmt.Sprintf("retry: {backoff: {factor: %q}}", factor), "spec.retry.backoff.factor")
	}
	cases["a number"] = refused("retry: {backoff: {factor: 2}}", "spec.retry.backoff.factor", "string")
	runSpecCases(t, cases)
}

func TestRetryRules(t *testing.T) {
	t.Parallel()
	many := func(n int) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf("{exitCodes: [%d], action: Retry}", i+1))
		}
		return strings.Join(list, ", ")
	}
	runSpecCases(t, map[string]specCase{
		"by code and by reason":  accepted(rules("{exitCodes: [1, 255], action: Fail}, {reasons: [OOMKilled], action: Retry, resources: {limits: {memory: 1Gi}}}")),
		"neither":                refused(rules("{action: Fail}"), "spec.retry.rules[0]", "exactly one of exitCodes and reasons"),
		"both":                   refused(rules("{exitCodes: [1], reasons: [OOMKilled], action: Fail}"), "spec.retry.rules[0]", "exactly one of exitCodes and reasons"),
		"no code":                refused(rules("{exitCodes: [], action: Fail}"), "spec.retry.rules[0].exitCodes", "at least 1"),
		"no reason":              refused(rules("{reasons: [], action: Fail}"), "spec.retry.rules[0].reasons", "at least 1"),
		"code 0":                 refused(rules("{exitCodes: [0], action: Fail}"), "spec.retry.rules[0].exitCodes[0]", "greater than or equal to 1"),
		"code 256":               refused(rules("{exitCodes: [256], action: Fail}"), "spec.retry.rules[0].exitCodes[0]", "less than or equal to 255"),
		"a code twice":           refused(rules("{exitCodes: [1, 1], action: Fail}"), "spec.retry.rules[0].exitCodes[1]", "Duplicate"),
		"a reason that is none":  refused(rules("{reasons: [Completed], action: Fail}"), "spec.retry.rules[0].reasons[0]", "OOMKilled"),
		"no action":              refused(rules("{exitCodes: [1]}"), "spec.retry.rules[0].action", "Required"),
		"an action that is none": refused(rules("{exitCodes: [1], action: Ignore}"), "spec.retry.rules[0].action", "RetryUncharged"),
		"resources with Fail": refused(rules("{exitCodes: [1], action: Fail, resources: {limits: {memory: 1Gi}}}"),
			"spec.retry.rules[0].resources", "must not be set with action Fail"),
		"resource claims": refused(rules("{exitCodes: [1], action: Retry, resources: {claims: [{name: gpu}]}}"),
			"spec.retry.rules[0].resources.claims", "only requests and limits"),
		"a code of an earlier rule": refused(rules("{exitCodes: [1], action: Fail}, {exitCodes: [1], action: Retry}"), "spec.retry.rules", "rules[1] can never match"),
		"codes of several earlier rules": refused(rules("{exitCodes: [1, 2], action: Fail}, {exitCodes: [3], action: Retry}, {exitCodes: [2, 3], action: Retry}"),
			"spec.retry.rules", "rules[2] can never match"),
		"reasons of an earlier rule": refused(rules("{reasons: [OOMKilled, Evicted], action: Fail}, {exitCodes: [3], action: Retry}, {reasons: [Evicted], action: Retry}"),
			"spec.retry.rules", "rules[2] can never match"),
		"a code that is left over": accepted(rules("{exitCodes: [1, 2], action: Fail}, {exitCodes: [2, 3], action: Retry}")),
		"only a later rule has it": accepted(rules("{exitCodes: [1], action: Fail}, {exitCodes: [1, 2], action: Retry}")),
		"a code and a reason":      accepted(rules("{reasons: [NonZeroExitCode], action: Fail}, {exitCodes: [1], action: Retry}")),
		"as many rules as may be":  accepted(rules(many(20))),
		"too many rules":           refused(rules(many(21)), "spec.retry.rules", "20"),
		"codes after all the reasons that they count for": refused(
			rules("{reasons: [NonZeroExitCode, OOMKilled], action: Fail}, {reasons: [StartError], action: Fail}, {exitCodes: [3], action: Retry}"),
			"spec.retry.rules", "rules[2] can never match"),
		"codes after some of these": accepted(rules("{reasons: [NonZeroExitCode, OOMKilled], action: Fail}, {exitCodes: [3], action: Retry}")),
		"the last one out of reach": refused(rules(many(19)+", {exitCodes: [19], action: Fail}"), "spec.retry.rules", "rules[19] can never match"),
		"onWorkerLost":              accepted("retry: {onWorkerLost: Wait}"),
		"onWorkerLost that is none": refused("retry: {onWorkerLost: Never}", "spec.retry.onWorkerLost", "Replace"),
	})
}

func TestInput(t *testing.T) {
	t.Parallel()
	runSpecCases(t, map[string]specCase{
		"an object":       accepted("input: {value: {a: {b: [1, null, x]}}}"),
		"a text":          accepted("input: {value: hello}"),
		"a number":        accepted("input: {value: 7}"),
		"an array":        accepted("input: {value: [1, 2]}"),
		"without a value": refused("input: {}", "spec.input.value", "Required"),
		"another key":     refused("input: {value: 1, more: 2}", `unknown field "spec.input.more"`),
	})
}

func TestLongNames(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	for length, ok := range map[int]bool{1: true, 63: true, 64: true, 253: true, 254: false} {
		task := newObject(t, env.Namespace, "")
		task.SetGenerateName("")
		task.SetName(strings.Repeat("n", length))
		err := createStrictly(t, env, task, true)
		if ok {
			wantAccepted(t, err)
		} else {
			wantRefused(t, err, "metadata.name", "253")
		}
	}
}

func TestTemplateIsStoredWhole(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	const template = `
template:
  metadata:
    labels: {app: x}
    annotations: {note: text}
  spec:
    serviceAccountName: worker
    containers:
    - name: worker
      image: busybox
      command: [sh, -c, "true"]
      securityContext: {runAsNonRoot: true, capabilities: {drop: [ALL]}}
      volumeMounts: [{name: scratch, mountPath: /scratch}]
    volumes: [{name: scratch, emptyDir: {sizeLimit: 1Gi}}]
    tolerations: [{key: gpu, operator: Exists}]
`
	task := newObject(t, env.Namespace, template)
	want := task.DeepCopy().Object["spec"].(map[string]any)["template"]
	if err := createStrictly(t, env, task, false); err != nil {
		t.Fatal(err)
	}
	got := live(t, env, task.GetName()).Object["spec"].(map[string]any)["template"]
	if a, b := asJSON(t, got), asJSON(t, want); a != b {
		t.Errorf("stored  %s\napplied %s", a, b)
	}
}

func TestC23DefaultsAreVisible(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	task := newObject(t, env.Namespace, "retry: {limit: 5}")
	if err := createStrictly(t, env, task, true); err != nil {
		t.Fatal(err)
	}
	spec := task.Object["spec"].(map[string]any)
	delete(spec, "template")
	want := `{"activeDeadlineSeconds":1800,"finishGraceSeconds":60,"priority":0,"reporter":"None",` +
		`"retry":{"backoff":{"factor":"2",` +
		`"initialSeconds":10,"jitterPercent":10,"maxSeconds":300},"limit":5,"onWorkerLost":"Replace","unchargedLimit":10},` +
		`"startTimeoutSeconds":600,"workerLostTimeoutSeconds":300,"workerRetentionSeconds":300}`
	if got := asJSON(t, spec); got != want {
		t.Errorf("stored %s\nwant   %s", got, want)
	}
}

// TestC61CRDBearsClientSideApply writes to each CRD what a client-side kubectl apply would: itself, as an annotation.
func TestC61CRDBearsClientSideApply(t *testing.T) {
	t.Parallel()
	env := newBareEnv(t)
	content, err := os.ReadFile("../../config/crd/taskwarden.dev_tasks.yaml")
	if err != nil {
		t.Fatal(err)
	}
	applied, err := yaml.YAMLToJSON(content)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the CRD has %d bytes", len(applied))
	annotate := func(value string) error {
		patch := asJSON(t, map[string]any{"metadata": map[string]any{"annotations": map[string]any{
			"kubectl.kubernetes.io/last-applied-configuration": value,
		}}})
		crd := &unstructured.Unstructured{}
		crd.SetAPIVersion("apiextensions.k8s.io/v1")
		crd.SetKind("CustomResourceDefinition")
		crd.SetName("tasks.taskwarden.dev")
		return env.Client.Patch(t.Context(), crd, client.RawPatch("application/merge-patch+json", []byte(patch)), client.DryRunAll)
	}
	wantAccepted(t, annotate(string(applied)))
	wantRefused(t, annotate(strings.Repeat("x", 262144)), "metadata.annotations")
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestReporterFields(t *testing.T) {
	t.Parallel()
	const sidecar = "reporter: Sidecar\n"
	runSpecCases(t, map[string]specCase{
		"no reporter":                  accepted("reporter: None"),
		"sidecar":                      accepted(sidecar),
		"another reporter":             refused("reporter: Webhook", "spec.reporter", "Sidecar"),
		"heartbeat":                    accepted(sidecar + "heartbeatTimeoutSeconds: 10"),
		"heartbeat too short":          refused(sidecar+"heartbeatTimeoutSeconds: 9", "spec.heartbeatTimeoutSeconds", "10"),
		"heartbeat 0":                  refused(sidecar+"heartbeatTimeoutSeconds: 0", "spec.heartbeatTimeoutSeconds", "10"),
		"heartbeat without a sidecar":  refused("heartbeatTimeoutSeconds: 60", "spec.heartbeatTimeoutSeconds", "needs reporter Sidecar"),
		"heartbeat above the deadline": refused(sidecar+"heartbeatTimeoutSeconds: 61\nactiveDeadlineSeconds: 60", "spec.heartbeatTimeoutSeconds", "must not exceed activeDeadlineSeconds"),
		"progress":                     accepted(sidecar + "progressTimeoutSeconds: 1800"),
		"progress too long":            refused(sidecar+"progressTimeoutSeconds: 1801", "spec.progressTimeoutSeconds", "must not exceed activeDeadlineSeconds"),
		"progress without a sidecar":   refused("progressTimeoutSeconds: 60", "spec.progressTimeoutSeconds", "needs reporter Sidecar"),
		"stages":                       accepted(sidecar + "stages: [{name: a}, {name: b-2, timeoutSeconds: 60, weight: 0}]"),
		"stages without a sidecar":     refused("stages: [{name: a}]", "spec.stages", "needs reporter Sidecar"),
		"no stages":                    refused(sidecar+"stages: []", "spec.stages"),
		"a stage twice":                refused(sidecar+"stages: [{name: a}, {name: a}]", "spec.stages[1]", "Duplicate"),
		"a stage without a name":       refused(sidecar+"stages: [{weight: 1}]", "spec.stages[0].name"),
		"a stage with a bad name":      refused(sidecar+"stages: [{name: Two Words}]", "spec.stages[0].name"),
		"a stage that is too heavy":    refused(sidecar+"stages: [{name: a, weight: 1001}]", "spec.stages[0].weight", "1000"),
		"a negative stage timeout":     refused(sidecar+"stages: [{name: a, timeoutSeconds: -1}]", "spec.stages[0].timeoutSeconds", "1"),
		"a stage above the deadline":   refused(sidecar+"stages: [{name: a, timeoutSeconds: 61}]\nactiveDeadlineSeconds: 60", "spec.stages", "timeoutSeconds"),
		"host network":                 refused(sidecar+podSpec("hostNetwork: true"), "spec.template.spec.hostNetwork", "reporter Sidecar"),
		"host network, no sidecar":     accepted(podSpec("hostNetwork: true")),
		"own network":                  accepted(sidecar + podSpec("hostNetwork: false")),
		"21 stages":                    refused(sidecar+"stages: ["+strings.Repeat("{name: a}, ", 20)+"{name: b}]", "spec.stages", "20"),
	})
}
