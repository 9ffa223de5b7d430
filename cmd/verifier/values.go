package main

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/twoqueue/twoqueue/verifier"
)

// The types of variables. Each says in its error what it takes.

type count int

func (c *count) Decode(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > math.MaxUint16 {
		return fmt.Errorf("%q is not usable; give a whole number from 1 to %d, or unset it", text, math.MaxUint16)
	}
	*c = count(n)
	return nil
}

type span time.Duration

func (s span) duration() time.Duration { return time.Duration(s) }

func (s *span) Decode(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return fmt.Errorf("%q is not usable; give a positive duration such as 500ms, 2s or 10m, or unset it", text)
	}
	*s = span(d)
	return nil
}

type truth bool

func (t *truth) Decode(text string) error {
	b, err := strconv.ParseBool(text)
	if err != nil {
		return fmt.Errorf("%q is not usable; give true or false, or unset it", text)
	}
	*t = truth(b)
	return nil
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

type targets []verifier.Allow

func (t *targets) Decode(text string) error {
	if text == "" {
		return errors.New("is empty; unset it to allow every target, or name some")
	}
	for pattern := range strings.SplitSeq(text, ",") {
		exchange, key, ok := strings.Cut(strings.TrimSpace(pattern), ":")
		if !ok {
			return fmt.Errorf("%q is not EXCHANGE:KEY; write :%s for the queue of this name, %s:* for the exchange", pattern, pattern, pattern)
		}
		*t = append(*t, verifier.Allow{Exchange: exchange, RoutingKey: key})
	}
	return nil
}

// nearest returns the name that needs the fewest changes of one character to
// become text, if they are few enough for a slip of the hand.
func nearest(text string, names map[string]bool) string {
	const slip = 3
	best, least := "", slip+1
	for name := range names {
		if d := distance(text, name); d < least || d == least && name < best {
			best, least = name, d
		}
	}
	if least > slip {
		return ""
	}
	return best
}

// distance is Levenshtein's.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
