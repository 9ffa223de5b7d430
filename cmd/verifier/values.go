package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
)

// Types of variables beside those of package environment. Each says in its error
// what it takes.

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

// ownTable names a bridge.OwnTable; empty for the ledger's own tables.
type ownTable string

func (o *ownTable) Decode(text string) error {
	*o = ownTable(text)
	if own := o.own(); own.Table == "" || own.Column == "" {
		return fmt.Errorf("%q is not TABLE.COLUMN or SCHEMA.TABLE.COLUMN; write it so, or unset it", text)
	}
	return nil
}

func (o ownTable) own() bridge.OwnTable {
	last := max(0, strings.LastIndex(string(o), "."))
	return bridge.OwnTable{Table: string(o[:last]), Column: strings.TrimPrefix(string(o[last:]), ".")}
}
