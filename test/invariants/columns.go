package invariants

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// checkColumns is the part of invariant 8 about kubectl get: the columns that the server prints say what status says. Both
// come in one answer, so they are of one moment.
func (s *Source) checkColumns(ctx context.Context) ([]Violation, error) {
	if s.Config == nil {
		return nil, nil
	}
	table, err := fetchTable(ctx, s.Config, s.Namespace)
	if err != nil {
		return nil, err
	}
	return compareTable(table)
}

func fetchTable(ctx context.Context, config *rest.Config, namespace string) (*metav1.Table, error) {
	config = rest.CopyConfig(config)
	config.GroupVersion = &v1alpha1.GroupVersion
	config.APIPath = "/apis"
	config.NegotiatedSerializer = clientgoscheme.Codecs.WithoutConversion()
	c, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	raw, err := c.Get().Namespace(namespace).Resource("tasks").Param("includeObject", "Object").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	table := &metav1.Table{}
	return table, json.Unmarshal(raw, table)
}

func compareTable(table *metav1.Table) ([]Violation, error) {
	var all []Violation
	for _, row := range table.Rows {
		task := &v1alpha1.Task{}
		if err := json.Unmarshal(row.Object.Raw, task); err != nil {
			return nil, fmt.Errorf("object of a table row: %w", err)
		}
		f := &finding{task: taskName(task)}
		want := columnsOf(task)
		seen := map[string]bool{}
		for i, column := range table.ColumnDefinitions {
			if expected, ok := want[column.Name]; ok && i < len(row.Cells) {
				seen[column.Name] = true
				compareCell(f, column.Name, row.Cells[i], expected)
			}
		}
		for name := range want {
			if !seen[name] {
				f.add(8, "column-missing", "kubectl get has no column %s", name)
			}
		}
		all = append(all, f.list...)
	}
	return all, nil
}

// What stands for a cell whose text is not compared.
const (
	past   = "*"  // a time ago
	future = "**" // a time to come, by a clock that a test has moved on: the server prints no number for it
)

func columnsOf(t *v1alpha1.Task) map[string]string {
	want := map[string]string{
		"Name":    t.Name,
		"State":   string(t.Status.State),
		"Reason":  t.Status.Reason,
		"Attempt": "",
		"Age":     past,
		"Node":    "",
		"Message": t.Status.Message,
	}
	if t.Status.Attempt != 0 {
		want["Attempt"] = fmt.Sprint(t.Status.Attempt)
	}
	if t.Status.Worker != nil {
		want["Node"] = t.Status.Worker.NodeName
	}
	want["Started"], want["Finished"] = ago(t.Status.StartTime), ago(t.Status.CompletionTime)
	return want
}

func ago(at *metav1.MicroTime) string {
	switch {
	case at == nil:
		return ""
	case at.After(time.Now()): // the server's own clock, which is the machine's
		return future
	}
	return past
}

func compareCell(f *finding, column string, cell any, expected string) {
	text := ""
	if cell != nil {
		text = fmt.Sprint(cell)
	}
	switch expected {
	case past:
		if text != "" && text != "<invalid>" {
			return
		}
	case future:
		if text != "" {
			return
		}
	case text:
		return
	}
	f.add(8, "column", "kubectl get shows %s %q, status says %q", column, text, expected)
}
