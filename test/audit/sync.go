package audit

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// Sync waits until the log holds every request that was answered before the call. It makes a request of its own that
// changes nothing, the deletion of a Task that does not exist, and waits for that one; then for the newest stored version
// of each Task, since requests that end together may be written in any order.
func (l *Log) Sync(ctx context.Context, c client.Client) error {
	marker := &v1alpha1.Task{}
	marker.Namespace, marker.Name = string(l.namespace), "audit-marker-"+strings.ToLower(rand.Text())
	if err := c.Delete(ctx, marker); !apierrors.IsNotFound(err) {
		return fmt.Errorf("audit log: the marker request was not answered as it should be: %w", err)
	}
	if err := l.WaitFor(ctx, func(e *Event) bool { return e.Is("tasks") && e.Object.Name == marker.Name }); err != nil {
		return err
	}
	var tasks v1alpha1.TaskList
	if err := c.List(ctx, &tasks, client.InNamespace(string(l.namespace))); err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	for i := range tasks.Items {
		version := tasks.Items[i].ResourceVersion
		if err := l.WaitFor(ctx, func(e *Event) bool { return e.Stored() && e.Object.Resource == "tasks" && e.Version() == version }); err != nil {
			return fmt.Errorf("version %s of Task %s: %w", version, tasks.Items[i].Name, err)
		}
	}
	return nil
}
