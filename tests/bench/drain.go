package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// drainScenario empties a staging queue into a target queue. The shovel is part of the broker: it
// checks nothing and uses no socket. The unchecked relay is the upper limit for any client.
var drainScenario = scenario{
	name:     "drain",
	what:     "a backlog of staged messages is forwarded to a queue without a consumer: messages per second from the first to the last, against the verifier's own pipeline with a ledger that says 'committed' at once and forgets nothing (unchecked), and the broker's own shovel (on-confirm), which checks nothing either",
	headline: headline{metric: "messages/s"},
	trials: func(c config) []trial {
		all := draining("quorum queues, 512 B", backlog{messages: c.backlog, size: 512}, byVerifier, byUnchecked, byShovel)
		for _, b := range []backlog{
			{messages: c.backlog, size: 512, kind: kind{Classic: true}},
			{messages: c.backlog / 5, size: 8 << 10},
			{messages: c.backlog / 5, size: 8 << 10, kind: kind{Classic: true}},
		} {
			what := fmt.Sprintf("%s queues, %s", pick(b.kind.Classic, "classic", "quorum"), bytes(b.size))
			all = append(all, seldom(draining(what, b, byVerifier, byUnchecked, byShovel))...)
		}
		return all
	},
}

// growthScenario drains backlogs of different lengths.
var growthScenario = scenario{
	name: "growth",
	what: "draining backlogs of 10 thousand and 100 thousand staged messages (with -long 1 million), and one of 50 thousand beside a million orphan rows: rate, and the verifier's largest resident memory",
	trials: func(c config) (all []trial) {
		sizes := []int{c.backlog / 5, c.backlog * 2}
		if c.long {
			sizes = append(sizes, c.backlog*20)
		}
		for _, n := range sizes {
			all = append(all, draining(fmt.Sprintf("%d staged", n), backlog{messages: n, size: 512}, byVerifier)...)
		}
		among := backlog{messages: c.backlog, size: 512, kind: kind{Orphans: c.backlog * 20}}
		return seldom(append(all, draining(fmt.Sprintf("%d staged, %d orphans", among.messages, among.kind.Orphans), among, byVerifier)...))
	},
}

// shardsScenario drains one backlog that is spread over several staging queues, each with its own
// verifier.
var shardsScenario = scenario{
	name: "shards",
	what: "a backlog in one staging queue with one verifier, in two with two, in four with four, all with the same ledger and target: messages per second from the first to the last",
	trials: func(c config) (all []trial) {
		for _, n := range []int{1, 2, 4} {
			all = append(all, draining(fmt.Sprintf("%d staging queues", n), backlog{messages: c.backlog, size: 512, kind: kind{Queues: n - 1}}, byVerifier)...)
		}
		return all
	},
}

// A backlog is staged by publishing its messages one by one, as a sender in another language does.
type backlog struct {
	kind     kind
	messages int
	size     int
}

// A mover empties a staging queue, by a process or by the broker itself.
type mover struct {
	name string
	move func(ctx context.Context, w *world, p place) (relay *child, stop func() error, err error)
}

var (
	byVerifier = mover{ledger.name, func(_ context.Context, w *world, p place) (*child, func() error, error) {
		return moving(w.startVerifier(p))
	}}
	byUnchecked = mover{unchecked, func(_ context.Context, _ *world, p place) (*child, func() error, error) {
		return moving(startSelf(roleUnchecked, p, nil))
	}}
	byShovel = mover{"shovel", moveByShovel}
)

func moving(relay *child, err error) (*child, func() error, error) {
	if err != nil {
		return nil, nil, err
	}
	return relay, relay.stop, nil
}

// draining returns trials of movers on the same backlog.
func draining(what string, b backlog, movers ...mover) (trials []trial) {
	for _, m := range movers {
		trials = append(trials, trial{name: m.name, kind: b.kind, run: func(ctx context.Context, w *world, add adder) error {
			d, err := w.drain(ctx, b, m)
			if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			add(m.name, what, d.values()...)
			return nil
		}})
	}
	return trials
}

// drained is the measurement of a drain.
type drained struct {
	rate     float64 // messages per second, from the first message to the last
	messages int
	cpu      processorTimes
	memory   int // the largest resident memory of a relay, in bytes; 0: the broker moves the messages
}

func (d drained) values() []any {
	return append([]any{"messages/s", d.rate, "memory MiB", float64(d.memory) / (1 << 20)}, d.cpu.perMessage(d.messages)...)
}

// drain stages a backlog, has it moved, and measures.
func (w *world) drain(ctx context.Context, b backlog, m mover) (d drained, err error) {
	whole, db, leave, err := w.newPlace(ctx, ledger, b.kind)
	if err != nil {
		return d, err
	}
	defer leave()
	if b.kind.Orphans > 0 {
		insert := fmt.Sprintf(`INSERT INTO bridge_ledger (id) SELECT gen_random_uuid() FROM generate_series(1, %d)`, b.kind.Orphans)
		if err := run(ctx, db, insert, `ANALYZE bridge_ledger`); err != nil {
			return d, err
		}
	}
	parts := []place{whole}
	for i := range b.kind.Queues {
		part := whole
		part.Staging = fmt.Sprintf("%s.%d", whole.Staging, i+1)
		if err := setUpLedger(ctx, part, db); err != nil {
			return d, err
		}
		parts = append(parts, part)
	}
	for _, part := range parts {
		if err := stage(ctx, part, db, b.size, b.messages/len(parts)); err != nil {
			return d, fmt.Errorf("stage: %w", err)
		}
	}
	if err := w.settle(ctx); err != nil {
		return d, err
	}
	before := readProcessorTimes(0)
	var relays []*child
	for _, part := range parts {
		relay, stop, err := m.move(ctx, w, part)
		if err != nil {
			return d, err
		}
		defer func() { err = errors.Join(err, stop()) }()
		relays = append(relays, relay)
	}
	return w.watchDrain(ctx, whole.Target, b.messages/len(parts)*len(parts), before, relays...)
}

// watchDrain polls the queue's length until all messages have come.
func (w *world) watchDrain(ctx context.Context, queue string, n int, before processorTimes, relays ...*child) (d drained, err error) {
	var first instant
	already := 0
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	stuck := time.Now()
	for last := 0; ; {
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
		if err := failed(relays...); err != nil {
			return d, err
		}
		if q.Messages > 0 && first == 0 {
			first, already = at, q.Messages
		}
		switch {
		case q.Messages >= n:
			d = drained{float64(n-already) / at.sub(first).Seconds(), n, readProcessorTimes(0, relays...).minus(before), largestMemory(relays...)}
			return d, nil
		case q.Messages > last:
			last, stuck = q.Messages, time.Now()
		case time.Since(stuck) > time.Minute:
			return d, fmt.Errorf("%d of %d messages after a minute without another", q.Messages, n)
		}
	}
}

// stage stages n messages, with 1,000 in each transaction.
func stage(ctx context.Context, p place, db *sql.DB, size, n int) error {
	publisher, err := newPublisher(p.AMQP, 1)
	if err != nil {
		return err
	}
	defer publisher.close()
	l, err := postgres.Open(ctx, db)
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
		if err = l.Record(ctx, bridge.SQL(tx), driver.Plain(ids...)); err == nil {
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

// bytes formats a size.
func bytes(n int) string {
	if n >= 1<<10 && n%(1<<10) == 0 {
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
