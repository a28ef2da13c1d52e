package picture

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const goodInput = `{"source":"/pictures/a.png","sizes":[640,{"width":200,"height":100},{"width":128}],` +
	`"watermark":"© Jürgen","format":"jpeg","outputDir":"/out"}`

func TestDecode(t *testing.T) {
	got, err := Decode(strings.NewReader(goodInput + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := Input{
		Source:    "/pictures/a.png",
		Sizes:     []Size{{Width: 640}, {Width: 200, Height: 100}, {Width: 128}},
		Watermark: "© Jürgen",
		Format:    "jpeg",
		OutputDir: "/out",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestDecodeRefuses(t *testing.T) {
	// with gives the good input with one piece replaced.
	with := func(old, replacement string) string {
		if !strings.Contains(goodInput, old) {
			t.Fatalf("no %s in the good input", old)
		}
		return strings.Replace(goodInput, old, replacement, 1)
	}
	sizes := func(list string) string {
		return with(`[640,{"width":200,"height":100},{"width":128}]`, list)
	}
	cases := map[string]struct {
		reason string
		input  string
		// all must stand in the error: the field, and the limit or what was wanted
		want []string
	}{
		"empty":           {"no JSON at all", "", []string{"not a JSON object"}},
		"list":            {"another JSON type", "[]", []string{"not a JSON object"}},
		"null":            {"null is no object", "null", []string{"want an object"}},
		"trailing":        {"what follows would be ignored silently", goodInput + "{}", []string{"something follows"}},
		"too long":        {"bounded before it is parsed", strings.Repeat(" ", MaxInputBytes) + goodInput, []string{"65536"}},
		"nothing given":   {"each missing field is named", "{}", []string{"source: missing", "sizes: missing", "watermark: missing", "format: missing", "outputDir: missing"}},
		"unknown":         {"a typing error must not be ignored", with(`"format"`, `"quality":3,"format"`), []string{"quality: unknown field"}},
		"case":            {"encoding/json alone would take it", with(`"source"`, `"Source"`), []string{"source: missing", "Source: unknown"}},
		"null field":      {"null is no value", with(`"/out"`, "null"), []string{"outputDir: null"}},
		"type":            {"a number is no text", with(`"/out"`, "7"), []string{"outputDir: 7, want a string"}},
		"no sizes":        {"nothing to do is a mistake", sizes("[]"), []string{"sizes: 0 entries", "1 to 16"}},
		"many sizes":      {"the result must fit", sizes("[" + strings.Repeat("100,", 16) + "100]"), []string{"sizes: 17 entries", "1 to 16"}},
		"sizes no list":   {"one width is no list", sizes("640"), []string{"sizes: 640, want a list"}},
		"size text":       {"a width is a number", sizes(`["640"]`), []string{"sizes[0]", "want a width"}},
		"size null":       {"null is no size", sizes(`[null]`), []string{"sizes[0]: null"}},
		"size fraction":   {"pixels are whole", sizes(`[64.5]`), []string{"sizes[0]: 64.5"}},
		"width small":     {"lower bound", sizes("[63]"), []string{"sizes[0]: 63", "64 to 8192"}},
		"width large":     {"upper bound", sizes("[64,8193]"), []string{"sizes[1]: 8193", "64 to 8192"}},
		"width negative":  {"no negative pixels", sizes("[-640]"), []string{"sizes[0]: -640", "64 to 8192"}},
		"width huge":      {"beyond any integer", sizes("[1e99]"), []string{"sizes[0]: 1e99"}},
		"height zero":     {"zero does not mean by proportion", sizes(`[{"width":64,"height":0}]`), []string{"sizes[0].height: 0", "64 to 8192"}},
		"height large":    {"upper bound", sizes(`[{"width":64,"height":9000}]`), []string{"sizes[0].height: 9000", "8192"}},
		"no width":        {"a height alone is not enough", sizes(`[{"height":64}]`), []string{"sizes[0].width: missing"}},
		"size unknown":    {"typing error in a size", sizes(`[{"width":64,"altitude":64}]`), []string{"sizes[0].altitude: unknown field, want one of width, height"}},
		"pixels":          {"both sides in bounds, but not together", sizes(`[{"width":8192,"height":8192}]`), []string{"sizes[0]: 8192x8192", "40000000"}},
		"source relative": {"where would it start from?", with("/pictures/a.png", "a.png"), []string{"source", "absolute path"}},
		"source dots":     {"one path, one spelling", with("/pictures/a.png", "/pictures/../a.png"), []string{"source", "absolute path"}},
		"dir long":        {"it stands in the result once for each output", with("/out", "/"+strings.Repeat("o", MaxPathBytes)), []string{"outputDir: 257 bytes", "256"}},
		"format":          {"only two", with("jpeg", "gif"), []string{`format: "gif"`, "jpeg or png"}},
		"watermark blank": {"nothing would be seen", with("© Jürgen", "  "), []string{"watermark: empty"}},
		"watermark long":  {"upper bound, in characters", with("© Jürgen", strings.Repeat("ü", 49)), []string{"watermark: 49 characters", "48"}},
		"watermark glyph": {"the font cannot write it", with("© Jürgen", "世"), []string{"watermark", "U+4E16"}},
		"watermark line":  {"one line only", with("© Jürgen", `a\nb`), []string{"watermark", "U+000A"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Decode(strings.NewReader(tc.input))
			var input *InputError
			if !errors.As(err, &input) {
				t.Fatalf("%s: got %v, want an InputError", tc.reason, err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %q lacks %q", tc.reason, err, want)
				}
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(goodInput)
	f.Add(`{"sizes":[{"width":64,"height":null}]}`)
	f.Fuzz(func(t *testing.T, raw string) {
		in, err := Decode(strings.NewReader(raw))
		var input *InputError
		switch {
		case err != nil && !errors.As(err, &input):
			t.Fatalf("not an InputError: %v", err)
		case err == nil && (len(in.Sizes) == 0 || in.Watermark == "" || in.Source == "" || in.OutputDir == ""):
			t.Fatal(fmt.Sprint("accepted though something is missing: ", in))
		}
	})
}
