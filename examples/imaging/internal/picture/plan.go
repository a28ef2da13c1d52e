package picture

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"image"
	_ "image/jpeg" // sources may be JPEG
	_ "image/png"  // or PNG
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/taskwarden/taskwarden/examples/imaging/internal/contract"
)

// Data is the data of the result.
type Data struct {
	Outputs []Output `json:"outputs"`
	Source  Source   `json:"source"`
}

// Output describes one picture that was written.
type Output struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
	Width  int    `json:"width"`
	Height int    `json:"height"`
}

// Source describes the picture that was read.
type Source struct {
	Path   string `json:"path"`
	Format string `json:"format"`
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
	Width  int    `json:"width"`
	Height int    `json:"height"`
}

// A plan is an input of which everything is known that can be known without the work itself: what will be made and
// that the result will fit.
type plan struct {
	source  Source
	picture image.Image
	format  string
	dir     string
	outputs []planned
}

type planned struct {
	path  string
	size  image.Point
	crop  image.Rectangle // the part of the source that is used
	stamp stamp
}

func makePlan(in Input) (plan, error) {
	raw, err := readSource(in.Source)
	if err != nil {
		return plan{}, err
	}
	// The header is looked at first: a few bytes can ask for gigabytes of pixels.
	conf, format, err := image.DecodeConfig(bytes.NewReader(raw))
	if err != nil {
		return plan{}, bad("source", "not a JPEG or PNG picture: %v", err)
	}
	if conf.Width < 1 || conf.Height < 1 || conf.Width > MaxSide || conf.Height > MaxSide {
		return plan{}, bad("source", "%dx%d pixels, want 1 to %d each way", conf.Width, conf.Height, MaxSide)
	}
	if err := checkPixels("source", conf.Width, conf.Height); err != nil {
		return plan{}, err
	}
	sum := sha256.Sum256(raw)
	p := plan{
		source: Source{
			Path:   in.Source,
			Format: format,
			Size:   int64(len(raw)),
			SHA256: hex.EncodeToString(sum[:]),
			Width:  conf.Width,
			Height: conf.Height,
		},
		format: in.Format,
		dir:    in.OutputDir,
	}
	seen := map[image.Point]int{}
	for i, s := range in.Sizes {
		field := fmt.Sprintf("sizes[%d]", i)
		o, err := p.planOutput(field, s, in.Watermark)
		if err != nil {
			return plan{}, err
		}
		if first, ok := seen[o.size]; ok {
			return plan{}, bad(field, "%dx%d again, as sizes[%d]", o.size.X, o.size.Y, first)
		}
		seen[o.size] = i
		p.outputs = append(p.outputs, o)
	}
	if err := p.checkResult(); err != nil {
		return plan{}, err
	}
	p.picture, _, err = image.Decode(bytes.NewReader(raw))
	if err != nil {
		return plan{}, bad("source", "damaged %s picture: %v", format, err)
	}
	return p, nil
}

func readSource(path string) ([]byte, error) {
	f, err := os.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, bad("source", "no such file: %s", path)
	case err != nil:
		return nil, fmt.Errorf("source: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, bad("source", "not a file: %s", path)
	}
	raw, err := io.ReadAll(io.LimitReader(f, MaxSourceBytes+1))
	if err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	if len(raw) > MaxSourceBytes {
		return nil, bad("source", "%d bytes, the limit is %d", info.Size(), MaxSourceBytes)
	}
	return raw, nil
}

func (p *plan) planOutput(field string, s Size, watermark string) (planned, error) {
	size := image.Pt(s.Width, s.Height)
	sw, sh := p.source.Width, p.source.Height
	if size.Y == 0 {
		size.Y = (2*size.X*sh + sw) / (2 * sw) // rounded
		if size.Y < MinSide || size.Y > MaxSide {
			return planned{}, bad(field, "gives a height of %d pixels, want %d to %d", size.Y, MinSide, MaxSide)
		}
		if err := checkPixels(field, size.X, size.Y); err != nil {
			return planned{}, err
		}
	}
	st, ok := layOut(watermark, size)
	if !ok {
		return planned{}, bad("watermark", "too long to be read on %s, %dx%d pixels", field, size.X, size.Y)
	}
	ext := map[string]string{JPEG: ".jpg", PNG: ".png"}[p.format]
	return planned{
		path:  filepath.Join(p.dir, fmt.Sprintf("%dx%d%s", size.X, size.Y, ext)),
		size:  size,
		crop:  cover(image.Pt(sw, sh), size),
		stamp: st,
	}, nil
}

// cover is the largest part in the middle of the source that has the proportions of size.
func cover(source, size image.Point) image.Rectangle {
	part := source
	if source.X*size.Y > source.Y*size.X {
		part.X = max(source.Y*size.X/size.Y, 1)
	} else {
		part.Y = max(source.X*size.Y/size.X, 1)
	}
	from := source.Sub(part).Div(2)
	return image.Rectangle{Min: from, Max: from.Add(part)}
}

// checkResult refuses, before any work, what would give a result that does not fit the termination message.
func (p *plan) checkResult() error {
	var outs []Output
	for _, o := range p.outputs {
		outs = append(outs, Output{
			Path: o.path,
			// An output takes at most about 9 bytes a pixel, so this has as many digits as there can be.
			Size:   MaxPixels * 9,
			SHA256: strings.Repeat("0", 2*sha256.Size),
			Width:  o.size.X,
			Height: o.size.Y,
		})
	}
	if _, err := p.result(outs).Encode(); err != nil {
		return bad("sizes", "too many for this outputDir: %v", err)
	}
	return nil
}

// result points at the first output, which is what somebody who wants to see one picture should get.
func (p *plan) result(outs []Output) contract.Result {
	u := url.URL{Scheme: "file", Path: outs[0].Path}
	return contract.Result{URL: u.String(), Data: Data{Outputs: outs, Source: p.source}}
}
