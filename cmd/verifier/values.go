package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/verifier"
)

// Types of variables beside those of package environment. Each says in its error
// what it takes.

// copies is how many messages a queue keeps.
type copies int

func (c *copies) Decode(text string) error {
	const most = 1_000_000_000
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > most {
		return fmt.Errorf("%q is not usable; give a whole number from 0 to %d, or unset it", text, most)
	}
	*c = copies(n)
	return nil
}

// age is a verifier.Options.SweepAge.
type age time.Duration

func (a *age) Decode(text string) error {
	if text == "never" {
		*a = -1
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < bridge.MinSweepAge {
		return fmt.Errorf("%q is not usable; give a duration of at least 1h such as 168h, or never, or unset it", text)
	}
	*a = age(d)
	return nil
}

// patience is a verifier.Options.ExplainAfter.
type patience time.Duration

func (p *patience) Decode(text string) error {
	if text == "never" {
		*p = -1
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return fmt.Errorf("%q is not usable; give a positive duration such as 10s or 5m, or never, or unset it", text)
	}
	*p = patience(d)
	return nil
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
