package verifier

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twoqueue/twoqueue/verifier/internal/forward"
)

// A shard is an ordered queue, with the consumer that consumes it at present.
//
// Its messages are never nacked, since that would change the order of the queue: only the end of a
// channel hands messages back in their order. So if a consumer holds a message for too long, or had
// no room for a delivery that now fits, its channel is closed and the next consumer begins. Before
// that, messages on their way are finished; the rest is forgotten here and is delivered again.
type shard struct {
	quiet chan struct{} // closed when none of its deliveries is unpacked any more

	mu       sync.Mutex
	consumer *consumer
}

// orderedPrefetch is how many messages of each ordered queue a verifier holds at once. It must be
// the same for all verifiers. A quorum queue puts the messages that a consumer gives back into a
// separate list (returns in RabbitMQ's rabbit_fifo), which it delivers first. If the next
// consumer's prefetch is smaller, the messages that it gives back in its turn overtake the rest of
// the list.
const orderedPrefetch = 500

func (s *session) openShard(queue string, maxBytes int) (*shard, error) {
	sh := &shard{quiet: make(chan struct{})}
	return sh, s.begin(sh, queue, maxBytes)
}

// begin opens the shard's next consumer.
func (s *session) begin(sh *shard, queue string, maxBytes int) error {
	c, err := s.openConsumer(queue, orderedPrefetch, maxBytes)
	if err != nil {
		return err
	}
	c.keyOrder = newKeyOrder()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.consumer = c
	return nil
}

func (sh *shard) current() *consumer {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.consumer
}

// wait waits until no delivery of the shard is unpacked any more.
func (sh *shard) wait(moving context.Context) error {
	select {
	case <-sh.quiet:
	case <-moving.Done():
	}
	return nil
}

// serve consumes a shard, over one channel after the other. As session.run does with the other
// consumers, it unpacks nothing after taking has ended, and ends with moving.
func (s *session) serve(moving, taking context.Context, sh *shard) error {
	for {
		c := sh.current()
		if err := c.consume(); err != nil {
			return err
		}
		life, end := context.WithCancel(moving)
		stages, life := errgroup.WithContext(life)
		again := false
		stages.Go(func() error { return s.take(life, c) })
		stages.Go(func() error { return c.acks.run(life) })
		stages.Go(func() error {
			taking, stop := context.WithCancel(taking)
			defer context.AfterFunc(life, stop)()
			defer stop()
			if err := s.unpackUntilReopen(taking, c); err != nil {
				return err
			}
			if taking.Err() != nil { // drain finishes the messages on their way
				close(sh.quiet)
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
		if err := s.exchange(moving, sh); err != nil {
			return err
		}
	}
}

// unpackUntilReopen unpacks the consumer's deliveries until the consumer should be left and none of
// its messages is on its way, or until ctx ends. After that no message of the consumer gets a turn.
func (s *session) unpackUntilReopen(ctx context.Context, c *consumer) error {
	unpacking, stop := context.WithCancel(ctx)
	defer stop()
	var unpacked errgroup.Group
	unpacked.Go(func() error { return s.unpack(unpacking, c) })
	c.awaitReopen(unpacking)
	stop()
	err := unpacked.Wait()
	c.keyOrder.close()
	if err == nil {
		s.awaitUnderWay(ctx, c)
	}
	return err
}

// exchange replaces the shard's consumer by the next one.
func (s *session) exchange(ctx context.Context, sh *shard) error {
	defer context.AfterFunc(ctx, s.consuming.Close)() // the AMQP library's channels take no context
	c := sh.current()
	left := make(chan struct{})
	var rest sync.WaitGroup
	rest.Go(func() { s.discard(c, left) })
	err := s.closeChannel(c)
	close(left)
	rest.Wait()
	if err != nil {
		return err
	}
	return s.begin(sh, c.queue, c.maxBytes)
}

// lookInterval is the time between checks of a shard's consumer.
const lookInterval = 50 * time.Millisecond

// exchangePause is the shortest time before a consumer is left for lack of room. Each exchange
// delivers all its messages again.
const exchangePause = 5 * lookInterval

// awaitReopen waits until the consumer should be left, or ctx ends.
func (c *consumer) awaitReopen(ctx context.Context) {
	ticker := time.NewTicker(lookInterval)
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
func (c *consumer) shouldReopen(now time.Time) bool {
	if since, some := c.acks.oldest(); some && now.Sub(since) >= c.handBack {
		return true
	}
	if now.Sub(c.opened) < exchangePause {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	first := slices.IndexFunc(c.resting, needsRoom)
	return first >= 0 && c.bytes <= c.maxBytes/2 && c.fits(c.bytes, c.resting[first])
}

// awaitUnderWay waits until no message of the consumer is on its way, except messages for held
// targets. Meanwhile abandon removes the messages that wait for such targets; a trial in progress
// may come twice.
func (s *session) awaitUnderWay(ctx context.Context, c *consumer) {
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()
	late := time.After(s.opts.ConfirmTimeout + time.Second)
	free := func(m *message) bool { return !s.forwarder.IsHeld(m.staged.Target()) }
	for slices.ContainsFunc(c.keyOrder.underWay(), free) {
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
func (s *session) closeChannel(c *consumer) error {
	if err := c.finish(); err != nil {
		return err
	}
	if err := c.ch.Close(); err != nil {
		return fmt.Errorf("leave channel of %q: %w", c.queue, err)
	}
	s.log.Info("an ordered queue is consumed over a new channel", "queue", c.queue, "held", c.open.Load())
	return nil
}

// comesAgain reports whether the message was delivered over a channel that was left or is about to
// be. The message comes again.
func (m *message) comesAgain() bool {
	keyOrder := m.unacked.consumer.keyOrder // the message's own keyOrder is nil if it could not be judged
	if keyOrder == nil || !keyOrder.isClosed() {
		return false
	}
	keyOrder.finished(m)
	return true
}

// abandon removes waiting messages that will come over another channel, and their dead letters. While
// the broker blocks publishing, each consumer of an ordered queue would otherwise leave all its
// messages here.
func (s *session) abandon() {
	if len(s.shards) == 0 {
		return
	}
	comesAgain := func(p *forward.Publication) bool {
		m := publicationOf(p).message
		return m != nil && m.comesAgain()
	}
	s.room.removeMessages((*message).comesAgain)
	s.forwarder.RemoveHeld(comesAgain)
	s.forwarder.RemoveUnsent(comesAgain)
}

// passed gives the next message of the key its turn.
func (s *session) passed(m *message) {
	if m.keyOrder == nil {
		return
	}
	if next := m.keyOrder.passed(m); next != nil {
		s.publish(next.toTarget())
	}
}

// holdsKeyInstead reports whether a message that should go to the dead queue stays in its queue and
// holds its key instead.
func (s *session) holdsKeyInstead(m *message, why deathReason) bool {
	if m.keyOrder == nil || !m.committed || !s.opts.HoldKeys {
		return false
	}
	s.holdsKey(m, why)
	m.keyOrder.finished(m)
	return true
}

// retriesHoldingKey is called when a message's target has not taken it for too long. With HoldKeys
// it publishes the message again, and the message holds its key. It returns false if the message
// should go to the dead queue instead.
func (s *session) retriesHoldingKey(m *message, why deathReason) bool {
	if m.keyOrder == nil || !s.opts.HoldKeys || m.comesAgain() {
		return false
	}
	s.holdsKey(m, why)
	m.retries.HoldKey(time.Now())
	s.publish(m.toTarget())
	return true
}

func (s *session) holdsKey(m *message, why deathReason) {
	s.log.Warn("a message holds its order key", "message_id", m.id(), "order_key", m.staged.OrderKey,
		"reason", why.code, "text", why.text)
}
