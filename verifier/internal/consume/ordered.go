package consume

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twoqueue/twoqueue/bridge"
)

// OrderedPrefetch is how many messages of each ordered queue a verifier holds at once. It must be
// the same for all verifiers. A quorum queue puts the messages that a consumer gives back into a
// separate list (returns in RabbitMQ's rabbit_fifo), which it delivers first. If the next
// consumer's prefetch is smaller, the messages that it gives back in its turn overtake the rest of
// the list.
const OrderedPrefetch = 500

// An OrderedQueue consumes an ordered queue, by one Consumer after the other.
//
// Its messages are never nacked, since that would change the order of the queue: only the end of a
// channel hands messages back in their order. So if a consumer holds a message for too long, or had
// no room for a delivery that now fits, its channel is closed and the next consumer begins. Before
// that, messages on their way are finished; the rest is removed from memory and delivered again.
type OrderedQueue struct {
	OrderedQueueConfig
	conn        *bridge.Connection
	unpackEnded chan struct{} // closed when no further delivery is unpacked

	mu       sync.Mutex
	consumer *Consumer
}

// An OrderedQueueConfig has the arguments of OpenOrderedQueue. All are required.
type OrderedQueueConfig struct {
	Config
	// FinishWait is how long messages that are on their way may delay the change of the channel.
	// After it they come twice.
	FinishWait time.Duration
	// IsHeld reports whether a message's target takes no messages now. No change waits for these.
	IsHeld func(message any) bool
	Log    *slog.Logger
}

// OpenOrderedQueue opens the first channel of an ordered queue.
func OpenOrderedQueue(conn *bridge.Connection, config OrderedQueueConfig) (*OrderedQueue, error) {
	config.Ordered = true
	o := &OrderedQueue{OrderedQueueConfig: config, conn: conn, unpackEnded: make(chan struct{})}
	return o, o.begin()
}

// begin opens the next consumer.
func (o *OrderedQueue) begin() error {
	c, err := Open(o.conn, o.Config)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.consumer = c
	return nil
}

// Consumer returns the present consumer.
func (o *OrderedQueue) Consumer() *Consumer {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.consumer
}

// WaitUnpacked waits until no further delivery is unpacked, or until moving ends.
func (o *OrderedQueue) WaitUnpacked(moving context.Context) error {
	select {
	case <-o.unpackEnded:
	case <-moving.Done():
	}
	return nil
}

// Serve consumes the queue, over one channel after the other. It unpacks nothing after taking has
// ended, and ends with moving.
func (o *OrderedQueue) Serve(moving, taking context.Context) error {
	for {
		c := o.Consumer()
		if err := c.Consume(); err != nil {
			return err
		}
		life, end := context.WithCancel(moving)
		stages, life := errgroup.WithContext(life)
		again := false
		stages.Go(func() error { return c.Take(life) })
		stages.Go(func() error { return c.RunAcks(life) })
		stages.Go(func() error {
			taking, stop := context.WithCancel(taking)
			defer context.AfterFunc(life, stop)()
			defer stop()
			if err := o.unpackUntilReopen(taking, c); err != nil {
				return err
			}
			if taking.Err() != nil { // the caller's drain finishes the messages on their way
				close(o.unpackEnded)
				return nil
			}
			again = true
			end()
			return nil
		})
		err := stages.Wait()
		end()
		if err != nil || !again {
			return err
		}
		if err := o.reopen(moving); err != nil {
			return err
		}
	}
}

// unpackUntilReopen unpacks the consumer's deliveries until its channel should be closed and none of
// its messages is on its way, or until ctx ends. After that no message of the consumer gets a turn.
func (o *OrderedQueue) unpackUntilReopen(ctx context.Context, c *Consumer) error {
	unpacking, stop := context.WithCancel(ctx)
	defer stop()
	var unpacked errgroup.Group
	unpacked.Go(func() error { return c.Unpack(unpacking) })
	c.awaitReopen(unpacking)
	stop()
	err := unpacked.Wait()
	c.order.Close()
	if err == nil {
		o.awaitUnderWay(ctx, c)
	}
	return err
}

// reopen closes the channel and opens the next consumer.
func (o *OrderedQueue) reopen(ctx context.Context) error {
	defer context.AfterFunc(ctx, o.conn.Close)() // the AMQP library's channels take no context
	c := o.Consumer()
	err := c.discardDuring(func() error {
		return o.conn.Request(func() error { return o.closeChannel(c) })
	})
	if err != nil {
		return err
	}
	return o.begin()
}

// checkInterval is the time between checks of an ordered queue's consumer.
const checkInterval = 50 * time.Millisecond

// reopenPause is the shortest time before a channel is closed for lack of room. Each reopening has
// all messages of the channel delivered again.
const reopenPause = 5 * checkInterval

// awaitReopen waits until the channel should be closed, or ctx ends.
func (c *Consumer) awaitReopen(ctx context.Context) {
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			if c.shouldReopen(now) {
				return
			}
		}
	}
}

// shouldReopen reports whether the consumer holds a message for too long, or has room again for a
// delivery that had none.
func (c *Consumer) shouldReopen(now time.Time) bool {
	if since, some := c.acks.oldest(); some && now.Sub(since) >= c.HandBack {
		return true
	}
	if now.Sub(c.opened) < reopenPause {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	first := slices.IndexFunc(c.resting, needsRoom)
	return first >= 0 && c.bytes <= c.MaxBytes/2 && c.fits(c.bytes, c.resting[first])
}

// awaitUnderWay waits until no message of the consumer is on its way, except messages for held
// targets. Meanwhile the caller removes the messages that wait for such targets; a trial in
// progress may come twice.
func (o *OrderedQueue) awaitUnderWay(ctx context.Context, c *Consumer) {
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	late := time.After(o.FinishWait)
	free := func(p *Place) bool { return !o.IsHeld(p.Of) }
	for slices.ContainsFunc(c.order.UnderWay(), free) {
		select {
		case <-ctx.Done():
			return
		case <-late: // messages still on their way come twice then
			return
		case <-ticker.C:
		}
	}
}

// closeChannel acks the safe messages, and gives all others back by closing the channel.
func (o *OrderedQueue) closeChannel(c *Consumer) error {
	if err := c.Finish(); err != nil {
		return err
	}
	if err := c.ch.Close(); err != nil {
		return fmt.Errorf("leave channel of %q: %w", c.Queue, err)
	}
	o.Log.Info("an ordered queue is consumed over a new channel", "queue", c.Queue, "held", c.open.Load())
	return nil
}
