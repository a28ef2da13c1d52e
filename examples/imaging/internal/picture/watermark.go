package picture

import (
	"image"
	"image/color"
	"sync"

	"golang.org/x/image/draw"
	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/font/sfnt"
	"golang.org/x/image/math/fixed"
)

// minTextSize is the smallest letter height, in pixels, that can still be read.
const minTextSize = 8

// The font is compiled in: a file in the image would be one more thing that can be missing.
var typeface = sync.OnceValue(func() *sfnt.Font {
	f, err := opentype.Parse(goregular.TTF)
	if err != nil {
		panic(err) // the font is part of the program
	}
	return f
})

func drawable(r rune) bool {
	var buf sfnt.Buffer
	i, err := typeface().GlyphIndex(&buf, r)
	return err == nil && i != 0
}

// stamp is a text laid out for one picture size.
type stamp struct {
	text  string
	face  font.Face
	plate image.Rectangle // all that the stamp touches
	dot   fixed.Point26_6
}

// layOut places text in the lower right corner of a picture of the given size, as large as looks right and fits. It
// says false if that would be too small to read.
func layOut(text string, size image.Point) (stamp, bool) {
	margin := min(size.X, size.Y) / 32
	room := size.X - 4*margin // a margin outside the plate and one inside, on both sides
	height := max(float64(min(size.X, size.Y))/14, minTextSize)

	face := newFace(height)
	if w := font.MeasureString(face, text).Ceil(); w > room {
		height *= float64(room) / float64(w)
		if height < minTextSize {
			return stamp{}, false
		}
		face = newFace(height)
	}
	m := face.Metrics()
	w, h := font.MeasureString(face, text).Ceil(), (m.Ascent + m.Descent).Ceil()
	plate := image.Rect(size.X-w-3*margin, size.Y-h-3*margin, size.X-margin, size.Y-margin).
		Intersect(image.Rectangle{Max: size})
	return stamp{
		text:  text,
		face:  face,
		plate: plate,
		dot: fixed.Point26_6{
			X: fixed.I(plate.Min.X + margin),
			Y: fixed.I(plate.Min.Y+margin) + m.Ascent,
		},
	}, true
}

// apply draws light letters on a half-dark plate, which can be read on any picture.
func (s stamp) apply(dst *image.RGBA) {
	draw.Draw(dst, s.plate, image.NewUniform(color.RGBA{A: 0x90}), image.Point{}, draw.Over)
	d := font.Drawer{
		// Drawn into a sub-picture, so that no letter reaches past the plate.
		Dst:  dst.SubImage(s.plate).(*image.RGBA),
		Src:  image.NewUniform(color.RGBA{0xf4, 0xf4, 0xf4, 0xff}),
		Face: s.face,
		Dot:  s.dot,
	}
	d.DrawString(s.text)
}

func newFace(height float64) font.Face {
	// At 72 dots per inch a point is a pixel.
	f, err := opentype.NewFace(typeface(), &opentype.FaceOptions{Size: height, DPI: 72, Hinting: font.HintingNone})
	if err != nil {
		panic(err) // only a font that does not parse gives an error
	}
	return f
}
