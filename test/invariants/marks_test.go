package invariants

import (
	"os"
	"path/filepath"
	"testing"
)

func TestDir(t *testing.T) {
	for name, tc := range map[string]struct {
		files   map[string]string
		marks   int
		invalid bool
	}{
		"two runs": {files: map[string]string{
			"a.jsonl": `{"task":"u","attempt":1,"pid":1,"host":"p","event":"start","time":"2030-01-02T03:04:05.000000006Z"}` + "\n" +
				`{"task":"u","attempt":1,"pid":1,"host":"p","event":"stop","time":"2030-01-02T03:04:06Z","exit":0}` + "\n",
			"b.jsonl": `{"task":"u","attempt":2,"event":"start","time":"2030-01-02T03:04:07Z"}` + "\n",
		}, marks: 3},
		"killed in mid-write": {files: map[string]string{
			"a.jsonl": `{"task":"u","attempt":1,"event":"start","time":"2030-01-02T03:04:05Z"}` + "\n" + `{"task":"u","att`,
		}, marks: 1},
		"rubbish": {files: map[string]string{"a.jsonl": "rubbish\n"}, invalid: true},
		"none":    {},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range tc.files {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			marks, err := Dir(dir).All()
			if (err != nil) != tc.invalid || len(marks) != tc.marks {
				t.Errorf("%d marks, %v", len(marks), err)
			}
		})
	}
}

func TestRunsOf(t *testing.T) {
	marks, err := parseMarks([]byte(
		`{"task":"u","attempt":1,"host":"p","event":"start","time":"2030-01-02T03:04:05Z"}
{"task":"u","attempt":1,"host":"p","event":"stop","time":"2030-01-02T03:04:06Z","exit":3}
`), "a")
	if err != nil {
		t.Fatal(err)
	}
	runs := runsOf(marks)
	if len(runs) != 1 || runs[0].end.Sub(runs[0].start).Seconds() != 1 || runs[0].exit == nil || *runs[0].exit != 3 {
		t.Errorf("runs: %v", runs)
	}
}
