package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/taskwarden/taskwarden/worker"
)

// makeThumbnails is what the worker of the example does: it takes up where an earlier attempt has stopped.
func makeThumbnails(ctx context.Context, t *worker.Task) error {
	var input struct {
		Pictures []string `json:"pictures"`
	}
	if err := t.Input(&input); err != nil {
		return err
	}
	if len(input.Pictures) == 0 {
		return worker.Permanent(errors.New("there are no pictures in the input"))
	}
	var done int
	if _, err := t.Checkpoint(&done); err != nil {
		return err
	}

	t.Stage("resize")
	for ; done < len(input.Pictures); done++ {
		if err := ctx.Err(); err != nil {
			return err // told to stop
		}
		fmt.Println("resize", input.Pictures[done])
		t.Progress(100*float64(done+1)/float64(len(input.Pictures)), worker.WithMessage(input.Pictures[done]))
		if err := t.SaveCheckpoint(done + 1); err != nil {
			return err
		}
	}
	return t.SetResult(worker.Result{URL: "s3://results/thumbnails.zip", Data: map[string]int{"pictures": done}})
}

// A worker's main function is worker.Main(makeThumbnails). Here it runs with an environment that is made up, and without a
// sidecar, so that its result goes to the termination message.
func Example() {
	dir, err := os.MkdirTemp("", "worker")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	input, message := filepath.Join(dir, "input.json"), filepath.Join(dir, "termination-log")
	if err := errors.Join(os.WriteFile(input, []byte(`{"pictures":["a.png","b.png"]}`), 0o600), os.WriteFile(message, nil,
		0o600)); err != nil {
		fmt.Println(err)
		return
	}
	env := map[string]string{"TASKWARDEN_TASK_NAME": "thumbnails", "TASKWARDEN_ATTEMPT": "1", "TASKWARDEN_INPUT": input}

	code := worker.Run(context.Background(), makeThumbnails, worker.Options{
		Getenv: func(name string) string { return env[name] }, MessageFile: message, Log: slog.New(slog.DiscardHandler),
	})

	result, err := os.ReadFile(message)
	fmt.Println("exit code", code, err)
	fmt.Println(string(result))
	// Output:
	// resize a.png
	// resize b.png
	// exit code 0 <nil>
	// {"url":"s3://results/thumbnails.zip","data":{"pictures":2}}
}

func ExampleMain() {
	if os.Getenv("TASKWARDEN_TASK_UID") == "" {
		return // not in a worker's container
	}
	worker.Main(makeThumbnails)
}
