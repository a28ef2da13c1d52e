// Package picture does the work of the imaging worker: it reads a picture, makes copies of it in other sizes, writes a
// text on each and encodes them. The same input gives the same bytes.
package picture

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits on the input. Whatever is over one is refused before any work.
const (
	MaxInputBytes     = 64 << 10 // as much as spec.input.value may hold
	MaxSizes          = 16
	MinSide           = 64
	MaxSide           = 8192
	MaxPixels         = 40_000_000 // of one picture, the source included
	MaxSourceBytes    = 20 << 20
	MaxPathBytes      = 256
	MaxWatermarkRunes = 48
)

// Formats of the outputs.
const (
	JPEG = "jpeg"
	PNG  = "png"
)

// Input is what spec.input.value holds. All fields are required.
type Input struct {
	// Source is the absolute path of a JPEG or PNG picture.
	Source string
	// Sizes are the outputs to make.
	Sizes []Size
	// Watermark is written in the lower right corner of each output.
	Watermark string
	// Format is JPEG or PNG.
	Format string
	// OutputDir is the absolute path of the folder for the outputs.
	OutputDir string
}

// Size of one output. Without a height the source's proportions are kept; with one, the middle of the source that has
// those proportions is used, so nothing is ever stretched. In JSON it is {"width": 640, "height": 480} or just 640.
type Size struct {
	Width  int
	Height int // 0: follows from the width
}

// InputError says which field is wrong and why. No further attempt can change it.
type InputError struct {
	Field   string
	Problem string
}

func (e *InputError) Error() string {
	if e.Field == "" {
		return "input: " + e.Problem
	}
	return "input: " + e.Field + ": " + e.Problem
}

func bad(field, format string, args ...any) error {
	return &InputError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// Decode reads an Input strictly: a field that is unknown (case counts), missing, null, of another type or out of
// bounds is an InputError, and so is anything after the object.
func Decode(r io.Reader) (Input, error) {
	raw, err := io.ReadAll(io.LimitReader(r, MaxInputBytes+1))
	if err != nil {
		return Input{}, fmt.Errorf("read input: %w", err)
	}
	if len(raw) > MaxInputBytes {
		return Input{}, bad("", "longer than %d bytes", MaxInputBytes)
	}
	fields, err := object("", raw, "source", "sizes", "watermark", "format", "outputDir")
	if err != nil {
		return Input{}, err
	}

	var in Input
	var sizes []json.RawMessage
	err = errors.Join(
		value("source", fields["source"], "a string", &in.Source),
		value("sizes", fields["sizes"], "a list", &sizes),
		value("watermark", fields["watermark"], "a string", &in.Watermark),
		value("format", fields["format"], "a string", &in.Format),
		value("outputDir", fields["outputDir"], "a string", &in.OutputDir),
	)
	if err != nil {
		return Input{}, err
	}
	// The count comes first, so that a list of thousands does not give thousands of errors.
	if n := len(sizes); n < 1 || n > MaxSizes {
		return Input{}, bad("sizes", "%d entries, want 1 to %d", n, MaxSizes)
	}
	for i, s := range sizes {
		size, err := decodeSize(fmt.Sprintf("sizes[%d]", i), s)
		if err != nil {
			return Input{}, err
		}
		in.Sizes = append(in.Sizes, size)
	}
	return in, errors.Join(
		checkPath("source", in.Source),
		checkWatermark(in.Watermark),
		checkFormat(in.Format),
		checkPath("outputDir", in.OutputDir),
	)
}

func decodeSize(field string, raw json.RawMessage) (Size, error) {
	var s Size
	if !bytes.HasPrefix(raw, []byte("{")) {
		if err := value(field, raw, "a width in whole pixels, or an object with width and height", &s.Width); err != nil {
			return Size{}, err
		}
		return s, checkSide(field, s.Width)
	}
	fields, err := object(field, raw, "width", "height?")
	if err != nil {
		return Size{}, err
	}
	if err := value(field+".width", fields["width"], "a whole number", &s.Width); err != nil {
		return Size{}, err
	}
	if err := checkSide(field+".width", s.Width); err != nil {
		return Size{}, err
	}
	h, ok := fields["height"]
	if !ok {
		return s, nil
	}
	if err := value(field+".height", h, "a whole number", &s.Height); err != nil {
		return Size{}, err
	}
	if err := checkSide(field+".height", s.Height); err != nil {
		return Size{}, err
	}
	return s, checkPixels(field, s.Width, s.Height)
}

// object splits a JSON object into its fields and refuses unknown and missing ones. A name that ends in ? may be
// missing. It goes through a map since encoding/json on a struct takes Source for source, and says nothing about what
// is missing.
func object(field string, raw []byte, names ...string) (map[string]json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	var fields map[string]json.RawMessage
	if err := dec.Decode(&fields); err != nil {
		return nil, bad(field, "not a JSON object: %v", err)
	}
	if fields == nil {
		return nil, bad(field, "null, want an object")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, bad(field, "something follows the object")
	}
	prefix := ""
	if field != "" {
		prefix = field + "."
	}
	var known []string
	var errs []error
	for _, n := range names {
		name, optional := strings.CutSuffix(n, "?")
		known = append(known, name)
		if _, ok := fields[name]; !ok && !optional {
			errs = append(errs, bad(prefix+name, "missing"))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(known, name) {
			errs = append(errs, bad(prefix+shorten(name), "unknown field, want one of %s", strings.Join(known, ", ")))
		}
	}
	return fields, errors.Join(errs...)
}

func value(field string, raw json.RawMessage, want string, into any) error {
	if string(raw) == "null" {
		return bad(field, "null, want %s", want)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return bad(field, "%s, want %s", shorten(string(raw)), want)
	}
	return nil
}

// shorten keeps what the user wrote from filling the message.
func shorten(s string) string {
	const limit = 40
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "..."
}

func checkSide(field string, n int) error {
	if n < MinSide || n > MaxSide {
		return bad(field, "%d pixels, want %d to %d", n, MinSide, MaxSide)
	}
	return nil
}

func checkPixels(field string, w, h int) error {
	if w*h > MaxPixels {
		return bad(field, "%dx%d is %d pixels, the limit is %d", w, h, w*h, MaxPixels)
	}
	return nil
}

func checkPath(field, path string) error {
	switch {
	case len(path) > MaxPathBytes:
		return bad(field, "%d bytes, the limit is %d", len(path), MaxPathBytes)
	case !filepath.IsAbs(path) || filepath.Clean(path) != path:
		return bad(field, "%s is not a plain absolute path", strconv.Quote(shorten(path)))
	}
	return nil
}

func checkFormat(format string) error {
	if format != JPEG && format != PNG {
		return bad("format", "%q, want %s or %s", shorten(format), JPEG, PNG)
	}
	return nil
}

func checkWatermark(text string) error {
	if n := utf8.RuneCountInString(text); n > MaxWatermarkRunes {
		return bad("watermark", "%d characters, the limit is %d", n, MaxWatermarkRunes)
	}
	if strings.TrimSpace(text) == "" {
		return bad("watermark", "empty")
	}
	for _, r := range text {
		if !drawable(r) {
			return bad("watermark", "the font has no %U", r)
		}
	}
	return nil
}
