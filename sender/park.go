package sender

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// A Parking says when messages are stored in the database instead of the staging
// queue.
type Parking int

const (
	// ParkNever: without the broker no transaction commits.
	ParkNever Parking = iota
	// ParkOnOutage: when the broker cannot be reached, blocks, nacks (a full staging
	// queue) or does not confirm within Options.ParkAfter, the messages are parked and
	// the transaction may commit. What waiting does not mend is an error all the same: a
	// refused login, a missing staging queue, a message that the broker refuses.
	ParkOnOutage
	// ParkAlways: a plain transactional outbox. The broker is never asked.
	ParkAlways
)

// parkRetry is the time between attempts to reach the broker during an outage; the
// transactions in between park at once.
const parkRetry = time.Second

// A garage parks messages while the broker is out.
type garage struct {
	ledger driver.Recorder // nil: nothing is parked
	opts   Options

	out   atomic.Bool
	retry atomic.Int64 // when the broker is tried again, in ns
}

// stage has the messages staged, or parks them in tx, in which they are recorded.
func (g *garage) stage(ctx context.Context, tx bridge.Tx, messages []amqp.Publishing, stager *stager) error {
	switch {
	case g.ledger == nil:
		return stager.stage(ctx, messages)
	case g.opts.Parking == ParkAlways || g.waits():
		return g.park(ctx, tx, messages)
	}
	err := stager.stage(ctx, messages)
	switch {
	case err == nil:
		g.ended()
		return nil
	case ctx.Err() != nil || !bridge.Retryable(err) || bridge.Refusal(err) != nil:
		return err // no outage
	}
	g.began(err)
	return g.park(ctx, tx, messages)
}

// waits tells whether the broker is out and was tried a moment ago.
func (g *garage) waits() bool {
	if !g.out.Load() {
		return false
	}
	due, now := g.retry.Load(), time.Now()
	// One of those who find that it is time tries.
	return now.UnixNano() < due || !g.retry.CompareAndSwap(due, now.Add(parkRetry).UnixNano())
}

func (g *garage) began(err error) {
	g.retry.Store(time.Now().Add(parkRetry).UnixNano())
	if !g.out.Swap(true) {
		g.opts.Logger.Warn("broker is out; messages are parked in the database", "queue", g.opts.Queue, "error", err)
	}
}

func (g *garage) ended() {
	if g.out.Swap(false) {
		g.opts.Logger.Info("broker is back; messages are no longer parked", "queue", g.opts.Queue)
	}
}

func (g *garage) park(ctx context.Context, tx bridge.Tx, messages []amqp.Publishing) error {
	parked := make([]driver.Parked, len(messages))
	for i, m := range messages {
		id, err := uuid.Parse(m.MessageId)
		if err != nil {
			return fmt.Errorf("park message: %w", err)
		}
		parked[i] = driver.Parked{ID: id, Message: wire.EncodeRecord(m)}
	}
	return g.ledger.Park(ctx, tx, parked)
}
