// Package allow reads the list of targets that may be forwarded to: BRIDGE_ALLOW.
package allow

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/twoqueue/twoqueue/verifier"
)

// A List is what a verifier.Options.Allow takes. Its text is EXCHANGE:KEY patterns with
// commas between them; a queue is :NAME.
type List []verifier.Allow

// Decode implements envconfig.Decoder.
func (l *List) Decode(text string) error {
	if text == "" {
		return errors.New("is empty; unset it to allow every target, or name some")
	}
	if !utf8.ValidString(text) {
		return errors.New("is not UTF-8; correct it")
	}
	for pattern := range strings.SplitSeq(text, ",") {
		exchange, key, ok := strings.Cut(strings.TrimSpace(pattern), ":")
		if !ok {
			return fmt.Errorf("%q is not EXCHANGE:KEY; write :%s for the queue of this name, %s:* for the exchange", pattern, pattern, pattern)
		}
		*l = append(*l, verifier.Allow{Exchange: exchange, RoutingKey: key})
	}
	return nil
}
