package workertext_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/report"
	"github.com/taskwarden/taskwarden/internal/workertext"
)

type want struct {
	url, logURL, data string
	text              string // whole
	part              string // of the text, where it is long
}

func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		message string
		want    want
	}{
		"nothing":                     {"", want{}},
		"blank":                       {" \n\t ", want{}},
		"a text":                      {"disk full\n", want{text: "disk full"}},
		"a text in brackets":          {"[error] disk full", want{text: "[error] disk full"}},
		"a text in braces":            {"{not json}", want{text: "{not json}"}},
		"a whole result":              {`{"url":"s3://b/k","logURL":"https://l","data":{"n":1},"message":"done"}`, want{"s3://b/k", "https://l", `{"n":1}`, "done", ""}},
		"only a url":                  {`{"url":"https://x/y"}`, want{url: "https://x/y"}},
		"only a message":              {`{"message":"  no such file "}`, want{text: "no such file"}},
		"only data":                   {`{"data":[1,2]}`, want{data: `[1,2]`}},
		"data may be a scalar":        {`{"data":7}`, want{data: `7`}},
		"null is as good as left out": {`{"url":null,"data":null,"message":"m"}`, want{text: "m"}},
		"another key makes it data":   {`{"url":"u","width":640}`, want{data: `{"url":"u","width":640}`}},
		"another type makes it data":  {`{"url":5}`, want{data: `{"url":5}`}},
		"keys are told by case":       {`{"URL":"u"}`, want{data: `{"URL":"u"}`}},
		"an object of the worker's":   {"{\n  \"sha256\": \"ab\",\n  \"width\": 640\n}\n", want{data: `{"sha256":"ab","width":640}`}},
		"an empty object":             {`{}`, want{data: `{}`}},
		"an array":                    {`[1, 2]`, want{data: `[1,2]`}},
		"C43 a number is a text":      {`42`, want{text: `42`}},
		"C43 a string is a text":      {`"done"`, want{text: `"done"`}},
		"C43 null is a text":          {`null`, want{text: `null`}},
		"C43 two values are no JSON":  {`{"url":"a"}{"url":"b"}`, want{part: `not whole JSON`}},
		"C43 binary":                  {"\x00\x01\xff\xfe", want{text: "\x00\x01\xff\xfe"}},
		"C43 invalid UTF-8 in JSON":   {"{\"url\":\"\xff\"}", want{part: "not whole JSON"}},
		"C43 cut":                     {cut(4096), want{part: "4096 bytes; it is cut at 4096"}},
		"C43 cut early":               {cut(1365), want{part: "1365 bytes; it is cut at 4096"}},
		"C43 not cut":                 {`{"data":"` + strings.Repeat("x", 4000) + `"}`, want{data: `"` + strings.Repeat("x", 4000) + `"`}},
		"url at its limit":            {`{"url":"` + strings.Repeat("u", 2048) + `"}`, want{url: strings.Repeat("u", 2048)}},
		"url over its limit":          {`{"url":"` + strings.Repeat("u", 2049) + `","message":"m"}`, want{text: "url not stored: it has 2049 bytes, the limit is 2048; m"}},
		"logURL over its limit":       {`{"url":"u","logURL":"` + strings.Repeat("é", 1025) + `"}`, want{url: "u", text: "logURL not stored: it has 2050 bytes, the limit is 2048"}},
		"a control character":         {`{"url":"a\u001b[31m"}`, want{text: "url not stored: it has control characters"}},
		"data at its limit":           {`{"data":"` + strings.Repeat("x", 16382) + `"}`, want{data: `"` + strings.Repeat("x", 16382) + `"`}},
		"data over its limit":         {`{"data":"` + strings.Repeat("x", 16383) + `"}`, want{text: "data not stored: it has 16385 bytes, the limit is 16384"}},
		"space does not count":        {`[` + strings.Repeat(" ", 20000) + `1]`, want{data: `[1]`}},
		"nested too deep":             {nested(65), want{text: "data not stored: it is nested more than 64 deep"}},
		"nested just so":              {nested(64), want{data: nested(64)}},
		"a number out of range":       {`{"n":1e999}`, want{text: "data not stored: the number 1e999 is out of range"}},
		"hostile nesting":             {strings.Repeat("[", 1<<20), want{part: "not whole JSON"}},
	} {
		t.Run(name, func(t *testing.T) {
			result, text := workertext.Parse(c.message)
			if result == nil {
				result = &v1alpha1.TaskResult{}
			} else if *result == (v1alpha1.TaskResult{}) {
				t.Error("an empty result is not nil")
			}
			got := want{url: result.URL, logURL: result.LogURL, text: text}
			if result.Data != nil {
				got.data = string(result.Data.Raw)
			}
			if c.want.part != "" && strings.Contains(got.text, c.want.part) {
				got.text, got.part = "", c.want.part
			}
			if got != c.want {
				t.Errorf("Parse = %.300v\nwant    %.300v", got, c.want)
			}
		})
	}
}

// cut is JSON of which only the first n bytes are left.
func cut(n int) string { return (`{"data":"` + strings.Repeat("x", n))[:n] }

func nested(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"", "text", `{"url":"u","data":{"a":[1,2.5,null,true]},"logURL":"l","message":"m"}`, cut(4096), nested(70),
		`{"n":1e999}`, "{\"a\":\"\xff\"}", `[-0]`, `{"url":"\ud800"}`, `{"data":` + strings.Repeat(`{"a":`, 50) + "1",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, message string) { checkParse(t, message) })
}

// TestParseBearsAnything puts together messages that come close to JSON, which bytes at random hardly do.
func TestParseBearsAnything(t *testing.T) {
	piece := rapid.OneOf(
		rapid.SampledFrom([]string{
			"{", "}", "[", "]", ",", ":", `"url"`, `"logURL"`, `"message"`, `"data"`, `"x"`, `"\u0000"`, `"\ud800"`, `"é"`, "1", "-0",
			"1e999", "null", "true", " ", "\n", "\x00", "\xff", "9007199254740993",
		}),
		rapid.Just(`{"url":"u","data":`), rapid.Just(`{"message":"m"}`), rapid.Just(strings.Repeat("[", 65)), rapid.String(),
	)
	rapid.Check(t, func(t *rapid.T) {
		checkParse(t, strings.Join(rapid.SliceOf(piece).Draw(t, "pieces"), ""))
	})
	rapid.Check(t, func(t *rapid.T) {
		whole, err := json.Marshal(anyJSON(t, 4))
		if err != nil {
			t.Fatal(err)
		}
		checkParse(t, string(whole))
		if n := rapid.IntRange(0, len(whole)).Draw(t, "cut"); n < len(whole) {
			result, _ := workertext.Parse(string(whole[:n]))
			if result != nil {
				t.Fatalf("%q, cut from %q, is a result", whole[:n], whole)
			}
		}
	})
}

func anyJSON(t *rapid.T, depth int) map[string]any {
	object := map[string]any{}
	for _, key := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"url", "logURL", "message", "data", "x", "é"}),
		rapid.ID).Draw(t, "keys") {
		switch kind := rapid.IntRange(0, 5).Draw(t, "kind"); {
		case kind == 0:
			object[key] = rapid.Float64().Draw(t, "number")
		case kind == 1:
			object[key] = nil
		case kind == 2 && depth > 0:
			object[key] = anyJSON(t, depth-1)
		case kind == 3 && depth > 0:
			object[key] = []any{anyJSON(t, depth-1), true}
		default:
			object[key] = rapid.String().Draw(t, "text")
		}
	}
	return object
}

// checkParse asserts what holds of any message whatever.
func checkParse(t rapid.TB, message string) {
	t.Helper()
	result, text := workertext.Parse(message)
	if len(text) > len(message)+300 {
		t.Errorf("the text has %d bytes, the message had %d", len(text), len(message))
	}
	if result == nil {
		return
	}
	for _, url := range []string{result.URL, result.LogURL} {
		if len(url) > report.MaxURLBytes || !utf8.ValidString(url) || strings.ContainsFunc(url, unicode.IsControl) {
			t.Errorf("url %q", url)
		}
	}
	if result.Data == nil {
		return
	}
	raw := result.Data.Raw
	if len(raw) > report.MaxDataBytes || !utf8.Valid(raw) {
		t.Errorf("data %q", raw)
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Errorf("data %q cannot be stored: %v", raw, err)
	}
}
