package forward

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/verifier/internal/pipe"
)

// soloChannels is the number of suspects that are published at the same time, and also the
// number of trials of stuck targets.
const soloChannels = 4

// A solo channel without a connection retries after pauses between these.
const (
	firstReconnect = 100 * time.Millisecond
	mostReconnect  = 5 * time.Second
)

// runSolo publishes one message at a time, over its own channel. Without a connection the
// messages wait, here or for another solo channel. No verdict depends on a solo channel, so
// its failures end no session.
func (f *Forwarder) runSolo(ctx context.Context, messages *pipe.Gatherer[*Publication], connections *soloConnections) error {
	channel := &soloChannel{from: connections}
	defer channel.release()
	wait := pipe.NewBackOff(firstReconnect, mostReconnect)
	for {
		idle := channel.idle()
		select {
		case <-messages.More:
		case <-idle:
			channel.release()
			continue
		case <-ctx.Done():
			return nil
		}
		for _, p := range messages.Take(1) {
			if f.enqueueIfHeld(p) {
				continue
			}
			err := channel.open(ctx)
			if err == nil {
				err = f.publishSolo(ctx, channel.publisher, p)
				if ctx.Err() != nil {
					return nil
				}
				if channel.connection.conn.Err() == nil {
					wait.Reset()
					if f.reportSolo(p, err) {
						channel.leave()
					}
					continue
				}
			}
			// Without a connection, or if it was lost, the fate of p is unknown.
			channel.leave()
			messages.Add(p)
			if ctx.Err() != nil {
				return nil
			}
			retry := wait.NextBackOff()
			f.log.Warn("no connection for messages that are published alone", "error", err, "retry_in", retry)
			pipe.Pause(ctx, retry)
		}
	}
}

// reportSolo acts on the result of publishing p alone. It reports whether the target did not confirm.
func (f *Forwarder) reportSolo(p *Publication, err error) (stuck bool) {
	refusal := bridge.Refusal(err)
	f.setSuspect(p.To.Exchange, refusal != nil)
	switch {
	case err == nil:
		f.end(p, Placed, nil)
	case errors.Is(err, bridge.ErrInvalidMessage):
		f.end(p, Refused, err)
	case errors.Is(err, bridge.ErrReturned):
		f.failed(p, Missing, unbound(p.To))
	case errors.Is(err, bridge.ErrNacked):
		f.failed(p, Full, fullQueue)
	case refusal == nil:
		f.failed(p, Stuck, noConfirm)
		return true
	case refusal.Code == amqp.NotFound:
		f.failed(p, Missing, noExchange)
	case p.Retries != nil:
		f.end(p, Refused, fmt.Errorf("%s: %d %s", p.To, refusal.Code, refusal.Reason))
	case refusal.Code == amqp.PreconditionFailed: // this message only, usually because of its size
		f.end(p, Refused, refusal)
	default: // the verifier's own queue: an operator must grant the rights
		f.failed(p, Full, problem{refusal.Error(), "give the login the right to publish there"})
	}
	return false
}

// publishSolo publishes p and waits for its result.
func (f *Forwarder) publishSolo(ctx context.Context, channel *bridge.Publisher, p *Publication) error {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	defer func(began time.Time) { p.slow = time.Since(began) >= behindAfter }(time.Now())
	reported := make(chan error, 1)
	if err := channel.Publish(ctx, p.To, *p.Publishing, func(err error) { reported <- err }); err != nil {
		return err
	}
	select {
	case err := <-reported:
		return err
	case <-ctx.Done():
		return bridge.ErrUnconfirmed
	}
}

func (f *Forwarder) isSuspect(exchange string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.suspects[exchange]
}

func (f *Forwarder) setSuspect(exchange string, is bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !is:
		delete(f.suspects, exchange)
	case len(f.suspects) < maxSuspects:
		f.suspects[exchange] = true
	}
}

// maxSuspects bounds the exchange names that are remembered.
const maxSuspects = 10_000
