package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"image"
	_ "image/jpeg" // what the workers write
	_ "image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// picture is a file as the imaging worker describes it.
type picture struct {
	Path   string `json:"path"`
	Format string `json:"format"`
	Size   int    `json:"size"`
	SHA256 string `json:"sha256"`
	Width  int    `json:"width"`
	Height int    `json:"height"`
}

type imagingResult struct {
	Outputs []picture `json:"outputs"`
	Source  picture   `json:"source"`
}

func imagingInput(watermark, format, folder string, sizes ...any) map[string]any {
	return map[string]any{
		"source": "/pictures/landscape.png", "sizes": sizes, "watermark": watermark, "format": format, "outputDir": folder,
	}
}

// TestImaging is the main job: real work on real input, and a status that tells the truth about the files.
func TestImaging(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	task := w.create(w.imaging("pictures").Input(imagingInput("Taskwarden", "jpeg", shared+"/out",
		1280, 640, map[string]any{"width": 256, "height": 256})))
	done := w.end(2*soon, task, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted)
	result := resultOf(t, done)

	want := []image.Point{{1280, 800}, {640, 400}, {256, 256}}
	if len(result.Outputs) != len(want) {
		t.Fatalf("%d outputs, wanted %d: %+v", len(result.Outputs), len(want), result.Outputs)
	}
	for i, p := range result.Outputs {
		if p.Width != want[i].X || p.Height != want[i].Y {
			t.Errorf("output %d is said to be %dx%d, wanted %v", i, p.Width, p.Height, want[i])
		}
		if _, format := w.check(p); format != "jpeg" {
			t.Errorf("%s is a %s", p.Path, format)
		}
	}
	if url := "file://" + result.Outputs[0].Path; done.Status.Result.URL != url {
		t.Errorf("result.url is %q, wanted %q", done.Status.Result.URL, url)
	}
	source, err := os.ReadFile(repository("examples", "imaging", "testdata", "landscape.png"))
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(source); result.Source.SHA256 != hex.EncodeToString(sum[:]) {
		t.Errorf("the source was read as %+v, which is not what the repository has", result.Source)
	}
	if done.Status.Attempt != 1 || w.started(task) != 1 {
		t.Errorf("%s, and %d runs", describe(done), w.started(task))
	}
}

// TestWatermark compares the pixels of two runs that differ in nothing but the text.
func TestWatermark(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var pictures []image.Image
	var sums []string
	for _, run := range []struct{ name, text string }{{"one", "Taskwarden"}, {"other", "Something else"}, {"again", "Taskwarden"}} {
		task := w.create(w.imaging(run.name).Input(imagingInput(run.text, "png", shared+"/"+run.name, 320)))
		result := resultOf(t, w.end(2*soon, task, v1alpha1.StateSucceeded, v1alpha1.ReasonCompleted))
		if len(result.Outputs) != 1 {
			t.Fatalf("outputs: %+v", result.Outputs)
		}
		picture, _ := w.check(result.Outputs[0])
		pictures, sums = append(pictures, picture), append(sums, result.Outputs[0].SHA256)
	}
	// The text is at the bottom, so nothing above the middle may differ.
	upper, lower := 0, 0
	bounds := pictures[0].Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			if pictures[0].At(x, y) == pictures[1].At(x, y) {
				continue
			}
			if y < bounds.Min.Y+bounds.Dy()/2 {
				upper++
			} else {
				lower++
			}
		}
	}
	if upper > 0 || lower < 50 {
		t.Errorf("another text changed %d pixels of the upper half and %d of the lower one", upper, lower)
	}
	if sums[0] != sums[2] {
		t.Error("the same input gave other bytes")
	}
}

func resultOf(t *testing.T, task *v1alpha1.Task) imagingResult {
	t.Helper()
	if task.Status.Result == nil || task.Status.Result.Data == nil {
		t.Fatalf("%s: no result", describe(task))
	}
	var r imagingResult
	if err := json.Unmarshal(task.Status.Result.Data.Raw, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// check compares a picture with what the result says of it, and gives it with its format.
func (w *world) check(p picture) (img image.Image, format string) {
	w.t.Helper()
	name, ok := strings.CutPrefix(p.Path, shared+"/")
	if !ok {
		w.t.Fatalf("%s is not in the shared folder", p.Path)
	}
	content, err := os.ReadFile(filepath.Join(w.folder, name))
	if err != nil {
		w.t.Fatal(err)
	}
	if len(content) != p.Size {
		w.t.Errorf("%s has %d bytes, %d by the result", p.Path, len(content), p.Size)
	}
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != p.SHA256 {
		w.t.Errorf("%s has SHA-256 %x, %s by the result", p.Path, sum, p.SHA256)
	}
	img, format, err = image.Decode(bytes.NewReader(content))
	if err != nil {
		w.t.Fatalf("%s: %v", p.Path, err)
	}
	if size := img.Bounds().Size(); size.X != p.Width || size.Y != p.Height {
		w.t.Errorf("%s has %v pixels, %dx%d by the result", p.Path, size, p.Width, p.Height)
	}
	return img, format
}
