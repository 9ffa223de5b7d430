package verifier

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
)

// unparkFirst and unparkLongest bound the time between looks for parked messages while
// there are none. A session begins with a look, and so does the end of an outage of the
// broker.
const (
	unparkFirst   = 500 * time.Millisecond
	unparkLongest = 15 * time.Second
)

// unpark stages parked messages, which then take the way of all others. One that the
// broker refuses stays parked; it is tried again in the next round.
func (s *session) unpark(ctx context.Context) error {
	ledger, ok := s.ledger.(bridge.Unparker)
	if !ok {
		return nil
	}
	wait := newBackOff(unparkFirst, unparkLongest)
	staged := func(messages int) {
		s.stats.unparked.Add(int64(messages))
		s.log.Info("parked messages are staged", "messages", messages)
		wait.Reset()
	}
	refused := func(id uuid.UUID, err error) {
		s.log.Error("parked message is refused and stays parked", "message_id", id.String(), "error", err)
	}
	for ctx.Err() == nil {
		err := bridge.StageParked(ctx, ledger, s.broker, s.opts.Topology.Queue, staged, refused)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, bridge.ErrNotStaged):
			s.log.Error("parked messages cannot be staged", "error", err)
		case err != nil:
			return fmt.Errorf("unpark: %w", err)
		}
		pause(ctx, wait.NextBackOff())
	}
	return nil
}
