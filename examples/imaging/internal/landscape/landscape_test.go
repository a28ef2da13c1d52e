package landscape

import (
	"image/png"
	"os"
	"testing"
)

// The pixels are compared, not the bytes: how PNG packs them may change with a release of Go.
func TestStoredPictureIsTheDrawnOne(t *testing.T) {
	f, err := os.Open("../../testdata/landscape.png")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	stored, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	drawn := Draw()
	if stored.Bounds() != drawn.Bounds() {
		t.Fatalf("stored picture is %v, drawn one %v", stored.Bounds(), drawn.Bounds())
	}
	for y := range Height {
		for x := range Width {
			r, g, b, a := stored.At(x, y).RGBA()
			if dr, dg, db, da := drawn.At(x, y).RGBA(); r != dr || g != dg || b != db || a != da {
				t.Fatalf("pixel %d,%d differs; run: go generate ./...", x, y)
			}
		}
	}
}
