package task

import (
	"path"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/report"
)

// Gateway is what a sidecar must know to deliver reports.
type Gateway struct {
	// Image has the reporter program.
	Image string
	// URL is the base of the gateway's endpoint; its certificate is for that host.
	URL string
	// Address is host and port that are dialled first, so that reports do not depend on DNS.
	Address string
	// CA are the certificates, in PEM, that the gateway's is signed by.
	CA string
}

const (
	// reporterProgram is its path in the operator's image.
	reporterProgram = "/taskwarden-reporter"
	reporterUser    = 65532

	spoolVolume   = "taskwarden-spool"
	spoolDir      = "/var/spool/taskwarden"
	spoolSize     = "16Mi"
	tokenVolume   = "taskwarden-token"
	tokenDir      = "/var/run/secrets/taskwarden.dev"
	tokenFile     = "token"
	tokenSeconds  = 3600
	commandVolume = "taskwarden-command"
	commandDir    = "/opt/taskwarden"
	commandFile   = "taskwarden"
	commandSize   = "64Mi"

	// messagesBytes is what a kubelet keeps of all termination messages of a pod together.
	messagesBytes = 12 << 10
)

// addSidecar puts the reporter before all other init containers, so that it is there when they run, and outlives the worker. The
// token is mounted into it alone.
func addSidecar(t *v1alpha1.Task, template *corev1.PodTemplateSpec, worker *corev1.Container, g *Gateway) {
	spec := &template.Spec
	spec.TerminationGracePeriodSeconds = ptr.To(int64(podGrace(t).Seconds()))
	spec.Volumes = append(spec.Volumes,
		emptyDir(spoolVolume, spoolSize), emptyDir(commandVolume, commandSize),
		corev1.Volume{Name: tokenVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Audience: v1alpha1.TokenAudience, ExpirationSeconds: ptr.To[int64](tokenSeconds), Path: tokenFile,
			}}},
		}}})
	worker.VolumeMounts = append(worker.VolumeMounts, corev1.VolumeMount{Name: commandVolume, MountPath: commandDir, ReadOnly: true})
	setEnv(worker, corev1.EnvVar{Name: v1alpha1.EnvReporter, Value: "http://" + report.DefaultListen})
	setEnv(worker, corev1.EnvVar{Name: v1alpha1.EnvCommand, Value: path.Join(commandDir, commandFile)})
	if s := t.Spec.HeartbeatTimeoutSeconds; s != nil {
		setEnv(worker, corev1.EnvVar{Name: v1alpha1.EnvHeartbeatSeconds, Value: strconv.Itoa(int(*s))})
	}
	spec.InitContainers = append([]corev1.Container{sidecar(t, spec, g)}, spec.InitContainers...)
}

// sidecar is the reporter's container. It passes the restricted Pod Security Standard, whatever the template does.
func sidecar(t *v1alpha1.Task, spec *corev1.PodSpec, g *Gateway) corev1.Container {
	containers := len(spec.Containers) + len(spec.InitContainers) + 1
	env := func(name, value string) corev1.EnvVar { return corev1.EnvVar{Name: name, Value: value} }
	return corev1.Container{
		Name: v1alpha1.ReporterContainer, Image: g.Image, ImagePullPolicy: corev1.PullIfNotPresent,
		Command: []string{reporterProgram, "serve"}, RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways),
		// The worker starts when the API listens and the command is in its place.
		Lifecycle: &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{reporterProgram, "ready"}}}},
		Env: []corev1.EnvVar{
			env(v1alpha1.EnvTaskUID, string(t.UID)), env(v1alpha1.EnvAttempt, strconv.Itoa(int(t.Status.Attempt))),
			env(report.EnvGatewayURL, g.URL), env(report.EnvGatewayAddress, g.Address), env(report.EnvGatewayCA, g.CA),
			env(report.EnvTokenFile, path.Join(tokenDir, tokenFile)), env(report.EnvSpool, spoolDir),
			env(report.EnvCommandFile, path.Join(commandDir, commandFile)),
			env(report.EnvNoteLimit, strconv.Itoa(min(report.MaxNoteBytes, messagesBytes/containers))),
			env(report.EnvGraceSeconds, strconv.FormatInt(*spec.TerminationGracePeriodSeconds, 10)),
		},
		Resources: sidecarResources(spec),
		VolumeMounts: []corev1.VolumeMount{
			{Name: spoolVolume, MountPath: spoolDir}, {Name: commandVolume, MountPath: commandDir},
			{Name: tokenVolume, MountPath: tokenDir, ReadOnly: true},
		},
		SecurityContext: &corev1.SecurityContext{
			RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](reporterUser), RunAsGroup: ptr.To[int64](reporterUser),
			AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true), Privileged: ptr.To(false),
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
}

// sidecarResources are what the sidecar gets: all that a quota may ask for, and not so far apart that a LimitRange may mind. In a pod
// of class Guaranteed requests are limits, so that it stays one.
func sidecarResources(spec *corev1.PodSpec) corev1.ResourceRequirements {
	limits := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("128Mi"),
	}
	if guaranteed(spec) {
		return corev1.ResourceRequirements{Limits: limits, Requests: limits.DeepCopy()}
	}
	return corev1.ResourceRequirements{Limits: limits, Requests: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("32Mi"),
	}}
}

// guaranteed tells whether the pod would be of that class without a sidecar: each container has limits, and requests no less.
func guaranteed(spec *corev1.PodSpec) bool {
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				limit, ok := list[i].Resources.Limits[name]
				request, asked := list[i].Resources.Requests[name]
				if !ok || asked && request.Cmp(limit) != 0 {
					return false
				}
			}
		}
	}
	return true
}

func emptyDir(name, size string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse(size))}}}
}
