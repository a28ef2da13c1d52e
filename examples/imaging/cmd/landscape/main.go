// Command landscape draws the sample picture into the file named by its argument.
package main

import (
	"fmt"
	"image/png"
	"os"

	"github.com/taskwarden/taskwarden/examples/imaging/internal/landscape"
)

//go:generate go run . ../../testdata/landscape.png

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "landscape:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want one argument, the file to write")
	}
	f, err := os.Create(args[0])
	if err != nil {
		return err
	}
	enc := png.Encoder{CompressionLevel: png.BestCompression}
	if err := enc.Encode(f, landscape.Draw()); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
