package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/internal/inspection"
	"github.com/twoqueue/twoqueue/bridge/internal/mssql"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// lookPause is the first pause between two looks at the holders.
const lookPause = 10 * time.Millisecond

// Holders settles the ID, and reads from the server the sessions that the settle waits for. A login
// that may not see other sessions gets none.
func (i *Inspector) Holders(ctx context.Context, id uuid.UUID) ([]inspect.Holder, error) {
	return seen(ctx, func(ctx context.Context) ([]inspect.Holder, error) { return i.watch().Holders(ctx, id) })
}

// seen calls ask, and returns nothing if the login may not see other sessions.
func seen(ctx context.Context, ask func(ctx context.Context) ([]inspect.Holder, error)) (found []inspect.Holder, err error) {
	err = try(ctx, func(ctx context.Context) (err error) {
		found, err = ask(ctx)
		return err
	})
	if errors.Is(err, errUnseen) {
		return nil, nil
	}
	return found, err
}

func (i *Inspector) watch() inspection.Watch {
	return inspection.Watch{
		DB: i.on.db, Classify: i.classify,
		Begin: i.begin,
		Look: func(ctx context.Context, conn *sqlx.Conn, session string) ([]inspect.Holder, error) {
			number, err := strconv.ParseInt(session, 10, 64)
			if err != nil {
				return nil, err
			}
			return i.list(ctx, conn, holders, number)
		},
		// The driver tells the server, and keeps the connection.
		Cancel: true,
		Pause:  lookPause,
	}
}

func (i *Inspector) begin(ctx context.Context, id uuid.UUID) (number string, settle func() (driver.Outcome, error), err error) {
	conn, err := i.on.db.Connx(ctx)
	if err != nil {
		return "", nil, fmt.Errorf("connect: %w", err)
	}
	if err = conn.GetContext(ctx, &number, `SELECT @@SPID`); err != nil {
		_ = conn.Close()
		return "", nil, err
	}
	return number, func() (driver.Outcome, error) {
		defer func() { _ = conn.Close() }()
		outcome, _, err := i.on.settleOn(ctx, conn, id, portable.Wait(ctx, inspection.WatchWait, time.Millisecond))
		if mssql.Number(err) == mssql.LockTimeout {
			err = nil
		}
		return outcome, err
	}, nil
}

// OpenTransactions lists the transactions that have locked the table to change rows. Ages are in
// whole seconds. A login that may not see other sessions gets none.
func (i *Inspector) OpenTransactions(ctx context.Context, age time.Duration, limit int) ([]inspect.Holder, error) {
	return seen(ctx, func(ctx context.Context) ([]inspect.Holder, error) {
		return inspection.OpenTransactions(i.classify, age, limit, func() ([]inspect.Holder, error) {
			return i.list(ctx, i.on.db, openTransactions, i.table(), int64((age+time.Second-1)/time.Second), int64(limit))
		})
	})
}

// list reads holders. It returns errUnseen if the server hides the views from the login, or has
// none.
func (i *Inspector) list(ctx context.Context, q sqlx.QueryerContext, query string, args ...any) ([]inspect.Holder, error) {
	var rows []struct {
		Session              int64
		Login, Program, Host string
		Status, Statement    string
		Since                sql.NullString
		WaitsFor             int64 `db:"waits_for"`
	}
	err := sqlx.SelectContext(ctx, q, &rows, query, args...)
	if mayNotLook(err) {
		return nil, fmt.Errorf("%w: %w", errUnseen, err)
	}
	if err != nil {
		return nil, err
	}
	settles := i.on.schema.In(settleByInsert)
	found := make([]inspect.Holder, 0, len(rows))
	for n, r := range rows {
		// A session may have several transactions, of MARS. A session that settles by INSERT holds
		// the row for a moment, and only after all other holders.
		if n > 0 && r.Session == rows[n-1].Session || strings.Contains(r.Statement, settles) {
			continue
		}
		h := inspect.Holder{
			Session: fmt.Sprint(r.Session), Login: r.Login, Program: r.Program, Host: r.Host, State: r.Status,
			Statement: inspection.Cut(strings.TrimSpace(r.Statement)),
		}
		if h.Since, err = parseTime(r.Since); err != nil {
			return nil, fmt.Errorf("read the time of a transaction: %w", err)
		}
		if r.WaitsFor > 0 {
			h.State += fmt.Sprintf(", waits for session %d", r.WaitsFor)
		} else if other := noSession[r.WaitsFor]; other != "" {
			h.State += ", waits for: " + other
		}
		if other := noSession[r.Session]; other != "" {
			h.State = other
		}
		found = append(found, h)
	}
	return found, nil
}

// noSession are the holders of locks that are no session, in the words of 'sys.dm_exec_requests'.
var noSession = map[int64]string{-2: "orphaned distributed transaction", -3: "deferred recovery transaction"}

var errUnseen = errors.New("the login may not see other sessions")

// mayNotLook reports whether the server hides its views, or has none.
func mayNotLook(err error) bool {
	switch mssql.Number(err) {
	case mssql.NoObject, mssql.Denied, mssql.NoDatabaseRight, mssql.NoPermission, mssql.NoServerState, mssql.NotAllowed:
		return true
	}
	return false
}
