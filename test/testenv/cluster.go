package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// The environment variables by which a test finds its control plane.
const (
	// EnvKubeconfig is the path of an administrator's kubeconfig.
	EnvKubeconfig = "TASKWARDEN_TEST_KUBECONFIG"
	// EnvAuditLog is the path of the API server's audit log.
	EnvAuditLog = "TASKWARDEN_TEST_AUDIT_LOG"
)

// Scheme knows all types that the tests use.
var Scheme = newScheme()

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(s))
	utilruntime.Must(apiextensionsv1.AddToScheme(s))
	utilruntime.Must(v1alpha1.AddToScheme(s))
	return s
}

// cluster is the control plane that all tests of a process share.
type cluster struct {
	config   *rest.Config
	client   client.WithWatch
	auditLog string
}

var connectOnce = sync.OnceValues(connect)

// sharedCluster connects once and fails, never skips, where there is nothing to connect to: a test that did not run must
// not look like one that passed.
func sharedCluster(t testing.TB) *cluster {
	t.Helper()
	c, err := connectOnce()
	if err != nil {
		t.Fatalf("no control plane for tests of the API level: %v\nRun them with `make test-api`, which starts one.", err)
	}
	return c
}

func connect() (*cluster, error) {
	kubeconfig, auditLog := os.Getenv(EnvKubeconfig), os.Getenv(EnvAuditLog)
	if kubeconfig == "" || auditLog == "" {
		return nil, fmt.Errorf("%s and %s are not both set", EnvKubeconfig, EnvAuditLog)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // the API server's own fairness is enough
	config.UserAgent = "taskwarden-test"
	// JSON, not protobuf, so that faults can read what the operator writes.
	config.ContentType = runtime.ContentTypeJSON
	c, err := client.NewWithWatch(config, client.Options{Scheme: Scheme})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := installCRDs(ctx, c, config); err != nil {
		return nil, err
	}
	return &cluster{config: config, client: c, auditLog: auditLog}, nil
}

// InstallCRDs brings the CRDs back after a test has removed them. All tests of a process share them.
func (e *Env) InstallCRDs() {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.ctx, Patience)
	defer cancel()
	if err := installCRDs(ctx, e.Client, e.Config); err != nil {
		e.t.Fatal(err)
	}
}

// installCRDs applies what config/crd has and waits until the API server serves it.
func installCRDs(ctx context.Context, c client.Client, config *rest.Config) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	crds, err := readCRDs(filepath.Join(root, "config", "crd"))
	if err != nil {
		return err
	}
	for _, crd := range crds {
		apply := client.ApplyConfigurationFromUnstructured(crd)
		if err := c.Apply(ctx, apply, client.FieldOwner("taskwarden-test"), client.ForceOwnership); err != nil {
			return fmt.Errorf("install %s: %w", crd.GetName(), err)
		}
	}
	for _, crd := range crds {
		err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			var live apiextensionsv1.CustomResourceDefinition
			if err := c.Get(ctx, client.ObjectKey{Name: crd.GetName()}, &live); err != nil {
				return false, err
			}
			for _, cond := range live.Status.Conditions {
				if cond.Type == apiextensionsv1.Established && cond.Status == apiextensionsv1.ConditionTrue {
					return true, nil
				}
			}
			return false, nil
		})
		if err != nil {
			return fmt.Errorf("wait for %s: %w", crd.GetName(), err)
		}
	}
	// Discovery may tell of them a little later, and whoever starts asks it.
	return poll(ctx, Patience, func(context.Context) error {
		forgetful, err := client.New(config, client.Options{Scheme: Scheme})
		if err != nil {
			return err
		}
		_, err = forgetful.RESTMapper().RESTMapping(v1alpha1.GroupVersion.WithKind("Task").GroupKind())
		return err
	})
}

func readCRDs(folder string) ([]*unstructured.Unstructured, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil {
		return nil, err
	}
	var crds []*unstructured.Unstructured
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		crd := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(content, &crd.Object); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if crd.GetKind() == "CustomResourceDefinition" {
			crds = append(crds, crd)
		}
	}
	if len(crds) == 0 {
		return nil, fmt.Errorf("no CustomResourceDefinition in %s; run `make generate`", folder)
	}
	return crds, nil
}

// moduleRoot is the folder of the go.mod above the test's own folder.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no go.mod above the working directory")
		}
		dir = up
	}
}
