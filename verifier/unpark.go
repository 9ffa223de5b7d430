package verifier

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

const (
	// unparkFirst and unparkLongest bound the time between looks for parked messages while
	// there are none. A session begins with a look, and so does the end of an outage of the
	// broker.
	unparkFirst   = 500 * time.Millisecond
	unparkLongest = 15 * time.Second
	// refusedLimit bounds how many refused messages are remembered as named.
	refusedLimit = 1000
)

// unpark stages parked messages, which then take the way of all others. One that the
// broker refuses stays parked; it is tried again in the next round.
func (s *session) unpark(ctx context.Context) {
	if !s.ledger.Features().Parks {
		return
	}
	wait := newBackOff(unparkFirst, unparkLongest)
	staged := func(messages int) {
		s.stats.unparked.Add(int64(messages))
		s.log.Info("parked messages are staged", "messages", messages)
		wait.Reset()
	}
	named := make(map[uuid.UUID]bool)
	refused := func(id uuid.UUID, err error) {
		if !named[id] && len(named) < refusedLimit {
			named[id] = true
			s.log.Error("parked message is refused and stays parked", "message_id", id.String(), "error", err)
		}
	}
	s.jobs.unpark.Run(ctx, func(ctx context.Context) (time.Duration, error) {
		err := driver.StageParked(ctx, s.ledger, s.broker, s.opts.Topology.Queue, staged, refused)
		return wait.NextBackOff(), err
	})
}
