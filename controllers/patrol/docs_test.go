package patrol

import (
	"os"
	"strings"
	"testing"

	"github.com/taskwarden/taskwarden/controllers/task"
)

// TestEachKindIsDocumented: what a metric's label may be is in docs/patrol.md.
func TestEachKindIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/patrol.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range task.MismatchKinds {
		if !strings.Contains(string(text), "| `"+string(kind)+"` |") {
			t.Errorf("docs/patrol.md does not say what %s means", kind)
		}
	}
}
