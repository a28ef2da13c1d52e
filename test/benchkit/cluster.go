package benchkit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/yaml"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

const (
	// Namespace is the operator's own.
	Namespace = "taskwarden-system"
	// Controller is the service account of the controller, and what it calls itself when it asks the API server.
	Controller = "taskwarden-controller"
	// Gateway is the same for the gateway.
	Gateway = "taskwarden-gateway"
)

// TunedArgs raise the limits of the controller manager, whose defaults would be all that a benchmark shows.
var TunedArgs = []string{
	"--controller-manager-arg=--kube-api-qps=500",
	"--controller-manager-arg=--kube-api-burst=1000",
	"--controller-manager-arg=--concurrent-job-syncs=50",
}

// controllerFiles are the CRD and what the controller may do.
var controllerFiles = []string{
	"config/crd/*_*.yaml", "config/rbac/role.yaml", "config/rbac/role_binding.yaml", "config/rbac/service_account.yaml",
}

// Cluster is a control plane with simulated nodes that belongs to this run alone.
type Cluster struct {
	client.Client
	// Config is an administrator's.
	Config *rest.Config
	Name   string
	// Log is the audit log.
	Log *AuditLog

	bin, dir string
	lock     *os.File
}

// StartCluster brings a fresh cluster up, with the CRD and the controller's role in it. Further files, by pattern, are applied,
// too.
func StartCluster(ctx context.Context, bin, name string, args []string, files ...string) (*Cluster, error) {
	c := &Cluster{bin: bin, Name: name}
	var err error
	if c.lock, err = lockCluster(name); err != nil {
		return nil, err
	}
	Doing("starting cluster %s", name)
	if err := c.start(ctx, args); err != nil {
		return nil, errors.Join(err, c.Down())
	}
	if err := c.install(ctx, append(slices.Clone(controllerFiles), files...)); err != nil {
		return nil, errors.Join(err, c.Down())
	}
	return c, nil
}

// lockCluster keeps another run from ending this one's cluster. hack/with-cluster.sh has the same lock.
func lockCluster(name string) (*os.File, error) {
	cache := os.Getenv("TASKWARDEN_CACHE")
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return nil, err
		}
		cache = filepath.Join(dir, "taskwarden")
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Create(filepath.Join(cache, "with-"+name+".lock"))
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another run uses cluster %s: %w", name, err), f.Close())
	}
	return f, nil
}

func (c *Cluster) start(ctx context.Context, args []string) error {
	if _, err := c.call(ctx, "down", "--name", c.Name); err != nil {
		return err
	}
	up := append([]string{"up", "--name", c.Name, "--node", "kwok"}, args...)
	if _, err := c.call(ctx, up...); err != nil {
		return err
	}
	env, err := c.call(ctx, "env", "--name", c.Name)
	if err != nil {
		return err
	}
	values := map[string]string{}
	for line := range strings.SplitSeq(env, "\n") {
		if key, value, ok := strings.Cut(line, "="); ok {
			values[key] = value
		}
	}
	c.dir, c.Log = values["CLUSTER_DIR"], &AuditLog{Path: values["AUDIT_LOG"]}
	if c.Config, err = clientcmd.BuildConfigFromFlags("", values["KUBECONFIG"]); err != nil {
		return err
	}
	c.Config.QPS = -1 // the creators are bounded by their number
	c.Config.UserAgent = "taskwarden-bench"
	ctrllog.SetLogger(logr.Discard()) // the client has nothing to say that its errors do not
	scheme := runtime.NewScheme()
	if err := errors.Join(
		clientgoscheme.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return err
	}
	c.Client, err = client.New(c.Config, client.Options{Scheme: scheme})
	return err
}

// call runs the cluster program and answers its standard output; its progress goes where ours goes.
func (c *Cluster) call(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.bin, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("cluster %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(out.String()), nil
}

// Down ends the cluster, whatever state it is in.
func (c *Cluster) Down() error {
	ctx, cancel := Cleaning()
	defer cancel()
	_, err := c.call(ctx, "down", "--name", c.Name)
	return errors.Join(err, c.lock.Close())
}

// install applies files, and waits until there are Tasks.
func (c *Cluster) install(ctx context.Context, patterns []string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}
	if err := c.Create(ctx, ns); err != nil {
		return err
	}
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		if len(files) == 0 {
			return fmt.Errorf("there is no %s", pattern)
		}
		for _, file := range files {
			if err := c.applyFile(ctx, file); err != nil {
				return fmt.Errorf("apply %s: %w", file, err)
			}
		}
	}
	var last error
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		last = c.List(ctx, &v1alpha1.TaskList{})
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(fmt.Errorf("the API of Tasks is not served: %w", err), last)
	}
	return nil
}

func (c *Cluster) applyFile(ctx context.Context, file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var object unstructured.Unstructured
	if err := yaml.Unmarshal(content, &object.Object); err != nil {
		return err
	}
	return c.Apply(ctx, client.ApplyConfigurationFromUnstructured(&object),
		client.FieldOwner("taskwarden-bench"), client.ForceOwnership)
}

// WriteKubeconfig gives one of the operator's accounts the rights that it has in a real cluster, and the place in the API
// server's queues that goes with them; an administrator would pass all others.
func (c *Cluster) WriteKubeconfig(ctx context.Context, accountName, file string) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: accountName}}
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To[int64](24 * 60 * 60),
	}}
	if err := c.SubResource("token").Create(ctx, account, token); err != nil {
		return fmt.Errorf("token for %s: %w", accountName, err)
	}
	const name = "bench"
	return clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{name: {
			Server: c.Config.Host, CertificateAuthority: c.Config.CAFile, CertificateAuthorityData: c.Config.CAData,
		}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {Token: token.Status.Token}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}, file)
}

// Processes are the ids of the cluster's servers, by name.
func (c *Cluster) Processes() (map[string]int, error) {
	content, err := os.ReadFile(filepath.Join(c.dir, "cluster.json"))
	if err != nil {
		return nil, err
	}
	var state struct {
		Components []struct {
			Name    string            `json:"name"`
			Process struct{ PID int } `json:"process"`
		} `json:"components"`
	}
	if err := json.Unmarshal(content, &state); err != nil {
		return nil, err
	}
	pids := map[string]int{}
	for _, component := range state.Components {
		pids[component.Name] = component.Process.PID
	}
	return pids, nil
}

// MakeNamespace makes the namespace of one phase, and waits until pods can be made in it.
func (c *Cluster) MakeNamespace(ctx context.Context, name string) error {
	if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		return err
	}
	account := &corev1.ServiceAccount{}
	return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		return c.Get(ctx, client.ObjectKey{Namespace: name, Name: "default"}, account) == nil, nil
	})
}

// Cleaning bounds what is done after the end of a run, when its own context may be over already.
func Cleaning() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 2*time.Minute)
}
