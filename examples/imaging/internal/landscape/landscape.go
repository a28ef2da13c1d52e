// Package landscape draws the sample picture. It is drawn by a program so that nobody else holds a right to it, and in
// whole numbers only so that every machine draws the same.
package landscape

import (
	"image"
	"image/color"
)

// Size of the picture.
const (
	Width  = 1600
	Height = 1000
)

const (
	horizon = 640
	sunX    = 1080
	sunY    = 430
	sunR    = 110
)

// A ridge is one line of hills, drawn from a sum of triangle waves.
type ridge struct {
	base   int
	waves  [3]wave
	colour color.RGBA
}

type wave struct{ period, height, shift int }

var ridges = []ridge{
	{470, [3]wave{{700, 150, 90}, {260, 50, 30}, {90, 14, 10}}, color.RGBA{0x8a, 0x7b, 0xa8, 0xff}},
	{550, [3]wave{{520, 120, 400}, {190, 40, 70}, {60, 10, 5}}, color.RGBA{0x5d, 0x5a, 0x8c, 0xff}},
	{615, [3]wave{{900, 80, 250}, {150, 24, 20}, {44, 8, 3}}, color.RGBA{0x34, 0x3c, 0x66, 0xff}},
}

// Draw gives the picture: hills at sundown, and a lake that mirrors them.
func Draw() *image.RGBA {
	m := image.NewRGBA(image.Rect(0, 0, Width, Height))
	for y := range Height {
		for x := range Width {
			m.SetRGBA(x, y, at(x, y))
		}
	}
	return m
}

func at(x, y int) color.RGBA {
	if y < horizon {
		return land(x, y)
	}
	// Below the horizon: the land above it, shifted sideways in waves that widen towards the viewer, and darker.
	depth := y - horizon
	shift := triangle(y*7, 60+depth/4, 2+depth/12) - (2+depth/12)/2
	c := land(x+shift, horizon-1-depth)
	return mix(c, color.RGBA{0x14, 0x1c, 0x3c, 0xff}, 60+depth/3)
}

func land(x, y int) color.RGBA {
	for i := len(ridges) - 1; i >= 0; i-- {
		r := ridges[i]
		top := r.base
		for _, w := range r.waves {
			top -= triangle(x+w.shift+4*w.period, w.period, w.height)
		}
		if y >= top {
			return r.colour
		}
	}
	dx, dy := x-sunX, y-sunY
	d := dx*dx + dy*dy
	if d <= sunR*sunR {
		return color.RGBA{0xff, 0xf1, 0xc4, 0xff}
	}
	sky := mix(color.RGBA{0x2b, 0x3a, 0x78, 0xff}, color.RGBA{0xff, 0xb0, 0x6a, 0xff}, max(0, y)*256/horizon)
	// A glow around the sun that fades with the square of the distance.
	return mix(sky, color.RGBA{0xff, 0xe2, 0xa0, 0xff}, 200*sunR*sunR/d)
}

// triangle is a triangle wave of x between 0 and height.
func triangle(x, period, height int) int {
	p := x % period
	if p < 0 {
		p += period
	}
	if p > period/2 {
		p = period - p
	}
	return p * 2 * height / period
}

// mix goes from a (at 0) to b (at 256).
func mix(a, b color.RGBA, at int) color.RGBA {
	at = min(at, 256)
	part := func(a, b uint8) uint8 { return uint8((int(a)*(256-at) + int(b)*at) / 256) }
	return color.RGBA{part(a.R, b.R), part(a.G, b.G), part(a.B, b.B), 0xff}
}
