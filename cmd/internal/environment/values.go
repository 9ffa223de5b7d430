package environment

import (
	"fmt"
	"io"
	"log/slog"
	"math"
	"strconv"
	"time"
)

// The types of variables. Each says in its error what it takes.

// A Count is a whole number from 1 to 65535.
type Count int

// Decode implements envconfig.Decoder, as the other Decodes do.
func (c *Count) Decode(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > math.MaxUint16 {
		return fmt.Errorf("%q is not usable; give a whole number from 1 to %d, or unset it", text, math.MaxUint16)
	}
	*c = Count(n)
	return nil
}

// A Span is a positive duration.
type Span time.Duration

// Duration is what the standard library calls it.
func (s Span) Duration() time.Duration { return time.Duration(s) }

func (s *Span) Decode(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return fmt.Errorf("%q is not usable; give a positive duration such as 500ms, 2s or 10m, or unset it", text)
	}
	*s = Span(d)
	return nil
}

// Truth is true or false.
type Truth bool

func (t *Truth) Decode(text string) error {
	b, err := strconv.ParseBool(text)
	if err != nil {
		return fmt.Errorf("%q is not usable; give true or false, or unset it", text)
	}
	*t = Truth(b)
	return nil
}

// Log is what is logged, and how.
type Log struct {
	Level  level  `default:"info" desc:"debug, info, warn or error"`
	Format format `default:"text" desc:"text or json, on standard error"`
}

// Logger makes it.
func (l Log) Logger(w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: slog.Level(l.Level)}
	if l.Format == formatJSON {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
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
)

func (f *format) Decode(text string) error {
	switch *f = format(text); *f {
	case formatText, formatJSON:
		return nil
	}
	return fmt.Errorf("%q is not usable; give text or json, or unset it", text)
}
