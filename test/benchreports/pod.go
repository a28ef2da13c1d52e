package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/report"
	"github.com/taskwarden/taskwarden/internal/reporter"
	sidecarclient "github.com/taskwarden/taskwarden/internal/reporter/client"
)

// pod is a pod whose sidecar runs in this process. What happens in it is told to the API server as a kubelet would.
type pod struct {
	api    client.Client
	object *corev1.Pod
	node   *sync.Mutex // held while its node writes the status of a pod
	dir    string
	// task, uid and attempt are what the operator has told the sidecar.
	task, uid string
	attempt   int32
	token     string

	// code is what the worker has exited with.
	code int32

	sidecar *reporter.Reporter
	worker  *sidecarclient.Client
	stop    context.CancelFunc
	ended   chan struct{}
	err     error // once ended is closed
}

// surroundings are what a pod finds on its node.
type surroundings struct {
	api client.Client
	// folder holds what a node keeps of its pods.
	folder string
	// gateways are the addresses of the replicas.
	gateways []string
	log      *slog.Logger
	// nodes has a *sync.Mutex for each node: a kubelet writes the status of its pods one after the other (its status manager has one
	// loop for all of them).
	nodes sync.Map
}

// newPod takes over the pod of a worker, with a token that is bound to it.
func (s *surroundings) newPod(ctx context.Context, object *corev1.Pod) (*pod, error) {
	node, _ := s.nodes.LoadOrStore(object.Spec.NodeName, &sync.Mutex{})
	p := &pod{
		api: s.api, object: object, node: node.(*sync.Mutex), dir: filepath.Join(s.folder, string(object.UID)), task: object.Labels[v1alpha1.LabelTask],
		ended: make(chan struct{}),
	}
	account := &corev1.ServiceAccount{}
	account.Namespace, account.Name = object.Namespace, object.Spec.ServiceAccountName
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{v1alpha1.TokenAudience}, ExpirationSeconds: ptr.To[int64](3600),
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: object.Name, UID: object.UID},
	}}
	if err := s.api.SubResource("token").Create(ctx, account, token); err != nil {
		return nil, fmt.Errorf("token of pod %s: %w", object.Name, err)
	}
	p.token = token.Status.Token
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return nil, err
	}
	return p, os.WriteFile(p.file("token"), []byte(p.token), 0o600)
}

// file is one of the files that the pod's node keeps for it.
func (p *pod) file(name string) string { return filepath.Join(p.dir, name) }

// start runs the sidecar with the environment that the operator has given it, as far as its node does not make a difference.
// home is the replica of the gateway that it comes to; it goes to the next one where that is away. cut, above 0, is how long it
// is allowed to take for its end.
func (s *surroundings) start(p *pod, home int, cut time.Duration) error {
	env := map[string]string{}
	for _, e := range sidecarOf(p.object).Env {
		env[e.Name] = e.Value
	}
	other := s.gateways[(home+1)%len(s.gateways)]
	for name, value := range map[string]string{
		report.EnvGatewayURL: "https://" + other, report.EnvGatewayAddress: s.gateways[home%len(s.gateways)],
		report.EnvTokenFile: p.file("token"), report.EnvSpool: p.file("spool"), report.EnvCommandFile: "",
		reporter.EnvListen: "127.0.0.1:0", reporter.EnvNoteFile: p.file("note"),
	} {
		env[name] = value
	}
	if cut > 0 {
		env[report.EnvGraceSeconds] = strconv.Itoa(int(cut.Seconds()))
	}
	config, err := reporter.FromEnvironment(func(name string) string { return env[name] })
	if err != nil {
		return err
	}
	p.uid, p.attempt = config.TaskUID, config.Attempt
	if p.sidecar, err = reporter.New(config, clock.RealClock{}, s.log.With("task", p.task)); err != nil {
		return err
	}
	return p.run()
}

// sidecarOf is the sidecar's container, nil where there is none.
func sidecarOf(p *corev1.Pod) *corev1.Container {
	for i := range p.Spec.InitContainers {
		if p.Spec.InitContainers[i].Name == v1alpha1.ReporterContainer {
			return &p.Spec.InitContainers[i]
		}
	}
	return nil
}

// run lets the sidecar run until it is stopped.
func (p *pod) run() error {
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	listening := make(chan net.Addr, 1)
	go func() {
		p.err = p.sidecar.Run(ctx, func(a net.Addr) { listening <- a })
		close(p.ended)
	}()
	select {
	case address := <-listening:
		var err error
		p.worker, err = sidecarclient.New("http://" + address.String())
		return err
	case <-p.ended:
		return errors.Join(errors.New("the sidecar has ended"), p.err)
	}
}

// exitWorker tells that the worker has exited, while its sidecar still runs.
func (p *pod) exitWorker(ctx context.Context, code int32) error {
	p.code = code
	return p.patch(ctx, func(s *corev1.PodStatus) {
		terminate(&s.ContainerStatuses[0], code, "")
		for i := range s.Conditions {
			if c := &s.Conditions[i]; c.Type == corev1.PodReady || c.Type == corev1.ContainersReady {
				c.Status, c.Reason = corev1.ConditionFalse, "PodCompleted"
			}
		}
	})
}

// end stops the sidecar as a kubelet does after the worker's exit, waits for its end, and tells of it and of what it has left.
func (p *pod) end(ctx context.Context) error {
	p.stop()
	select {
	case <-p.ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	if p.err != nil {
		return fmt.Errorf("sidecar of pod %s: %w", p.object.Name, p.err)
	}
	note, err := os.ReadFile(p.file("note"))
	if err != nil {
		return err
	}
	err = p.patch(ctx, func(s *corev1.PodStatus) {
		for i := range s.InitContainerStatuses {
			if s.InitContainerStatuses[i].Name == v1alpha1.ReporterContainer {
				terminate(&s.InitContainerStatuses[i], 0, string(note))
			}
		}
		s.Phase = corev1.PodSucceeded
		if p.code != 0 {
			s.Phase = corev1.PodFailed
		}
	})
	return errors.Join(err, os.RemoveAll(p.dir))
}

// terminate tells that a container has ended by itself.
func terminate(c *corev1.ContainerStatus, code int32, message string) {
	ended := &corev1.ContainerStateTerminated{
		ExitCode: code, Reason: "Completed", Message: message, FinishedAt: metav1.Now(), ContainerID: c.ContainerID,
	}
	if code != 0 {
		ended.Reason = "Error"
	}
	if c.State.Running != nil {
		ended.StartedAt = c.State.Running.StartedAt
	}
	c.State, c.Ready, c.Started = corev1.ContainerState{Terminated: ended}, false, ptr.To(false)
}

// patch changes the pod's status.
func (p *pod) patch(ctx context.Context, change func(*corev1.PodStatus)) error {
	before := p.object.DeepCopy()
	change(&p.object.Status)
	p.node.Lock()
	defer p.node.Unlock()
	if err := p.api.Status().Patch(ctx, p.object, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("status of pod %s: %w", p.object.Name, err)
	}
	return nil
}
