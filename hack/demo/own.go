package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// madeByDemo labels all that the demo installs. Nothing else is ever replaced or removed in a user's own cluster. A later
// `make deploy` drops the label, and so takes the installation over.
const madeByDemo = "demo.taskwarden.dev/made-by-demo"

const (
	marking = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - ../../config/default
labels:
  - pairs:
      ` + madeByDemo + `: "true"
`
	crdName = "tasks.taskwarden.dev"
)

var (
	namespaceKind = schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}
	crdKind       = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}
)

var (
	errForeignNamespace = errors.New("namespace " + demoNamespace + " is not the demo's; it is left alone: " +
		"rename or delete it, then run the demo again")
	errInstalled = errors.New("this cluster has Taskwarden already, not installed by the demo; it is left alone: " +
		"use another cluster, or `make demo` for one of the demo's own, or apply " + samplesDir + " into a namespace of yours")
)

// marked writes a kustomization that installs the operator with the demo's label on each object, and returns its folder.
func marked() (string, error) {
	dir := filepath.Join(".run", "demo")
	return dir, errors.Join(
		os.MkdirAll(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(marking), 0o644),
	)
}

// An owner is who has made an object.
type owner int

const (
	nobody owner = iota // there is none
	demo
	somebody
)

func ownerOf(ctx context.Context, api client.Reader, kind schema.GroupVersionKind, name string) (owner, error) {
	var object metav1.PartialObjectMetadata
	object.SetGroupVersionKind(kind)
	err := api.Get(ctx, client.ObjectKey{Name: name}, &object)
	switch {
	case apierrors.IsNotFound(err):
		return nobody, nil
	case err != nil:
		return somebody, fmt.Errorf("look for %s %s: %w", kind.Kind, name, err)
	case object.Labels[madeByDemo] != "":
		return demo, nil
	}
	return somebody, nil
}

// installer tells who has installed Taskwarden. A part of it that is not the demo's makes the whole somebody's.
func installer(ctx context.Context, api client.Reader) (owner, error) {
	crd, err := ownerOf(ctx, api, crdKind, crdName)
	if err != nil {
		return somebody, err
	}
	namespace, err := ownerOf(ctx, api, namespaceKind, operatorNamespace)
	return max(crd, namespace), err
}

// checkFree refuses a cluster in which the demo would replace or delete what is not its own.
func checkFree(ctx context.Context, api client.Reader) error {
	who, err := installer(ctx, api)
	if err != nil {
		return err
	}
	if who == somebody {
		return errInstalled
	}
	who, err = ownerOf(ctx, api, namespaceKind, demoNamespace)
	if err == nil && who == somebody {
		err = errForeignNamespace
	}
	return err
}

// leftovers is what the demo may take away from a user's own cluster, and what it must say about the rest.
type leftovers struct {
	samples, operator bool
	kept              []string
}

func findLeftovers(ctx context.Context, api client.Reader) (leftovers, error) {
	var l leftovers
	namespace, err := ownerOf(ctx, api, namespaceKind, demoNamespace)
	if err != nil {
		return l, err
	}
	l.samples = namespace == demo
	if namespace == somebody {
		l.kept = append(l.kept, "namespace "+demoNamespace+": the demo has not made it")
	}
	who, err := installer(ctx, api)
	if err != nil {
		return l, err
	}
	switch who {
	case nobody:
	case somebody:
		l.kept = append(l.kept, "the operator and its CRD: the demo has not installed them. "+
			"`make undeploy` removes them, and with the CRD ALL Tasks of the cluster")
	case demo:
		var tasks v1alpha1.TaskList
		if err := api.List(ctx, &tasks); err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
			return l, fmt.Errorf("list Tasks: %w", err)
		}
		others := 0
		for i := range tasks.Items {
			if !l.samples || tasks.Items[i].Namespace != demoNamespace {
				others++
			}
		}
		l.operator = others == 0
		if others > 0 {
			l.kept = append(l.kept, fmt.Sprintf("the operator and its CRD: %d Tasks that are not the demo's need them "+
				"(kubectl get %s --all-namespaces). Delete these and run demo-down again, or keep the operator with `make deploy`", others, crdName))
		}
	}
	return l, nil
}

// remove takes away what the demo has left: the whole local cluster; of a user's own cluster what is the demo's.
func remove(ctx context.Context, c *cluster) error {
	if c.kind == "local" {
		return c.run(ctx, c.tool, "down", "--name", c.name)
	}
	api, err := newClient(c)
	if err != nil {
		return err
	}
	l, err := findLeftovers(ctx, api)
	if err != nil {
		return err
	}
	if l.samples {
		if err := c.run(ctx, c.kubectl, "delete", "namespace", demoNamespace, "--ignore-not-found"); err != nil {
			return err
		}
	}
	if l.operator {
		if err := c.run(ctx, c.kubectl, "delete", "--ignore-not-found", "-k", "config/default"); err != nil {
			return err
		}
	}
	for _, line := range l.kept {
		say("left: %s", line)
	}
	if len(l.kept) == 0 {
		say("nothing of the demo is left")
	}
	return nil
}
