package main

import (
	"context"
	"database/sql"
	"errors"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
)

// outboxLocked is the outbox as the literature on queues in SQL Server warns of:
// a table that is a queue, kept in order by locks. Applications and relay work at
// SERIALIZABLE, nobody skips what another one has locked, and whoever is made the
// victim tries again.
var outboxLocked = &contender{
	name:  "outbox-locked",
	what:  "an outbox kept as a queue with locks: applications and relay at SERIALIZABLE, nothing skipped, victims try again",
	setUp: setUpOutbox,
	relay: func(ctx context.Context, p place) error { return relayLocked(ctx, p) },
	open: func(_ context.Context, p place, b business) (application, error) {
		a := &outboxApplication{business: b, queue: p.Target, onMariaDB: p.MariaDB}
		a.opts = &sql.TxOptions{Isolation: sql.LevelSerializable}
		return &lockedApplication{a}, nil
	},
}

const (
	takeLocked        = `SELECT id, message_id, queue, body FROM outbox ORDER BY id LIMIT 500 FOR UPDATE`
	deadlockMariaDB   = 1213
	lockTimeOut       = 1205
	changedSince      = 1020 // by MariaDB 11.8: since the transaction's snapshot
	serializationFail = "40001"
	deadlockPostgres  = "40P01"
)

type lockedApplication struct{ *outboxApplication }

func (a *lockedApplication) transact(ctx context.Context, bodies [][]byte, decide func() bool) (instant, error) {
	for {
		committed, err := a.outboxApplication.transact(ctx, bodies, decide)
		if !victim(err) || ctx.Err() != nil {
			return committed, err
		}
	}
}

func relayLocked(ctx context.Context, p place) error {
	publisher, err := newPublisher(p.AMQP, 1)
	if err != nil {
		return err
	}
	defer publisher.close()
	db, err := p.open(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	opts := &sql.TxOptions{Isolation: sql.LevelSerializable}
	return poll(ctx, pollEvery, nil, func() (int, error) {
		n, err := relayBatchSQL(ctx, db, opts, takeLocked, publisher)
		if victim(err) {
			return batch, nil // at once again
		}
		return n, err
	})
}

// victim tells whether the database has rolled back for the sake of another
// transaction.
func victim(err error) bool {
	if e := new(pgconn.PgError); errors.As(err, &e) {
		return e.Code == serializationFail || e.Code == deadlockPostgres
	}
	if e := new(mysql.MySQLError); errors.As(err, &e) {
		return e.Number == deadlockMariaDB || e.Number == lockTimeOut || e.Number == changedSince
	}
	return false
}
