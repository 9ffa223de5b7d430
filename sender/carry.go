package sender

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// A Carry selects the messages that are carried: the message's row in the ledger holds a copy of
// it, so the commit does not wait for the broker's confirm. Messages with an order key are never
// carried.
type Carry int

const (
	// CarrySmall: messages of at most Options.CarryBytes are carried. Larger ones are carried only
	// while the broker is known to be out; otherwise their transactions wait for the confirm. On a
	// ledger of an own table CarrySmall is CarryNever, since such rows cannot carry messages.
	CarrySmall Carry = iota
	// CarryNever: each transaction waits for the broker's confirm. The database holds only IDs, and
	// no transaction with messages commits without the broker.
	CarryNever
	// CarryOnOutage: messages of any size are carried while the broker is known to be out. Otherwise
	// each transaction waits for the broker's confirm.
	CarryOnOutage
	// CarryAlways: messages of any size are carried. If all senders use it, and no message has an
	// order key, a classic staging queue loses nothing (bridge.Topology.Classic).
	CarryAlways
)

const (
	// carryGather is how long carried messages of different calls gather before a round, while they
	// come faster than the broker confirms.
	carryGather = 8 * time.Millisecond
	// carryGroups bounds the groups of one round. One round at a time is on its way.
	carryGroups = 64
	// carryRefusals is how often the broker may refuse a message before the message is left to its
	// row. The first refusal may be due to another message of its group.
	carryRefusals = 2
	// flushSlow is how much longer Flush waits for a late confirm.
	flushSlow = 4 * time.Second
	// carriedHeld is the memory of a message beside its record.
	carriedHeld = 256
)

// A carrier publishes carried messages. No transaction waits for it: the rows hold the messages,
// and a verifier stages each message that does not reach the staging queue in time.
//
// It publishes in rounds; further messages gather for the next round. If a group fails, its messages
// are published again, until driver.StageAgainAfter after they were recorded. The carrier's goroutine
// runs while the carrier holds messages.
type carrier struct {
	stager *stager // provides its broker, timeout and limit
	outage *outage
	bound  int // bytes that it may hold

	mu      sync.Mutex
	waiting []*carriedMessage // to be published in this order
	held    int               // bytes of the messages that are waiting, under way, or being recorded
	idle    chan struct{}     // closed when held becomes 0; nil if no Flush waits
	running bool
	calls   int           // number of calls whose messages are waiting
	full    chan struct{} // closed when a group is full; nil while nothing gathers
}

type carriedMessage struct {
	id       uuid.UUID
	record   []byte
	recorded time.Time
	refusals int
}

func (m *carriedMessage) held() int { return len(m.record) + carriedHeld }

// alone reports whether the message gains nothing from a group, or may be the reason of a refusal.
func (m *carriedMessage) alone() bool { return len(m.record) > groupBytes/3 || m.refusals > 0 }

// carryInOutage carries all messages without an order key if the broker is out.
func (c *carrier) carryInOutage(messages []encoded) error {
	c.outage.noteBlocked(c.stager.broker.Blocked())
	if !c.outage.out() {
		return nil
	}
	for i := range messages {
		m := &messages[i]
		if m.carried || m.orderKey != "" {
			continue
		}
		publishing, err := wire.Alone(c.stager.ledger, m.record)
		if err != nil {
			return err
		}
		publishing.Headers[wire.HeaderCarried] = true
		m.record, m.carried = wire.EncodeRecord(publishing), true
	}
	return nil
}

// admit returns the carried messages to publish, each at its index in messages, and nil for all
// others, such as delayed ones. The caller must call send or release with the result.
func (c *carrier) admit(messages []encoded) []*carriedMessage {
	admitted := make([]*carriedMessage, len(messages))
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, m := range messages {
		if !m.carried || !m.notBefore.IsZero() {
			continue
		}
		next := &carriedMessage{id: m.id, record: m.record}
		if c.held > 0 && c.held+next.held() > c.bound {
			continue
		}
		// While run is publishing, its publications find the end of a failure; otherwise one message per
		// carryProbe does.
		if c.outage.fails() && c.running || c.outage.holdsBack() {
			continue
		}
		c.held += next.held()
		admitted[i] = next
	}
	return admitted
}

// release removes messages that were admitted and will not be sent.
func (c *carrier) release(admitted []*carriedMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range admitted {
		if m != nil {
			c.remove(m)
		}
	}
}

// remove removes a message that is no longer to be published. The caller holds mu.
func (c *carrier) remove(m *carriedMessage) {
	c.held -= m.held()
	if c.held == 0 && c.idle != nil {
		close(c.idle)
		c.idle = nil
	}
}

// send starts publishing messages that have just been recorded (rule 1 of package bridge), and does
// not wait.
func (c *carrier) send(admitted []*carriedMessage) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	before := len(c.waiting)
	for _, m := range admitted {
		if m != nil {
			m.recorded = now
			c.waiting = append(c.waiting, m)
		}
	}
	if len(c.waiting) == before {
		return
	}
	c.calls++
	if !c.running {
		c.running = true
		go c.run()
	}
	if c.full != nil && c.groupWaits() {
		close(c.full)
		c.full = nil
	}
}

// groupWaits reports whether the waiting messages fill a group. The caller holds mu.
func (c *carrier) groupWaits() bool {
	bytes, bounds := 0, c.stager.bounds()
	for n, m := range c.waiting {
		if bytes += len(m.record); bytes >= bounds.Bytes || n+1 >= bounds.Records {
			return true
		}
	}
	return false
}

// run publishes until no message is waiting.
func (c *carrier) run() {
	pauses := newPauses()
	calls := 0 // of the last round
	for {
		if calls > 1 {
			c.gather()
		}
		var groups [][]*carriedMessage
		if groups, calls = c.nextRound(); groups == nil {
			return
		}
		if c.publishGroups(groups) {
			pauses.Reset()
		} else {
			select {
			case <-time.After(pauses.NextBackOff()):
			case <-c.stager.broker.Done(): // the next attempt finds that the Broker is closed
			}
		}
	}
}

// newPauses returns the pauses between two attempts: exponential with jitter, up to carryProbe.
func newPauses() *backoff.ExponentialBackOff {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval = 100 * time.Millisecond
	pauses.MaxInterval = time.Duration(float64(carryProbe) / (1 + pauses.RandomizationFactor)) // without jitter
	return pauses
}

// gather waits for carryGather, or until a group is full.
func (c *carrier) gather() {
	c.mu.Lock()
	if len(c.waiting) == 0 || c.groupWaits() {
		c.mu.Unlock()
		return
	}
	full := make(chan struct{})
	c.full = full
	c.mu.Unlock()
	select {
	case <-full:
	case <-time.After(carryGather):
	}
	c.mu.Lock()
	c.full = nil
	c.mu.Unlock()
}

// nextRound removes and returns the groups of the next round, one group while the broker fails, and
// the number of calls whose messages were waiting. Without messages it ends the run, and groups is
// nil.
func (c *carrier) nextRound() (groups [][]*carriedMessage, calls int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls, c.calls = c.calls, 0
	most := carryGroups
	if c.outage.fails() {
		most = 1
	}
	oldest := time.Now().Add(-driver.StageAgainAfter)
	bytes, taken, bounds := 0, 0, c.stager.bounds()
	for _, m := range c.waiting {
		if !m.recorded.After(oldest) { // a verifier is about to stage it
			c.remove(m)
			taken++
			continue
		}
		n := len(groups)
		if n == 0 || m.alone() || groups[n-1][0].alone() || !bounds.Fits(len(groups[n-1])+1, bytes+len(m.record)) {
			if n == most {
				break
			}
			groups, bytes = append(groups, nil), 0
			n++
		}
		groups[n-1] = append(groups[n-1], m)
		bytes += len(m.record)
		taken++
	}
	c.waiting = append([]*carriedMessage(nil), c.waiting[taken:]...)
	c.running = groups != nil
	return groups, calls
}

// publishGroups publishes groups in parallel and waits for their confirms. It returns false if
// messages wait for another attempt.
func (c *carrier) publishGroups(groups [][]*carriedMessage) bool {
	bytes := 0
	for _, group := range groups {
		for _, m := range group {
			bytes += len(m.record)
		}
	}
	noteEnd := c.outage.watch(bytes)
	ended := make([]error, len(groups))
	var others sync.WaitGroup
	for i, group := range groups[1:] {
		others.Go(func() { ended[i+1] = c.publish(group) })
	}
	ended[0] = c.publish(groups[0])
	others.Wait()
	failure := failureOf(ended)
	noteEnd(failure, true)
	return c.concludeRound(groups, ended, failure)
}

// failureOf returns the first error that is not a refusal of a message. Without such an error it
// returns nil if the broker has confirmed a group, else the refusal.
func failureOf(ended []error) error {
	confirmed := false
	var refusal error
	for _, err := range ended {
		switch {
		case err == nil:
			confirmed = true
		case refusesMessage(err):
			refusal = err
		default:
			return err
		}
	}
	if confirmed {
		return nil
	}
	return refusal
}

// concludeRound removes the messages of groups that need no other attempt; failure is
// failureOf(ended). It returns false if messages wait for another attempt after a pause.
func (c *carrier) concludeRound(groups [][]*carriedMessage, ended []error, failure error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, err := range ended {
		for _, m := range groups[i] {
			if bridge.Refusal(err) != nil {
				m.refusals++
			}
			switch {
			case err == nil:
				c.remove(m)
			case m.refusals == carryRefusals:
				c.remove(m)
				if refusesMessage(err) {
					c.outage.logger.Warn("the broker refuses a carried message; it stays in its row", "queue", c.outage.queue, "message_id", m.id.String(), "error", err)
				}
			default:
				c.waiting = append(c.waiting, m)
			}
		}
	}
	if errors.Is(failure, context.Canceled) { // the Broker is closed
		for _, m := range c.waiting {
			c.remove(m)
		}
		c.waiting = nil
	}
	return failure == nil || refusesMessage(failure) || len(c.waiting) == 0
}

func (c *carrier) publish(group []*carriedMessage) error {
	records := make([][]byte, len(group))
	for i, m := range group {
		records[i] = m.record
	}
	return c.stager.publishInTime(records, c.stager.bounds())
}

// waitingBytes returns the bytes of the held messages.
func (c *carrier) waitingBytes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held
}

// flush waits until no message is held, or the broker is out.
func (c *carrier) flush(ctx context.Context) error {
	late := func(why error) error {
		return fmt.Errorf("flush: carried messages are not confirmed; verifiers stage the ones that the broker does not have: %w", why)
	}
	for {
		var idle <-chan struct{}
		if idle = c.whenIdle(); idle == nil {
			return nil
		}
		out := c.outage.whenOut()
		select {
		case <-c.stager.broker.Done(): // run is about to leave all messages to their rows
			out = nil
		default:
		}
		select {
		case <-idle:
			return nil
		case <-ctx.Done():
			return late(context.Cause(ctx))
		case <-out:
		}
		if c.outage.slow() {
			select {
			case <-idle:
				return nil
			case <-ctx.Done():
				return late(context.Cause(ctx))
			case <-time.After(flushSlow):
			}
		}
		if c.outage.out() {
			return late(c.outage.cause())
		}
	}
}

// whenIdle returns a channel that is closed when no message is held, or nil if none is now.
func (c *carrier) whenIdle() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held > 0 && c.idle == nil {
		c.idle = make(chan struct{})
	}
	return c.idle
}
