package sender

import (
	"context"

	"github.com/twoqueue/twoqueue/bridge"
)

// ordered stages messages with an order key. Each ordered queue has a separate stager, which
// publishes only after its last publication is confirmed. So a message that is staged after
// another's transaction has committed is behind the other message in their queue. The messages of
// one transaction are in their order there too.
type ordered struct {
	topology bridge.Topology
	stagers  map[string]*stager // by queue
}

func newOrdered(o Options, newStager func(queue string) *stager) ordered {
	out := ordered{
		topology: bridge.Topology{Queue: o.Queue, OrderedShards: o.OrderedShards},
		stagers:  make(map[string]*stager, o.OrderedShards),
	}
	for _, queue := range out.topology.OrderedQueues() {
		out.stagers[queue] = newStager(queue)
		out.stagers[queue].ordered = true
	}
	return out
}

// stage stages messages, each in the queue of its key, and waits for the confirms. So later
// messages, of the same transaction or of one that begins after its commit, are behind them.
func (o ordered) stage(ctx context.Context, batches map[string]*batch) (err error) {
	ended := make(chan error, len(batches))
	for queue, b := range batches {
		go func() { ended <- o.stagers[queue].stage(ctx, *b) }()
	}
	for range batches {
		if one := <-ended; err == nil {
			err = one
		}
	}
	return err
}

// stage publishes a batch and waits for the confirms.
func (s *stager) stage(ctx context.Context, b batch) error {
	joined, err := s.begin(ctx, b, true)
	if err != nil {
		return err
	}
	return s.wait(ctx, joined, b.ids[0])
}
