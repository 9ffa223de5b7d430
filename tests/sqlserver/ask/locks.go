package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
)

// markWaits has two transactions lock one mark with an UPDATE that changes nothing.
func markWaits(hint string) func(ctx context.Context, w *world) (string, error) {
	statement := "UPDATE m SET mark = m.mark OUTPUT inserted.mark FROM bridge_mark m WITH (" + hint + "ROWLOCK, FORCESEEK) WHERE m.consumer = @p1 AND m.[name] = @p2"
	return func(ctx context.Context, w *world) (string, error) {
		name := "mark " + hint
		err := w.in(ctx, func(tx bridge.Tx) error { _, err := w.inbox.LockMark(ctx, tx, "ask", name); return err })
		if err != nil {
			return "", err
		}
		update := func(tx *sql.Tx) error {
			var mark []byte
			return tx.QueryRowContext(ctx, statement, []byte("ask"), []byte(name)).Scan(&mark)
		}
		return w.secondWaits(ctx, update, update)
	}
}

// secondWaits runs first in a transaction that stays open, then second in another one.
func (w *world) secondWaits(ctx context.Context, first, second func(tx *sql.Tx) error) (string, error) {
	open, err := w.begin(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = open.Rollback() }()
	if err := first(open); err != nil {
		return "", err
	}
	other, err := w.begin(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = other.Rollback() }()
	err = second(other)
	switch {
	case err == nil:
		return "passes", nil
	case number(err) == "1222":
		return "waits", nil
	}
	return "error " + number(err), nil
}

// readPast reads the row of an ID that an open transaction has inserted.
func readPast(hint string) func(ctx context.Context, w *world) (string, error) {
	statement := "SELECT count(*) FROM bridge_ledger WITH (" + hint + "READCOMMITTEDLOCK, READPAST, ROWLOCK, FORCESEEK) WHERE id = CAST(@p1 AS uniqueidentifier)"
	return func(ctx context.Context, w *world) (string, error) {
		id := newID()
		insert := func(tx *sql.Tx) error { return w.record(ctx, tx, id) }
		return w.secondWaits(ctx, insert, func(tx *sql.Tx) error {
			var n int
			if err := tx.QueryRowContext(ctx, statement, stored(id)).Scan(&n); err != nil {
				return err
			}
			if n > 0 {
				return errors.New("which reads the row that is not committed")
			}
			return nil
		})
	}
}

// deadlocks has some transactions make messages doubtful while others change the messages.
func deadlocks(ctx context.Context, w *world) (string, error) {
	const messages, rounds, consumer = 8, 50, "deadlocks"
	pending := func(i int) driver.Pending {
		return driver.Pending{Key: fmt.Sprint("message ", i), State: driver.Started, Run: "r", Message: []byte("m")}
	}
	for i := range messages {
		err := w.in(ctx, func(tx bridge.Tx) error {
			_, err := w.inbox.AddPending(ctx, tx, consumer, pending(i), -time.Hour)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	var mu sync.Mutex
	errs := make(map[string]int)
	var workers sync.WaitGroup
	work := func(step func(round int, tx bridge.Tx) error) {
		workers.Go(func() {
			for round := range rounds {
				err := w.in(ctx, func(tx bridge.Tx) error {
					// Longer than a server takes to find a deadlock: five seconds by default.
					if _, err := tx.Exec(ctx, "SET LOCK_TIMEOUT 30000"); err != nil {
						return err
					}
					return step(round, tx)
				})
				if err != nil {
					mu.Lock()
					errs[number(err)]++
					mu.Unlock()
				}
			}
		})
	}
	for i := range messages {
		work(func(_ int, tx bridge.Tx) error {
			_, err := w.inbox.ChangePending(ctx, tx, consumer, "r", pending(i), -time.Hour)
			return err
		})
		work(func(_ int, tx bridge.Tx) error { _, err := w.inbox.DoubtOverdue(ctx, tx, consumer); return err })
	}
	workers.Wait()
	if len(errs) == 0 {
		return "none", nil
	}
	return fmt.Sprint("errors by number: ", errs), nil
}

// resets leaves changed settings on a connection, alone and followed by an error. Then it reads
// the settings that the pool's next user gets: LOCK_TIMEOUT, XACT_ABORT, NOCOUNT, the isolation
// level.
func resets(ctx context.Context, w *world) (string, error) {
	one, err := sql.Open("sqlserver", w.url)
	if err != nil {
		return "", err
	}
	defer func() { _ = one.Close() }()
	one.SetMaxOpenConns(1)
	const duplicate = "INSERT INTO bridge_inbox (consumer, [key]) SELECT @p1, k.k FROM (VALUES (1, @p3)) AS k (n, k) WHERE k.n <= @p2"
	locked := newID()
	open, err := w.begin(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = open.Rollback() }()
	if err := w.record(ctx, open, locked); err != nil {
		return "", err
	}
	if _, err := w.db.ExecContext(ctx, duplicate, []byte("resets"), 1, []byte("k")); err != nil {
		return "", err
	}
	var got []string
	for _, then := range []func(conn *sql.Conn) error{
		func(*sql.Conn) error { return nil },
		func(conn *sql.Conn) error {
			var n int
			return conn.QueryRowContext(ctx, lockedRead, stored(locked)).Scan(&n)
		},
		func(conn *sql.Conn) error {
			_, err := conn.ExecContext(ctx, duplicate, []byte("resets"), 1, []byte("k"))
			return err
		},
	} {
		conn, err := one.Conn(ctx)
		if err != nil {
			return "", err
		}
		_, err = conn.ExecContext(ctx, "SET LOCK_TIMEOUT 5; SET XACT_ABORT ON; SET NOCOUNT ON; SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
		if err != nil {
			return "", errors.Join(err, conn.Close())
		}
		_ = then(conn)
		if err := conn.Close(); err != nil {
			return "", err
		}
		var settings string
		err = one.QueryRowContext(ctx, `SELECT CONCAT(@@LOCK_TIMEOUT, ' ', @@OPTIONS & 16384, ' ', @@OPTIONS & 512, ' ',
			transaction_isolation_level) FROM sys.dm_exec_sessions WHERE session_id = @@SPID`).Scan(&settings)
		if err != nil {
			return "", err
		}
		got = append(got, settings)
	}
	return strings.Join(got, ", "), nil
}

// ownTables settles a row of an own table while the row's transaction is open, and after it has
// ended.
func ownTables(create ...string) func(ctx context.Context, w *world) (string, error) {
	return func(ctx context.Context, w *world) (answer string, err error) {
		defer func() {
			_, failed := w.db.ExecContext(context.WithoutCancel(ctx), "DROP TABLE ask_orders")
			err = errors.Join(err, failed)
		}()
		for _, statement := range create {
			if _, err := w.db.ExecContext(ctx, statement); err != nil {
				return "", err
			}
		}
		ledger, err := sqlserver.OpenOwnTable(ctx, w.db, bridge.OwnTable{Table: "ask_orders", Column: "id"})
		if err != nil {
			return "", err
		}
		tx, err := w.begin(ctx)
		if err != nil {
			return "", err
		}
		defer func() { _ = tx.Rollback() }()
		id := newID()
		if _, err := tx.ExecContext(ctx, "INSERT INTO ask_orders (id) VALUES ('"+id.String()+"')"); err != nil {
			return "", err
		}
		open, _, err := ledger.Settle(ctx, id, 200*time.Millisecond)
		if err != nil {
			return "", err
		}
		if err := tx.Rollback(); err != nil {
			return "", err
		}
		ended, _, err := ledger.Settle(ctx, id, patience/2)
		return open.String() + ", " + ended.String(), err
	}
}

// snapshotInsert inserts a key that was deleted after the transaction's snapshot.
func snapshotInsert(ctx context.Context, w *world) (string, error) {
	if _, err := w.db.ExecContext(ctx, "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON"); err != nil {
		return "", err
	}
	const c, k = "snapshot", "k"
	claim := func(tx bridge.Tx) error { _, err := w.inbox.Claim(ctx, tx, c, []string{k}); return err }
	if err := w.in(ctx, claim); err != nil {
		return "", err
	}
	tx, err := w.beginAt(ctx, sql.LevelSnapshot)
	if err != nil {
		return "", err
	}
	defer func() { _ = tx.Rollback() }()
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM bridge_inbox").Scan(&n); err != nil {
		return "", err
	}
	forget := func(tx bridge.Tx) error {
		_, err := w.inbox.Forget(ctx, tx, c, []string{k}, -time.Minute)
		return err
	}
	if err := w.in(ctx, forget); err != nil {
		return "", err
	}
	claimed, err := w.inbox.Claim(ctx, bridge.SQL(tx), c, []string{k})
	switch {
	case err != nil:
		return "error " + number(err), nil
	case len(claimed) == 1:
		return "success", nil
	}
	return "2627", nil
}

// number returns the number of the server's error, after the numbers of the errors before it, or
// else the error's text.
func number(err error) string {
	e := new(mssql.Error)
	if !errors.As(err, e) {
		return fmt.Sprint(err)
	}
	all := e.All
	if len(all) == 0 {
		all = []mssql.Error{*e}
	}
	var numbers []string
	for _, e := range all {
		numbers = append(numbers, fmt.Sprint(e.Number))
	}
	return strings.Join(numbers, ", ")
}
