package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMissingMessagesCountAsSlowest(t *testing.T) {
	var values []time.Duration
	for i := 99; i >= 1; i-- {
		values = append(values, time.Duration(i)*time.Millisecond)
	}
	if p := quantile(values, 1, 0.5); p != 50 {
		t.Errorf("p50 is %v ms, not 50", p)
	}
	if p := quantile(values, 1, 0.99); p != 99 {
		t.Errorf("p99 is %v ms, not 99", p)
	}
	if p := quantile(values, 10, 0.99); !math.IsInf(p, 1) {
		t.Errorf("p99 is %v ms, although a tenth is missing", p)
	}
	if p := quantile(nil, 0, 0.5); !math.IsNaN(p) {
		t.Errorf("p50 of nothing is %v", p)
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{[]float64{3, 1, 2}, 2}, {[]float64{4, 1, 3, 2}, 2.5}, {[]float64{7}, 7}} {
		if m := median(c.values); m != c.want {
			t.Errorf("median of %v is %v, not %v", c.values, m, c.want)
		}
	}
}

func TestReportShowsMediansSpreadAndRatios(t *testing.T) {
	w := &world{config: config{out: t.TempDir(), rounds: 3, window: time.Second}, begun: time.Now()}
	for round, rates := range [][2]float64{{100, 50}, {120, 40}, {110, 110}} {
		w.add(round, "live", "8 at once", ledger.name, "delivered/s", rates[0], "p99 ms", 1.0)
		w.add(round, "live", "8 at once", "other", "delivered/s", rates[1], "p99 ms", math.Inf(1))
	}
	w.add(1, "live", "8 at once", "seldom", "delivered/s", 60.0, "p99 ms", 2.0)
	if err := w.report.write(w, []scenario{{name: "live", what: "a test", headline: headline{metric: "delivered/s"}}}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(w.out, "results.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| 8 at once | twoqueue | 110 (100–120) |", "| 8 at once | seldom | 60.0 | 2.00 | 2.00 |", "| 8 at once | other | 50.0 (40.0–110) | never | 2.00 |"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
	if info, err := os.Stat(filepath.Join(w.out, "results.png")); err != nil || info.Size() < 1000 {
		t.Errorf("no picture: %v", err)
	}
}
