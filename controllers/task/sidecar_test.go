package task

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/gateway"
	"github.com/taskwarden/taskwarden/internal/report"
	"github.com/taskwarden/taskwarden/test/builders"
)

var testGateway = &Gateway{Image: "registry.example/taskwarden:1", URL: "https://taskwarden-gateway.ops.svc:8443", Address: "10.0.0.7:8443", CA: "PEM"}

// sidecarJob is the pod of a Task with a sidecar.
func sidecarJob(b *builders.TaskBuilder) corev1.PodTemplateSpec {
	t := b.Namespace("ns").Sidecar().Obj()
	t.UID, t.Status.Attempt = "task-uid", 2
	return newJob(t, testGateway).Spec.Template
}

func envOf(c *corev1.Container, name string) string {
	for _, e := range c.Env {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}

func mounts(c *corev1.Container, volume string) bool {
	return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume })
}

func TestSidecar(t *testing.T) {
	pod := sidecarJob(builders.Task("demo").HeartbeatTimeout(time.Minute))
	side, worker := &pod.Spec.InitContainers[0], &pod.Spec.Containers[0]
	if side.Name != v1alpha1.ReporterContainer || side.Image != testGateway.Image || ptr.Deref(side.RestartPolicy, "") != corev1.ContainerRestartPolicyAlways {
		t.Errorf("the first init container is %s, %s, restart policy %v", side.Name, side.Image, side.RestartPolicy)
	}
	for name, want := range map[string]string{
		v1alpha1.EnvTaskUID: "task-uid", v1alpha1.EnvAttempt: "2", report.EnvGatewayURL: testGateway.URL, report.EnvGatewayAddress: testGateway.Address,
		report.EnvGatewayCA: "PEM", report.EnvGraceSeconds: "180", report.EnvNoteLimit: "4096",
	} {
		if got := envOf(side, name); got != want {
			t.Errorf("the sidecar's %s is %q, want %q", name, got, want)
		}
	}
	for name, want := range map[string]string{
		v1alpha1.EnvReporter: "http://127.0.0.1:7788", v1alpha1.EnvCommand: "/opt/taskwarden/taskwarden", v1alpha1.EnvHeartbeatSeconds: "60",
	} {
		if got := envOf(worker, name); got != want {
			t.Errorf("the worker's %s is %q, want %q", name, got, want)
		}
	}
	if envOf(side, report.EnvCommandFile) != envOf(worker, v1alpha1.EnvCommand) || !mounts(side, commandVolume) || !mounts(worker, commandVolume) {
		t.Error("the worker does not find the command where the sidecar puts it")
	}
	if !mounts(side, tokenVolume) || mounts(worker, tokenVolume) || mounts(worker, spoolVolume) {
		t.Error("token and spool are the sidecar's alone")
	}
	if got := *pod.Spec.TerminationGracePeriodSeconds; got != v1alpha1.MinReporterGraceSeconds {
		t.Errorf("a grace of %d s", got)
	}
}

// TestSidecarPassesRestricted: what the restricted Pod Security Standard asks of a container, whatever the pod says.
func TestSidecarPassesRestricted(t *testing.T) {
	pod := sidecarJob(builders.Task("demo"))
	c := pod.Spec.InitContainers[0].SecurityContext
	if !*c.RunAsNonRoot || *c.AllowPrivilegeEscalation || *c.Privileged || !*c.ReadOnlyRootFilesystem ||
		c.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || !slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) || c.Capabilities.Add != nil {
		t.Errorf("%+v", c)
	}
	for _, v := range pod.Spec.Volumes {
		if v.EmptyDir == nil && v.Projected == nil {
			t.Errorf("volume %s is of a kind that the standard does not allow", v.Name)
		}
	}
}

func TestSidecarAmongOthers(t *testing.T) {
	template := builders.Pod().Obj()
	template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](600)
	template.Spec.InitContainers = []corev1.Container{{Name: "first", Image: "i"}}
	for range 10 {
		template.Spec.Containers = append(template.Spec.Containers, corev1.Container{Name: "more", Image: "i"})
	}
	pod := sidecarJob(builders.Task("demo").Template(template))
	if pod.Spec.InitContainers[0].Name != v1alpha1.ReporterContainer || pod.Spec.InitContainers[1].Name != "first" {
		t.Error("the sidecar is there when the init containers run")
	}
	side := &pod.Spec.InitContainers[0]
	if got := envOf(side, report.EnvNoteLimit); got != "945" {
		t.Errorf("a note of %s bytes; 13 containers share 12 KiB", got)
	}
	if *pod.Spec.TerminationGracePeriodSeconds != 600 || envOf(side, report.EnvGraceSeconds) != "600" {
		t.Errorf("a longer grace is kept: %d", *pod.Spec.TerminationGracePeriodSeconds)
	}
}

func TestCheckpointIsHandedOn(t *testing.T) {
	task := builders.Task("demo").Namespace("ns").Input(1).Obj()
	task.Status.Attempt = 2
	task.Status.Checkpoint = &v1alpha1.TaskCheckpoint{Data: apiextensionsv1.JSON{Raw: []byte(`{"page": 3, "a": "\u003c"}`)}, Attempt: 1}
	pod := newJob(task, nil).Spec.Template
	if got := pod.Annotations[v1alpha1.AnnotationCheckpoint]; got != `{"a":"<","page":3}` {
		t.Errorf("handed on as %s", got)
	}
	if got := envOf(&pod.Spec.Containers[0], v1alpha1.EnvCheckpoint); got != "/var/run/taskwarden/checkpoint.json" {
		t.Errorf("path %q", got)
	}
	if n := len(pod.Spec.Volumes); n != 1 || len(pod.Spec.Volumes[0].DownwardAPI.Items) != 2 {
		t.Errorf("%d volumes, want one with two files", n)
	}
	task.Status.Checkpoint = nil
	if pod := newJob(task, nil).Spec.Template; envOf(&pod.Spec.Containers[0], v1alpha1.EnvCheckpoint) != "" {
		t.Error("a path without a checkpoint")
	}
}

// TestGateways: a sidecar is told where to deliver, or its Task says what is missing.
func TestGateways(t *testing.T) {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: gateway.ServiceName}, Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.7"}}
	ca := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: gateway.ConfigMapName}, Data: map[string]string{gateway.ConfigMapKey: "PEM"}}
	self := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "me"}, Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "istio-proxy", Image: "mesh"}, {Name: "controller", Image: testGateway.Image},
	}}}
	clock := clocktesting.NewFakeClock(created)
	none := fakeOf(t).WithObjects(self).Build()
	gateways := &Gateways{Reader: none, Namespace: "ops", Pod: "me", Clock: clock}
	if _, err := gateways.Find(t.Context()); err == nil || !strings.Contains(err.Error(), gateway.ServiceName) {
		t.Errorf("without a Service: %v", err)
	}
	gateways.Reader = fakeOf(t).WithObjects(self, service, ca).Build()
	got, err := gateways.Find(t.Context())
	if err != nil || *got != *testGateway {
		t.Fatalf("found %+v, error %v", got, err)
	}
	gateways.Reader = none
	if got, err := gateways.Find(t.Context()); err != nil || *got != *testGateway {
		t.Errorf("asked again at once: %v", err)
	}
	clock.Step(gatewayKnown)
	if _, err := gateways.Find(t.Context()); err == nil {
		t.Error("what is known is believed for ever")
	}
	if _, err := (*Gateways)(nil).Find(t.Context()); err == nil {
		t.Error("found without looking")
	}
}

func TestWithoutGatewayItWaits(t *testing.T) {
	s := uncreated(withSidecar)
	plan := decide(s.Snapshot)
	r := (&writes{}).reconciler(t, s.Now, newLiveReader(t, s.Task))
	if err := r.apply(t.Context(), s.Snapshot, &plan); err != nil {
		t.Fatal(err)
	}
	if st := plan.Task.Status; st.Reason != v1alpha1.ReasonGatewayMissing || !strings.Contains(st.Message, "gateway") || plan.WakeAt.IsZero() {
		t.Errorf("%s: %s, wakes at %s", st.Reason, st.Message, plan.WakeAt)
	}
}

// TestSidecarKeepsTheQoSClass: a pod that is Guaranteed stays so, and others are not made to ask for more than the sidecar needs.
func TestSidecarKeepsTheQoSClass(t *testing.T) {
	limits := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi")}
	for name, c := range map[string]struct {
		worker corev1.ResourceRequirements
		same   bool
	}{
		"limits alone":        {corev1.ResourceRequirements{Limits: limits}, true},
		"requests as limits":  {corev1.ResourceRequirements{Limits: limits, Requests: limits}, true},
		"requests below":      {corev1.ResourceRequirements{Limits: limits, Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}, false},
		"no limit of the CPU": {corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}}, false},
		"nothing":             {corev1.ResourceRequirements{}, false},
	} {
		template := builders.Pod().Obj()
		template.Spec.Containers[0].Resources = c.worker
		r := sidecarJob(builders.Task("demo").Template(template)).Spec.InitContainers[0].Resources
		if same := r.Limits.Cpu().Cmp(*r.Requests.Cpu()) == 0 && r.Limits.Memory().Cmp(*r.Requests.Memory()) == 0; same != c.same {
			t.Errorf("%s: requests %v, limits %v", name, r.Requests, r.Limits)
		}
		for _, ask := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
			if _, ok := r.Limits[ask]; !ok {
				t.Errorf("%s: no limit of %s, which a quota may ask for", name, ask)
			}
		}
	}
}
