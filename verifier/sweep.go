package verifier

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/verifier/internal/consume"
)

const (
	sweepFirst    = time.Second // after the start of a session
	sweepInterval = 10 * time.Minute
	sweepLimit    = 10_000
	// queuesPatience bounds the broker's answers about the queues. A later one ends no session: the call
	// ends with the connection.
	queuesPatience = 10 * time.Second
	// sweepPatience is long because a sweep reads all rows of the ledger.
	sweepPatience = sweepInterval
	// sweepMargin is the largest assumed difference between the clocks of senders, verifiers and the
	// database; see 'The sweep' in package driver.
	sweepMargin = 30 * time.Minute
)

// A sweeper removes orphan rows.
type sweeper struct {
	*resources
	consuming *bridge.Connection
	consumers func() []*consume.Consumer // the present ones
}

func (s *sweeper) round(ctx context.Context) (time.Duration, error) {
	idle, err := inTime(ctx, s.calls.queues, queuesPatience, func(context.Context) (bool, error) { return s.queuesAreEmpty() })
	if errors.Is(err, errNoAnswer) {
		err = fmt.Errorf("count the messages in the queues: %w: no answer within %v", bridge.ErrUnavailable, queuesPatience)
	}
	if err != nil || !idle {
		s.log.Debug("no sweep: messages may be in the queues", "error", err)
		return sweepInterval, err
	}
	swept, err := inTime(ctx, s.calls.sweep, sweepPatience, func(ctx context.Context) ([]driver.Orphan, error) {
		return s.ledger.Sweep(ctx, s.opts.SweepAge, sweepLimit)
	})
	for _, orphan := range swept {
		s.log.Warn("orphan row removed: its message was forwarded before a crash, or is lost", "message_id", orphan.ID.String(), "recorded_at", orphan.RecordedAt)
	}
	s.stats.swept.Add(int64(len(swept)))
	return sweepInterval, err
}

// queuesAreEmpty reports whether the queues contain no old message, as far as can be seen from
// here. A wrong answer sends a message to the dead queue, but does not lose it: see 'The sweep' in
// package driver.
func (s *sweeper) queuesAreEmpty() (bool, error) {
	consumers := s.consumers()
	for _, c := range consumers {
		if !c.Empty() || s.heldElsewhere(c) {
			return false, nil
		}
	}
	ch, err := s.consuming.Channel()
	if err != nil {
		return false, err
	}
	defer func() { _ = ch.Close() }()
	for _, c := range consumers {
		queue, err := ch.QueueDeclarePassive(c.Queue, true, false, false, false, nil)
		// The session consumes the queue. If the answer counts no consumer, it does not come from the
		// queue's leader, and its zero means nothing (measured on 3.10.8 and 4.3.6).
		if err != nil || queue.Messages > 0 || queue.Consumers == 0 {
			return false, err
		}
	}
	return true, nil
}

// heldElsewhere reports whether another verifier may hold messages of the consumer's queue for an
// unlimited time. The broker does not count such messages. Only the active verifier of an ordered
// queue receives messages, so a received message shows that no other one holds any.
func (s *sweeper) heldElsewhere(c *consume.Consumer) bool {
	return c.Ordered && s.opts.HoldKeys && !c.HasReceived()
}

// sweptMaybe reports whether the row of a message that was found absent may have been swept, so
// that its absence proves nothing. It must be called after the Settle.
func sweptMaybe(ctx context.Context, ledger driver.RecordedRows, m *message) (bool, error) {
	if !ledger.Features().Sweeps || m.staged.Carried { // no sweep removes a row that carries its message
		return false, nil
	}
	stagedAt := m.staged.StagedAt
	// A sweep removes no row younger than an hour, so a query is needless.
	if !stagedAt.IsZero() && time.Since(stagedAt) < driver.MinSweepAge-sweepMargin-10*time.Minute {
		return false, nil
	}
	asking, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	before, err := ledger.SweptBefore(asking)
	if err != nil {
		return false, fmt.Errorf("read sweep's watermark: %w", err)
	}
	return !before.IsZero() && stagedAt.Before(before.Add(sweepMargin)), nil
}
