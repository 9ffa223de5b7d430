package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

// Prepared transactions (two-phase commit) belong to no session. Each has a lock on
// its own number, and whatever else it has locked has the same virtualtransaction.
const (
	// The time-outs come before the statement that waits, so that they also bound the
	// wait for a table's lock.
	patient = `SELECT pg_backend_pid(), set_config('lock_timeout', $1::text, true), set_config('idle_in_transaction_session_timeout', '10s', true)`

	activity = `a.pid::text AS session, coalesce(a.usename, '') AS login, coalesce(a.application_name, '') AS program,
	coalesce(a.client_hostname, host(a.client_addr), '') AS host, coalesce(a.state, '') AS state, a.xact_start AS since,
	coalesce(nullif(a.query, '<insufficient privilege>'), '') AS statement, array_to_string(pg_blocking_pids(a.pid), ', ') AS waits_for`

	prepared = `'prepared ' || p.gid AS session, p.owner AS login, '' AS program, '' AS host, 'prepared' AS state,
	p.prepared AS since, '' AS statement, '' AS waits_for`

	holders = `WITH waited AS MATERIALIZED (SELECT * FROM pg_locks WHERE pid = $1::text::int AND NOT granted)
SELECT ` + activity + ` FROM (SELECT DISTINCT unnest(pg_blocking_pids($1::text::int)) AS pid) b JOIN pg_stat_activity a USING (pid)
UNION ALL
SELECT ` + prepared + ` FROM waited w
JOIN pg_locks h ON h.granted AND h.pid IS NULL AND (h.locktype, h.database, h.relation, h.transactionid, h.classid, h.objid, h.objsubid)
	IS NOT DISTINCT FROM (w.locktype, w.database, w.relation, w.transactionid, w.classid, w.objid, w.objsubid)
JOIN pg_locks t ON t.locktype = 'transactionid' AND t.pid IS NULL AND t.virtualtransaction = h.virtualtransaction
JOIN pg_prepared_xacts p ON p.transaction = t.transactionid`

	openTransactions = `WITH writers AS MATERIALIZED (
	SELECT DISTINCT l.pid, l.virtualtransaction FROM pg_locks l
	WHERE l.locktype = 'relation' AND l.relation = $1::text::regclass AND l.mode = 'RowExclusiveLock' AND l.granted
	AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
)
SELECT ` + activity + ` FROM (SELECT DISTINCT pid FROM writers) w JOIN pg_stat_activity a USING (pid)
WHERE a.pid <> pg_backend_pid() AND a.xact_start <= clock_timestamp() - $2::text::interval
UNION ALL
SELECT ` + prepared + ` FROM writers w
JOIN pg_locks t ON w.pid IS NULL AND t.locktype = 'transactionid' AND t.pid IS NULL AND t.virtualtransaction = w.virtualtransaction
JOIN pg_prepared_xacts p ON p.transaction = t.transactionid
WHERE p.prepared <= clock_timestamp() - $2::text::interval
ORDER BY since LIMIT $3::text::int`

	cancel = `SELECT pg_cancel_backend($1::text::int)`
)

// lookPause is the first pause between two looks at who is waited for.
const lookPause = 5 * time.Millisecond

// Holders inserts the ID as Settle does, and asks pg_blocking_pids for whom that waits.
// Of the sessions of other roles, a login that is not in pg_read_all_stats sees the
// process ID, the login and the program.
func (l *Ledger) Holders(ctx context.Context, id uuid.UUID) ([]inspect.Holder, error) {
	return l.holders(ctx, id, settle, id.String(), l.identity.String(), milliseconds(tables.WatchWait))
}

// OpenTransactions lists the transactions that hold a lock for writing on the table:
// also a Forget, and a settle that waits. Those of other roles are left out if the
// login is not in pg_read_all_stats, as it cannot see their age.
func (l *Ledger) OpenTransactions(ctx context.Context, age time.Duration, limit int) ([]inspect.Holder, error) {
	return l.openTransactions(ctx, "bridge_ledger", age, limit)
}

// Holders takes the lock of the ID as Settle does, and asks for whom that waits.
func (o *ownTable) Holders(ctx context.Context, id uuid.UUID) ([]inspect.Holder, error) {
	return o.ledger.holders(ctx, id, await, strconv.FormatInt(key(id), 10), milliseconds(tables.WatchWait))
}

// OpenTransactions lists the transactions that hold a lock for writing on the own
// table, whatever they have written there.
func (o *ownTable) OpenTransactions(ctx context.Context, age time.Duration, limit int) ([]inspect.Holder, error) {
	return o.ledger.openTransactions(ctx, o.table, age, limit)
}

// holders runs a statement that waits for the transaction of id, and says for whom it
// waits.
func (l *Ledger) holders(ctx context.Context, id uuid.UUID, waits string, args ...any) ([]inspect.Holder, error) {
	fail := func(err error) ([]inspect.Holder, error) {
		return nil, fmt.Errorf("holders of %s: %w", id, classify(err))
	}
	if err := tables.CheckPool(l.db); err != nil {
		return fail(err)
	}
	tx, err := l.db.BeginTxx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fail(err)
	}
	defer func() { _ = tx.Rollback() }()
	var session string
	if err := tx.QueryRowContext(ctx, patient, milliseconds(tables.WatchWait)).Scan(&session, new(string), new(string)); err != nil {
		return fail(err)
	}
	found, err := tables.Watch{
		DB: l.db,
		Wait: func(ctx context.Context) error {
			_, err := tx.ExecContext(ctx, waits, args...)
			return err
		},
		Ended: waitEnded,
		Look: func(ctx context.Context, conn *sqlx.Conn) ([]inspect.Holder, error) {
			return list(ctx, conn, holders, session)
		},
		// Before the transaction has ended: then nobody else can be hit by it.
		Wake: func(ctx context.Context, conn *sqlx.Conn) {
			_, _ = conn.ExecContext(ctx, cancel, session) // or it waits to the end
		},
		Pause: lookPause,
	}.Run(ctx)
	if err != nil {
		return fail(err)
	}
	return found, nil
}

func (l *Ledger) openTransactions(ctx context.Context, table string, age time.Duration, limit int) ([]inspect.Holder, error) {
	err := tables.CheckAge(age, limit)
	if err == nil {
		var found []inspect.Holder
		if found, err = list(ctx, l.db, openTransactions, table, milliseconds(age)+"ms", strconv.Itoa(limit)); err == nil {
			return found, nil
		}
	}
	return nil, fmt.Errorf("list open transactions: %w", classify(err))
}

// list reads holders, but for sessions that settle: these hold a row for a moment,
// and only once there is nobody else.
func list(ctx context.Context, q sqlx.QueryerContext, query string, args ...any) ([]inspect.Holder, error) {
	var rows []struct {
		Session, Login, Program, Host, State, Statement string

		Since    sql.NullTime
		WaitsFor string `db:"waits_for"`
	}
	if err := sqlx.SelectContext(ctx, q, &rows, query, args...); err != nil {
		return nil, err
	}
	var found []inspect.Holder
	for _, r := range rows {
		if strings.HasPrefix(r.Statement, settles) {
			continue
		}
		if r.WaitsFor != "" {
			r.State += ", waits for session " + r.WaitsFor
		}
		found = append(found, inspect.Holder{
			Session: r.Session, Login: r.Login, Program: r.Program, Host: r.Host, State: r.State,
			Since: r.Since.Time, Statement: tables.Cut(r.Statement),
		})
	}
	return found, nil
}

// settles is how a settle begins, before its first parameter.
var settles = settle[:strings.IndexByte(settle, '$')]

// milliseconds returns d as the text of a setting, rounded up.
func milliseconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}
