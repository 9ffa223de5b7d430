package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twoqueue/twoqueue/compose/servers"
)

// outageScenario has the broker fail under load. Its contenders work at the same time on the same
// servers, so one outage hits both.
var outageScenario = scenario{
	name:     "outage",
	what:     fmt.Sprintf("the broker is frozen (SIGSTOP), or stopped and started again, while both contenders begin %d transactions a second with a message of 512 bytes, both at the same time on the same servers, for ten times -window (with -long sixty times: 10 minutes): the transactions of that time; the backlog when the broker is back, and the seconds until it has come; messages that came twice; the table and its indexes, and the application's largest resident memory, when the broker is back; a relay that ends is started again after a second, and a lost message ends the run", outageRate),
	headline: headline{metric: "slowest transaction ms", lower: true, ours: ledgerCarried.name},
	trials: func(c config) []trial {
		length := c.window * time.Duration(pick(c.long, 60, 10))
		return []trial{{name: ledgerCarried.name, seldom: true, run: func(ctx context.Context, w *world, add adder) error {
			for _, f := range pick(c.test, faults[1:], faults) { // the second also ends all connections
				if err := w.fail(ctx, f, length, add); err != nil {
					return err
				}
			}
			return nil
		}}}
	},
}

const outageRate = 200

// A fault of the broker.
type fault struct {
	what       string
	begin, end func(ctx context.Context, broker *servers.RabbitMQ) error
}

var faults = []fault{
	{"frozen",
		func(_ context.Context, broker *servers.RabbitMQ) error { broker.Freeze(); return nil },
		func(_ context.Context, broker *servers.RabbitMQ) error { broker.Thaw(); return nil }},
	{"gone",
		func(_ context.Context, broker *servers.RabbitMQ) error { return broker.Shutdown() },
		func(ctx context.Context, broker *servers.RabbitMQ) error { return broker.Restart(ctx) }},
}

// fail has the broker fail for the given length of time.
func (w *world) fail(ctx context.Context, f fault, length time.Duration, add adder) error {
	var all []*outage
	defer func() {
		for _, o := range all {
			o.session.end()
		}
	}()
	for _, c := range []struct {
		*contender
		table string
	}{{ledgerCarried, "bridge_ledger"}, {outboxPoll, "outbox"}} {
		s, err := w.begin(ctx, c.contender, kind{})
		if err != nil {
			return err
		}
		all = append(all, &outage{session: s, table: c.table})
	}
	working, stopWork := context.WithCancel(ctx)
	keeping, stopKeeping := context.WithCancel(ctx)
	var work, keep sync.WaitGroup
	for _, o := range all {
		work.Go(func() { o.work(working) })
		keep.Go(func() { o.keepRelay(keeping) })
	}
	stop := sync.OnceFunc(func() {
		stopWork()
		work.Wait()
		stopKeeping()
		keep.Wait()
		for _, o := range all {
			o.session.relay = o.relay
		}
	})
	defer stop()
	if err := pause(ctx, 2*w.window); err != nil {
		return err
	}
	from := now()
	err := f.begin(ctx, w.broker)
	if err == nil {
		err = pause(ctx, length)
	}
	if err := errors.Join(err, f.end(ctx, w.broker)); err != nil {
		return err
	}
	back := now()
	for _, o := range all {
		if err := o.back(ctx); err != nil {
			return err
		}
	}
	_ = w.amqp.Close() // the outage may have ended it
	if err := w.connect(); err != nil {
		return err
	}
	if err := pause(ctx, 2*w.window); err != nil {
		return err
	}
	stopWork()
	work.Wait()
	for _, o := range all {
		values, err := o.values(from, back)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", f.what, o.session.contender.name, err)
		}
		add(o.session.contender.name, f.what, values...)
	}
	stop()
	for _, o := range all {
		if err := errors.Join(o.keeping, o.session.check(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// An outage is one contender's part of a fault.
type outage struct {
	session       *session
	table         string // the table of its waiting messages
	bytes, memory int    // of the table and of the application, when the broker is back

	// Read these only when work has ended.
	slices  []outcome // one for each window
	working error

	// Read these only when keepRelay has ended.
	relay   *child
	keeping error
}

// work begins transactions until ctx ends.
func (o *outage) work(ctx context.Context) {
	for ctx.Err() == nil {
		out, err := o.session.do(order{Workers: mostAtOnce, Rate: outageRate, Size: 512, Window: o.session.w.window})
		if err != nil {
			o.working = err
			return
		}
		o.slices = append(o.slices, out)
	}
}

// keepRelay restarts the relay whenever it ends, as a service manager does, until ctx ends.
func (o *outage) keepRelay(ctx context.Context) {
	s := o.session
	o.relay = s.relay
	for {
		select {
		case <-o.relay.done:
		case <-ctx.Done():
			return
		}
		if pause(ctx, time.Second) != nil {
			return
		}
		relay, err := s.w.startRelay(s.contender, s.place)
		if err != nil {
			o.keeping = err
			return
		}
		o.relay = relay
	}
}

// back measures memory and table size; call it when the broker is back.
func (o *outage) back(ctx context.Context) error {
	o.memory = largestMemory(o.session.application)
	err := o.session.db.QueryRowContext(ctx, `SELECT pg_total_relation_size($1::regclass)`, o.table).Scan(&o.bytes)
	if err != nil {
		return fmt.Errorf("read size of table %s: %w", o.table, err)
	}
	return o.session.target.reconnect()
}

// values waits until all messages have come, and returns the metrics.
func (o *outage) values(from, back instant) ([]any, error) {
	if o.working != nil {
		return nil, o.working
	}
	s := o.session
	patience := time.Minute + 2*back.sub(from)
	var took []time.Duration
	var arrived instant // the last of the backlog
	committed, failed, backlog := 0, 0, 0
	for _, slice := range o.slices {
		if _, missing := s.target.wait(slice.Messages, patience); missing > 0 {
			return nil, fmt.Errorf("%d messages are lost, or had not come after %v", missing, patience)
		}
		if slice.To > from && slice.From < back {
			took = append(took, slice.Took...)
			committed, failed = committed+slice.Committed, failed+slice.Failed
		}
		for _, m := range slice.Messages {
			if at, _ := s.target.arrival(m.Number); m.Committed < back && at > back {
				backlog, arrived = backlog+1, max(arrived, at)
			}
		}
	}
	drained := 0.
	if backlog > 0 {
		drained = arrived.sub(back).Seconds()
	}
	return []any{
		"slowest transaction ms", quantile(took, 0, 1),
		"transaction p99 ms", quantile(took, 0, 0.99),
		"transaction p50 ms", quantile(took, 0, 0.5),
		"committed", float64(committed), "failed", float64(failed),
		"backlog", float64(backlog), "seconds until it had come", drained,
		"came twice", float64(s.target.copies()),
		"table MiB", float64(o.bytes) / (1 << 20), "application MiB", float64(o.memory) / (1 << 20),
	}, nil
}
