package verifier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/twoqueue/twoqueue/bridge"
)

// A forwarder publishes messages and knows which are safe: confirmed and not
// returned (rule 4 of package bridge).
//
// Most go over the main channel, without waiting for each other's confirms. A
// publish that the broker refuses (missing exchange, no right, refused property)
// closes its channel and leaves everything that was in flight there unknown. All
// of that then goes over careful channels, where a message is alone: whatever
// happens there is its own doing. So do, from then on, the messages for the
// culprit's exchange, until one of them succeeds.
//
// A channel without confirms is left together with its connection: a queue that
// does not answer blocks the broker's side of the channel, which then does not
// answer its closing either, and in the end the connection's other channels too.
// So the careful channels have a connection each. Publishing connections carry no
// delivery tags; replacing one does not end the session.
type forwarder struct {
	connect func(context.Context) (*bridge.Connection, error)
	timeout time.Duration
	limit   int // in flight on the main channel
	log     *slog.Logger

	on forwardEvents

	ready   *gatherer[*message] // to be published
	careful *gatherer[*message] // to be published alone

	inFlight atomic.Int64 // on the main channel
	progress atomic.Int64 // time of the main channel's last confirm, in ns

	mu       sync.Mutex
	conn     *bridge.Connection // of the main channel
	main     *bridge.Publisher
	suspects map[string]bool // exchanges whose messages go alone
}

// forwardEvents is what becomes of a message; each message ends in exactly one of
// them. None of them may block.
type forwardEvents struct {
	safe    func(*message)              // the broker has it
	failed  func(*message, HoldReason)  // its target does not take it now
	refused func(*message, *amqp.Error) // the broker will never take it
	unfit   func(*message, error)       // it cannot even be sent
	held    func(*message) bool         // its target is held; it is taken care of
}

// carefulChannels is how many suspects are published at the same time.
const carefulChannels = 4

func (f *forwarder) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return f.publishMain(ctx) })
	group.Go(func() error { return f.watchMain(ctx) })
	for range carefulChannels {
		group.Go(func() error { return f.publishCareful(ctx) })
	}
	return group.Wait()
}

// publish takes messages on; their course is set.
func (f *forwarder) publish(messages ...*message) { f.ready.add(messages...) }

func (f *forwarder) publishMain(ctx context.Context) error {
	for {
		select {
		case <-f.ready.more:
		case <-ctx.Done():
			return nil
		}
		for _, m := range f.ready.take(f.limit) {
			if f.isSuspect(m.to.Exchange) {
				f.careful.add(m)
				continue
			}
			if err := f.publishOne(ctx, m); err != nil {
				return err
			}
		}
	}
}

func (f *forwarder) publishOne(ctx context.Context, m *message) error {
	for {
		main, err := f.mainChannel(ctx)
		if err != nil {
			return err
		}
		if f.inFlight.Add(1) == 1 {
			f.progress.Store(time.Now().UnixNano())
		}
		err = main.Publish(ctx, m.to, m.publishing(), func(err error) {
			f.progress.Store(time.Now().UnixNano())
			f.inFlight.Add(-1)
			f.report(ctx, m, err)
		})
		if err == nil {
			return nil
		}
		f.inFlight.Add(-1)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, bridge.ErrInvalidMessage):
			f.on.unfit(m, err)
			return nil
		}
		// The main channel was closed: take the next one.
	}
}

// report tells what became of a message on the main channel. It must not block.
func (f *forwarder) report(ctx context.Context, m *message, err error) {
	switch {
	case err == nil:
		f.on.safe(m)
	case errors.Is(err, bridge.ErrReturned):
		f.on.failed(m, Missing)
	case errors.Is(err, bridge.ErrNacked):
		f.on.failed(m, Full)
	case ctx.Err() == nil:
		f.careful.add(m) // a suspect; if the connection was lost, the session ends
	}
}

// mainChannel returns the main channel, a new one if the last was closed.
func (f *forwarder) mainChannel(ctx context.Context) (*bridge.Publisher, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.main != nil {
		if f.main.Err() == nil {
			return f.main, nil
		}
		if refusal := bridge.Refusal(f.main.Err()); refusal != nil {
			f.log.Warn("publishing channel closed; looking for the message that caused it",
				"code", refusal.Code, "reason", refusal.Reason)
		}
	}
	if f.conn == nil { // the last one was left
		conn, err := f.connect(ctx)
		if err != nil {
			return nil, err
		}
		f.conn = conn
	}
	main, err := f.conn.Publisher(f.limit)
	if err != nil {
		return nil, err
	}
	f.main = main
	return main, nil
}

// leave ends the main channel with its connection; the next message gets others.
func (f *forwarder) leave() {
	f.mu.Lock()
	conn := f.conn
	f.conn = nil
	f.mu.Unlock()
	conn.Close()
}

func (f *forwarder) connection() *bridge.Connection {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.conn
}

// close ends the main channel's connection for good.
func (f *forwarder) close() {
	if conn := f.connection(); conn != nil {
		conn.Close()
	}
}

// watchMain closes the main channel when it has got no confirm for too long: one
// target that is stuck must not hold back the confirms of all others, which are
// handed over in order.
func (f *forwarder) watchMain(ctx context.Context) error {
	ticker := time.NewTicker(f.timeout / 4)
	defer ticker.Stop()
	for {
		conn := f.connection()
		var lost <-chan struct{}
		if conn != nil {
			lost = conn.Done()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-lost:
			return fmt.Errorf("publishing connection lost: %w", conn.Err())
		case now := <-ticker.C:
			if conn == nil || conn.Blocked() != "" || f.inFlight.Load() == 0 {
				f.progress.Store(now.UnixNano())
				continue
			}
			if now.Sub(time.Unix(0, f.progress.Load())) < f.timeout {
				continue
			}
			f.log.Warn("no confirm for too long; looking for the target that is stuck", "waited", f.timeout)
			f.progress.Store(now.UnixNano())
			f.leave()
		}
	}
}

// publishCareful publishes one message at a time, over a connection of its own.
func (f *forwarder) publishCareful(ctx context.Context) error {
	var conn *bridge.Connection
	var channel *bridge.Publisher
	defer func() {
		if conn != nil {
			conn.Close()
		}
	}()
	for {
		select {
		case <-f.careful.more:
		case <-ctx.Done():
			return nil
		}
		for _, m := range f.careful.take(1) {
			if f.on.held(m) {
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
			err := f.alone(ctx, channel, m)
			if ctx.Err() != nil {
				return nil
			}
			stuck, err := f.judge(m, err, conn)
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

// judge draws the consequence of a message that was published alone. It tells
// whether the target did not confirm.
func (f *forwarder) judge(m *message, err error, conn *bridge.Connection) (noConfirm bool, _ error) {
	refusal := bridge.Refusal(err)
	f.suspect(m.to.Exchange, refusal != nil)
	switch {
	case err == nil:
		f.on.safe(m)
	case errors.Is(err, bridge.ErrInvalidMessage):
		f.on.unfit(m, err)
	case errors.Is(err, bridge.ErrReturned):
		f.on.failed(m, Missing)
	case errors.Is(err, bridge.ErrNacked):
		f.on.failed(m, Full)
	case conn.Err() != nil:
		return false, conn.Err()
	case refusal == nil:
		f.on.failed(m, Stuck)
		return true, nil
	case refusal.Code == amqp.NotFound:
		f.on.failed(m, Missing)
	default:
		f.on.refused(m, refusal)
	}
	return false, nil
}

// alone publishes m and waits for what becomes of it.
func (f *forwarder) alone(ctx context.Context, channel *bridge.Publisher, m *message) error {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	reported := make(chan error, 1)
	if err := channel.Publish(ctx, m.to, m.publishing(), func(err error) { reported <- err }); err != nil {
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
