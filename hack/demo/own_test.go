package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// fakeCluster is a cluster with these objects.
func fakeCluster(t *testing.T, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	err := errors.Join(clientgoscheme.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme))
	if err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
}

func named(name string, by owner) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: name}
	if by == demo {
		m.Labels = map[string]string{madeByDemo: "true"}
	}
	return m
}

func namespace(name string, by owner) client.Object {
	return &corev1.Namespace{ObjectMeta: named(name, by)}
}

func crd(by owner) client.Object {
	return &apiextensionsv1.CustomResourceDefinition{ObjectMeta: named(crdName, by)}
}

func taskIn(ns string) client.Object {
	return &v1alpha1.Task{ObjectMeta: metav1.ObjectMeta{Name: "task", Namespace: ns}}
}

func TestOfAUsersClusterOnlyTheDemosOwnIsTouched(t *testing.T) {
	operator := func(by owner) []client.Object { return []client.Object{crd(by), namespace(operatorNamespace, by)} }
	with := func(objects []client.Object, more ...client.Object) []client.Object { return append(objects, more...) }
	tests := map[string]struct {
		reason  string
		objects []client.Object
		free    error
		samples bool
		removed bool // the operator
		kept    string
	}{
		"empty":             {"the demo may install", nil, nil, false, false, ""},
		"own":               {"all goes", with(operator(demo), namespace(demoNamespace, demo), taskIn(demoNamespace)), nil, true, true, ""},
		"own, half removed": {"the rest goes", operator(demo)[1:], nil, false, true, ""},
		"own, with others' Tasks": {
			"the CRD would take them along",
			with(operator(demo), namespace(demoNamespace, demo), taskIn("default")), nil, true, false, "1 Tasks",
		},
		"installed by somebody": {
			"neither replaced nor removed",
			with(operator(somebody), namespace(demoNamespace, demo)), errInstalled, true, false, "has not installed",
		},
		"only the CRD is there": {
			"Tasks may wait for their operator",
			with(nil, crd(somebody), taskIn("default")), errInstalled, false, false, "has not installed",
		},
		"only the namespace is the demo's": {
			"a CRD of somebody else is not",
			with(nil, crd(somebody), namespace(operatorNamespace, demo)), errInstalled, false, false, "has not installed",
		},
		"somebody's namespace of that name": {
			"not deleted, and its Tasks are not the demo's",
			with(operator(demo), namespace(demoNamespace, somebody), taskIn(demoNamespace)), errForeignNamespace, false, false, "has not made it",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			api := fakeCluster(t, tt.objects...)
			if err := checkFree(t.Context(), api); !errors.Is(err, tt.free) {
				t.Errorf("%s: demo says %v, want %v", tt.reason, err, tt.free)
			}
			l, err := findLeftovers(t.Context(), api)
			if err != nil {
				t.Fatal(err)
			}
			if l.samples != tt.samples || l.operator != tt.removed {
				t.Errorf("%s: would remove samples %v, operator %v; want %v, %v", tt.reason, l.samples, l.operator, tt.samples, tt.removed)
			}
			if kept := strings.Join(l.kept, "; "); !strings.Contains(kept, tt.kept) || tt.kept == "" && kept != "" {
				t.Errorf("%s: says %q, want %q", tt.reason, kept, tt.kept)
			}
		})
	}
}

func TestFreshNamespaceLeavesSomebodysAlone(t *testing.T) {
	api := fakeCluster(t, namespace(demoNamespace, somebody), taskIn(demoNamespace))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := freshNamespace(ctx, api); !errors.Is(err, errForeignNamespace) {
		t.Errorf("got %v", err)
	}
	if who, err := ownerOf(t.Context(), api, namespaceKind, demoNamespace); who != somebody || err != nil {
		t.Errorf("the namespace is gone or another one: %v %v", who, err)
	}
}

func TestFreshNamespaceIsTheDemos(t *testing.T) {
	for name, api := range map[string]client.Client{
		"first run": fakeCluster(t),
		"second":    fakeCluster(t, namespace(demoNamespace, demo)),
	} {
		if err := freshNamespace(t.Context(), api); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if who, err := ownerOf(t.Context(), api, namespaceKind, demoNamespace); who != demo || err != nil {
			t.Errorf("%s: %v %v", name, who, err)
		}
	}
}
