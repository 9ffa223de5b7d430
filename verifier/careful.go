package verifier

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

// carefulChannels is how many suspects are published at the same time, and how many
// trials of stuck targets.
const carefulChannels = 4

// runCareful publishes one message at a time, over a connection of its own.
func (f *forwarder) runCareful(ctx context.Context, messages *gatherer[*publication]) error {
	var conn *bridge.Connection
	var channel *bridge.Publisher
	defer func() {
		if conn != nil {
			conn.Close()
		}
	}()
	for {
		select {
		case <-messages.more:
		case <-ctx.Done():
			return nil
		}
		for _, p := range messages.take(1) {
			if f.waits(p) {
				continue
			}
			if conn == nil {
				var err error
				if conn, err = f.connect(ctx); err != nil {
					return err
				}
				channel = nil
			}
			if channel == nil || channel.Err() != nil {
				var err error
				if channel, err = conn.Publisher(1); err != nil {
					return err
				}
			}
			err := f.alone(ctx, channel, p)
			if ctx.Err() != nil {
				return nil
			}
			stuck, err := f.conclude(p, err, conn)
			if err != nil {
				return err
			}
			if stuck {
				conn.Close()
				conn = nil
			}
		}
	}
}

// conclude draws the consequence of a message that was published alone. It tells
// whether the target did not confirm.
func (f *forwarder) conclude(p *publication, err error, conn *bridge.Connection) (noConfirm bool, _ error) {
	refusal := bridge.Refusal(err)
	f.suspect(p.to.Exchange, refusal != nil)
	switch {
	case err == nil:
		f.end(p, placed, nil)
	case errors.Is(err, bridge.ErrInvalidMessage):
		f.end(p, refused, err)
	case errors.Is(err, bridge.ErrReturned):
		f.failed(p, Missing)
	case errors.Is(err, bridge.ErrNacked):
		f.failed(p, Full)
	case conn.Err() != nil:
		return false, conn.Err()
	case refusal == nil:
		f.failed(p, Stuck)
		return true, nil
	case refusal.Code == amqp.NotFound:
		f.failed(p, Missing)
	case p.course == forward:
		f.end(p, refused, fmt.Errorf("%s: %d %s", p.to, refusal.Code, refusal.Reason))
	case refusal.Code == amqp.PreconditionFailed: // this one, as a rule for its size
		f.end(p, refused, refusal)
	default: // our own queue: somebody must mend the rights
		f.failed(p, Full)
	}
	return false, nil
}

// alone publishes p and waits for what becomes of it.
func (f *forwarder) alone(ctx context.Context, channel *bridge.Publisher, p *publication) error {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	defer func(began time.Time) { p.slow = time.Since(began) >= behindAfter }(time.Now())
	reported := make(chan error, 1)
	if err := channel.Publish(ctx, p.to, *p.publishing, func(err error) { reported <- err }); err != nil {
		return err
	}
	select {
	case err := <-reported:
		return err
	case <-ctx.Done():
		return bridge.ErrUnconfirmed
	}
}

func (f *forwarder) isSuspect(exchange string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.suspects[exchange]
}

func (f *forwarder) suspect(exchange string, is bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !is:
		delete(f.suspects, exchange)
	case len(f.suspects) < maxSuspects:
		f.suspects[exchange] = true
	}
}

// maxSuspects bounds what a flood of exchange names could make us remember.
const maxSuspects = 10_000
