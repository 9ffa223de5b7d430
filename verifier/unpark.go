package verifier

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

const (
	// unparkLimit is how many parked messages are staged at once.
	unparkLimit = 500
	// unparkGroup bounds the records in one of their groups, in bytes.
	unparkGroup = 64 << 10
	// unparkFirst and unparkLongest bound the time between looks for parked messages
	// while there are none. A session begins with a look, and so does the end of an
	// outage of the broker.
	unparkFirst   = 500 * time.Millisecond
	unparkLongest = 15 * time.Second
)

// unpark stages parked messages, which then take the way of all others.
func (s *session) unpark(ctx context.Context) error {
	ledger, ok := s.ledger.(bridge.Unparker)
	if !ok {
		return nil
	}
	wait := newBackOff(unparkFirst, unparkLongest)
	for ctx.Err() == nil {
		var refused error
		n, err := ledger.Unpark(ctx, unparkLimit, func(ctx context.Context, parked []bridge.Parked) error {
			refused = s.stageParked(ctx, parked)
			return refused
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case refused != nil: // they stay parked; those that have arrived come twice
			s.log.Error("parked messages cannot be staged", "error", refused)
		case err != nil:
			return fmt.Errorf("unpark: %w", err)
		case n > 0:
			s.stats.unparked.Add(int64(n))
			s.log.Info("parked messages are staged", "messages", n)
			wait.Reset()
			continue
		}
		pause(ctx, wait.NextBackOff())
	}
	return nil
}

// stageParked publishes parked messages to the staging queue.
func (s *session) stageParked(ctx context.Context, parked []bridge.Parked) error {
	stagedAt := time.Now().UnixMilli()
	var out []bridge.Outgoing
	var records [][]byte
	size := 0
	seal := func() error {
		if len(records) == 0 {
			return nil
		}
		group := bridge.Group(s.ledger.Identity(), records...)
		group.Headers[bridge.HeaderStagedAt] = stagedAt
		if len(records) == 1 { // as large as a message may be: too large for a group
			alone, err := bridge.Members(amqp.Delivery{Headers: group.Headers, Body: group.Body})
			if err != nil {
				return err
			}
			group = *as(alone[0], alone[0].Headers)
		}
		out = append(out, bridge.Outgoing{Target: bridge.Target{RoutingKey: s.opts.Topology.Queue}, Publishing: group})
		records, size = nil, 0
		return nil
	}
	for _, p := range parked {
		if size+len(p.Message) > unparkGroup {
			if err := seal(); err != nil {
				return err
			}
		}
		records = append(records, p.Message)
		size += len(p.Message)
	}
	if err := seal(); err != nil {
		return err
	}
	return s.broker.Publish(ctx, out)
}
