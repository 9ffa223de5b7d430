package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/pgxbridge"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/pgxreceiver"
)

// receiveScenario has a receiver handle each message of a queue once.
var receiveScenario = scenario{
	name:     "receive",
	what:     "a receiver handles a backlog of messages of 512 bytes, 32 at once, each with one INSERT: idempotency's Handle and HandleWithClaim, on pgx pgxreceiver's Handle, and HandleBatch of up to 100, whose handler inserts their rows with one statement, against a dedupe table written by hand, among 1,000 keys handled before and among 200,000 (with -long 5 million), and there with a purge beside it that deletes the older half of them",
	headline: headline{metric: "committed/s", ours: receiveHandle.name},
	trials: func(c config) (trials []trial) {
		for _, r := range receivers {
			for _, inbox := range []int{c.inbox, fewKeys} {
				trials = append(trials, trial{name: r.name, kind: kind{Inbox: inbox}, run: func(ctx context.Context, w *world, add adder) error {
					return w.with(ctx, r, kind{Inbox: inbox}, func(s *session) error { return s.receive(ctx, add) })
				}})
			}
		}
		return trials
	},
}

const (
	fewKeys = 1000
	// mostReceived is more than a receiver of single messages handles in a second, even on a database
	// that does not wait for the disk, as in the test. mostBatched is the same for batches.
	mostReceived = 20_000
	mostBatched  = 60_000
	// mostAhead counts for each goroutine one message that is not yet reported, and one that begins
	// while the receiver stops.
	mostAhead = 2 * fullLoad
	// receivePatience is longer than a busy broker takes to deliver a message.
	receivePatience = time.Minute
)

// receive measures a receiver whose inbox already has keys. Each message adds one.
func (s *session) receive(ctx context.Context, add adder) error {
	among := fmt.Sprintf("%d keys at first", s.place.Inbox)
	if err := s.fill(ctx); err != nil {
		return err
	}
	m, err := s.measure(order{Workers: fullLoad})
	if err != nil {
		return err
	}
	add(s.contender.name, among, m.values()...)
	if s.place.Inbox == fewKeys {
		return nil
	}
	if err := s.fill(ctx); err != nil {
		return err
	}
	var purged int64
	purging, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	begun := now()
	go func() {
		var err error
		purged, err = s.contender.purge(purging, s.db)
		ended <- err
	}()
	m, err = s.measure(order{Workers: fullLoad})
	took := now().sub(begun)
	stop()
	switch failed := <-ended; {
	case failed == nil:
		return errors.Join(err, errors.New("the purge ended before the measurement: shorter windows, or -long, whose inbox is larger"))
	case !errors.Is(failed, context.Canceled):
		return errors.Join(err, failed)
	case err != nil:
		return err
	}
	if s.w.config.test && purged == 0 { // the window may end before a purge's first step does
		if purged, err = s.contender.purge(ctx, s.db); err != nil {
			return err
		}
		if purged == 0 {
			return errors.New("no key is purged")
		}
	}
	add(s.contender.name, among+", purge", append(m.values(), "purged/s", float64(purged)/took.Seconds())...)
	return nil
}

// fill fills the queue with enough messages for a measurement. At the end of the warm-up and of the
// window each worker begins a last message.
func (s *session) fill(ctx context.Context) error {
	perSecond := float64(mostReceived)
	if s.contender.batches {
		perSecond = mostBatched
	}
	if err := feed(ctx, s.place, int(perSecond*(s.w.warmUp+s.w.window).Seconds())+2*fullLoad); err != nil {
		return err
	}
	return s.w.settle(ctx)
}

// The receivers handle each message of a backlog in the staging queue once. Handling a message
// means doing the business's work.
var (
	receiveHandle = &contender{
		name:   "twoqueue-handle",
		what:   "idempotency's Deduplicator.Handle in a Consumer",
		silent: true,
		ahead:  mostAhead,
		setUp:  setUpInbox,
		open: func(ctx context.Context, p place, b business) (application, error) {
			dedup, err := openDedup(ctx, b.db, 0)
			if err != nil {
				return nil, err
			}
			return openConsumer(ctx, p, func(ctx context.Context, d amqp.Delivery) error {
				return dedup.Handle(ctx, b.db, d, func(ctx context.Context, tx *sql.Tx) error { return b.work(ctx, bridge.SQL(tx)) })
			})
		},
		purge: purgeInbox,
	}
	receiveTx = &contender{
		name:   "twoqueue-handletx",
		what:   "idempotency's Deduplicator.HandleWithClaim, in a transaction of the receiver's own; it looks at the claim once more before the ack",
		silent: true,
		ahead:  mostAhead,
		setUp:  setUpInbox,
		open: func(ctx context.Context, p place, b business) (application, error) {
			dedup, err := openDedup(ctx, b.db, 0)
			if err != nil {
				return nil, err
			}
			return openByHand(ctx, p, func(ctx context.Context, d amqp.Delivery) error {
				return dedup.HandleWithClaim(ctx, d, func(ctx context.Context, claim idempotency.Claim) error {
					return b.once(ctx, func(tx bridge.Tx) (bool, error) { return claim(ctx, tx) })
				})
			})
		},
		purge: purgeInbox,
	}
	dedupeTable = &contender{
		name:   "dedupe-table",
		what:   "a dedupe table written by hand: INSERT … ON CONFLICT DO NOTHING in the receiver's transaction, the ack after the commit; no attempts, no ages, no dead letters",
		silent: true,
		ahead:  mostAhead,
		setUp:  setUpDedupe,
		open: func(ctx context.Context, p place, b business) (application, error) {
			return openByHand(ctx, p, func(ctx context.Context, d amqp.Delivery) error {
				err := b.once(ctx, func(tx bridge.Tx) (bool, error) {
					inserted, err := tx.Exec(ctx, insertDedupe, d.MessageId)
					return inserted == 1, err
				})
				if err != nil {
					return err
				}
				return d.Ack(false)
			})
		},
		purge: purgeDedupe,
	}
	receivePgx = &contender{
		name:   "twoqueue-handle" + nativeSuffix,
		what:   "pgxreceiver's Handle, in a transaction of pgx, in a Consumer",
		silent: true,
		ahead:  mostAhead,
		pgx:    true,
		setUp:  setUpInbox,
		open: func(ctx context.Context, p place, b business) (application, error) {
			dedup, err := openPgxDedup(ctx, b.pool)
			if err != nil {
				return nil, err
			}
			return openConsumer(ctx, p, func(ctx context.Context, d amqp.Delivery) error {
				return pgxreceiver.Handle(ctx, dedup, b.pool, pgx.TxOptions{}, d, func(ctx context.Context, tx pgx.Tx) error { return b.work(ctx, pgxbridge.Tx(tx)) })
			})
		},
		purge: purgeInbox,
	}
	dedupeTablePgx = onPgx(dedupeTable)
	receiveBatch   = &contender{
		name:    "twoqueue-batch",
		what:    "idempotency's Deduplicator.HandleBatch, up to 100 messages in a transaction, whose rows the handler inserts with one statement; two at once in a batch consumer",
		silent:  true,
		ahead:   4 * mostInBatch,
		batches: true,
		setUp:   setUpInbox,
		open: func(ctx context.Context, p place, b business) (application, error) {
			dedup, err := openDedup(ctx, b.db, 0)
			if err != nil {
				return nil, err
			}
			return openBatchConsumer(ctx, p, func(ctx context.Context, ds []amqp.Delivery) error {
				return dedup.HandleBatch(ctx, b.db, ds, func(ctx context.Context, tx *sql.Tx, fresh []amqp.Delivery) error {
					_, err := tx.ExecContext(ctx, insertOrders, slices.Repeat([]int64{4711}, len(fresh)), slices.Repeat([]string{"one order"}, len(fresh)))
					return err
				})
			})
		},
		purge: purgeInbox,
	}
	receivers = []*contender{receiveHandle, receiveTx, receivePgx, receiveBatch, dedupeTable, dedupeTablePgx}
)

const (
	insertOrders = `INSERT INTO orders (customer, note) SELECT * FROM unnest($1::bigint[], $2::text[])`
	insertDedupe = `INSERT INTO dedupe (key) VALUES ($1) ON CONFLICT DO NOTHING`
	createDedupe = `CREATE TABLE dedupe (key text COLLATE "C" PRIMARY KEY, handled_at timestamptz NOT NULL DEFAULT now())`
	// The keys are UUIDs of version 7, which contain their age, so no index on handled_at is
	// needed.
	forgetDedupe = `DELETE FROM dedupe WHERE key IN (SELECT key FROM dedupe WHERE key < $1 ORDER BY key LIMIT 500)`
	// someKeys are UUIDs of version 7 of the last twenty days, the oldest first.
	someKeys = `SELECT substr(ms, 1, 8) || '-' || substr(ms, 9) || '-7' || substr(noise, 1, 3) || '-8' || substr(noise, 4, 3) || '-' || substr(noise, 7, 12), at
FROM (
	SELECT at, md5(i::text) AS noise, lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') AS ms
	FROM generate_series(1, %[1]d) AS i, LATERAL (SELECT now() - interval '20 days' * (1 - i / %[1]d.0)) AS made (at)
) AS keys`
)

const (
	consumer = "bench"
	// halfRetention is the retention with which a purge deletes the older half of the keys.
	halfRetention = 10 * 24 * time.Hour
)

func setUpInbox(ctx context.Context, p place, db *sql.DB) error {
	if err := migrate.Inbox(ctx, db, migrate.PostgreSQL); err != nil {
		return err
	}
	insert := fmt.Sprintf(`INSERT INTO bridge_inbox (consumer, key, claimed_at) SELECT '`+consumer+`', * FROM (`+someKeys+`) AS k`, p.Inbox)
	return setUpReceiver(ctx, p, db, insert, `VACUUM (FREEZE, ANALYZE) bridge_inbox`)
}

func setUpDedupe(ctx context.Context, p place, db *sql.DB) error {
	return setUpReceiver(ctx, p, db, createDedupe, fmt.Sprintf(`INSERT INTO dedupe (key, handled_at) `+someKeys, p.Inbox), `VACUUM (FREEZE, ANALYZE) dedupe`)
}

// setUpReceiver leaves no work for autovacuum. It also stages a session's first message twice: the
// copy must not be handled (see session.check).
func setUpReceiver(ctx context.Context, p place, db *sql.DB, statements ...string) error {
	if err := run(ctx, db, statements...); err != nil {
		return err
	}
	publisher, err := newPublisher(p.AMQP, 1)
	if err != nil {
		return err
	}
	defer publisher.close()
	if _, err := declareStaging(publisher, p); err != nil {
		return err
	}
	first := letter{queue: p.Staging, id: uuid.Must(uuid.NewV7()).String()}
	return publisher.publish(ctx, first, first)
}

func declareStaging(publisher *publisher, p place) (amqp.Queue, error) {
	return publisher.channels[0].QueueDeclare(p.Staging, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
}

// feed publishes messages until the staging queue holds n.
func feed(ctx context.Context, p place, n int) error {
	publisher, err := newPublisher(p.AMQP, 1)
	if err != nil {
		return err
	}
	defer publisher.close()
	queue, err := declareStaging(publisher, p)
	if err != nil {
		return err
	}
	text := newBodies()
	for n -= queue.Messages; n > 0; n -= 1000 {
		letters := make([]letter, min(n, 1000))
		for i := range letters {
			letters[i] = letter{queue: p.Staging, id: uuid.Must(uuid.NewV7()).String(), body: text.make(0, 512)}
		}
		if err := publisher.publish(ctx, letters...); err != nil {
			return err
		}
	}
	return nil
}

func openDedup(ctx context.Context, db *sql.DB, retention time.Duration) (*idempotency.Deduplicator, error) {
	inbox, err := postgres.OpenInbox(ctx, db)
	if err != nil {
		return nil, err
	}
	return idempotency.New(inbox, consumer, &idempotency.Options{HandBack: true, Retention: retention})
}

// once begins a transaction and does the business's work in it if claim reports that the message is
// new.
func (b business) once(ctx context.Context, claim func(tx bridge.Tx) (fresh bool, err error)) error {
	_, err := b.around(ctx, func() bool { return true }, func(tx bridge.Tx) error {
		fresh, err := claim(tx)
		if err != nil || !fresh {
			return err
		}
		return b.work(ctx, tx)
	})
	return err
}

// mostInBatch is the largest size of a batch.
const mostInBatch = 100

// A receiver is an application that handles messages in goroutines of its own, as receivers do.
// Each call of transact waits for one handled message.
type receiver struct {
	handled chan struct{}
	failed  chan error
	running context.Context
	stop    func()
}

func newReceiver(running context.Context, stop func()) *receiver {
	return &receiver{make(chan struct{}), make(chan error, 1), running, stop}
}

// report reports n handled messages to transact.
func (r *receiver) report(n int) {
	for range n {
		select {
		case r.handled <- struct{}{}:
		case <-r.running.Done():
			return
		}
	}
}

func (r *receiver) fail(err error) {
	select {
	case r.failed <- err:
	default: // an earlier failure is reported
	}
}

func (r *receiver) transact(ctx context.Context, _ [][]byte, _ func() bool) (instant, error) {
	select {
	case <-r.handled:
		return now(), nil
	case err := <-r.failed:
		return 0, err
	case <-time.After(receivePatience):
		return 0, errors.New("no message was handled: the queue is empty, or the broker delivers nothing")
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (r *receiver) close() { r.stop() }

// openByHand consumes the queue with as many goroutines as a Consumer has workers. handle acks.
func openByHand(ctx context.Context, p place, handle func(ctx context.Context, d amqp.Delivery) error) (application, error) {
	conn, deliveries, err := consumeQueue(p.AMQP, p.Staging)
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	var workers sync.WaitGroup
	r := newReceiver(running, func() {
		stop()
		workers.Wait()
		_ = conn.Close()
	})
	for range fullLoad {
		workers.Go(func() {
			for running.Err() == nil {
				select {
				case d, ok := <-deliveries:
					if !ok {
						r.fail(errors.New("the consumer has ended"))
						return
					}
					if err := handle(ctx, d); err != nil {
						r.fail(err)
						return
					}
					r.report(1)
				case <-running.Done():
				}
			}
		})
	}
	return r, nil
}

// openConsumer opens a Consumer, which acks the messages itself.
func openConsumer(ctx context.Context, p place, handle func(ctx context.Context, d amqp.Delivery) error) (application, error) {
	return openBatches(ctx, p, 1, fullLoad, func(ctx context.Context, ds []amqp.Delivery) error { return handle(ctx, ds[0]) })
}

func openBatchConsumer(ctx context.Context, p place, handle func(ctx context.Context, ds []amqp.Delivery) error) (application, error) {
	return openBatches(ctx, p, mostInBatch, 2, handle)
}

func openBatches(ctx context.Context, p place, most, workers int, handle func(ctx context.Context, ds []amqp.Delivery) error) (application, error) {
	broker, err := bridge.NewBroker(p.AMQP, nil)
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx) // the handlers' context ends later, when the Consumer has drained
	ended := make(chan error, 1)
	r := newReceiver(running, func() {
		stop()
		<-ended
		broker.Close()
	})
	consumer, err := idempotency.NewBatchConsumer(broker, p.Staging, most, func(ctx context.Context, ds []amqp.Delivery) error {
		err := handle(ctx, ds)
		if err != nil {
			return err
		}
		r.report(len(ds))
		return nil
	}, &idempotency.ConsumerOptions{Workers: workers})
	if err != nil {
		stop()
		broker.Close()
		return nil, err
	}
	go func() { ended <- consumer.Run(running) }()
	return r, nil
}

func openPgxDedup(ctx context.Context, pool *pgxpool.Pool) (*idempotency.Deduplicator, error) {
	inbox, err := pgxbridge.OpenInbox(ctx, pool)
	if err != nil {
		return nil, err
	}
	return idempotency.New(inbox, consumer, &idempotency.Options{HandBack: true})
}

// purgeInbox rests after each step, as purgeDedupe does.
func purgeInbox(ctx context.Context, db *sql.DB) (int64, error) {
	dedup, err := openDedup(ctx, db, halfRetention)
	if err != nil {
		return 0, err
	}
	return dedup.Purge(ctx, db)
}

func purgeDedupe(ctx context.Context, db *sql.DB) (forgotten int64, err error) {
	youngest := fmt.Sprintf("%012x", time.Now().Add(-halfRetention).UnixMilli())
	youngest = youngest[:8] + "-" + youngest[8:]
	for {
		begun := time.Now()
		result, err := db.ExecContext(ctx, forgetDedupe, youngest)
		if err != nil {
			return forgotten, err
		}
		n, err := result.RowsAffected()
		if err != nil || n == 0 {
			return forgotten, err
		}
		forgotten += n
		select {
		case <-time.After(4 * time.Since(begun)):
		case <-ctx.Done():
			return forgotten, ctx.Err()
		}
	}
}
