package sender

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// Staged has the messages of one call of StageTx: recorded, and on their way to the staging queue.
// The transaction must not commit before Wait has returned nil.
type Staged struct {
	sender *Sender
	ids    []uuid.UUID
	batch  batch // the messages that are not carried and have no order key

	mu          sync.Mutex
	publication *publication // nil: nothing has been published yet
	judged      bool
	err         error // valid once judged
}

// StageTx records the messages' IDs in tx and begins to publish the messages. It does not wait
// for the broker's confirm, which comes while the caller runs other statements in tx:
//
//	staged, err := s.StageTx(ctx, tx, message) // on an error roll back
//	// … the other statements of the transaction …
//	err = staged.Wait(ctx) // on an error roll back
//	err = tx.Commit()
//
// The caller must call Wait, and may commit only after it has returned nil. If all messages are
// carried (Options.Carry), Wait returns nil at once. After an error of either call the caller must
// roll back. SendTx is StageTx and Wait, and its comment applies to both together. For messages with
// an order key StageTx itself waits until they are confirmed, to keep their order.
//
// ctx bounds the statement that records. Its end does not stop the publication, which ends within
// twice Options.Timeout (with an order key: each group of messages does), whether or not Wait is
// called. So a caller that rolls back need not call Wait, and the verifier drops the staged messages.
// The messages are copied: the caller may change them when StageTx has returned. At most 16 MiB, or
// the messages of one call, are published early; Wait publishes the rest.
//
// After a rollback to a savepoint that was set before StageTx, the messages are dropped and the
// transaction may commit the rest. Wait is not needed then.
//
// While the sender knows that the broker is out, the messages are carried instead, unless
// Options.Carry is CarryNever. If Wait is the first to find the outage, it fails. Then roll back
// and begin a new transaction, whose messages are carried.
func (s *Sender) StageTx(ctx context.Context, tx bridge.Tx, msgs ...bridge.Message) (*Staged, error) {
	return s.stage(ctx, tx, nil, msgs)
}

// stage records and stages the messages in first, which are encoded, and then msgs.
func (s *Sender) stage(ctx context.Context, tx bridge.Tx, first []encoded, msgs []bridge.Message) (*Staged, error) {
	messages, err := s.encode(ctx, msgs)
	if err != nil {
		return nil, err
	}
	messages = append(first, messages...)
	if len(messages) == 0 {
		return &Staged{judged: true}, nil
	}
	if s.carrier != nil {
		if err := s.carrier.carryInOutage(messages); err != nil {
			return nil, fmt.Errorf("send: %w", err)
		}
	}
	inOrder, batch := s.splitByQueue(messages)
	if len(inOrder) > 0 && s.carrier != nil && s.outage.holdsBackOrdered() {
		return nil, s.mustRollBack(ctx, fmt.Errorf("%w: the last attempt failed a moment ago, and messages with an order key are never carried", bridge.ErrUnavailable))
	}
	// Rule 1: the INSERT has succeeded before the first byte leaves.
	ended := s.trace(ctx, Record, len(messages))
	ids, err := s.recordAll(ctx, tx, messages)
	ended(err)
	if err != nil {
		return nil, fmt.Errorf("send: %w", err)
	}
	s.count.addRecorded(messages)
	if len(inOrder) > 0 {
		ended := s.trace(ctx, Stage, len(messages))
		err := s.ordered.stage(ctx, inOrder)
		ended(err)
		if s.carrier != nil && err == nil {
			s.outage.orderedConfirmed()
		}
		if err != nil {
			return nil, s.mustRollBack(ctx, err)
		}
	}
	staged := &Staged{sender: s, ids: ids, batch: batch, judged: len(batch.records) == 0}
	if staged.judged {
		return staged, nil // all have an order key or are carried
	}
	if staged.publication, err = s.stager.begin(ctx, batch, false); err != nil {
		return nil, s.mustRollBack(ctx, err)
	}
	return staged, nil
}

// recordAll records the messages and begins to publish the carried ones. It returns all IDs.
func (s *Sender) recordAll(ctx context.Context, tx bridge.Tx, messages []encoded) ([]uuid.UUID, error) {
	ids := idsOf(messages)
	entries := driver.Plain(ids...)
	for i, m := range messages {
		if m.carried {
			entries[i].Message, entries[i].NotBefore = m.record, m.notBefore
		}
	}
	if s.carrier == nil {
		return ids, s.ledger.Record(ctx, tx, entries)
	}
	admitted := s.carrier.admit(messages)
	recorded := false
	defer func() {
		if !recorded { // after a panic too
			s.carrier.release(admitted)
		}
	}()
	for i, m := range messages {
		entries[i].Unpublished = m.carried && admitted[i] == nil
	}
	if err := s.ledger.Record(ctx, tx, entries); err != nil {
		return nil, err
	}
	recorded = true
	s.carrier.send(admitted)
	return ids, nil
}

// IDs returns the messages' IDs in the order in which they were given to StageTx.
func (s *Staged) IDs() []uuid.UUID { return slices.Clone(s.ids) }

// Wait waits until the broker has confirmed all messages that are not carried. If it returns nil,
// the transaction may commit. On any error it must roll back; the errors are as from SendTx. The
// time between StageTx and Wait does not count: a confirm that came within Options.Timeout is in
// time, however late Wait is called. If ctx ends before the confirm, Wait fails.
//
// Wait executes no statement. It may run beside other statements of the transaction. A second call
// waits for the first and returns the same.
func (s *Staged) Wait(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.judged {
		ended := s.sender.trace(ctx, Stage, len(s.batch.records))
		s.err = s.wait(ctx)
		ended(s.err)
		s.judged = true
	}
	return s.err
}

// wait enforces rule 2: it returns nil only if every message that is not carried is confirmed.
func (s *Staged) wait(ctx context.Context) error {
	err := s.confirmed(ctx)
	if err != nil {
		return s.sender.mustRollBack(ctx, err)
	}
	return nil
}

// confirmed publishes messages that were not published early, and waits for all confirms.
func (s *Staged) confirmed(ctx context.Context) (err error) {
	stager := s.sender.stager
	if s.publication == nil {
		if s.publication, err = stager.begin(ctx, s.batch, true); err != nil {
			return err
		}
	}
	return stager.wait(ctx, s.publication, s.batch.ids[0])
}

// mustRollBack adds to the error of a staging that the transaction must roll back.
func (s *Sender) mustRollBack(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) && !errors.Is(err, context.Canceled) {
		err = fmt.Errorf("%w: %w", err, context.Canceled) // bridge.Retryable must say false
	}
	return fmt.Errorf("send: the transaction must roll back: %w", s.explain(err))
}

// explain adds the fix to the error of a publication, if there is a known one.
func (s *Sender) explain(err error) error {
	if !errors.Is(err, bridge.ErrReturned) {
		return err
	}
	queue := s.opts.Queue
	if failed := new(bridge.PublishError); errors.As(err, &failed) {
		queue = failed.Target.RoutingKey
	}
	if s.opts.Exchange != "" {
		return fmt.Errorf("exchange %q has no binding to a queue %q; verifiers with the same exchange declare both when they start, as does bridge.Topology: %w", s.opts.Exchange, queue, err)
	}
	return fmt.Errorf("there is no queue %q; verifiers declare it when they start, as does bridge.Topology: %w", queue, err)
}
