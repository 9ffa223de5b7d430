package main

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/twoqueue/twoqueue/bridge"
)

// A contender is one way of getting messages out of transactions to a queue.
type contender struct {
	name  string
	what  string // for the report
	label string // in pictures, with a line break; the name if it is empty
	// silent says that no message ever arrives at the target.
	silent bool
	// pgx says that the application uses pgx directly, without database/sql: see onPgx.
	pgx bool
	// classic says that its staging queue is a classic one.
	classic bool
	// verifier says that its relay is the project's worker.
	verifier bool
	// ahead is the largest number of messages that a receiver has handled and not yet reported.
	ahead int
	// batches: the receiver handles several messages in a transaction.
	batches bool
	// setUp creates the contender's tables and queues in a new place.
	setUp func(ctx context.Context, p place, db *sql.DB) error
	// relay is the contender's relay, which runs in its own process until ctx ends. It is nil if
	// there is no relay, or if the relay is the project's worker.
	relay func(ctx context.Context, p place) error
	// open opens the contender's part of the application.
	open func(ctx context.Context, p place, b business) (application, error)
	// purge deletes a receiver's old keys until ctx ends or none is left. It is nil if the
	// contender is not a receiver.
	purge func(ctx context.Context, db *sql.DB) (forgotten int64, err error)
}

// handles reports whether c is a receiver.
func (c *contender) handles() bool { return c.purge != nil }

// An application runs the transactions of a contender. It is called from many
// goroutines.
type application interface {
	// transact begins a transaction, does the business's work and sends the bodies to the target,
	// in any order. Before the commit it calls decide, which may block, and then commits or rolls
	// back. It returns the time at which COMMIT returned, or 0 after a rollback.
	transact(ctx context.Context, bodies [][]byte, decide func() bool) (committed instant, err error)
	close()
}

// contenders lists all contenders. The first is this project.
var contenders = slices.Concat([]*contender{ledger, ledgerEarly, ledgerCarried, ledgerAlways, ledgerClassic, ledgerWaiting, bare, afterCommit, outboxPoll, outboxNotify, outboxHint,
	watermillEight, oagudoOptimistic, ledgerPgx, ledgerEarlyPgx, outboxPollPgx, afterCommitPgx}, receivers)

func contenderNames() []string {
	var names []string
	for _, c := range contenders {
		names = append(names, c.name)
	}
	return names
}

func findContender(name string) (*contender, error) {
	for _, c := range contenders {
		if c.name == name {
			return c, nil
		}
	}
	return nil, fmt.Errorf("no contender %q", name)
}

// The business row, the same for all.
const (
	createOrders = `CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer bigint NOT NULL, note text NOT NULL)`
	insertOrder  = `INSERT INTO orders (customer, note) VALUES ($1, $2)`
	selectOrder  = `SELECT customer FROM orders WHERE id = $1`
	updateOrder  = `UPDATE orders SET note = $1 WHERE id = lastval()`
)

// business runs the application's own work, in a transaction that the contender shares.
type business struct {
	db     *sql.DB
	pool   *pgxpool.Pool // in place of db: see onPgx
	insert string        // the business row
	five   bool
}

// openBusiness opens the database connections of c's application.
func openBusiness(ctx context.Context, p place, c *contender) (b business, err error) {
	b = business{insert: pick(p.MariaDB, insertOrderMariaDB, insertOrder), five: p.Five}
	if c.pgx {
		b.pool, err = p.openPool(ctx)
	} else {
		b.db, err = p.open(ctx)
	}
	return b, err
}

// in runs a transaction: the business's work, send, and the commit.
func (b business) in(ctx context.Context, decide func() bool, send func(tx bridge.Tx) error) (instant, error) {
	return b.around(ctx, decide, func(tx bridge.Tx) error {
		if err := b.work(ctx, tx); err != nil {
			return err
		}
		return send(tx)
	})
}

// work inserts the business row or, if five is set, runs five statements. None of them meets
// another transaction's locks.
func (b business) work(ctx context.Context, tx bridge.Tx) error {
	if !b.five {
		_, err := tx.Exec(ctx, b.insert, 4711, "one order")
		return err
	}
	for _, id := range []int{1, 2} {
		if err := readOrder(ctx, tx, id); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, b.insert, 4711, "one order"); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, updateOrder, "one order, paid"); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, b.insert, 4712, "another order")
	return err
}

func readOrder(ctx context.Context, tx bridge.Tx, id int) error {
	rows, err := tx.Query(ctx, selectOrder, id)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var customer int64
		if err := rows.Scan(&customer); err != nil {
			return err
		}
	}
	return rows.Err()
}

// around runs fn in a transaction.
func (b business) around(ctx context.Context, decide func() bool, fn func(tx bridge.Tx) error) (instant, error) {
	if b.pool != nil {
		return b.aroundPgx(ctx, decide, fn)
	}
	return b.aroundSQL(ctx, decide, func(tx *sql.Tx) error { return fn(bridge.SQL(tx)) })
}

func (b business) aroundSQL(ctx context.Context, decide func() bool, fn func(tx *sql.Tx) error) (instant, error) {
	tx, err := b.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }()
	if err := fn(tx); err != nil {
		return 0, err
	}
	if !decide() {
		return 0, tx.Rollback()
	}
	if err := tx.Commit(); err != nil {
		return 0, err
	}
	return now(), nil
}

func (b business) close() {
	if b.pool != nil {
		b.pool.Close()
		return
	}
	_ = b.db.Close()
}
