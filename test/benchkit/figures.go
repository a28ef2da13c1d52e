package benchkit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// ClockResolution is that of the audit log's time stamps.
const ClockResolution = time.Microsecond

// Bound is what a figure must reach.
type Bound struct {
	text string
	ok   func(float64) bool
}

// AtLeast is a bound that a figure may touch.
func AtLeast(limit float64) Bound {
	return Bound{fmt.Sprintf("at least %g", limit), func(v float64) bool { return v >= limit }}
}

// AtMost is a bound that a figure may touch.
func AtMost(limit float64) Bound {
	return Bound{fmt.Sprintf("at most %g", limit), func(v float64) bool { return v <= limit }}
}

// Below is a bound that a figure may not touch.
func Below(limit float64) Bound {
	return Bound{fmt.Sprintf("below %g", limit), func(v float64) bool { return v < limit }}
}

// figure is one line of the output.
type figure struct {
	Name  string  `json:"figure"`
	Value float64 `json:"value"`
}

// Figures are printed as soon as they are known, so that a run that is cut off has not been for nothing.
type Figures struct {
	Out io.Writer
	// Bounds gives the bound of a figure, where it has one.
	Bounds func(name string) (Bound, bool)
	all    []figure
	err    error // the first one of writing them
}

// Add prints a figure, rounded to the resolution of the clock.
func (f *Figures) Add(name string, value float64) {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		f.err = errors.Join(f.err, fmt.Errorf("figure %s is %v", name, value))
		return
	}
	one := figure{Name: name, Value: math.Round(value*1e6) / 1e6}
	f.all = append(f.all, one)
	line, err := json.Marshal(one)
	if err == nil {
		_, err = fmt.Fprintf(f.Out, "%s\n", line)
	}
	f.err = errors.Join(f.err, err)
}

// Close ends a run that was not cut off: it prints the table, and fails where a bound is missed, unless noFail is set.
func (f *Figures) Close(out io.Writer, noFail bool) error {
	missed := f.Table(out)
	Say("done")
	if len(missed) > 0 && !noFail {
		return errors.Join(fmt.Errorf("bounds missed: %s", strings.Join(missed, ", ")), f.err)
	}
	return f.err
}

// Table prints every figure that has a bound and answers the names of those that miss it.
func (f *Figures) Table(out io.Writer) (missed []string) {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "\nFIGURE\tVALUE\tBOUND\t")
	for _, one := range f.all {
		b, ok := f.Bounds(one.Name)
		if !ok {
			continue
		}
		verdict := "ok"
		if !b.ok(one.Value) {
			verdict = "MISSED"
			missed = append(missed, one.Name)
		}
		fmt.Fprintf(w, "%s\t%.4g\t%s\t%s\n", one.Name, one.Value, b.text, verdict)
	}
	fmt.Fprintln(w)
	f.err = errors.Join(f.err, w.Flush())
	return missed
}

// Percentile is the smallest value that at least p percent of the values do not exceed; it was really measured, nothing is
// interpolated.
func Percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Err is the first failure to print a figure.
func (f *Figures) Err() error { return f.err }
