package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// quantile returns the value below which the share q of all values is. Missing values count as
// larger than all others. The result is NaN if there are no values, and +Inf if it is a missing
// value.
func quantile(values []time.Duration, missing int, q float64) float64 {
	n := len(values) + missing
	if n == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	i := max(0, int(math.Ceil(q*float64(n)))-1)
	if i >= len(sorted) {
		return math.Inf(1)
	}
	return milliseconds(sorted[i])
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// perMessage returns a processor time divided by the number of messages, in µs.
func perMessage(d time.Duration, messages int) float64 {
	if messages == 0 {
		return math.NaN()
	}
	return float64(d.Microseconds()) / float64(messages)
}

// median returns the middle value, or the mean of the middle two.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	m := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[m]
	}
	return (sorted[m-1] + sorted[m]) / 2
}

// number formats a value with three significant digits.
func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case math.IsInf(v, 1):
		return "never"
	case v == 0:
		return "0"
	}
	size := math.Abs(v)
	switch {
	case size >= 10_000:
		return fmt.Sprintf("%.0f", math.Round(v/100)*100)
	case size >= 100:
		return fmt.Sprintf("%.0f", v)
	case size >= 10:
		return fmt.Sprintf("%.1f", v)
	case size >= 0.1:
		return fmt.Sprintf("%.2f", v)
	default:
		return fmt.Sprintf("%.2g", v)
	}
}
