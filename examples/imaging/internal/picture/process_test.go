package picture

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/taskwarden/taskwarden/examples/imaging/internal/contract"
)

var quiet = slog.New(slog.DiscardHandler)

// nobody watches.
type nobody struct{}

func (nobody) Enter(string)          {}
func (nobody) Done(string, int, int) {}

// diary is a Watcher that writes down what it is told.
type diary []string

func (d *diary) Enter(stage string) { *d = append(*d, stage) }
func (d *diary) Done(stage string, done, all int) {
	*d = append(*d, fmt.Sprintf("%s %d/%d", stage, done, all))
}

// TestStagesInTheirOrder: the operator refuses a stage that comes before the one that the worker is in.
func TestStagesInTheirOrder(t *testing.T) {
	in := Input{
		Source: sample(t), Sizes: []Size{{Width: 128}, {Width: 64, Height: 64}}, Watermark: "T", Format: JPEG, OutputDir: t.TempDir(),
	}
	var got diary
	if _, err := Process(t.Context(), in, quiet, &got); err != nil {
		t.Fatal(err)
	}
	want := diary{
		"download", "download 1/1", "resize", "resize 1/2", "resize 2/2", "watermark", "watermark 1/2", "watermark 2/2",
		"upload", "upload 1/2", "upload 2/2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func sample(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../testdata/landscape.png")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func process(t *testing.T, in Input) Data {
	t.Helper()
	r, err := Process(t.Context(), in, quiet, nobody{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Data.(Data)
}

func open(t *testing.T, path string) (image.Image, string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, format, err := image.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	return m, format
}

func TestOutputs(t *testing.T) {
	for _, format := range []string{JPEG, PNG} {
		t.Run(format, func(t *testing.T) {
			in := Input{
				Source:    sample(t),
				Sizes:     []Size{{Width: 640}, {Width: 300, Height: 300}, {Width: 100, Height: 400}, {Width: 2000, Height: 64}},
				Watermark: "Task",
				Format:    format,
				OutputDir: filepath.Join(t.TempDir(), "made", "here"),
			}
			data := process(t, in)

			var sizes []image.Point
			var wantNames, names []string
			for _, o := range data.Outputs {
				sizes = append(sizes, image.Pt(o.Width, o.Height))
				wantNames = append(wantNames, filepath.Base(o.Path))

				raw, err := os.ReadFile(o.Path)
				if err != nil {
					t.Fatal(err)
				}
				if sum := sha256.Sum256(raw); hex.EncodeToString(sum[:]) != o.SHA256 {
					t.Errorf("%s: the reported sha256 is not that of the file", o.Path)
				}
				if int64(len(raw)) != o.Size {
					t.Errorf("%s: reported %d bytes, has %d", o.Path, o.Size, len(raw))
				}
				m, got := open(t, o.Path)
				if got != format {
					t.Errorf("%s is %s", o.Path, got)
				}
				if m.Bounds().Size() != image.Pt(o.Width, o.Height) {
					t.Errorf("%s: reported %dx%d, is %v", o.Path, o.Width, o.Height, m.Bounds())
				}
			}
			if diff := cmp.Diff([]image.Point{{640, 400}, {300, 300}, {100, 400}, {2000, 64}}, sizes); diff != "" {
				t.Errorf("sizes (-want +got)\n%s", diff)
			}
			entries, err := os.ReadDir(in.OutputDir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				names = append(names, e.Name())
			}
			slices.Sort(wantNames)
			if diff := cmp.Diff(wantNames, names); diff != "" {
				t.Errorf("files in the folder (-want +got)\n%s", diff)
			}
		})
	}
}

func TestResult(t *testing.T) {
	in := Input{Source: sample(t), Sizes: []Size{{Width: 160}}, Watermark: "Task", Format: PNG, OutputDir: t.TempDir()}
	r, err := Process(t.Context(), in, quiet, nobody{})
	if err != nil {
		t.Fatal(err)
	}
	msg, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		URL  string
		Data map[string]any
	}
	if err := json.Unmarshal(msg, &got); err != nil {
		t.Fatal(err)
	}
	if want := "file://" + in.OutputDir + "/160x100.png"; got.URL != want {
		t.Errorf("url %q, want %q", got.URL, want)
	}
	raw, err := os.ReadFile(in.Source)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(raw)
	want := map[string]any{
		"path": in.Source, "format": "png", "size": float64(len(raw)), "sha256": hex.EncodeToString(sum[:]),
		"width": 1600.0, "height": 1000.0,
	}
	if diff := cmp.Diff(want, got.Data["source"]); diff != "" {
		t.Errorf("source (-want +got)\n%s", diff)
	}
}

func TestSameInputGivesSameBytes(t *testing.T) {
	for _, format := range []string{JPEG, PNG} {
		in := Input{Source: sample(t), Sizes: []Size{{Width: 320}, {Width: 1700}}, Watermark: "Twice", Format: format}
		var sums [2][]string
		for i := range sums {
			in.OutputDir = t.TempDir()
			for _, o := range process(t, in).Outputs {
				sums[i] = append(sums[i], o.SHA256)
			}
		}
		if diff := cmp.Diff(sums[0], sums[1]); diff != "" {
			t.Errorf("%s: first and second run differ\n%s", format, diff)
		}
	}
}

// The watermark must change pixels where it stands and nowhere else.
func TestWatermarkChangesItsPlaceOnly(t *testing.T) {
	cases := map[string]struct {
		reason string
		size   Size
		text   string
	}{
		"usual":  {"text as large as looks right", Size{Width: 640, Height: 400}, "Taskwarden"},
		"shrunk": {"text made smaller to fit", Size{Width: 200, Height: 600}, "© Taskwarden, Jürgen"},
		"small":  {"smallest picture", Size{Width: 64, Height: 64}, "Task"},
		"flat":   {"plate nearly as high as the picture", Size{Width: 1000, Height: 64}, "Taskwarden"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			in := Input{
				Source: sample(t), Sizes: []Size{tc.size}, Watermark: tc.text, Format: PNG, OutputDir: t.TempDir(),
			}
			p, err := makePlan(in)
			if err != nil {
				t.Fatal(err)
			}
			plain := p.resize(p.outputs[0])
			marked, _ := open(t, process(t, in).Outputs[0].Path)

			plate := p.outputs[0].stamp.plate
			size := image.Pt(tc.size.Width, tc.size.Height)
			if !plate.In(image.Rectangle{Max: size}) || plate.Empty() {
				t.Fatalf("%s: plate %v in a picture of %v", tc.reason, plate, size)
			}
			if centre := plate.Min.Add(plate.Max).Div(2); centre.Y < size.Y/2 {
				t.Errorf("%s: plate %v is not in the lower half", tc.reason, plate)
			}
			changed, light := 0, 0
			for y := range size.Y {
				for x := range size.X {
					same := color.RGBAModel.Convert(plain.At(x, y)) == color.RGBAModel.Convert(marked.At(x, y))
					in := image.Pt(x, y).In(plate)
					if !same && !in {
						t.Fatalf("%s: pixel %d,%d outside the plate %v has changed", tc.reason, x, y, plate)
					}
					if in && !same {
						changed++
					}
					if r, g, b, _ := marked.At(x, y).RGBA(); in && min(r, g, b) > 0xc000 {
						light++
					}
				}
			}
			area := plate.Dx() * plate.Dy()
			if changed < area*9/10 {
				t.Errorf("%s: only %d of %d pixels of the plate have changed", tc.reason, changed, area)
			}
			if light < area/50 || light > area/2 {
				t.Errorf("%s: %d of %d pixels are as light as letters", tc.reason, light, area)
			}
		})
	}
}

func TestOtherTextOtherPixels(t *testing.T) {
	in := Input{Source: sample(t), Sizes: []Size{{Width: 320}}, Watermark: "one", Format: PNG, OutputDir: t.TempDir()}
	one := process(t, in).Outputs[0].SHA256
	in.Watermark = "two"
	if two := process(t, in).Outputs[0].SHA256; one == two {
		t.Error("two texts gave the same bytes")
	}
}

func TestCover(t *testing.T) {
	cases := map[string]struct {
		reason       string
		source, size image.Point
		want         image.Rectangle
	}{
		"same":   {"all of it", image.Pt(1600, 1000), image.Pt(320, 200), image.Rect(0, 0, 1600, 1000)},
		"square": {"sides cut off", image.Pt(1600, 1000), image.Pt(50, 50), image.Rect(300, 0, 1300, 1000)},
		"wide":   {"top and bottom cut off", image.Pt(1600, 1000), image.Pt(800, 100), image.Rect(0, 400, 1600, 600)},
		"thread": {"never nothing", image.Pt(1, 500), image.Pt(8192, 64), image.Rect(0, 249, 1, 250)},
	}
	for name, tc := range cases {
		if got := cover(tc.source, tc.size); got != tc.want {
			t.Errorf("%s (%s): %v, want %v", name, tc.reason, got, tc.want)
		}
	}
}

// A transparent source on JPEG must come out on white: encoded as it is, it would be black.
func TestTransparencyBecomesWhite(t *testing.T) {
	empty := image.NewNRGBA(image.Rect(0, 0, 100, 100))
	var buf bytes.Buffer
	if err := png.Encode(&buf, empty); err != nil {
		t.Fatal(err)
	}
	src := filepath.Join(t.TempDir(), "clear.png")
	if err := os.WriteFile(src, buf.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	in := Input{Source: src, Sizes: []Size{{Width: 128}}, Watermark: "Task", Format: JPEG, OutputDir: t.TempDir()}
	m, _ := open(t, process(t, in).Outputs[0].Path)
	if r, g, b, _ := m.At(10, 10).RGBA(); min(r, g, b) < 0xfc00 {
		t.Errorf("corner is %v, want white", m.At(10, 10))
	}
	in.Format = PNG
	m, _ = open(t, process(t, in).Outputs[0].Path)
	if _, _, _, a := m.At(10, 10).RGBA(); a != 0 {
		t.Errorf("corner is %v, want it to stay clear in PNG", m.At(10, 10))
	}
}

func TestJPEGSource(t *testing.T) {
	m, _ := open(t, sample(t))
	var buf bytes.Buffer
	if err := jpeg.Encode(&buf, m, nil); err != nil {
		t.Fatal(err)
	}
	src := filepath.Join(t.TempDir(), "a.jpg")
	if err := os.WriteFile(src, buf.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	data := process(t, Input{Source: src, Sizes: []Size{{Width: 320}}, Watermark: "T", Format: PNG, OutputDir: t.TempDir()})
	if data.Source.Format != "jpeg" || data.Outputs[0].Height != 200 {
		t.Errorf("got %+v", data)
	}
}

func TestBadSource(t *testing.T) {
	dir := t.TempDir()
	whole, err := os.ReadFile(sample(t))
	if err != nil {
		t.Fatal(err)
	}
	// Only the header of a PNG says how large it is; the rest can stay away for this test.
	huge := bytes.Clone(whole)
	copy(huge[16:24], []byte{0, 0, 0x20, 0, 0, 0, 0x20, 0}) // 8192x8192
	wide := bytes.Clone(whole)
	copy(wide[16:24], []byte{0, 1, 0, 0, 0, 0, 0, 1}) // 65536x1
	for _, b := range [][]byte{huge, wide} {
		fixCRC(b)
	}
	thin := &bytes.Buffer{}
	if err := png.Encode(thin, image.NewGray(image.Rect(0, 0, 1000, 10))); err != nil {
		t.Fatal(err)
	}

	cases := map[string]struct {
		reason  string
		content []byte
		want    []string
	}{
		"absent":  {"file is not there", nil, []string{"source: no such file"}},
		"text":    {"no picture", []byte("hello"), []string{"source: not a JPEG or PNG"}},
		"empty":   {"no bytes", []byte{}, []string{"source: not a JPEG or PNG"}},
		"cut off": {"begins well", whole[:len(whole)/2], []string{"source: damaged png"}},
		"bomb":    {"few bytes, many pixels: refused by its header", huge, []string{"source: 8192x8192", "40000000"}},
		"wide":    {"refused by its header", wide, []string{"source: 65536x1", "8192"}},
		"large":   {"too many bytes", make([]byte, MaxSourceBytes+1), []string{"source: 20971521 bytes", "20971520"}},
		"thin":    {"the height that follows is out of bounds", thin.Bytes(), []string{"sizes[0]: gives a height of 2 pixels", "64 to 8192"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
			if tc.content != nil {
				if err := os.WriteFile(path, tc.content, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			out := filepath.Join(t.TempDir(), "out")
			in := Input{Source: path, Sizes: []Size{{Width: 200}}, Watermark: "T", Format: PNG, OutputDir: out}
			_, err := Process(t.Context(), in, quiet, nobody{})
			refused(t, tc.reason, err, tc.want)
			if _, err := os.Stat(out); err == nil {
				t.Errorf("%s: something was written", tc.reason)
			}
		})
	}
}

func fixCRC(b []byte) {
	// A PNG header chunk: its name and data at 12 to 29, its checksum after that.
	crc := crc32.ChecksumIEEE(b[12:29])
	copy(b[29:33], []byte{byte(crc >> 24), byte(crc >> 16), byte(crc >> 8), byte(crc)})
}

func TestRefusedByPlan(t *testing.T) {
	long := "/" + strings.Repeat("o", MaxPathBytes-1)
	var many []Size
	for i := range MaxSizes {
		many = append(many, Size{Width: 100 + i, Height: 100})
	}
	cases := map[string]struct {
		reason string
		change func(*Input)
		want   []string
	}{
		"twice":          {"two outputs would have one name", func(in *Input) { in.Sizes = []Size{{Width: 320}, {Width: 320, Height: 200}} }, []string{"sizes[1]: 320x200 again, as sizes[0]"}},
		"too many":       {"the result would be cut off", func(in *Input) { in.Sizes, in.OutputDir = many, long }, []string{"sizes: too many", "4096"}},
		"cannot be read": {"letters would be too small", func(in *Input) { in.Sizes, in.Watermark = []Size{{Width: 64, Height: 64}}, strings.Repeat("W", 30) }, []string{"watermark: too long", "sizes[0]"}},
		"a directory":    {"not a file", func(in *Input) { in.Source = "/" }, []string{"source: not a file"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			in := Input{Source: sample(t), Sizes: []Size{{Width: 320}}, Watermark: "T", Format: JPEG, OutputDir: "/nowhere"}
			tc.change(&in)
			_, err := makePlan(in)
			refused(t, tc.reason, err, tc.want)
		})
	}
}

// What the plan allows must fit when it is done: here the most outputs that a usual folder takes.
func TestMostSizesFit(t *testing.T) {
	in := Input{Source: sample(t), Watermark: "T", Format: JPEG, OutputDir: "/out"}
	for i := range MaxSizes {
		in.Sizes = append(in.Sizes, Size{Width: 4000 + i, Height: 4000})
	}
	p, err := makePlan(in)
	if err != nil {
		t.Fatal(err)
	}
	var outs []Output
	for _, o := range p.outputs {
		outs = append(outs, Output{Path: o.path, Size: 99_999_999, SHA256: strings.Repeat("f", 64), Width: o.size.X, Height: o.size.Y})
	}
	msg, err := p.result(outs).Encode()
	if err != nil {
		t.Fatal(err)
	}
	if len(msg) > contract.MaxMessageBytes {
		t.Errorf("%d bytes", len(msg))
	}
}

func TestStoppedBetweenSteps(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	in := Input{Source: sample(t), Sizes: []Size{{Width: 320}}, Watermark: "T", Format: JPEG, OutputDir: t.TempDir()}
	_, err := Process(ctx, in, quiet, nobody{})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want context.Canceled", err)
	}
	if entries, _ := os.ReadDir(in.OutputDir); len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestCannotWrite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	in := Input{Source: sample(t), Sizes: []Size{{Width: 320}}, Watermark: "T", Format: JPEG, OutputDir: file}
	_, err := Process(t.Context(), in, quiet, nobody{})
	var input *InputError
	if err == nil || errors.As(err, &input) {
		t.Fatalf("got %v, want an error that another attempt may not meet", err)
	}
}

func refused(t *testing.T, reason string, err error, want []string) {
	t.Helper()
	var input *InputError
	if !errors.As(err, &input) {
		t.Fatalf("%s: got %v, want an InputError", reason, err)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %q lacks %q", reason, fmt.Sprint(err), w)
		}
	}
}
