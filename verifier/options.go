package verifier

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"
	"unicode/utf8"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/verifier/internal/forward"
)

// Options are the options of New. Nil and the zero value mean defaults.
type Options struct {
	// Topology names the staging queue. Default Queue: "twoqueue".
	Topology bridge.Topology

	// Prefetch is how many messages of the staging queue a verifier holds at once; together with
	// MaxBytes it bounds its memory. Half of them may wait, for an open transaction or for a target
	// that takes nothing. Further ones, and messages that have waited longer than Patience, go to
	// the waiting queue. In addition the verifier holds half of Prefetch, but at least 20, of the
	// waiting queue, and 500 of each ordered queue. Further messages of the waiting queue circulate:
	// the smaller Prefetch is, the longer a round takes and the more it costs the broker. Default
	// 3000. At most 65535.
	Prefetch int
	// HoldKeys keeps a committed message with an order key that would go to the dead queue
	// (not-allowed, refused, unroutable, full) in its ordered queue, where it holds its key until
	// the cause is fixed. The log reports it. By default the message goes to the dead queue, and its
	// key goes on. With HoldKeys an unroutable or nacked message is retried. Any other is judged again
	// after HandBack, or by the next session, and is then dropped if you have deleted its row in the
	// ledger. A verifier then sweeps orphans only if it has received a message from every ordered
	// queue, since it cannot see the messages that other verifiers hold.
	HoldKeys bool
	// MaxBytes is how many bytes of memory a verifier uses for messages at once: their bodies, their
	// decoded headers, which may take fifty times their bytes on the wire, and 2 KiB for each
	// message. The staging queue has 3/4 of it and the waiting queue 1/4; with ordered queues these
	// have 1/4 together, and the staging queue 2/4. A message or group that exceeds its queue's share
	// is held alone. If the broker delivers more than there is room for, the verifier discards the
	// content, keeps the message unacked, and gets it again when there is room: from the staging and
	// the waiting queue by handing it back, from an ordered queue with all its unfinished messages,
	// over a new channel. Default 256 MiB.
	MaxBytes int
	// Patience is how long a message from the staging queue waits before it is moved to the
	// waiting queue. Each move costs the broker a message, so set Patience above the time that
	// transactions usually take. Default 2 s.
	Patience time.Duration
	// HandBack is how long a message is held before it is set aside, whatever it waits for. If it
	// cannot be set aside either, because nothing can be published or the waiting queue takes
	// nothing, it goes back to its queue after another half of HandBack (or of ConfirmTimeout, if
	// that is longer), and comes again. A message that is being published alone takes up to
	// ConfirmTimeout more. Messages of an ordered queue go back after HandBack, plus up to
	// ConfirmTimeout and a second for messages on their way. These times must be shorter than the
	// broker's consumer timeout (30 minutes by default). Otherwise the timeout ends sessions, and on
	// RabbitMQ 4.3 an ordered queue may lose its order. Default 10 min.
	HandBack time.Duration

	// Settlers is the number of lookups that wait at the same time, each on a separate database
	// connection (see Connections). Default 16.
	Settlers int
	// SettleWait is the longest time of one waiting lookup, by the server's lock time-out. A longer one
	// keeps its connection from the messages of other transactions; a shorter one queries the database
	// more often. At most HandBack. Default 1 s.
	SettleWait time.Duration

	// Allow lists the targets to which messages are forwarded; a committed message for another
	// target goes to the dead queue. If Allow is empty, every target is allowed: a login that may
	// write to the staging queue, and has a committed ID, then reaches every exchange that the
	// verifier's login may write to. So cmd/verifier refuses an empty list, and New refuses it for a
	// ledger on a bridge.OwnTable, whose rows stay, so that many parties have their IDs. {"*", "*"}
	// allows every target.
	//
	// The verifier's own queues are never targets, by the default exchange or by Topology.Exchange.
	// Bind none of them to another allowed exchange: messages for that exchange would reach it.
	Allow []Allow

	// Unroutable is how long a message whose target does not exist is retried before it goes to the
	// dead queue. For messages with an order key, which go one after the other, it is how long the
	// target has been missing. Default 1 min.
	Unroutable time.Duration
	// Copies is how many times a message is published to an exchange that nacks it, before it goes
	// to the dead queue. The nack means that one of the exchange's queues is full, and does not name
	// it: each attempt may give the other queues another copy. The pauses between the attempts grow
	// from 1 s to 2 min. Other messages for the target do not wait. A message for a queue by the
	// default exchange, which has no other queues, is retried without a bound, and so is with HoldKeys
	// a message with an order key. At most 65535. Default 10, which takes about 10 min.
	Copies int
	// ConfirmTimeout is how long a forwarded message may stay unconfirmed before
	// its target counts as stuck. Default 10 s.
	ConfirmTimeout time.Duration
	// Drain is how long messages that have been judged may take to be forwarded and acked after the
	// context of Run has ended. A broker that does not answer the last acks costs five seconds more.
	// Default 10 s.
	Drain time.Duration

	// SweepAge is the age at which a row of the ledger without a message counts as an orphan, and is
	// removed when the queues are empty. It must exceed the longest time between a message's staging
	// and its forwarding, with the longest transaction and the longest outage. If a row is removed
	// too early, its message goes to the dead queue ('The sweep' in package driver). At least an
	// hour; negative: no sweep. Default 7 days.
	SweepAge time.Duration

	// Watcher finds the session whose open transaction a message waits for, for the log, as far as the
	// login may see it. Inspect and InspectOwnTable of packages postgres, mysql and sqlserver return
	// one. Nil: the log names no session, and ExplainAfter has no effect.
	Watcher inspect.Watcher
	// ExplainAfter is how long a message waits for an open transaction before the log names the
	// holder. The log repeats it after twice that time, four times, and so on. Default 10 s.
	ExplainAfter time.Duration

	// Observer is called for finished messages and ended sessions. Default: none.
	Observer Observer

	// KeepUserID forwards the user-id that the sender set. The broker refuses it
	// unless the verifier's login is that user or has the impersonator tag.
	KeepUserID bool

	// Logger gets the events that an operator should see. Default slog.Default().
	Logger *slog.Logger
}

// DefaultQueue is the staging queue if Options.Topology names none.
const DefaultQueue = "twoqueue"

// Allow is a pattern of targets. In both fields * matches any number of any characters. The default
// exchange is the empty Exchange.
type Allow struct {
	Exchange   string
	RoutingKey string
}

// mostWaiting is how many messages from the staging queue may wait. With a Prefetch of 1 none may,
// or the next message would not come before it.
func (o *Options) mostWaiting() int { return o.Prefetch / 2 }

// waitingPrefetch is how many messages of the waiting queue a verifier holds at once.
func (o *Options) waitingPrefetch() int { return max(20, o.Prefetch/2) }

// shares divides MaxBytes among the queues; ordered is the share of each ordered queue.
func (o *Options) shares() (bytes struct{ staging, waiting, ordered int }) {
	quarter := o.MaxBytes / 4
	bytes.staging, bytes.waiting = o.MaxBytes-quarter, quarter
	if shards := o.Topology.OrderedShards; shards > 0 {
		bytes.staging -= quarter
		bytes.ordered = quarter / shards
	}
	return bytes
}

const (
	maxPrefetch     = 65535 // the protocol's limit
	defaultSettlers = 16
)

// withQueue returns the options with the default queue.
func (o *Options) withQueue() (out Options) {
	if o != nil {
		out = *o
	}
	out.Topology.Queue = cmp.Or(out.Topology.Queue, DefaultQueue)
	return out
}

func (o *Options) withDefaults() (Options, error) {
	out := o.withQueue()
	for _, f := range []struct {
		name     string
		value    *int
		fallback int
	}{
		{"Options.Prefetch", &out.Prefetch, 3000},
		{"Options.Settlers", &out.Settlers, defaultSettlers},
		{"Options.Copies", &out.Copies, 10},
	} {
		if *f.value < 0 || *f.value > maxPrefetch {
			return out, fmt.Errorf("%s is not between 1 and %d", f.name, maxPrefetch)
		}
		*f.value = cmp.Or(*f.value, f.fallback)
	}
	if out.MaxBytes < 0 {
		return out, errors.New("Options.MaxBytes is negative")
	}
	out.MaxBytes = cmp.Or(out.MaxBytes, 256<<20)
	for _, f := range []struct {
		name     string
		value    *time.Duration
		fallback time.Duration
	}{
		{"Options.Patience", &out.Patience, 2 * time.Second},
		{"Options.HandBack", &out.HandBack, 10 * time.Minute},
		{"Options.SettleWait", &out.SettleWait, time.Second},
		{"Options.Unroutable", &out.Unroutable, time.Minute},
		{"Options.ConfirmTimeout", &out.ConfirmTimeout, 10 * time.Second},
		{"Options.Drain", &out.Drain, 10 * time.Second},
		{"Options.ExplainAfter", &out.ExplainAfter, 10 * time.Second},
	} {
		if *f.value < 0 {
			return out, fmt.Errorf("%s is negative", f.name)
		}
		*f.value = cmp.Or(*f.value, f.fallback)
	}
	out.SettleWait = min(out.SettleWait, out.HandBack)
	switch {
	case out.SweepAge == 0:
		out.SweepAge = 7 * 24 * time.Hour
	case out.SweepAge > 0 && out.SweepAge < driver.MinSweepAge:
		return out, fmt.Errorf("Options.SweepAge is less than %v", driver.MinSweepAge)
	}
	for _, allow := range out.Allow {
		if !utf8.ValidString(allow.Exchange + allow.RoutingKey) {
			return out, fmt.Errorf("Options.Allow: %q is not UTF-8", allow)
		}
	}
	if out.Logger == nil {
		out.Logger = slog.Default()
	}
	return out, nil
}

// Connections is how many database connections a verifier with these options uses at once: one for
// each of the Settlers, one each for the lookup, the deletion, staging again, Touch, the sweep and the
// checks, and two for the query for the holder of a lock. (*sql.DB).SetMaxOpenConns must allow this
// number, and SetMaxIdleConns should. o may be nil.
func (o *Options) Connections() int {
	settlers := defaultSettlers
	if o != nil && o.Settlers != 0 {
		settlers = o.Settlers
	}
	return settlers + 8
}

// A verifier has LeastBrokerConnections to the broker without faults, and at worst
// MostBrokerConnections ('Connections to the broker' in the package comment). A limit of its user
// or virtual host should allow this number for each verifier, in addition to the senders'
// connections.
const (
	LeastBrokerConnections = 2
	MostBrokerConnections  = 1 + forward.MostConnections + 1 // to consume, to publish, to stage again
)
