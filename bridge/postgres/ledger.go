package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// The statements take IDs as the text of an array, or of a UUID, which every driver can send in
// every mode; their own text does not depend on the number of IDs.
const (
	// noPlanReuse keeps the server from reusing a plan, in a condition on a parameter that is never
	// null. These tables are empty most of the time. A plan made for an empty table reads the whole
	// table, and would be kept when the table fills (measured: 27 s to look up 500 IDs among 60,000
	// rows, 2 ms with a new plan). When the parameter's value is known the planner removes it; to a
	// plan for any parameter it adds more than planning anew can cost.
	noPlanReuse = `(SELECT count(*) FROM generate_series(1, 1000000000)) > 0`

	// amongIDs is true for the IDs in $1, which are parsed once.
	amongIDs = `= ANY (ARRAY(SELECT unnest($1::text::uuid[])))
AND CASE WHEN $1::text IS NULL THEN ` + noPlanReuse + ` ELSE true END`

	// Most transactions have one message. Planning an INSERT costs as much as executing it, and a
	// statement with an array of visible length is planned anew each time. So one ID goes without
	// an array, and a subquery hides the length of an array of several.
	recordOne = `INSERT INTO bridge_ledger (id)
SELECT $1::text::uuid FROM bridge_identity WHERE identity = $2::text::uuid`

	recordMany = `INSERT INTO bridge_ledger (id)
SELECT unnest((SELECT $1::text::uuid[])) FROM bridge_identity WHERE identity = $2::text::uuid`

	// server names the instance: no two servers on one machine have a port in common, and hardly
	// two on different machines have started in the same microsecond. A restart is another
	// instance. The address is left out, since one server may have several. server also returns
	// whether a commit of this session waits for a standby: see replica.go.
	server = `(SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint) AS started,
	(SELECT current_setting('port')::integer) AS port,
	(SELECT current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') NOT IN ('off', 'local')) AS waits`

	// At least one row if the identity is right, with a null id if no ID is found.
	committed = `SELECT l.id, ` + server + ` FROM bridge_identity i
LEFT JOIN bridge_committed($1::text::uuid[]) AS l (id) ON true WHERE i.identity = $2::text::uuid`

	// The same lookup, of rows that are not older than an age.
	recent = `SELECT l.id, ` + server + ` FROM bridge_identity i
LEFT JOIN bridge_ledger l ON l.id ` + amongIDs + `
	AND l.recorded_at BETWEEN clock_timestamp() - $3::text::interval AND clock_timestamp()
WHERE i.identity = $2::text::uuid`

	// settles is the beginning of a settle.
	settles = `WITH own AS MATERIALIZED (
	SELECT set_config('lock_timeout', `

	// The INSERT reads from own, so that the time-out is set before the INSERT waits. The other
	// time-out removes the row if this process freezes before the rollback.
	settle = settles + `$3::text, true), set_config('idle_in_transaction_session_timeout', '10s', true)
	FROM bridge_identity WHERE identity = $2::text::uuid
), inserted AS (
	INSERT INTO bridge_ledger (id) SELECT $1::text::uuid FROM own ON CONFLICT DO NOTHING RETURNING id
)
SELECT (SELECT count(*) FROM own) AS own, (SELECT count(*) FROM inserted) AS inserted, ` + server

	// A DELETE that a crash undoes costs at most a duplicate or an orphan row, so it need not wait
	// for the disk. lock_timeout ends it at a locked row. (FOR UPDATE SKIP LOCKED needs the right
	// to UPDATE, and writes 60 bytes of WAL more for each row.)
	forget = `WITH relaxed AS MATERIALIZED (
	SELECT set_config('synchronous_commit', 'off', true), set_config('lock_timeout', $2::text, true)
)
SELECT bridge_forget($1::text::uuid[]) FROM relaxed`

	standby = `SELECT pg_is_in_recovery() AS standby, current_setting('transaction_read_only')::boolean AS read_only`

	// An open transaction of the publisher holds no lock here. PostgreSQL 13 lets every login read
	// the columns of pg_subscription named here, and not its oid (system_views.sql).
	subscription = `SELECT s.subname FROM pg_subscription_rel r
JOIN pg_stat_subscription o ON o.subid = r.srsubid
JOIN pg_subscription s ON s.subname = o.subname AND s.subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())
WHERE r.srrelid = to_regclass($1::text) AND s.subenabled LIMIT 1`
)

// A Ledger is the ledger in one PostgreSQL database. It implements driver.Ledger.
//
// Record inserts the IDs with one statement, whatever their number. An error aborts tx, as always
// in PostgreSQL: the caller can only roll back, to the beginning or to an earlier savepoint.
type Ledger struct {
	portable.Ledger
	db     *sqlx.DB
	schema schema.Name
	flush  *portable.Flush
}

var _ driver.Ledger = (*Ledger)(nil)

// Open reads the identity of the ledger in db. If the tables are missing or of an unusable
// version, the error wraps bridge.ErrNoSchema. db stays the caller's.
func Open(ctx context.Context, db *sql.DB) (*Ledger, error) { return Schema("").Open(ctx, db) }

func (l *Ledger) verbs() portable.Verbs {
	return portable.Verbs{
		Classify: func(err error, _ string) error { return l.classify(err) },
		Most:     portable.Chunk,
		Tick:     time.Microsecond,
		Identity: func(ctx context.Context) (uuid.UUID, error) { return portable.ReadIdentity(ctx, l.db, l.schema) },
		Check:    func(ctx context.Context) error { return l.check(ctx, l.schema.In("bridge_ledger")) },
		Record:   l.record,
		Carry:    l.carry,
		Cancel:   l.cancel,
		Due:      l.due,
		Claim:    l.claim,
		Touch:    l.touchCarried,
		Instance: nameInstance,
		Committed: func(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, driver.Instance, error) {
			return l.find(ctx, l.db, l.schema.In(committed), ids)
		},
		Settle: l.settle,
		Recent: func(ctx context.Context, ids []uuid.UUID, age time.Duration) ([]uuid.UUID, driver.Instance, error) {
			return l.find(ctx, l.db, l.schema.In(recent), ids, interval(age))
		},
		Table:       l.schema.In("bridge_ledger"),
		Schema:      l.schema,
		Settles:     settles,
		Forget:      l.forget,
		Orphans:     l.orphans,
		Raise:       l.raise,
		Remove:      l.sweep,
		SweptBefore: l.sweptBefore,
	}
}

// askPatience bounds the check whether the server is a standby, which needs a connection of the
// pool. In Record the caller may hold the only one.
const askPatience = time.Second

// classify also distinguishes a read-only transaction from a standby, where all are read-only.
func (l *Ledger) classify(err error) error {
	if sqlState(err) == readOnly {
		ctx, cancel := context.WithTimeout(context.Background(), askPatience)
		defer cancel()
		var standby bool
		if l.db.GetContext(ctx, &standby, `SELECT pg_is_in_recovery()`) == nil && standby {
			return fmt.Errorf("%w: the server is in recovery: %w", bridge.ErrNotPrimary, err)
		}
	}
	return classify(l.schema, err)
}

func (l *Ledger) record(ctx context.Context, tx bridge.Tx, ids []uuid.UUID) (int64, error) {
	if len(ids) == 1 {
		return tx.Exec(ctx, l.schema.In(recordOne), ids[0].String(), l.Identity().String())
	}
	return tx.Exec(ctx, l.schema.In(recordMany), array(ids), l.Identity().String())
}

// find reads the rows of ids with one statement in a snapshot of its own, which contains only
// committed rows at every isolation level.
func (l *Ledger) find(ctx context.Context, q sqlx.QueryerContext, statement string, ids []uuid.UUID, further ...any) ([]uuid.UUID, driver.Instance, error) {
	var rows []struct {
		ID uuid.NullUUID
		instance
	}
	if err := sqlx.SelectContext(ctx, q, &rows, statement, append([]any{array(ids), l.Identity().String()}, further...)...); err != nil {
		return nil, "", err
	}
	if len(rows) == 0 {
		return nil, "", portable.OtherLedger(l.Identity())
	}
	var found []uuid.UUID
	for _, row := range rows {
		if row.ID.Valid {
			found = append(found, row.ID.UUID)
		}
	}
	if len(found) > 0 {
		if err := l.replicate(ctx, rows[0].instance); err != nil {
			return nil, "", err
		}
	}
	return found, rows[0].name(), nil
}

// An instance is the result of server.
type instance struct {
	Started int64 // microseconds since 1970
	Port    int
	Waits   bool // its commits wait for a standby
}

func (i instance) name() driver.Instance {
	return driver.Instance(fmt.Sprintf("the server on port %d that started at %s", i.Port, time.UnixMicro(i.Started).UTC().Format(time.RFC3339Nano)))
}

func nameInstance(ctx context.Context, tx bridge.Tx) (driver.Instance, error) {
	var i instance
	err := portable.QueryRow(ctx, tx, `SELECT `+server, nil, &i.Started, &i.Port, &i.Waits)
	return i.name(), err
}

// settle inserts the ID in a transaction of its own, and rolls back. The INSERT waits for a
// transaction that has inserted the ID. lock_timeout bounds the wait, in whole milliseconds; a
// shorter statement_timeout of the role bounds it too, and so does a deadline of ctx. If the
// process dies in between, the server rolls back when it sees the connection gone.
func (l *Ledger) settle(ctx context.Context, id uuid.UUID, wait time.Duration, began func(sqlx.QueryerContext) error) (driver.Outcome, driver.Instance, error) {
	milliseconds := portable.Wait(ctx, wait, time.Millisecond) // never 0, which would wait for ever
	// Above READ COMMITTED a row that is committed during the wait would be a serialization
	// failure.
	tx, err := l.db.BeginTxx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return driver.StillOpen, "", fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }()

	if began != nil {
		if err := began(tx); err != nil {
			return driver.StillOpen, "", err
		}
	}
	var n struct {
		Own, Inserted int
		instance
	}
	err = tx.GetContext(ctx, &n, l.schema.In(settle), id.String(), l.Identity().String(), strconv.FormatInt(milliseconds, 10))
	switch {
	case err != nil:
		return stillOpen(ctx, err)
	case n.Own != 1:
		return driver.StillOpen, "", portable.OtherLedger(l.Identity())
	case n.Inserted == 0:
		return l.committedOn(ctx, tx, n.instance)
	default:
		return driver.RolledBack, n.name(), nil
	}
}

// stillOpen returns the outcome of a settle that failed with err.
func stillOpen(ctx context.Context, err error) (driver.Outcome, driver.Instance, error) {
	if ctx.Err() == nil && waitEnded(err) {
		err = nil
	}
	return driver.StillOpen, "", err
}

const (
	forgetWait      = "100ms" // for a locked row, in a DELETE of many
	forgetAloneWait = "1ms"   // in a DELETE of one, only to see that the row is locked
)

// forget deletes the rows one by one if the DELETE of all has met a locked row.
func (l *Ledger) forget(ctx context.Context, ids []uuid.UUID) (left []uuid.UUID, err error) {
	locked, err := l.deleteWithin(ctx, forgetWait, ids)
	if err != nil || !locked {
		return nil, err
	}
	for _, id := range ids {
		alone := []uuid.UUID{id}
		if locked, err = l.deleteWithin(ctx, forgetAloneWait, alone); err != nil {
			return nil, err
		}
		if locked {
			left = append(left, id)
		}
	}
	return left, nil
}

// deleteWithin reports whether it has deleted nothing because a row is locked.
func (l *Ledger) deleteWithin(ctx context.Context, wait string, ids []uuid.UUID) (locked bool, err error) {
	_, err = l.db.ExecContext(ctx, l.schema.In(forget), array(ids), wait)
	if ctx.Err() == nil && sqlState(err) == lockNotAvailable {
		return true, nil
	}
	return false, err
}

// check returns nil if db is the primary, takes writes, keeps committed rows over a crash, and is
// where the rows of the tables are committed.
func (l *Ledger) check(ctx context.Context, names ...string) error {
	var server struct {
		Standby  bool
		ReadOnly bool `db:"read_only"`
	}
	if err := l.db.GetContext(ctx, &server, standby); err != nil {
		return err
	}
	switch {
	case server.Standby:
		return fmt.Errorf("%w: the server is in recovery", bridge.ErrNotPrimary)
	case server.ReadOnly:
		return fmt.Errorf("%w: default_transaction_read_only is on, for the server, the database, the login or the connection", bridge.ErrReadOnly)
	}
	if err := checkLogged(ctx, l.db, append([]string{l.schema.In("bridge_identity"), l.schema.In("bridge_watermark")}, names...)); err != nil {
		return err
	}
	// The locks here show nothing about rows from another primary.
	for _, table := range names {
		var name string
		err := l.db.GetContext(ctx, &name, subscription, table)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			continue
		case err != nil:
			return err
		}
		return fmt.Errorf("%w: subscription %s writes the commits of another primary to %s, and that primary's open transactions look rolled back here: "+
			"use the publisher, or take the table out of the publication", bridge.ErrNotPrimary, name, table)
	}
	return nil
}

// array returns ids as the text of a uuid[].
func array(ids []uuid.UUID) string {
	text := make([]byte, 0, len(ids)*37+2)
	text = append(text, '{')
	for i, id := range ids {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, id.String()...)
	}
	return string(append(text, '}'))
}

// numbers returns numbers as the text of an int[].
func numbers(all []int) string {
	text := []byte{'{'}
	for i, n := range all {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, int64(n), 10)
	}
	return string(append(text, '}'))
}
