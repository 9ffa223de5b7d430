package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
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
	for _, want := range []string{"| 8 at once | twoqueue | 110 (100–120) |", "| 8 at once | seldom | 60.0 | 2.00 | 2.00 |", "| 8 at once | other | 50.0 (40.0–110) | never | 2.00 (1.00–3.00) |"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
	measured, err := readResults(filepath.Join(w.out, "results.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []result{
		{"live", "8 at once", ledger.name, "delivered/s", 100, 110, 120},
		{"live", "8 at once", "seldom", "p99 ms", 2, 2, 2},
	} {
		if !slices.Contains(measured.values, want) {
			t.Errorf("%v is not read again, but %v", want, measured.values)
		}
	}
	if slices.ContainsFunc(measured.values, func(one result) bool { return one.contender == "other" && one.metric == "p99 ms" }) {
		t.Error("a missing value is read as a value")
	}
	if _, err := os.Stat(filepath.Join(w.out, pictureName)); err != nil || !strings.Contains(string(text), pictureLine) {
		t.Errorf("no picture: %v", err)
	}
}

// The picture in a folder shows the values of the folder's table.
func TestThePictureShowsTheResults(t *testing.T) {
	for _, of := range []string{".", "carried"} {
		t.Run(of, func(t *testing.T) { testPicture(t, of) })
	}
}

func testPicture(t *testing.T, of string) {
	measured, err := readResults(filepath.Join(of, "results.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range panels {
		if len(p.series(measured)) < 2 {
			t.Errorf("no contenders are compared in the panel %q", p.title)
		}
	}
	folder := t.TempDir()
	if _, err := drawPicture(folder, measured); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if !strings.Contains(read(filepath.Join(of, "results.md")), pictureLine) {
		t.Error("results.md does not show the picture")
	}
	drawn := read(filepath.Join(folder, pictureName))
	if read(filepath.Join(of, pictureName)) != drawn {
		t.Errorf("%s is not the picture of results.md (go run . -draw %s)", pictureName, filepath.Join(of, "results.md"))
	}
	for decoder := xml.NewDecoder(strings.NewReader(drawn)); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
