package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/test/benchkit"
)

const (
	clusterName = "benchreports"
	// reporterImage is in no registry; simulated nodes bear any image.
	reporterImage = "taskwarden.dev/taskwarden:dev"
	// longRetention keeps the Jobs of a phase, so that their deletion does not fall into the next one.
	longRetention = 24 * 60 * 60
)

// gatewayFiles are what the gateway may do, what the controller looks for, and who may change what of a status.
var gatewayFiles = []string{
	"config/gateway/service_account.yaml", "config/gateway/*role*.yaml", "config/gateway/service.yaml",
	"config/rbac/gateway_lookup_role*.yaml", "config/policy/task_*.yaml",
}

// bench is one run.
type bench struct {
	*options
	figures    *benchkit.Figures
	cluster    *benchkit.Cluster
	controller *benchkit.Process
	gateways   *gateways
	around     *surroundings
}

// run does all phases and ends what it has started, whatever happens.
func (b *bench) run(ctx context.Context) (err error) {
	program, err := benchkit.Build(ctx, runFolder)
	if err != nil {
		return err
	}
	if b.cluster, err = benchkit.StartCluster(ctx, b.clusterBin, clusterName, benchkit.TunedArgs, gatewayFiles...); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.end()) }()
	if err := b.startOperator(ctx, program); err != nil {
		return err
	}
	log, err := b.surround()
	if err != nil {
		return err
	}
	defer log.Close()
	runs := map[string]func(context.Context, string) error{
		phaseLatency: b.latency, phaseLoad: b.load, phaseOutage: b.outage,
	}
	for _, phase := range b.phases {
		namespace := "bench-" + phase
		if err := b.cluster.MakeNamespace(ctx, namespace); err != nil {
			return err
		}
		if err := b.cluster.Quiet(ctx); err != nil {
			return err
		}
		if err := b.cluster.Log.Skip(); err != nil {
			return err
		}
		if err := runs[phase](ctx, namespace); err != nil {
			return fmt.Errorf("phase %s: %w", phase, err)
		}
	}
	_, err = b.gateways.read(ctx)
	b.figures.Add("gateway_rss_peak_mib", b.gateways.peak)
	return err
}

func (b *bench) end() error {
	err := b.controller.Stop()
	if b.gateways != nil {
		err = errors.Join(err, b.gateways.stop())
	}
	if b.keep {
		benchkit.Say("cluster %s stays up", b.cluster.Name)
		return err
	}
	return errors.Join(err, b.cluster.Down())
}

// startOperator starts the gateways, then the controller, which looks for them.
func (b *bench) startOperator(ctx context.Context, program string) (err error) {
	kubeconfig := func(account string) (string, error) {
		file := filepath.Join(runFolder, account+".kubeconfig")
		return file, b.cluster.WriteKubeconfig(ctx, account, file)
	}
	file, err := kubeconfig(benchkit.Gateway)
	if err != nil {
		return err
	}
	if b.gateways, err = newGateways(program, file, b.gatewayArgs); err != nil {
		return err
	}
	if err := b.gateways.start(ctx); err != nil {
		return err
	}
	if file, err = kubeconfig(benchkit.Controller); err != nil {
		return err
	}
	args := append([]string{"--gateway-namespace", benchkit.Namespace, "--reporter-image", reporterImage}, b.controllerArgs...)
	log := filepath.Join(runFolder, "controller.log")
	if b.controller, err = benchkit.Start(program, "controller", file, log, args); err != nil {
		return err
	}
	_, err = b.controller.WaitReady(ctx)
	return err
}

// surround makes what the sidecars find on their nodes.
func (b *bench) surround() (*os.File, error) {
	folder, err := filepath.Abs(filepath.Join(runFolder, "pods"))
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(folder); err != nil { // of an earlier run that was cut off
		return nil, err
	}
	log, err := os.Create(filepath.Join(runFolder, "sidecars.log"))
	if err != nil {
		return nil, err
	}
	b.around = &surroundings{
		api: b.cluster.Client, folder: folder, gateways: b.gateways.addresses,
		log: slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	return log, nil
}

// newTask is a Task whose pod, with a sidecar, runs until this program ends it; without, for a second.
func newTask(namespace, name string, how v1alpha1.Reporter) *v1alpha1.Task {
	t := &v1alpha1.Task{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.TaskSpec{
			Reporter: how, WorkerRetentionSeconds: ptr.To[int32](longRetention),
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever,
				Containers:    []corev1.Container{{Name: "worker", Image: "worker.example/worker:1"}},
			}},
		},
	}
	t.Spec.Retry = &v1alpha1.RetryPolicy{Backoff: &v1alpha1.Backoff{InitialSeconds: ptr.To[int32](1)}}
	if how == v1alpha1.ReporterSidecar {
		t.Spec.Template.Annotations = map[string]string{"sim.taskwarden.dev/run-for": "24h"}
	}
	return t
}

func taskName(i int) string { return fmt.Sprintf("task-%05d", i) }
