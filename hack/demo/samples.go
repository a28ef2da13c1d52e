package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
)

// Annotations in which a sample says how it should end, what is to be seen meanwhile, and in which state the demo should cancel
// it.
const (
	annotations    = "demo.taskwarden.dev/"
	expectState    = annotations + "expect-state"
	expectReason   = annotations + "expect-reason"
	expectAttempts = annotations + "expect-attempts"
	// expectStages are all stages in the order in which they are to be seen, with commas between them.
	expectStages = annotations + "expect-stages"
	// expectPercents is how many percents between 0 and 100 are to be seen at least.
	expectPercents = annotations + "expect-percents"
	// expectResult is a JSON object: status.result must have its members, and may have others.
	expectResult = annotations + "expect-result"
	cancelWhen   = annotations + "cancel-when"
)

// watched is what the demo has seen of the samples.
type watched struct {
	samples []v1alpha1.Task // as they were applied
	ended   []v1alpha1.Task
	seen    *sightings
}

// watchSamples applies the samples into a fresh namespace, and shows their lines as kubectl prints them, until all have ended.
func watchSamples(ctx context.Context, c *cluster) (*watched, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	api, err := newClient(c)
	if err != nil {
		return nil, err
	}
	tasks, err := readSamples()
	if err != nil {
		return nil, err
	}
	if err := freshNamespace(ctx, api); err != nil {
		return nil, err
	}
	say("watching: kubectl -n %s get tasks.taskwarden.dev -w", demoNamespace)
	lines := c.command(ctx, c.kubectl, "-n", demoNamespace, "get", "tasks.taskwarden.dev", "-w")
	lines.Stdout = os.Stdout
	lines.Stderr = nil // says only that there is nothing yet
	if err := lines.Start(); err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	defer func() {
		_ = lines.Process.Signal(os.Interrupt)
		_ = lines.Wait() // ended by us
	}()
	seen := newSightings()
	go seen.watch(ctx, api)
	for i := range tasks {
		if err := api.Create(ctx, &tasks[i]); err != nil {
			return nil, fmt.Errorf("create Task %s: %w", tasks[i].Name, err)
		}
	}
	ended, err := waitForEnds(ctx, api)
	return &watched{samples: tasks, ended: ended, seen: seen}, err
}

func newClient(c *cluster) (client.WithWatch, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	if c.kubeconfig != "" {
		rules.ExplicitPath = c.kubeconfig
	}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	return client.NewWithWatch(cfg, client.Options{Scheme: scheme})
}

func readSamples() ([]v1alpha1.Task, error) {
	files, err := filepath.Glob(filepath.Join(samplesDir, "*.yaml"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no samples in %s: %w", samplesDir, err)
	}
	var tasks []v1alpha1.Task
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var t v1alpha1.Task
		if err := yaml.UnmarshalStrict([]byte(withImages(string(data))), &t); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		t.Namespace = demoNamespace
		tasks = append(tasks, t)
	}
	return tasks, nil
}

// freshNamespace makes the namespace of the samples, taking away that of an earlier run. It enforces the strictest Pod Security
// Standard: the operator adds nothing to a worker that this would refuse.
func freshNamespace(ctx context.Context, api client.Client) error {
	switch who, err := ownerOf(ctx, api, namespaceKind, demoNamespace); {
	case err != nil:
		return err
	case who == somebody:
		return errForeignNamespace
	case who == demo:
		say("taking away the samples of an earlier run")
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: demoNamespace}}
		if err := api.Delete(ctx, ns); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete namespace %s: %w", demoNamespace, err)
		}
	}
	return wait.PollUntilContextCancel(ctx, 500*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		err := api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name:   demoNamespace,
			Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted", madeByDemo: "true"},
		}})
		if apierrors.IsAlreadyExists(err) {
			return false, nil // still on its way out
		}
		return err == nil, err
	})
}

// waitForEnds waits until all samples have ended, and cancels those that want it.
func waitForEnds(ctx context.Context, api client.Client) ([]v1alpha1.Task, error) {
	var list v1alpha1.TaskList
	err := wait.PollUntilContextCancel(ctx, 250*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		if err := api.List(ctx, &list, client.InNamespace(demoNamespace)); err != nil {
			return false, err
		}
		all := true
		for i := range list.Items {
			t := &list.Items[i]
			if when := t.Annotations[cancelWhen]; when != "" && string(t.Status.State) == when && t.Spec.Cancel == nil {
				before := t.DeepCopy()
				t.Spec.Cancel = ptr.To(true)
				if err := api.Patch(ctx, t, client.MergeFrom(before)); err != nil {
					return false, fmt.Errorf("cancel %s: %w", t.Name, err)
				}
				say("cancelled: kubectl -n %s patch tasks.taskwarden.dev %s --type merge --patch '{\"spec\":{\"cancel\":true}}'", demoNamespace, t.Name)
			}
			all = all && lifecycle.Terminal(t.Status.State)
		}
		return all, nil
	})
	if err != nil {
		for i := range list.Items {
			if t := &list.Items[i]; !lifecycle.Terminal(t.Status.State) {
				say("Task %s has not ended: %s, %s: %s", t.Name, t.Status.State, t.Status.Reason, t.Status.Message)
			}
		}
		return nil, fmt.Errorf("wait for the samples: %w", err)
	}
	return list.Items, nil
}

// report prints how each sample ended beside how it should have, and fails where the two differ or where a sample is gone.
func report(w *watched) error {
	fmt.Printf("\n%-24s %-42s %-42s\n", "TASK", "SHOULD END", "ENDED")
	wrong := 0
	for i := range w.samples {
		sample := &w.samples[i]
		want := outcome(sample.Annotations[expectState], sample.Annotations[expectReason], sample.Annotations[expectAttempts])
		got, mark := "gone", "WRONG: somebody deleted it"
		// By UID: another Task of that name is not the sample.
		if at := slices.IndexFunc(w.ended, func(t v1alpha1.Task) bool { return t.UID == sample.UID }); at >= 0 {
			got, mark = w.judge(sample, &w.ended[at], want)
		}
		if mark != "ok" {
			wrong++
		}
		fmt.Printf("%-24s %-42s %-42s %s\n", sample.Name, want, got, mark)
	}
	if wrong > 0 {
		return fmt.Errorf("%d of %d samples did not end as their manifests say", wrong, len(w.samples))
	}
	say("all %d samples ended as their manifests say", len(w.samples))
	return nil
}

func (w *watched) judge(sample, ended *v1alpha1.Task, want string) (got, mark string) {
	got = outcome(string(ended.Status.State), ended.Status.Reason, strconv.Itoa(int(ended.Status.Attempt)))
	if got != want {
		return got, "WRONG: " + ended.Status.Message
	}
	if err := errors.Join(checkResult(ended), checkExpected(sample.Annotations[expectResult], ended.Status.Result)); err != nil {
		return got, "WRONG result: " + err.Error()
	}
	if err := w.seen.check(sample, ended); err != nil {
		return got, "WRONG on the way: " + err.Error()
	}
	return got, "ok"
}

func outcome(state, reason, attempts string) string {
	return fmt.Sprintf("%s/%s after %s", state, reason, attempts)
}
