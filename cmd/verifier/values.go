package main

import (
	"fmt"
	"time"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// Types of variables beside package environment's. The error of each names the values that it takes.

// age is a verifier.Options.SweepAge.
type age time.Duration

func (a *age) Decode(text string) error {
	if text == "never" {
		*a = -1
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < driver.MinSweepAge {
		return fmt.Errorf("%q is not usable; give a duration of at least 1h such as 168h, or never, or unset it", text)
	}
	*a = age(d)
	return nil
}

// patience is a verifier.Options.ExplainAfter. Negative means never: no Options.Watcher is set then.
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
