package behave

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// envCommand has the path of the command with which a worker reports from a shell.
const envCommand = "TASKWARDEN_COMMAND"

// reporter reports by the command, as a shell script would.
type reporter struct{ command string }

// say runs the command with words such as "progress 40".
func (r reporter) say(ctx context.Context, words string) error {
	if r.command == "" {
		return fmt.Errorf("report %s: %s is not set: the Task has no reporter", words, envCommand)
	}
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, r.command, append([]string{"report"}, strings.Fields(words)...)...)
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("report %s: %w: %s", words, err, bytes.TrimSpace(said.Bytes()))
	}
	return nil
}

func (r reporter) sayAll(ctx context.Context, all []string) error {
	for _, words := range all {
		if err := r.say(ctx, words); err != nil {
			return err
		}
	}
	return nil
}

// advance reports a percent that grows with the time, until ctx is done.
func (r reporter) advance(ctx context.Context, every, whole time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for passed := every; passed < whole; passed += every {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			// Work goes on whatever becomes of a report.
			_ = r.say(ctx, fmt.Sprintf("progress %d", 100*passed/whole))
		}
	}
}
