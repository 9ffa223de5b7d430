package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// drainScenario empties a staging queue into a target queue. The shovel, a part
// of the broker, does so without any check and over no socket; the unchecked relay is what
// no client can beat.
var drainScenario = scenario{
	name:     "drain",
	what:     "a backlog of staged messages is forwarded to a queue without a consumer: messages per second from the first to the last, against the verifier's own pipeline with a ledger that says 'committed' at once and forgets nothing (unchecked), and the broker's own shovel (on-confirm), which checks nothing either",
	headline: headline{metric: "messages/s"},
	run: func(ctx context.Context, w *world) error {
		for i, d := range drains {
			for round := range pick(i == 0 || w.long, w.rounds, 1) {
				if err := w.drainRound(ctx, round, d); err != nil {
					return err
				}
			}
		}
		return nil
	},
}

// drains are the queues and sizes; the first is the one that matters most.
var drains = []drain{{false, 512}, {true, 512}, {false, 8 << 10}, {true, 8 << 10}}

type drain struct {
	classic bool
	size    int
}

func (d drain) String() string {
	return fmt.Sprintf("%s queues, %s", pick(d.classic, "classic", "quorum"), bytes(d.size))
}

// A mover empties the staging queue; a filler stages.
type (
	mover  func(ctx context.Context, w *world, p place) (relay *child, stop func() error, err error)
	filler func(ctx context.Context, w *world, p place, db *sql.DB, size, n int) error
)

// movers are the contenders of this scenario. What the sender stages from many
// transactions at once may travel in groups, which only a verifier takes apart.
var movers = []struct {
	name string
	fill filler
	move mover
	slow bool // staging message by message takes longer than all the rest
}{
	{ledger.name, stageSingly, moveByVerifier, false},
	{unchecked, stageSingly, moveUnchecked, false},
	{"shovel", stageSingly, moveByShovel, false},
	{ledger.name + ", staged by 32 at once", stageConcurrently, moveByVerifier, true},
}

func (w *world) drainRound(ctx context.Context, round int, d drain) error {
	for _, m := range movers {
		if !w.only.MatchString(m.name) || m.slow && !w.long && (d != drains[0] || round > 0) {
			continue
		}
		result, err := w.drain(ctx, d, pick(w.long || d.size <= 512, w.backlog, w.backlog/5), m.fill, m.move)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", d, m.name, err)
		}
		w.add(round, "drain", d.String(), m.name, result.values()...)
	}
	return nil
}

// drained is what emptying a backlog took.
type drained struct {
	rate     float64 // messages per second, from the first message to the last
	messages int
	cpu      processorTimes
	memory   int // the largest resident memory of a relay, in bytes; 0: the broker's own
}

func (d drained) values() []any {
	return []any{
		"messages/s", d.rate,
		"CPU µs per message", perMessage(d.cpu.total(), d.messages),
		"broker", perMessage(d.cpu.broker, d.messages),
		"database", perMessage(d.cpu.database, d.messages),
		"relay", perMessage(d.cpu.relay, d.messages),
	}
}

// drain stages a backlog, lets it be moved, and measures.
func (w *world) drain(ctx context.Context, d drain, n int, fill filler, move mover) (result drained, err error) {
	p, db, leave, err := w.newPlace(ctx, ledger, kind{classic: d.classic})
	if err != nil {
		return result, err
	}
	defer leave()
	if err := fill(ctx, w, p, db, d.size, n); err != nil {
		return result, fmt.Errorf("stage: %w", err)
	}
	if err := w.settle(ctx); err != nil {
		return result, err
	}
	before := readProcessorTimes(0)
	relay, stop, err := move(ctx, w, p)
	if err != nil {
		return result, err
	}
	result, err = w.watchDrain(ctx, p.Target, n, before, relay)
	return result, errors.Join(err, stop())
}

// watchDrain asks for the queue's length until all has come.
func (w *world) watchDrain(ctx context.Context, queue string, n int, before processorTimes, relays ...*child) (d drained, err error) {
	var first instant
	already := 0
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	stuck := time.Now()
	last := 0
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return d, ctx.Err()
		}
		q, err := w.control.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil {
			return d, fmt.Errorf("inspect target: %w", err)
		}
		at := now()
		for _, relay := range relays {
			if relay == nil {
				continue
			}
			if err := relay.failed(); err != nil {
				return d, err
			}
		}
		switch {
		case q.Messages >= n:
			d.rate = float64(q.Messages-already) / at.sub(first).Seconds()
			d.messages = n
			d.cpu = readProcessorTimes(0, relays...).minus(before)
			for _, relay := range relays {
				if relay != nil {
					d.memory = max(d.memory, largestMemory(relay.cmd.Process.Pid))
				}
			}
			w.profiled(syscall.SIGUSR2, relays...)
			return d, nil
		case q.Messages > 0 && first == 0:
			first, already = at, q.Messages
			w.profiled(syscall.SIGUSR1, relays...) // it runs: it takes signals
		case q.Messages > last:
			last, stuck = q.Messages, time.Now()
		case time.Since(stuck) > time.Minute:
			return d, fmt.Errorf("%d of %d messages after a minute without another", q.Messages, n)
		}
	}
}

// stageSingly stages one message per message, as a sender in another language
// would, a thousand in a transaction.
func stageSingly(ctx context.Context, w *world, p place, db *sql.DB, size, n int) error {
	publisher, err := newPublisher(p.AMQP, 1)
	if err != nil {
		return err
	}
	defer publisher.close()
	l, err := openLedger(ctx, p, db)
	if err != nil {
		return err
	}
	text := newBodies()
	for done := 0; done < n; {
		ids := make([]uuid.UUID, min(1000, n-done))
		letters := make([]letter, len(ids))
		for i := range ids {
			ids[i] = uuid.Must(uuid.NewV7())
			message := bridge.Message{ID: ids[i], RoutingKey: p.Target}
			message.Publishing.Body = text.make(uint64(done+i), size)
			staged, err := wire.Encode(message, l.Identity())
			if err != nil {
				return err
			}
			letters[i] = letter{queue: p.Staging, id: staged.MessageId, headers: staged.Headers, body: staged.Body}
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err = l.Record(ctx, bridge.SQL(tx), ids); err == nil {
			err = publisher.publish(ctx, letters...)
		}
		if err != nil {
			return errors.Join(err, tx.Rollback())
		}
		if err := tx.Commit(); err != nil {
			return err
		}
		done += len(ids)
	}
	return nil
}

// stageConcurrently stages by the sender, in 32 transactions at a time of one
// message each.
func stageConcurrently(ctx context.Context, w *world, p place, db *sql.DB, size, n int) error {
	a, err := ledger.open(ctx, p, newBusiness(p, db))
	if err != nil {
		return err
	}
	defer a.close()
	l := &load{application: a, bodies: newBodies()}
	out := l.obey(ctx, order{Window: time.Hour, Workers: 32, Size: size, Stop: n})
	if out.Failed > 0 {
		return errors.New(out.Failure)
	}
	return ctx.Err()
}

func moveByVerifier(_ context.Context, w *world, p place) (*child, func() error, error) {
	c, err := w.startVerifier(p)
	if err != nil {
		return nil, nil, err
	}
	return c, c.stop, nil
}

// moveByShovel has the broker itself move the messages.
func moveByShovel(ctx context.Context, w *world, p place) (*child, func() error, error) {
	definition, err := json.Marshal(map[string]any{
		"src-protocol": "amqp091", "src-uri": "amqp://", "src-queue": p.Staging, "src-queue-args": map[string]any{},
		"dest-protocol": "amqp091", "dest-uri": "amqp://", "dest-queue": p.Target,
		"ack-mode": "on-confirm", "src-prefetch-count": 1000,
	})
	if err != nil {
		return nil, nil, err
	}
	stop := func() error {
		_, err := w.broker.Ctl(context.WithoutCancel(ctx), "clear_parameter", "shovel", p.Target)
		return err
	}
	_, err = w.broker.Ctl(ctx, "set_parameter", "shovel", p.Target, string(definition))
	return nil, stop, err
}

// bytes writes a size.
func bytes(n int) string {
	if n >= 1<<10 && n%(1<<10) == 0 {
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
