package verifier

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

const (
	// unparkLimit is how many parked messages are staged at once.
	unparkLimit = 500
	// unparkFirst and unparkLongest bound the time between looks for parked messages
	// while there are none. A session begins with a look, and so does the end of an
	// outage of the broker.
	unparkFirst   = 500 * time.Millisecond
	unparkLongest = 15 * time.Second
)

// unpark stages parked messages, which then take the way of all others. One that the
// broker refuses stays parked and is passed by; it is tried again in the next round.
func (s *session) unpark(ctx context.Context) error {
	ledger, ok := s.ledger.(bridge.Unparker)
	if !ok {
		return nil
	}
	wait := newBackOff(unparkFirst, unparkLongest)
	var after uuid.UUID
	limit := unparkLimit
	for ctx.Err() == nil {
		var failure error
		var first uuid.UUID
		n, err := ledger.Unpark(ctx, after, limit, func(ctx context.Context, parked []bridge.Parked) error {
			first = parked[0].ID
			failure = s.stageParked(ctx, parked)
			return failure
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case refusedForGood(failure) && limit > 1: // which of them is it?
			limit /= 2
			continue
		case refusedForGood(failure):
			s.log.Error("parked message is refused and stays parked", "message_id", first.String(), "error", failure)
			after, limit = first, unparkLimit
			continue
		case failure != nil: // they stay parked; those that have arrived come twice
			s.log.Error("parked messages cannot be staged", "error", failure)
		case err != nil:
			return fmt.Errorf("unpark: %w", err)
		case n > 0:
			s.stats.unparked.Add(int64(n))
			s.log.Info("parked messages are staged", "messages", n)
			limit = min(2*limit, unparkLimit)
			wait.Reset()
			continue
		}
		after, limit = uuid.UUID{}, unparkLimit
		pause(ctx, wait.NextBackOff())
	}
	return nil
}

// refusedForGood tells whether a message is among those that failed to be staged which
// the broker will never take: as a rule it is too large.
func refusedForGood(failure error) bool {
	refusal := bridge.Refusal(failure)
	return refusal != nil && refusal.Code != amqp.AccessRefused || errors.Is(failure, bridge.ErrInvalidMessage) || errors.Is(failure, bridge.ErrMalformed)
}

// stageParked publishes parked messages to the staging queue.
func (s *session) stageParked(ctx context.Context, parked []bridge.Parked) error {
	staged, err := bridge.Restage(s.ledger.Identity(), time.Now(), parked)
	if err != nil {
		return err
	}
	out := make([]bridge.Outgoing, len(staged))
	for i, p := range staged {
		out[i] = bridge.Outgoing{Target: bridge.Target{RoutingKey: s.opts.Topology.Queue}, Publishing: p}
	}
	return s.broker.Publish(ctx, out)
}
