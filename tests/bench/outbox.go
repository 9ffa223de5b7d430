package main

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/twoqueue/twoqueue/bridge"
)

// The outboxes written by hand. Each has a table with the payload, and a relay that selects 500
// rows at a time with FOR UPDATE SKIP LOCKED, publishes them, awaits the confirms and commits the
// deletion. Deleting takes one statement and keeps the table small. The relay's commit does not
// wait for the disk: a lost deletion leads to a duplicate, as with this project. The contenders
// differ in how the relay is woken.
var (
	outboxPoll = &contender{
		name:  "outbox-poll",
		label: "outbox table,\npolled every 50 ms",
		what:  "an outbox written by hand: FOR UPDATE SKIP LOCKED, 500 rows a batch, pipelined confirms; polls every 50 ms, at once after a full batch",
		setUp: setUpOutbox,
		relay: func(ctx context.Context, p place) error { return relayOutbox(ctx, p, pollEvery, false) },
		open:  openOutbox(wakeNone),
	}
	outboxNotify = &contender{
		name:  "outbox-notify",
		what:  "the same, woken by a NOTIFY in every transaction",
		setUp: setUpOutbox,
		relay: func(ctx context.Context, p place) error { return relayOutbox(ctx, p, fallback, true) },
		open:  openOutbox(wakeInTransaction),
	}
	outboxHint = &contender{
		name:  "outbox-hint",
		what:  "the same, woken by a NOTIFY after the commit, one for all that commit meanwhile; polls every 50 ms besides",
		setUp: setUpOutbox,
		relay: func(ctx context.Context, p place) error { return relayOutbox(ctx, p, pollEvery, true) },
		open:  openOutbox(wakeAfterCommit),
	}
)

const (
	pollEvery = 50 * time.Millisecond
	fallback  = time.Second // the polling interval of a relay that is notified
	batch     = 500
	oneByOne  = 16 << 10 // larger bodies are faster with one statement each
)

const (
	createOutbox = `CREATE TABLE outbox (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	message_id uuid NOT NULL,
	queue text NOT NULL,
	body bytea NOT NULL,
	created_at timestamptz NOT NULL DEFAULT now()
)`
	insertOutbox = `INSERT INTO outbox (message_id, queue, body) VALUES ($1, $2, $3)`
	insertMany   = `INSERT INTO outbox (message_id, queue, body) SELECT m, $2, b FROM unnest($1::uuid[], $3::bytea[]) AS t (m, b)`
	takeOutbox   = `DELETE FROM outbox WHERE id = ANY (ARRAY(
	SELECT id FROM outbox ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED
)) RETURNING message_id::text, queue, body`
)

func setUpOutbox(ctx context.Context, p place, db *sql.DB) error {
	return run(ctx, db, pick(p.MariaDB, createOutboxMariaDB, createOutbox))
}

// waking is the way in which the application wakes the relay.
type waking int

const (
	wakeNone waking = iota
	wakeInTransaction
	wakeAfterCommit
)

func openOutbox(wake waking) func(context.Context, place, business) (application, error) {
	return func(_ context.Context, p place, b business) (application, error) {
		a := &outboxApplication{business: b, wake: wake, queue: p.Target, onMariaDB: p.MariaDB}
		if wake == wakeAfterCommit {
			ctx, cancel := context.WithCancel(context.Background())
			a.stop, a.hints = cancel, make(chan struct{}, 1)
			a.hinting.Go(func() { a.hint(ctx) })
		}
		return a, nil
	}
}

type outboxApplication struct {
	business
	wake      waking
	queue     string
	onMariaDB bool

	stop    func()
	hints   chan struct{} // one is enough: the relay takes all rows
	hinting sync.WaitGroup
}

func (a *outboxApplication) transact(ctx context.Context, bodies [][]byte, decide func() bool) (instant, error) {
	committed, err := a.in(ctx, decide, func(tx bridge.Tx) error {
		if err := a.insert(ctx, tx, bodies); err != nil || a.wake != wakeInTransaction {
			return err
		}
		_, err := tx.Exec(ctx, "NOTIFY outbox")
		return err
	})
	if a.wake == wakeAfterCommit && committed > 0 {
		select {
		case a.hints <- struct{}{}:
		default:
		}
	}
	return committed, err
}

func (a *outboxApplication) insert(ctx context.Context, tx bridge.Tx, bodies [][]byte) error {
	switch {
	case a.onMariaDB:
		return insertManyMariaDB(ctx, tx, a.queue, bodies)
	case len(bodies) == 1 || len(bodies[0]) > oneByOne:
		for _, body := range bodies {
			if _, err := tx.Exec(ctx, insertOutbox, uuid.NewString(), a.queue, body); err != nil {
				return err
			}
		}
		return nil
	}
	ids := make([]string, len(bodies))
	for i := range ids {
		ids[i] = uuid.NewString()
	}
	_, err := tx.Exec(ctx, insertMany, "{"+strings.Join(ids, ",")+"}", a.queue, bodies)
	return err
}

// hint wakes the relay for every hint. Hints that arrive during a NOTIFY are merged into one.
func (a *outboxApplication) hint(ctx context.Context) {
	for {
		select {
		case <-a.hints:
		case <-ctx.Done():
			return
		}
		// A hint that fails is no loss: the relay polls.
		_, _ = a.db.ExecContext(ctx, "NOTIFY outbox")
	}
}

func (a *outboxApplication) close() {
	if a.stop != nil {
		a.stop()
		a.hinting.Wait()
	}
}

// relayOutbox is the relay's process.
func relayOutbox(ctx context.Context, p place, every time.Duration, listen bool) error {
	publisher, err := newPublisher(p.AMQP, 1)
	if err != nil {
		return err
	}
	defer publisher.close()
	if p.MariaDB {
		return relayMariaDB(ctx, p, publisher, every)
	}
	woken := make(chan struct{}, 1)
	if listen {
		go listenOutbox(ctx, p, woken)
	}
	conn, err := pgx.Connect(ctx, p.Database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "SET synchronous_commit = off"); err != nil {
		return err
	}
	return poll(ctx, every, woken, func() (int, error) { return relayBatch(ctx, conn, publisher) })
}

// poll takes the next batch at once after a full one, and otherwise at the next tick or wake-up.
func poll(ctx context.Context, every time.Duration, woken <-chan struct{}, take func() (int, error)) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		n, err := take()
		if err != nil {
			return err
		}
		if n == batch {
			continue
		}
		select {
		case <-ticker.C:
		case <-woken:
		case <-ctx.Done():
			return nil
		}
	}
}

func listenOutbox(ctx context.Context, p place, woken chan<- struct{}) {
	conn, err := pgx.Connect(ctx, p.Database)
	if err != nil {
		return // the relay polls
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "LISTEN outbox"); err != nil {
		return
	}
	for {
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return
		}
		select {
		case woken <- struct{}{}:
		default:
		}
	}
}

func relayBatch(ctx context.Context, conn *pgx.Conn, publisher *publisher) (int, error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	rows, err := tx.Query(ctx, takeOutbox)
	if err != nil {
		return 0, err
	}
	letters, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l letter, err error) {
		err = row.Scan(&l.id, &l.queue, &l.body)
		return l, err
	})
	if err != nil {
		return 0, err
	}
	if err := publisher.publish(ctx, letters...); err != nil {
		return 0, err
	}
	return len(letters), tx.Commit(ctx)
}
