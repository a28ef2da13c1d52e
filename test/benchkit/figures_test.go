package benchkit

import (
	"math"
	"testing"
)

func TestPercentile(t *testing.T) {
	var hundred []float64
	for i := 100; i >= 1; i-- {
		hundred = append(hundred, float64(i))
	}
	for _, tc := range []struct {
		reason string
		values []float64
		p      float64
		want   float64
	}{
		{"one value is every percentile", []float64{7}, 99, 7},
		{"the median of an odd number is the middle", []float64{3, 1, 2}, 50, 2},
		{"the median of an even number is the lower middle, which was measured", []float64{4, 1, 3, 2}, 50, 2},
		{"of 100 values the 99th", hundred, 99, 99},
		{"of 100 values the last", hundred, 100, 100},
		{"never below the first", hundred, 0, 1},
		{"what did not come is infinitely late", []float64{1, math.Inf(1)}, 99, math.Inf(1)},
	} {
		if got := Percentile(tc.values, tc.p); got != tc.want {
			t.Errorf("%s: got %v, want %v", tc.reason, got, tc.want)
		}
	}
	if got := Percentile(nil, 50); !math.IsNaN(got) {
		t.Errorf("of nothing: got %v, want NaN", got)
	}
}
