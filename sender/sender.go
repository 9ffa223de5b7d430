package sender

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// A Sender stages messages for transactions. Any number of goroutines may use it. It needs no
// closing: its publications end within twice Options.Timeout (for an ordered queue, each group of a
// call's messages does), or with the broker. Carried messages are published for at most
// driver.StageAgainAfter plus Options.Timeout; Flush waits for them.
type Sender struct {
	ledger  driver.Recorder
	stager  *stager
	ordered ordered
	carrier *carrier // nil: no message is carried
	outage  *outage
	count   *counters
	opts    Options
}

// New returns a sender that records in ledger and stages through broker, a *bridge.Broker. The
// caller closes both after the last use of the sender. opts may be nil. New calls neither database
// nor broker. Its error names the wrong argument or option.
func New(ledger driver.Recorder, broker Broker, opts *Options) (*Sender, error) {
	if ledger == nil {
		return nil, errors.New("new sender: ledger is nil")
	}
	if b, ours := broker.(*bridge.Broker); broker == nil || ours && b == nil {
		return nil, errors.New("new sender: broker is nil")
	}
	options, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("new sender: %w", err)
	}
	if !ledger.Features().Carries {
		if options.Carry != CarrySmall && options.Carry != CarryNever {
			return nil, errors.New("new sender: Options.Carry needs a ledger with tables of its own; the rows of this one cannot carry messages")
		}
		options.Carry = CarryNever
	}
	s := &Sender{ledger: ledger, count: newCounters(), opts: options}
	s.outage = &outage{queue: options.Queue, logger: options.Logger, explain: s.explain, quiet: options.Carry == CarryNever}
	limit := new(wire.SizeLimit)
	newStager := func(queue string) *stager {
		return &stager{
			ledger:  ledger.Identity(),
			queue:   bridge.Target{Exchange: options.Exchange, RoutingKey: queue},
			broker:  broker,
			timeout: options.Timeout,
			packing: wire.Packing{Records: options.GroupMessages, Bytes: groupBytes},
			limit:   limit,
			outage:  s.outage,
			count:   s.count,
		}
	}
	s.stager = newStager(options.Queue)
	s.ordered = newOrdered(options, newStager)
	if options.Carry != CarryNever {
		s.carrier = &carrier{stager: newStager(options.Queue), outage: s.outage, bound: options.CarryPendingBytes}
	}
	return s, nil
}

// SendTx records the messages' IDs in tx, stages the messages, waits until the broker has confirmed
// all of them that are not carried (Options.Carry), and returns their IDs in order. The caller then
// commits, which sends the messages, or rolls back, which drops them. Call SendTx as late in the
// transaction as possible, or use StageTx; a verifier waits from here to the commit. It may be
// called several times in one transaction. Without messages it does nothing.
//
// On any error the caller must roll back. Then no staged message is delivered. (A rollback to a
// savepoint that was set before the call is enough.) The error is bridge.ErrInvalidMessage before
// any statement was executed, or an error of the ledger's Record before any message was published.
// After that it is a *bridge.PublishError if the broker returned, nacked or did not confirm a
// message within Options.Timeout, and otherwise bridge.ErrUnavailable, ErrBlocked or
// ErrCredentials. The package comment lists the fixes. bridge.Retryable reports whether a new
// transaction may succeed.
//
// A PublishError names a message of this transaction. If no message has an order key, and
// Options.GroupMessages is 1 or a message is too large for a group, it names the message that
// failed, otherwise the first one that was published with it.
//
// If SendTx finds that the broker is out, its error is one for which bridge.Retryable returns true.
// A new transaction's messages are then carried, unless Options.Carry is CarryNever or they have an
// order key.
//
// If the process dies, the database rolls back and the verifier drops the staged messages.
func (s *Sender) SendTx(ctx context.Context, tx bridge.Tx, msgs ...bridge.Message) ([]uuid.UUID, error) {
	staged, err := s.stage(ctx, tx, nil, msgs)
	if err != nil {
		return nil, err
	}
	if err := staged.Wait(ctx); err != nil {
		return nil, err
	}
	return staged.IDs(), nil
}

// Cancel cancels a message in tx, if no copy of it can exist yet: a delayed message whose time has
// not come, or one that only its row carries because the broker was out or
// Options.CarryPendingBytes was reached. It reports whether it did. If it returns true and tx
// commits, the message is never delivered; after a rollback it is. If Cancel returns false, the
// message was delivered, is on its way, was never sent, or is in another database.
//
// If a verifier claims the row at the same moment, Cancel returns false or true, depending on who
// was first. After a failover to a replica that lacks a verifier's last commits, Cancel may return
// true although the message was delivered. Cancel deletes a row of the ledger, so the login needs
// the role migrate.Canceller. The messages of Tx.Send in InTx are recorded only after the function
// has returned; before that Cancel does not find them.
//
// After an error the caller must roll back. If a verifier claims the row at the same moment, Cancel
// may return the error with which the database reports such conflicts: PostgreSQL at REPEATABLE
// READ and SERIALIZABLE (SQLSTATE 40001), SQL Server at SNAPSHOT (3960), MariaDB since 11.6.2 also
// at its default level (1020; see package mysql). Run the transaction again. On a ledger of an own
// table the error wraps errors.ErrUnsupported.
func (s *Sender) Cancel(ctx context.Context, tx bridge.Tx, id uuid.UUID) (bool, error) {
	return s.ledger.Cancel(ctx, tx, id)
}

// Flush waits until no carried message is on its way to the broker: each one is confirmed, or only its
// row has it because it could not be published. Without Flush, messages that are on their way when
// the process ends may be staged from their rows, some seconds late. So call Flush before the process
// ends and before the Broker is closed, when no transaction sends any more; otherwise it waits for
// their messages too. Flush returns an error if ctx ends first, or if the sender knows that the broker
// is out: at once, or when a confirm has been missing for 5 s. No committed message is lost by that.
// If no message is carried, Flush returns nil at once.
func (s *Sender) Flush(ctx context.Context) error {
	if s.carrier == nil {
		return nil
	}
	return s.carrier.flush(ctx)
}

// encoded is a copy of the caller's message, in its staged form.
type encoded struct {
	id       uuid.UUID
	orderKey string
	record   []byte
	alone    bool // it gains nothing from a group
	carried  bool // its row holds the record
	// notBefore is the time before which no verifier stages the message; zero: it is not delayed. A
	// delayed message is carried, and the sender never publishes it.
	notBefore time.Time
}

func idsOf(messages []encoded) []uuid.UUID {
	ids := make([]uuid.UUID, len(messages))
	for i, m := range messages {
		ids[i] = m.id
	}
	return ids
}

// encode gives every message an ID and copies it in its staged form, before any statement is
// executed.
func (s *Sender) encode(ctx context.Context, msgs []bridge.Message) ([]encoded, error) {
	out := make([]encoded, len(msgs))
	for i, m := range msgs {
		var err error
		if out[i], err = s.encodeOne(ctx, m); err != nil {
			return nil, fmt.Errorf("send: message %d of %d: %w", i+1, len(msgs), err)
		}
	}
	return out, nil
}

func (s *Sender) encodeOne(ctx context.Context, m bridge.Message) (encoded, error) {
	now := time.Now() // before the ID is recorded: see 'The sweep' in package driver
	if m.NotBefore.After(now) {
		now = m.NotBefore // a delayed message's age begins when it is due
	}
	if m.ID == uuid.Nil {
		id, err := newID(now)
		if err != nil {
			return encoded{}, fmt.Errorf("make message ID: %w", err)
		}
		m.ID = id
	}
	size := len(m.Publishing.Body)
	if size > s.opts.MaxMessageBytes {
		return encoded{}, fmt.Errorf("%w: body of %d bytes: at most %d (Options.MaxMessageBytes)", bridge.ErrInvalidMessage, size, s.opts.MaxMessageBytes)
	}
	if m.OrderKey != "" && s.opts.OrderedShards == 0 {
		return encoded{}, fmt.Errorf("%w: field OrderKey: there are no ordered queues (Options.OrderedShards)", bridge.ErrInvalidMessage)
	}
	if s.opts.Tracer != nil {
		m.Publishing.Headers = s.opts.Tracer.Create(ctx, m)
	}
	if !m.NotBefore.IsZero() && !s.ledger.Features().Carries {
		return encoded{}, fmt.Errorf("%w: field NotBefore: a delayed message waits in its row, and the rows of this ledger cannot carry messages: use a ledger with tables of its own", bridge.ErrInvalidMessage)
	}
	publishing, err := wire.Encode(m, s.ledger.Identity())
	if err != nil {
		return encoded{}, err
	}
	if !madeNow(m.ID, now) {
		publishing.Headers[wire.HeaderStagedAt] = now.UnixMilli()
	}
	record, carried := s.encodeRecord(m, publishing)
	return encoded{m.ID, m.OrderKey, record, size > groupBytes/3, carried, m.NotBefore}, nil
}

// newID returns a UUIDv7 with a given time. Receivers refuse IDs that are older than their
// idempotency.Options.Retention, and a delayed message's ID must not be that old on arrival.
func newID(at time.Time) (uuid.UUID, error) {
	id, err := uuid.NewV7()
	if ms := at.UnixMilli(); err == nil && ms > wire.MadeAt(id).UnixMilli() {
		var bytes [8]byte
		binary.BigEndian.PutUint64(bytes[:], uint64(ms))
		copy(id[:6], bytes[2:])
	}
	return id, err
}

// encodeRecord returns the record of a message and whether its row carries it.
func (s *Sender) encodeRecord(m bridge.Message, publishing amqp.Publishing) (record []byte, carried bool) {
	most := math.MaxInt
	if s.opts.Carry == CarrySmall && m.NotBefore.IsZero() {
		most = s.opts.CarryBytes
	}
	if m.NotBefore.IsZero() && (s.opts.Carry == CarryNever || s.opts.Carry == CarryOnOutage) || m.OrderKey != "" || len(publishing.Body) > most {
		return wire.EncodeRecord(publishing), false
	}
	publishing.Headers[wire.HeaderCarried] = true
	if record = wire.EncodeRecord(publishing); len(record) <= most {
		return record, true
	}
	delete(publishing.Headers, wire.HeaderCarried)
	return wire.EncodeRecord(publishing), false
}

// splitByQueue separates the messages that are not carried: messages with an order key by the
// queues of their keys, and the others.
func (s *Sender) splitByQueue(messages []encoded) (inOrder map[string]*batch, others batch) {
	inOrder = make(map[string]*batch)
	others.alone = s.opts.GroupMessages == 1
	for _, m := range messages {
		if m.carried {
			continue
		}
		if m.orderKey == "" {
			others.add(m.id, m.record)
			others.alone = others.alone || m.alone
			continue
		}
		queue := s.ordered.topology.OrderedQueueOf(m.orderKey)
		if inOrder[queue] == nil {
			inOrder[queue] = new(batch)
		}
		inOrder[queue].add(m.id, m.record)
	}
	return inOrder, others
}

// madeNow reports whether the ID's own time is close enough to the time of staging.
func madeNow(id uuid.UUID, now time.Time) bool {
	return now.Sub(wire.MadeAt(id)).Abs() < time.Minute
}
