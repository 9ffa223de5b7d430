package verifier

import (
	"regexp"
	"strings"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// Permits returns the check that a verifier with these options makes before it forwards a committed
// message: whether it may go to its target, and by the keys of its CC and BCC headers. o may be nil.
// Tools that send a message to its target in a verifier's place use it.
func (o *Options) Permits() func(wire.Staged) bool { return newAllowList(o.withQueue()).permits }

// allowList is Options.Allow, compiled.
type allowList struct {
	own      map[string]bool // the verifier's own queues, no targets by the default exchange
	exchange string          // nor by this one; empty: only the default exchange exists for them
	patterns []allowPattern
}

type allowPattern struct{ exchange, key *regexp.Regexp }

func newAllowList(o Options) allowList {
	t := o.Topology
	list := allowList{exchange: t.Exchange, own: map[string]bool{
		t.Queue: true, t.WaitingQueue(): true, t.DeadQueue(): true, t.AuditQueue(): true, t.LedgerQueue(): true,
	}}
	for _, queue := range t.OrderedQueues() {
		list.own[queue] = true
	}
	for _, allow := range o.Allow {
		list.patterns = append(list.patterns, allowPattern{glob(allow.Exchange), glob(allow.RoutingKey)})
	}
	return list
}

func glob(pattern string) *regexp.Regexp {
	return regexp.MustCompile(`(?s)^` + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, `.*`) + `$`)
}

// permits reports whether a message may go to all places that it would reach: its target, and the
// keys of its CC and BCC headers.
func (l allowList) permits(s wire.Staged) bool {
	for _, key := range append(s.CopyKeys(), s.RoutingKey) {
		if !l.permitsTarget(bridge.Target{Exchange: s.Exchange, RoutingKey: key}) {
			return false
		}
	}
	return true
}

func (l allowList) permitsTarget(t bridge.Target) bool {
	own := t.Exchange == "" && l.own[t.RoutingKey] || t.Exchange != "" && t.Exchange == l.exchange
	if own || t.DirectReply() {
		return false
	}
	for _, p := range l.patterns {
		if p.exchange.MatchString(t.Exchange) && p.key.MatchString(t.RoutingKey) {
			return true
		}
	}
	return len(l.patterns) == 0
}
