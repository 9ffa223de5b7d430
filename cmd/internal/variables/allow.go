package variables

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/twoqueue/twoqueue/verifier"
)

// An Allow is a value for verifier.Options.Allow. Its text has EXCHANGE:KEY patterns with commas
// between them; a queue is :NAME. A colon, a comma or a backslash with a backslash before it is an
// ordinary character.
type Allow []verifier.Allow

// Decode implements envconfig.Decoder.
func (a *Allow) Decode(text string) error {
	if text == "" {
		return errors.New("is empty; name the targets, or *:* for every one")
	}
	if !utf8.ValidString(text) {
		return errors.New("is not UTF-8; correct it")
	}
	for more := true; more; {
		var pattern string
		pattern, text, more = cut(text, ',')
		pattern = strings.TrimSpace(pattern)
		exchange, key, ok := Target(pattern)
		if !ok {
			return fmt.Errorf("%q is not EXCHANGE:KEY; write :%s for the queue of this name, %s:* for the exchange", pattern, pattern, pattern)
		}
		*a = append(*a, verifier.Allow{Exchange: exchange, RoutingKey: key})
	}
	return nil
}

// Target reads EXCHANGE:KEY, which TargetText writes. The first colon without a backslash before
// it divides the two; ok is false if there is none.
func Target(text string) (exchange, key string, ok bool) {
	exchange, key, ok = cut(text, ':')
	return meant.Replace(exchange), meant.Replace(key), ok
}

// TargetText returns a target in the form that Target reads.
func TargetText(exchange, key string) string {
	return strings.ReplaceAll(escaped.Replace(exchange), ":", `\:`) + ":" + escaped.Replace(key)
}

var (
	meant   = strings.NewReplacer(`\\`, `\`, `\:`, `:`, `\,`, `,`)
	escaped = strings.NewReplacer(`\`, `\\`)
)

// cut is strings.Cut at a byte that has no backslash before it.
func cut(text string, at byte) (before, after string, found bool) {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case at:
			return text[:i], text[i+1:], true
		}
	}
	return text, "", false
}
