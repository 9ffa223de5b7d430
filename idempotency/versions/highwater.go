package versions

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// A KeyFunc returns the source of a message, and its key. It must return the same values for every
// copy of a message.
//
// Each consumer name has its own sources. Source and key have 1 to 255 bytes of UTF-8 each. If
// the function returns an error or an invalid value, or panics, the message is dead-lettered
// with that reason.
//
// Keys are compared byte by byte, and all keys of a source must have the same length. So the usual
// texts of UUIDv7s and ULIDs are in order (if the case of letters never varies). Numbers are in
// order if they are padded with zeros:
//
//	key := fmt.Sprintf("%020d", n)
//
// A message whose key differs in length from the last one is dead-lettered: "9" and "10" would
// compare wrongly.
type KeyFunc func(d amqp.Delivery) (source, key string, err error)

// A HighWater handles a message only if its key is higher than all keys of its source that were
// handled before. It keeps one row for each source, with the highest key, however many messages
// pass. There is nothing to purge, and no duplicate is too old to be recognized.
//
// # Only in order
//
// It is correct only if the messages of a source come in the order of their keys. A message that
// comes after one with a higher key is treated as a duplicate: it is acked and NOT handled, and no
// error or log line reports it. Use it only if all of this is true:
//
//   - The source makes growing keys and publishes in their order, on one connection and one
//     channel, with no two senders for one source. A UUIDv7 grows only within the process that
//     makes it.
//   - The order does not change on the way. The bridge's verifier may change it: committed messages
//     overtake messages whose transactions are still open, and messages that a target refuses for
//     the moment. So behind a verifier a source must have only one message under way: it sends the
//     next when it knows that the last has arrived, by a reply for example. Otherwise use an
//     idempotency.Deduplicator, or Ordered if there are version numbers without holes.
//   - One consumer takes all messages of a source: the queue has x-single-active-consumer, or the
//     consumer is exclusive. It calls Handle for one message after the other, as they come.
//   - A dead-lettered message is not put back in the queue: the mark has passed it meanwhile.
//     Handle it in another way.
//
// If any of this is in doubt, use an idempotency.Deduplicator, which needs none of it.
//
// # It closes channels
//
// Messages behind a message that is requeued by a nack may overtake it (measured on RabbitMQ 3.10:
// always, if more than one is unacked, or if a quorum queue has no delivery limit). When a channel
// is closed, its messages go back in their order. So a HighWater closes the channel when an
// idempotency.Deduplicator would requeue a message, and handles no further delivery of this channel. A
// Consumer, which must have one worker, then consumes again on a new channel. Your own loop ends,
// as it does when the connection is lost: open a channel and consume again. With a prefetch of 1
// the fewest messages are delivered again.
type HighWater struct {
	engine *engine.Engine
	marks  driver.Marks
	keyOf  KeyFunc
}

// NewHighWater returns a HighWater that keeps its keys in marks, in the name of consumer. Every
// inbox of this module is a driver.Marks. Name and opts follow the rules of idempotency.New; a name
// must not be shared with another strategy.
func NewHighWater(marks driver.Marks, consumer string, keyOf KeyFunc, opts *Options) (*HighWater, error) {
	switch {
	case marks == nil:
		return nil, errors.New("new high water: marks is nil")
	case keyOf == nil:
		return nil, errors.New("new high water: keyOf is nil")
	}
	e, err := newEngine(marks, consumer, opts)
	if err != nil {
		return nil, fmt.Errorf("new high water: %w", err)
	}
	e.InOrder, e.InPlace = true, true
	return &HighWater{e, marks, keyOf}, nil
}

// Handle runs fn if d's key is higher than the mark of its source. fn and the new mark are in one
// transaction on db; Handle acks d after the commit. Any other message is acked and counted in
// Stats.Duplicates.
//
// Two messages of one source are handled one after the other, in any process: the second waits for the
// end of the first one's transaction. fn, errors and failures are as with
// idempotency.Deduplicator.Handle, except that d is handed back by closing its channel. If the channel
// is closed already, d is handed back at once. d must come from an *amqp.Channel, or have an
// Acknowledger that closes like one.
//
// After a crash before the commit nothing has happened, and the message comes again. After a
// crash between the commit and the ack it also comes again, as a duplicate.
func (h *HighWater) Handle(ctx context.Context, db *sql.DB, d amqp.Delivery, fn func(ctx context.Context, tx *sql.Tx) error) error {
	if db == nil || fn == nil {
		panic("versions: Handle needs a database and a function")
	}
	if channel, ok := d.Acknowledger.(engine.Closable); !ok {
		panic("versions: HighWater needs deliveries of a channel that can be closed")
	} else if channel.IsClosed() {
		return h.engine.HandBack(d, amqp.ErrClosed) // an earlier message may have been handed back with the channel
	}
	return h.engine.Deliver(ctx, d, func(ctx context.Context) (engine.Outcome, error) {
		source, key, err := h.read(d)
		if err != nil {
			return engine.Unfinished, engine.Refusal(fmt.Errorf("read key: %w", err))
		}
		return h.engine.InTx(ctx, db, func(ctx context.Context, tx *sql.Tx) (engine.Outcome, error) {
			mark, err := h.marks.LockMark(ctx, bridge.SQL(tx), h.engine.Consumer, source)
			switch {
			case err != nil:
				return engine.Unfinished, err
			case mark != "" && len(key) != len(mark):
				return engine.Unfinished, engine.Refusal(fmt.Errorf("all keys of source %q must have equal length: %q, then %q", source, mark, key))
			case key <= mark:
				return engine.Duplicate, nil
			}
			if err := h.marks.SetMark(ctx, bridge.SQL(tx), h.engine.Consumer, source, key); err != nil {
				return engine.Unfinished, err
			}
			return engine.Handled, h.engine.Run(d.MessageId, func() error { return fn(ctx, tx) })
		})
	})
}

// Reset sets the last handled key of a source, which may differ in length from the previous one. An
// operator uses it after a message with a key that was far too high: all later ones were treated as
// duplicates. These were acked and do not come again; have the source send them again. Latest.Reset
// shows the SQL statement.
func (h *HighWater) Reset(ctx context.Context, db *sql.DB, source, key string) error {
	var before string
	err := engine.InOwnTx(ctx, db, func(ctx context.Context, tx bridge.Tx) (err error) {
		if before, err = h.marks.LockMark(ctx, tx, h.engine.Consumer, source); err != nil {
			return err
		}
		return h.marks.SetMark(ctx, tx, h.engine.Consumer, source, key)
	})
	if err != nil {
		return fmt.Errorf("reset source %q: %w", source, err)
	}
	h.engine.Log.Warn("key reset", "source", source, "from", before, "to", key)
	return nil
}

// Stats returns the counts so far.
func (h *HighWater) Stats() idempotency.Stats { return idempotency.Stats(h.engine.Stats()) }

func (h *HighWater) read(d amqp.Delivery) (source, key string, err error) {
	if err := engine.Readable(d); err != nil {
		return "", "", err
	}
	err = h.engine.RecoverPanic("key function", d.MessageId, func() (err error) {
		source, key, err = h.keyOf(d)
		return err
	})
	if err != nil {
		return "", "", err
	}
	if err := engine.CheckKey(source); err != nil {
		return "", "", fmt.Errorf("source %w", err)
	}
	if err := engine.CheckKey(key); err != nil {
		return "", "", fmt.Errorf("key %w", err)
	}
	return source, key, nil
}
