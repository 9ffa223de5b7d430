package sender

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// Options are the options of New. Nil and the zero value of each field mean defaults.
type Options struct {
	// Queue is the staging queue (see bridge.Topology), at most 200 bytes. A verifier of the
	// same ledger must consume it. Default "twoqueue".
	Queue string
	// Exchange is the exchange of bridge.Topology to which messages are staged. It must be the same in
	// all senders and verifiers. The login then needs the right to write to this exchange and to no
	// other. Empty: the default exchange.
	Exchange string
	// OrderedShards is how many ordered queues there are (see bridge.Topology). It must be the
	// same in all senders and verifiers. 0: there are none, and a message with an order key is
	// bridge.ErrInvalidMessage.
	OrderedShards int
	// Timeout bounds one staging, while the database transaction is open: waiting for a connection,
	// publishing, waiting for the confirms, but not the statement that records. Messages that gather
	// behind others have the full Timeout after these are done, so a transaction waits for at most
	//
	//	twice Timeout       in general
	//	four times Timeout  if it sends messages with and without order keys: those
	//	                    without a key come after
	//	twice Timeout for   if the messages of one call for an ordered queue do not fit
	//	each group          into one group, since other transactions' groups may go between.
	//	                    On an overloaded queue such a transaction fails first
	//
	// For messages that are staged early the time begins with StageTx, and the caller's time until
	// Wait does not count. A context that ends earlier counts. Default 5 s.
	Timeout time.Duration
	// MaxMessageBytes is the largest accepted body; a larger one is bridge.ErrInvalidMessage. It
	// must not exceed the broker's max_message_size: the broker closes the channel of a sender that
	// publishes more. Nor may it exceed the largest value of the database (driver.Entry), unless
	// Carry is CarryNever: in an outage messages of every size are carried. Default 16 MiB, as in
	// RabbitMQ 4; 3.x accepts 128 MiB.
	MaxMessageBytes int
	// GroupMessages is how many messages of concurrent transactions may travel to the staging
	// queue as one group, while earlier ones wait for their confirms. Messages of more than 8
	// KiB go alone. Each message is judged by itself, but if a group cannot be published, all
	// its transactions fail. A group has at most 24 KiB, or less after the broker has refused one
	// because of a smaller max_message_size. Default and maximum 1000; 1 stages every message alone.
	GroupMessages int
	// Carry selects the messages that are carried: a message's row in the ledger holds a copy of it,
	// so the commit does not wait for the broker ('Carrying' and 'When the broker is out' in the
	// package comment). Messages with an order key are never carried. On a ledger of an own table
	// CarrySmall carries nothing, and New refuses CarryOnOutage and CarryAlways. Default CarrySmall.
	Carry Carry
	// CarryBytes is the largest message that CarrySmall carries: body, properties and headers as
	// stored in the row (wire.EncodeRecord). Default 8 KiB. With 8 transactions at once, carrying
	// took longer than waiting for the confirm from 16 KiB on with PostgreSQL, and at no size up to
	// 32 KiB with MariaDB (tests/bench, scenario sizes).
	CarryBytes int
	// CarryPendingBytes bounds the memory of carried messages without a confirm. Beyond it a message
	// is not published: only its row is written, and a verifier stages it. A message that is larger
	// than the bound is published if no other one is pending. Default 8 MiB.
	CarryPendingBytes int
	// Tracer makes spans, and writes the trace context into the messages' headers. Package otelsender
	// has one. Default: none.
	Tracer Tracer
	// Logger gets a line when messages can no longer be published, one when they can again, and one
	// for each carried message that the broker refuses, unless Carry is CarryNever. Default
	// slog.Default().
	Logger *slog.Logger
}

func (o *Options) withDefaults() (Options, error) {
	var out Options
	if o != nil {
		out = *o
	}
	switch {
	case len(out.Queue) > 200:
		return out, errors.New("Options.Queue has more than 200 bytes")
	case bridge.CheckExchange(out.Exchange) != nil:
		return out, fmt.Errorf("Options.Exchange %w", bridge.CheckExchange(out.Exchange))
	case out.OrderedShards < 0 || out.OrderedShards > bridge.MaxOrderedShards:
		return out, fmt.Errorf("Options.OrderedShards is not between 0 and %d", bridge.MaxOrderedShards)
	case out.Timeout < 0:
		return out, errors.New("Options.Timeout is negative")
	case out.MaxMessageBytes < 0:
		return out, errors.New("Options.MaxMessageBytes is negative")
	case out.Carry < CarrySmall || out.Carry > CarryAlways:
		return out, errors.New("Options.Carry is none of CarrySmall, CarryNever, CarryOnOutage, CarryAlways")
	case out.CarryBytes < 0:
		return out, errors.New("Options.CarryBytes is negative")
	case out.CarryPendingBytes < 0:
		return out, errors.New("Options.CarryPendingBytes is negative")
	case out.GroupMessages < 0 || out.GroupMessages > wire.MaxMembers:
		return out, fmt.Errorf("Options.GroupMessages is not between 1 and %d", wire.MaxMembers)
	}
	out.Queue = cmp.Or(out.Queue, "twoqueue")
	out.Timeout = cmp.Or(out.Timeout, 5*time.Second)
	out.MaxMessageBytes = cmp.Or(out.MaxMessageBytes, 16<<20)
	out.GroupMessages = cmp.Or(out.GroupMessages, wire.MaxMembers)
	out.CarryBytes = cmp.Or(out.CarryBytes, 8<<10)
	out.CarryPendingBytes = cmp.Or(out.CarryPendingBytes, 8<<20)
	if out.Logger == nil {
		out.Logger = slog.Default()
	}
	return out, nil
}
