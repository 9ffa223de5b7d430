package sender

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// A Parking says when messages are stored in the database instead of the staging
// queue.
type Parking int

const (
	// ParkNever: no transaction with messages commits without the broker.
	ParkNever Parking = iota
	// ParkOnOutage: when the broker cannot be reached, blocks, nacks (a full staging queue) or
	// does not confirm within Options.ParkAfter, the messages are parked and the transaction
	// may commit. What waiting does not repair is still an error: a missing staging queue, a
	// message that the broker refuses, a refused login. RabbitMQ takes seconds to refuse a login.
	// Until then, and between two attempts to reach it (a second), messages are parked.
	//
	// The right to park is not used before the first outage. To try it, run once with ParkAlways.
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

// parks tells whether messages are parked without asking the broker.
func (g *garage) parks() bool {
	return g.ledger != nil && (g.opts.Parking == ParkAlways || g.waits())
}

// judge learns how a staging ended. After an outage it parks the messages in their transaction,
// if staged may park; else it returns the error, and later transactions park.
func (g *garage) judge(ctx context.Context, staged *Staged, err error) error {
	switch {
	case g.ledger == nil:
		return err
	case err == nil:
		g.ended()
		return nil
	case ctx.Err() != nil || !bridge.Retryable(err) || bridge.Refusal(err) != nil:
		return err // no outage
	}
	if !staged.parks {
		g.began(err)
		return fmt.Errorf("%w (StageTx was called before this outage was known; the next transaction parks)", err)
	}
	if err := g.park(ctx, staged); err != nil {
		return err
	}
	g.began(err)
	return nil
}

// waits tells whether the broker is out and was tried a moment ago.
func (g *garage) waits() bool {
	due, now := g.retry.Load(), time.Now()
	// One of those who find that it is time tries.
	return g.knows() || g.out.Load() && !g.retry.CompareAndSwap(due, now.Add(parkRetry).UnixNano())
}

// knows tells whether the broker is out and it is not time to try it again.
func (g *garage) knows() bool { return g.out.Load() && time.Now().UnixNano() < g.retry.Load() }

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

func (g *garage) park(ctx context.Context, staged *Staged) error {
	parked := make([]driver.Parked, len(staged.cargo.ids))
	for i, id := range staged.cargo.ids {
		parked[i] = driver.Parked{ID: id, Message: staged.cargo.records[i]}
	}
	err := g.ledger.Park(ctx, staged.tx, parked)
	if err != nil && ctx.Err() == nil && g.out.Swap(false) {
		g.opts.Logger.Warn("messages cannot be parked; the broker is tried again", "queue", g.opts.Queue, "error", err)
	}
	return err
}
