package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/internal/inspection"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// lookPause is the first pause between two looks at the holders.
const lookPause = 5 * time.Millisecond

// Holders settles the ID, and reads from pg_blocking_pids the sessions that the settle waits for.
// It takes a second, unless the holder's transaction ends sooner. (pg_cancel_backend could hit the
// next user of the settle's connection.) A login that is not in pg_read_all_stats sees only process
// ID, login and program of other roles' sessions.
func (i *Inspector) Holders(ctx context.Context, id uuid.UUID) ([]inspect.Holder, error) {
	return inspection.Watch{
		DB: i.on.db, Classify: i.on.classify, Begin: i.begin, Look: i.look, Pause: lookPause,
	}.Holders(ctx, id)
}

// begin reads the session's number in the transaction of the settle: a pooler may give two
// transactions different sessions.
func (i *Inspector) begin(ctx context.Context, id uuid.UUID) (pid string, settle func() (driver.Outcome, error), err error) {
	tx, err := i.on.beginSettle(ctx)
	if err != nil {
		return "", nil, err
	}
	err = tx.QueryRowxContext(ctx, patient, strconv.FormatInt(inspection.WatchWait.Milliseconds(), 10)).Scan(&pid, new(string), new(string))
	if err != nil {
		_ = tx.Rollback()
		return "", nil, err
	}
	return pid, func() (driver.Outcome, error) {
		defer func() { _ = tx.Rollback() }()
		outcome, _, err := i.settleIn(ctx, tx, id, portable.Wait(ctx, inspection.WatchWait, time.Millisecond))
		return outcome, err
	}, nil
}

// look lists the sessions that the session waits for.
func (i *Inspector) look(ctx context.Context, conn *sqlx.Conn, session string) ([]inspect.Holder, error) {
	found, err := i.list(ctx, conn, holders, session)
	if err != nil {
		return nil, err
	}
	var prepared bool
	if err := conn.GetContext(ctx, &prepared, byPrepared, session); err != nil || !prepared {
		return found, err
	}
	more, err := i.list(ctx, conn, preparedHolders, session)
	return append(found, more...), err
}

// OpenTransactions lists the transactions that hold a lock for writing on the table, a Forget and a
// waiting settle among them. On an own table it lists all that have written there. A login that is
// not in pg_read_all_stats does not get other roles' transactions, since it cannot see their age.
func (i *Inspector) OpenTransactions(ctx context.Context, age time.Duration, limit int) ([]inspect.Holder, error) {
	return inspection.OpenTransactions(i.on.classify, age, limit, func() ([]inspect.Holder, error) {
		found, err := i.list(ctx, i.on.db, openTransactions, i.table, fmt.Sprintf("%d microseconds", age.Microseconds()), strconv.Itoa(limit))
		if err != nil || len(found) > 0 {
			return found, err
		}
		var all bool
		if err := i.on.db.GetContext(ctx, &all, seesOthers); err != nil || !all {
			return nil, err
		}
		return []inspect.Holder{}, nil
	})
}

// list reads holders, without sessions that settle: these hold a row for a moment, and only after
// all other holders.
func (i *Inspector) list(ctx context.Context, q sqlx.QueryerContext, query string, args ...any) ([]inspect.Holder, error) {
	var rows []struct {
		Session, Login, Program, Host, State, Statement string

		Since    moment
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
			Since: r.Since.Time, Statement: inspection.Cut(r.Statement),
		})
	}
	return found, nil
}
