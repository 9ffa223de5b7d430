package main

import (
	"context"
	"errors"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
)

// resendPatience bounds the wait for a confirm. Then a target that does not answer is reported as a
// failure.
const resendPatience = 30 * time.Second

// A resender publishes messages to their targets and reports which are safe: confirmed and not
// returned (rule 4 of package bridge).
//
// It sends many together. A publish that the broker refuses closes the channel, and the outcome of
// all messages in flight on it is unknown. The resender sends these once more, each alone, so that a
// refusal shows the message that causes it. Some may arrive twice, with the same ID.
type resender struct {
	broker *bridge.Broker
	conn   *bridge.Connection
	ch     *bridge.Publisher
	bad    map[bridge.Target]error // targets that were refused, or did not answer
}

func newResender(broker *bridge.Broker) *resender {
	return &resender{broker: broker, bad: make(map[bridge.Target]error)}
}

// resendWindow is the most messages in flight, and the most dead messages of a batch.
const resendWindow = 25

// send publishes messages. It returns for each nil if the message is safe, or the reason why not.
func (r *resender) send(ctx context.Context, messages []bridge.Outgoing) []error {
	failures := r.together(ctx, messages)
	for i, err := range failures {
		if errors.Is(err, bridge.ErrUnconfirmed) || errors.Is(err, bridge.ErrUnavailable) {
			failures[i] = r.alone(ctx, messages[i])
		}
	}
	return failures
}

// together publishes all messages and then waits for their confirms.
func (r *resender) together(ctx context.Context, messages []bridge.Outgoing) []error {
	ctx, cancel := context.WithTimeout(ctx, resendPatience)
	defer cancel()
	failures := make([]error, len(messages))
	type report struct {
		i   int
		err error
	}
	reports := make(chan report, len(messages)) // with room for late reports
	waiting := 0
	for i, m := range messages {
		failures[i] = r.bad[m.Target]
		if failures[i] != nil {
			continue
		}
		ch, err := r.channel(ctx)
		if err == nil {
			err = ch.Publish(ctx, m.Target, m.Publishing, func(err error) { reports <- report{i, err} })
		}
		if failures[i] = err; err == nil {
			failures[i] = bridge.ErrUnconfirmed // until its report comes
			waiting++
		}
	}
	for ; waiting > 0; waiting-- {
		select {
		case got := <-reports:
			failures[got.i] = got.err
		case <-ctx.Done():
			r.disconnect()
			return failures
		}
	}
	return failures
}

// alone publishes one message while no other is in flight.
func (r *resender) alone(ctx context.Context, m bridge.Outgoing) error {
	if err := r.bad[m.Target]; err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, resendPatience)
	defer cancel()
	ch, err := r.channel(ctx)
	if err != nil {
		return err
	}
	report := make(chan error, 1)
	if err = ch.Publish(ctx, m.Target, m.Publishing, func(err error) { report <- err }); err != nil {
		return err
	}
	select {
	case err = <-report:
	case <-ctx.Done():
		err = bridge.ErrUnconfirmed
		r.disconnect()
	}
	if bridge.Refusal(err) != nil || errors.Is(err, bridge.ErrUnconfirmed) {
		r.bad[m.Target] = err
	}
	return err
}

// channel returns the publishing channel, a new one if the last was closed.
func (r *resender) channel(ctx context.Context) (*bridge.Publisher, error) {
	if r.conn != nil && r.conn.Err() != nil {
		r.disconnect()
	}
	if r.conn == nil {
		conn, err := r.broker.Connect(ctx)
		if err != nil {
			return nil, err
		}
		r.conn = conn
	}
	if r.ch == nil || r.ch.Err() != nil {
		ch, err := r.conn.Publisher(resendWindow)
		if err != nil {
			return nil, err
		}
		r.ch = ch
	}
	return r.ch, nil
}

// disconnect ends the channel together with its connection, since a target that does not answer blocks
// the broker's side of the channel.
func (r *resender) disconnect() {
	if r.conn != nil {
		r.conn.Close()
		r.conn, r.ch = nil, nil
	}
}
