package main

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// A panel is one metric of one scenario as a picture.
type panel struct {
	scenario, metric, title string
	log                     bool
}

var panels = []panel{
	{"live", "delivered/s", "Full load: delivered messages per second", false},
	{"live", "p99 ms", "Full load: commit to target, p99, ms", true},
	{"live", "CPU µs per message", "Full load: processor time per message, µs", true},
	{"latency", "p50 ms", "Steady rate: commit to target, p50, ms", true},
	{"latency", "p99 ms", "Steady rate: commit to target, p99, ms", true},
	{"drain", "messages/s", "Draining a backlog: messages per second", false},
	{"transaction", "p50 ms", "The sender's transaction, p50, ms", true},
	{"bill", "WAL bytes", "WAL bytes per message", true},
	{"contention", "delivered/s", "As senders grow: delivered per second", false},
	{"slow", "p99 ms", "Beside open transactions: p99 of others, ms", true},
	{"growth", "messages/s", "Backlogs: messages per second", false},
	{"growth", "memory MiB", "Backlogs: the verifier's memory, MiB", false},
}

const (
	panelWidth, panelHeight = 14 * vg.Centimeter, 9 * vg.Centimeter
	columns                 = 3
	dotsPerInch             = 110
)

// draw writes a picture of all panels that there are values for: a dot for the
// median, a line from the lowest round to the highest.
func (r *report) draw(name string) error {
	colours := r.colours()
	var plots []*plot.Plot
	for _, p := range panels {
		drawn, err := r.panel(p, colours)
		if err != nil {
			return fmt.Errorf("plot %s: %w", p.title, err)
		}
		if drawn != nil {
			plots = append(plots, drawn)
		}
	}
	if len(plots) == 0 {
		return nil
	}
	width := min(columns, len(plots))
	rows := (len(plots) + width - 1) / width
	canvas := vgimg.NewWith(vgimg.UseWH(vg.Length(width)*panelWidth, vg.Length(rows)*panelHeight), vgimg.UseDPI(dotsPerInch))
	tiles := draw.Tiles{
		Rows: rows, Cols: width, PadX: vg.Centimeter, PadY: vg.Centimeter,
		PadTop: vg.Centimeter / 2, PadBottom: vg.Centimeter / 2, PadLeft: vg.Centimeter / 2, PadRight: vg.Centimeter / 2,
	}
	whole := draw.New(canvas)
	for i, p := range plots {
		p.Draw(tiles.At(whole, i%width, i/width))
	}
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	if _, err := (vgimg.PngCanvas{Canvas: canvas}).WriteTo(file); err != nil {
		_ = file.Close()
		return err
	}
	return file.Close()
}

// palette holds colours that can be told apart, on white and beside black.
var palette = []color.Color{
	color.RGBA{214, 39, 40, 255}, color.RGBA{31, 119, 180, 255}, color.RGBA{44, 160, 44, 255}, color.RGBA{255, 127, 14, 255},
	color.RGBA{148, 103, 189, 255}, color.RGBA{140, 86, 75, 255}, color.RGBA{227, 119, 194, 255}, color.RGBA{23, 190, 207, 255},
	color.RGBA{188, 189, 34, 255}, color.RGBA{127, 127, 127, 255}, color.RGBA{0, 0, 139, 255}, color.RGBA{0, 100, 0, 255},
}

// colours gives every contender one, in all panels the same.
func (r *report) colours() map[string]color.Color {
	var names []string
	for _, s := range r.samples {
		if !slices.Contains(names, s.Contender) {
			names = append(names, s.Contender)
		}
	}
	colours := make(map[string]color.Color)
	for i, name := range names {
		colours[name] = palette[i%len(palette)]
	}
	colours[ledger.name] = color.Black
	return colours
}

// panel draws one, or none if nothing was measured for it.
func (r *report) panel(p panel, colours map[string]color.Color) (*plot.Plot, error) {
	var cases, contenders []string
	for _, s := range r.samples {
		if s.Scenario != p.scenario || s.Metric != p.metric {
			continue
		}
		if !slices.Contains(cases, s.Case) {
			cases = append(cases, s.Case)
		}
		if !slices.Contains(contenders, s.Contender) {
			contenders = append(contenders, s.Contender)
		}
	}
	if len(cases) == 0 {
		return nil, nil
	}
	picture := plot.New()
	picture.Title.Text = p.title
	picture.NominalX(cases...)
	picture.X.Min, picture.X.Max = -0.5, float64(len(cases))-0.5
	picture.Legend.Top = true
	picture.Legend.TextStyle.Font.Size = vg.Points(8)
	picture.X.Tick.Label.Font.Size = vg.Points(8)
	if len(cases) > 3 {
		picture.X.Tick.Label.Rotation = math.Pi / 10
		picture.X.Tick.Label.XAlign, picture.X.Tick.Label.YAlign = draw.XRight, draw.YTop
	}
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	picture.Add(grid)
	lowest, highest := math.Inf(1), 0.0
	for i, contender := range contenders {
		var dots spreads
		for x, what := range cases {
			values := slices.DeleteFunc(r.values(p.scenario, what, contender, p.metric), func(v float64) bool {
				return math.IsInf(v, 0) || math.IsNaN(v) || p.log && v <= 0
			})
			if len(values) == 0 {
				continue
			}
			middle := median(values)
			dots.at = append(dots.at, plotter.XY{X: float64(x) + 0.7*(float64(i)+0.5)/float64(len(contenders)) - 0.35, Y: middle})
			dots.reach = append(dots.reach, struct{ Low, High float64 }{middle - slices.Min(values), slices.Max(values) - middle})
			lowest, highest = min(lowest, slices.Min(values)), max(highest, slices.Max(values))
		}
		if len(dots.at) == 0 {
			continue
		}
		marks, err := plotter.NewScatter(dots.at)
		if err != nil {
			return nil, err
		}
		marks.Color, marks.Radius, marks.Shape = colours[contender], vg.Points(3), draw.CircleGlyph{}
		reaches, err := plotter.NewYErrorBars(dots)
		if err != nil {
			return nil, err
		}
		reaches.Color = colours[contender]
		picture.Add(reaches, marks)
		picture.Legend.Add(contender, marks)
	}
	if p.log && highest > 0 {
		picture.Y.Scale, picture.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		picture.Y.Min, picture.Y.Max = lowest/2, highest*8 // room for the legend
	} else {
		picture.Y.Min, picture.Y.Max = 0, max(1, highest*1.5)
	}
	return picture, nil
}

// spreads are medians with the way from them to the lowest and to the highest.
type spreads struct {
	at    plotter.XYs
	reach plotter.YErrors
}

func (s spreads) Len() int                       { return len(s.at) }
func (s spreads) XY(i int) (x, y float64)        { return s.at.XY(i) }
func (s spreads) YError(i int) (low, up float64) { return s.reach.YError(i) }
