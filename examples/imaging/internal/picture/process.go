package picture

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"image"
	"image/jpeg"
	"image/png"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"

	"golang.org/x/image/draw"

	"github.com/taskwarden/taskwarden/examples/imaging/internal/contract"
)

const jpegQuality = 85

// The stages of the work, in their order. All pictures pass through one before the first enters the next: a worker reports a
// stage once.
const (
	Download  = "download"
	Resize    = "resize"
	Watermark = "watermark"
	Upload    = "upload"
)

// Stages are all of them.
var Stages = []string{Download, Resize, Watermark, Upload}

// Watcher is told how far the work is.
type Watcher interface {
	// Enter says that a stage begins.
	Enter(stage string)
	// Done says how many of the pictures have passed through the stage.
	Done(stage string, done, all int)
}

// Process makes the outputs and gives the result. It looks at ctx between the steps and never leaves half a picture
// under its final name. An input that is wrong gives an InputError before anything is written.
func Process(ctx context.Context, in Input, log *slog.Logger, w Watcher) (contract.Result, error) {
	w.Enter(Download)
	p, err := makePlan(in)
	if err != nil {
		return contract.Result{}, err
	}
	log.Info("source read", "path", p.source.Path, "width", p.source.Width, "height", p.source.Height)
	w.Done(Download, 1, 1)
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return contract.Result{}, fmt.Errorf("outputDir: %w", err)
	}
	pictures, outs := make([]*image.RGBA, len(p.outputs)), make([]Output, len(p.outputs))
	for _, stage := range []struct {
		name string
		step func(i int, o planned) error
	}{
		{Resize, func(i int, o planned) error {
			pictures[i] = p.resize(o)
			return nil
		}},
		{Watermark, func(i int, o planned) error {
			o.stamp.apply(pictures[i])
			return nil
		}},
		{Upload, func(i int, o planned) (err error) {
			if outs[i], err = p.write(o, pictures[i]); err != nil {
				return fmt.Errorf("write %s: %w", o.path, err)
			}
			log.Info("output written", "path", outs[i].Path, "bytes", outs[i].Size)
			pictures[i] = nil
			return nil
		}},
	} {
		w.Enter(stage.name)
		for i, o := range p.outputs {
			if err := ctx.Err(); err != nil {
				return contract.Result{}, err
			}
			if err := stage.step(i, o); err != nil {
				return contract.Result{}, err
			}
			// Given back now: else what a large picture took waits as garbage while the next one is made, and a limit that is enough
			// for each of them is not enough for all.
			debug.FreeOSMemory()
			w.Done(stage.name, i+1, len(p.outputs))
		}
	}
	return p.result(outs), ctx.Err()
}

// resize is the step that takes the memory: 4 bytes for each pixel of the output, and 32 for each pixel of a picture as
// wide as the output and as high as the part of the source that is used.
func (p *plan) resize(o planned) *image.RGBA {
	dst := image.NewRGBA(image.Rectangle{Max: o.size})
	op := draw.Src
	if p.format == JPEG && !opaque(p.picture) {
		// JPEG knows no transparency: white shows through, as on paper.
		draw.Draw(dst, dst.Bounds(), image.White, image.Point{}, draw.Src)
		op = draw.Over
	}
	draw.CatmullRom.Scale(dst, dst.Bounds(), p.picture, o.crop.Add(p.picture.Bounds().Min), op, nil)
	return dst
}

func opaque(m image.Image) bool {
	o, ok := m.(interface{ Opaque() bool })
	return ok && o.Opaque()
}

// write encodes to a temporary file, which gets its name only when it is whole and on disk.
func (p *plan) write(o planned, m image.Image) (out Output, err error) {
	f, err := os.CreateTemp(p.dir, ".output-*")
	if err != nil {
		return Output{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	sum := sha256.New()
	buf := bufio.NewWriterSize(io.MultiWriter(f, sum), 256<<10)
	err = errors.Join(encode(buf, m, p.format), buf.Flush(), f.Chmod(0o644), f.Sync())
	info, statErr := f.Stat()
	err = errors.Join(err, statErr, f.Close())
	if err != nil {
		return Output{}, err
	}
	err = os.Rename(f.Name(), o.path)
	if err != nil {
		return Output{}, err
	}
	return Output{
		Path:   filepath.Clean(o.path),
		Size:   info.Size(),
		SHA256: hex.EncodeToString(sum.Sum(nil)),
		Width:  o.size.X,
		Height: o.size.Y,
	}, nil
}

func encode(w io.Writer, m image.Image, format string) error {
	if format == PNG {
		return png.Encode(w, m)
	}
	return jpeg.Encode(w, m, &jpeg.Options{Quality: jpegQuality})
}
