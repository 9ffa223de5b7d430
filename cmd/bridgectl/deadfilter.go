package main

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/twoqueue/twoqueue/bridge/wire"
)

// defaultLimit is the default of --limit, for messages and for rows.
const defaultLimit = 1000

// A deadFilter chooses dead messages. A field that is not set excludes none.
type deadFilter struct {
	ids     []string
	reasons []string
	verdict string
	targets []string
	older   time.Duration
	younger time.Duration
	all     bool
	limit   int

	patterns []*regexp.Regexp // of targets
	now      time.Time
}

// deadReasons lists the reasons of verifiers and of the broker, and the further ones of receivers
// (idempotency.DeadQueue).
var deadReasons = append(wire.DeadReasons(), reasonBroker, "failed", "too-old")

func (f *deadFilter) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.reasons, "reason", nil, "only messages with these reasons: "+strings.Join(deadReasons, ", "))
	flags.StringVar(&f.verdict, "verdict", "", "only messages with this verdict: committed or unknown")
	flags.StringArrayVar(&f.targets, "target", nil, "only messages for targets that match EXCHANGE:KEY, where * stands for any characters; a queue is :NAME")
	flags.DurationVar(&f.older, "older-than", 0, "only messages that have been dead for longer than this")
	flags.DurationVar(&f.younger, "younger-than", 0, "only messages that have been dead for less than this")
	flags.IntVar(&f.limit, "limit", defaultLimit, "how many messages are read, from the head of the queue")
	_ = cmd.RegisterFlagCompletionFunc("reason", cobra.FixedCompletions(deadReasons, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("verdict", cobra.FixedCompletions([]string{"committed", "unknown"}, cobra.ShellCompDirectiveNoFileComp))
}

// begin checks the flags; ids are the arguments.
func (f *deadFilter) begin(ids []string) error {
	f.ids, f.now = ids, time.Now()
	if f.limit < 1 {
		return misused("--limit: must be positive")
	}
	if f.verdict != "" && f.verdict != "committed" && f.verdict != "unknown" {
		return misused("--verdict: %q is not usable; give committed or unknown", f.verdict)
	}
	for _, reason := range f.reasons {
		if !slices.Contains(deadReasons, reason) {
			return misused("--reason: %q is not usable; give some of %s", reason, strings.Join(deadReasons, ", "))
		}
	}
	if f.older < 0 || f.younger < 0 {
		return misused("--older-than, --younger-than: must be positive, such as 2h")
	}
	for _, target := range f.targets {
		if !strings.Contains(target, ":") {
			return misused("--target: %q is not EXCHANGE:KEY; write :%s for the queue of this name", target, target)
		}
		pattern, err := regexp.Compile("(?s)^" + strings.ReplaceAll(regexp.QuoteMeta(target), `\*`, ".*") + "$")
		if err != nil {
			return misused("--target: %q is not usable: %w", target, err)
		}
		f.patterns = append(f.patterns, pattern)
	}
	return nil
}

// chooses reports whether the user gave a condition, or --all.
func (f *deadFilter) chooses() bool {
	return f.all || len(f.ids) > 0 || len(f.reasons) > 0 || f.verdict != "" || len(f.targets) > 0 || f.older > 0 || f.younger > 0
}

// takes reports whether the filter chooses the message.
func (f *deadFilter) takes(m *deadMessage) bool {
	switch {
	case len(f.ids) > 0 && !slices.ContainsFunc(f.ids, m.has):
		return false
	case len(f.reasons) > 0 && !slices.Contains(f.reasons, m.Reason):
		return false
	case f.verdict != "" && f.verdict != m.Verdict:
		return false
	case len(f.patterns) > 0 && !slices.ContainsFunc(f.patterns, func(p *regexp.Regexp) bool {
		return p.MatchString(targetText(m.Exchange, m.RoutingKey))
	}):
		return false
	case f.older > 0 && (m.DeadAt == nil || f.now.Sub(*m.DeadAt) <= f.older):
		return false
	case f.younger > 0 && (m.DeadAt == nil || f.now.Sub(*m.DeadAt) >= f.younger):
		return false
	}
	return true
}
