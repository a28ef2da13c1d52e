// Package workertext reads what a worker says in text.
package workertext

import "github.com/taskwarden/taskwarden/api/v1alpha1"

// Parse is being written beside this.
func Parse(message string) (*v1alpha1.TaskResult, string) { return nil, message }
