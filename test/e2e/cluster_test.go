package e2e

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/test/audit"
	"github.com/taskwarden/taskwarden/test/testenv"
)

const (
	operatorNamespace = "taskwarden-system"
	operatorName      = "taskwarden-controller"
	operatorUser      = "system:serviceaccount:" + operatorNamespace + ":" + operatorName
	gatewayName       = "taskwarden-gateway"
	workerImage       = "taskwarden.dev/imaging:dev"
	// atOnce is how many tests run at a time. They wait more than they work, and each has one or two workers.
	atOnce = "4"
)

// cluster is what all tests share.
var cluster struct {
	config     *rest.Config
	client     client.WithWatch
	kubeconfig string
	auditLog   string
	// kubectl is the program.
	kubectl string
	// dir is a folder that the node sees under the same path.
	dir string
	// host is an address of this machine that the node reaches, "" where it is not known.
	host string
}

func TestMain(m *testing.M) {
	flag.Parse()
	if !given("test.parallel") {
		if err := flag.Set("test.parallel", atOnce); err != nil {
			panic(err)
		}
	}
	if err := prepare(); err != nil {
		// Failing, not skipping: a test that did not run must not look like one that passed.
		fmt.Fprintf(os.Stderr, "no cluster for end-to-end tests: %v\nRun them with `make test-e2e`, which starts one.\n", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func given(name string) bool {
	found := false
	flag.Visit(func(f *flag.Flag) { found = found || f.Name == name })
	return found
}

// prepare connects to the cluster and installs the operator.
func prepare() error {
	cluster.kubeconfig, cluster.auditLog = os.Getenv("TASKWARDEN_E2E_KUBECONFIG"), os.Getenv("TASKWARDEN_E2E_AUDIT_LOG")
	if cluster.kubeconfig == "" || cluster.auditLog == "" {
		return errors.New("TASKWARDEN_E2E_KUBECONFIG and TASKWARDEN_E2E_AUDIT_LOG are not both set")
	}
	cluster.dir, cluster.host = os.Getenv("CLUSTER_CLUSTER_DIR"), os.Getenv("CLUSTER_HOST_ADDRESS")
	if cluster.kubectl = os.Getenv("CLUSTER_KUBECTL"); cluster.kubectl == "" {
		cluster.kubectl = "kubectl"
	}
	config, err := clientcmd.BuildConfigFromFlags("", cluster.kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1 // the API server's own fairness is enough
	config.UserAgent = "taskwarden-e2e"
	cluster.config = config
	if cluster.client, err = client.NewWithWatch(config, client.Options{Scheme: testenv.Scheme}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	return install(ctx)
}

// install does what the README tells users to do. That includes a plain client-side apply of the CRD (C61).
func install(ctx context.Context) error {
	_, err := kubectl(ctx, "", "-n", operatorNamespace, "get", "deployment", operatorName)
	again := err == nil
	manifests, err := kubectl(ctx, "", "kustomize", repository("config", "default"))
	if err != nil {
		return err
	}
	if _, err := kubectl(ctx, manifests, "apply", "-f", "-"); err != nil {
		return err
	}
	deployments := []string{"deployment/" + operatorName, "deployment/" + gatewayName}
	if again {
		// The image keeps its name from one build to the next, so a running operator must be told to take the new one.
		if _, err := kubectl(ctx, "", append([]string{"-n", operatorNamespace, "rollout", "restart"}, deployments...)...); err != nil {
			return err
		}
	}
	if _, err := kubectl(ctx, "", "wait", "--for=condition=Established", "--timeout=60s", "crd/tasks.taskwarden.dev"); err != nil {
		return err
	}
	for _, d := range deployments {
		if _, err = kubectl(ctx, "", "-n", operatorNamespace, "rollout", "status", "--timeout=180s", d); err != nil {
			return err
		}
	}
	return nil
}

// kubectl runs kubectl and gives what it prints; what it complains of is in the error.
func kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, cluster.kubectl, append([]string{"--kubeconfig", cluster.kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(complaint.Bytes()))
	}
	return out.String(), nil
}

// repository is a path in this repository, which the tests run two folders below the root of.
func repository(parts ...string) string {
	return filepath.Join(append([]string{"..", ".."}, parts...)...)
}

func isOperator(e *audit.Event) bool { return e.UserName() == operatorUser }

// deafRegistry listens where the node can reach it and answers nothing, so that a pull from it goes on and on. It gives an
// image there.
func deafRegistry(t *testing.T) string {
	t.Helper()
	if cluster.host == "" {
		t.Fatal("CLUSTER_HOST_ADDRESS is not set: no address for a registry that the node reaches")
	}
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", net.JoinHostPort(cluster.host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var open []net.Conn
		for {
			conn, err := l.Accept()
			if err != nil { // closed
				break
			}
			open = append(open, conn)
		}
		for _, conn := range open {
			_ = conn.Close() // the other side has given up
		}
	}()
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
	return l.Addr().String() + "/slow/image:1"
}
