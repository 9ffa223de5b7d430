package sender

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// Options are the options of New. Nil and the zero value of each field mean defaults.
type Options struct {
	// Queue is the staging queue, see bridge.Topology; at most 200 bytes. It must be that
	// of a verifier that works on the same ledger. Default "twoqueue".
	Queue string
	// OrderedShards is how many ordered queues there are, see bridge.Topology. It must be
	// that of all other senders and of the verifiers. 0: none, and a message with an order
	// key is bridge.ErrInvalidMessage.
	OrderedShards int
	// Timeout bounds one staging: waiting for a connection, publishing, waiting for the
	// confirms. Messages that gather behind others have it for themselves, once those are
	// done: their transaction waits for twice Timeout at most, and one that sends messages with
	// order keys and others for four times Timeout, since the others come after. Where the
	// messages of one call for an ordered queue do not fit into one group, other
	// transactions' groups may go between, and each group takes twice Timeout at most. The
	// database transaction is open meanwhile, and the statement that records is not part of
	// it. Of what is staged early it begins with StageTx, and the caller's time until Wait
	// does not count. Default 5 s. A context that ends earlier counts.
	Timeout time.Duration
	// MaxMessageBytes is the largest body that is accepted; a larger one is
	// bridge.ErrInvalidMessage. It must not exceed the broker's max_message_size, which
	// closes the channel of whoever sends more; nor, to park, what the database takes in
	// one value (driver.Parked). Default 16 MiB, which is RabbitMQ 4's default; 3.x takes
	// 128 MiB.
	MaxMessageBytes int
	// GroupMessages is how many messages of concurrent transactions may travel to
	// the staging queue as one, while earlier ones wait for their confirms; messages
	// of more than 8 KiB go alone. Each transaction's are judged by themselves, but
	// a failure to publish is the failure of all that travelled together. Default
	// and maximum 1000; 1 stages every message alone.
	GroupMessages int
	// Parking stores messages in the database while the broker is out, so that
	// business goes on; verifiers publish them when it is back. Messages with an order key
	// are not parked: their transaction fails, at once while others are parked without
	// asking the broker. It needs a ledger with tables of its own (not an own table), and
	// rights on bridge_parked. Default ParkNever.
	Parking Parking
	// ParkAfter takes the place of Timeout where Parking is on, if it is less; after it
	// the messages are parked. During an outage one transaction in a second waits so
	// long, the others park at once. Default 1 s.
	ParkAfter time.Duration
	// Logger gets a line when an outage with parking begins and when it ends. Default
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
	case out.OrderedShards < 0 || out.OrderedShards > bridge.MaxOrderedShards:
		return out, fmt.Errorf("Options.OrderedShards is not between 0 and %d", bridge.MaxOrderedShards)
	case out.OrderedShards > 0 && out.Parking == ParkAlways:
		return out, errors.New("Options.OrderedShards needs the broker, which ParkAlways never asks: ordered messages are not parked")
	case out.Timeout < 0:
		return out, errors.New("Options.Timeout is negative")
	case out.MaxMessageBytes < 0:
		return out, errors.New("Options.MaxMessageBytes is negative")
	case out.Parking < ParkNever || out.Parking > ParkAlways:
		return out, errors.New("Options.Parking is none of ParkNever, ParkOnOutage, ParkAlways")
	case out.ParkAfter < 0:
		return out, errors.New("Options.ParkAfter is negative")
	case out.GroupMessages < 0 || out.GroupMessages > wire.MaxMembers:
		return out, fmt.Errorf("Options.GroupMessages is not between 1 and %d", wire.MaxMembers)
	}
	if out.ParkAfter == 0 {
		out.ParkAfter = time.Second
	}
	if out.Logger == nil {
		out.Logger = slog.Default()
	}
	if out.GroupMessages == 0 {
		out.GroupMessages = wire.MaxMembers
	}
	if out.Queue == "" {
		out.Queue = "twoqueue"
	}
	if out.Timeout == 0 {
		out.Timeout = 5 * time.Second
	}
	if out.MaxMessageBytes == 0 {
		out.MaxMessageBytes = 16 << 20
	}
	return out, nil
}
