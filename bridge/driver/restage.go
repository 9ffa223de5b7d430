package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// restageLimit is how many parked messages are staged at once.
const restageLimit = 500

// restageBytes bounds the records in one group of restage.
const restageBytes = 64 << 10

// StageParked moves the parked messages of committed transactions to the staging queue, until
// none is left that is free. As it goes on, it calls staged with the number of moved messages.
// A message that the broker will never take, such as one that is too large, stays parked:
// StageParked calls refused with its ID, and skips it.
//
// Messages that the broker did not take stay parked. Some may have arrived nevertheless, or a
// crash may leave them in both places. They then come twice, with the same ID.
func StageParked(ctx context.Context, ledger Ledger, broker *bridge.Broker, queue string, staged func(messages int), refused func(id uuid.UUID, err error)) error {
	var after uuid.UUID
	for limit := restageLimit; ; {
		var first uuid.UUID
		var failure error
		n, err := ledger.Unpark(ctx, after, limit, func(ctx context.Context, parked []Parked) error {
			first = parked[0].ID
			failure = stageParked(ctx, broker, queue, ledger.Identity(), parked)
			return failure
		})
		switch {
		case refusedForGood(failure) && limit > 1: // which of them is it?
			limit /= 2
		case refusedForGood(failure):
			refused(first, failure)
			after, limit = first, restageLimit
		case failure != nil:
			return fmt.Errorf("parked messages are not staged: %w", failure)
		case err != nil || n == 0:
			return err
		default:
			staged(n)
			limit = min(2*limit, restageLimit)
		}
	}
}

func stageParked(ctx context.Context, broker *bridge.Broker, queue string, ledger uuid.UUID, parked []Parked) error {
	staged, err := restage(ledger, time.Now(), parked)
	if err != nil {
		return err
	}
	out := make([]bridge.Outgoing, len(staged))
	for i, publishing := range staged {
		out[i] = bridge.Outgoing{Target: bridge.Target{RoutingKey: queue}, Publishing: publishing}
	}
	return broker.Publish(ctx, out)
}

// refusedForGood tells whether among the messages that failed to be staged is one that
// the broker will never take. Missing rights are mended by somebody, sooner or later.
func refusedForGood(failure error) bool {
	refusal := bridge.Refusal(failure)
	return refusal != nil && refusal.Code != amqp.AccessRefused || errors.Is(failure, bridge.ErrInvalidMessage) || errors.Is(failure, bridge.ErrMalformed)
}

// restage makes of parked messages what goes to the staging queue: groups of them, and
// alone what is too large for a group. stagedAt is when this staging began, by our
// clock, before the first of them is published (see 'The sweep').
func restage(ledger uuid.UUID, stagedAt time.Time, parked []Parked) ([]amqp.Publishing, error) {
	var all []amqp.Publishing
	var records [][]byte
	size := 0
	seal := func() error {
		if len(records) == 0 {
			return nil
		}
		next := wire.Group(ledger, records...)
		if len(records) == 1 { // as large as a message may be: too large for a group
			var err error
			if next, err = wire.Alone(ledger, records[0]); err != nil {
				return fmt.Errorf("read parked message: %w", err)
			}
		}
		next.Headers[wire.HeaderStagedAt] = stagedAt.UnixMilli()
		next.Headers[wire.HeaderRestaged] = true
		all = append(all, next)
		records, size = nil, 0
		return nil
	}
	for _, p := range parked {
		if len(records) == wire.MaxMembers || size+len(p.Message) > restageBytes {
			if err := seal(); err != nil {
				return nil, err
			}
		}
		records = append(records, p.Message)
		size += len(p.Message)
	}
	if err := seal(); err != nil {
		return nil, err
	}
	return all, nil
}
