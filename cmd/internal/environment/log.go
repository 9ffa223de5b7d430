package environment

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/mattn/go-isatty"
)

// Log configures a log.
type Log struct {
	Level  level  `default:"info" desc:"debug, info, warn or error"`
	Format format `default:"auto" desc:"text, json, or auto: text on a terminal and json elsewhere; always on standard error"`
}

// Logger returns a logger that writes to w.
func (l Log) Logger(w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: slog.Level(l.Level)}
	if l.Format == formatJSON || l.Format == formatAuto && !onTerminal(w) {
		options.ReplaceAttr = readableDuration
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// readableDuration writes a duration with its unit, as the text handler does. The JSON handler alone
// writes a bare number of nanoseconds.
func readableDuration(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

func onTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && (isatty.IsTerminal(file.Fd()) || isatty.IsCygwinTerminal(file.Fd()))
}

type level slog.Level

func (l *level) Decode(text string) error {
	if err := (*slog.Level)(l).UnmarshalText([]byte(text)); err != nil {
		return fmt.Errorf("%q is not usable; give debug, info, warn or error, or unset it", text)
	}
	return nil
}

type format string

const (
	formatText format = "text"
	formatJSON format = "json"
	formatAuto format = "auto"
)

func (f *format) Decode(text string) error {
	switch *f = format(text); *f {
	case formatText, formatJSON, formatAuto:
		return nil
	}
	return fmt.Errorf("%q is not usable; give text, json or auto, or unset it", text)
}
