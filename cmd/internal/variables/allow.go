package variables

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/twoqueue/twoqueue/verifier"
)

// An Allow is what a verifier.Options.Allow takes. Its text is EXCHANGE:KEY patterns with
// commas between them; a queue is :NAME.
type Allow []verifier.Allow

// Decode implements envconfig.Decoder.
func (a *Allow) Decode(text string) error {
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
		*a = append(*a, verifier.Allow{Exchange: exchange, RoutingKey: key})
	}
	return nil
}
