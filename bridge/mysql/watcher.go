package mysql

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/internal/inspection"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// lookPause is the first pause between two looks at the holders. InnoDB renews its view only after
// a tenth of a second without a look.
const lookPause = 150 * time.Millisecond

// Holders settles the ID, and reads from InnoDB the transactions that the settle waits for. Without
// the right PROCESS it returns none. It always takes the whole wait, a second or two.
func (i *Inspector) Holders(ctx context.Context, id uuid.UUID) ([]inspect.Holder, error) {
	var version string
	return inspection.Watch{
		DB: i.on.db, Classify: classify,
		Begin: func(ctx context.Context, id uuid.UUID) (number string, settle func() (driver.Outcome, error), err error) {
			conn, err := i.on.db.Connx(ctx)
			if err != nil {
				return "", nil, fmt.Errorf("connect: %w", err)
			}
			if err = conn.QueryRowxContext(ctx, `SELECT CONNECTION_ID(), VERSION()`).Scan(&number, &version); err != nil {
				portable.Release(conn, err)
				return "", nil, err
			}
			return number, func() (driver.Outcome, error) {
				outcome, _, _, err := i.on.settleOn(ctx, conn, id, portable.Wait(ctx, inspection.WatchWait, time.Second))
				portable.Release(conn, err)
				return outcome, err
			}, nil
		},
		Look: func(ctx context.Context, conn *sqlx.Conn, session string) ([]inspect.Holder, error) {
			look := holdersMySQL
			if isMariaDB(version) {
				look = holdersMariaDB
			}
			return list(ctx, conn, fmt.Sprintf(look, session, hex.EncodeToString(id[:])))
		},
		Pause: lookPause,
	}.Holders(ctx, id)
}

// OpenTransactions lists the transactions of sessions in this database that have changed a row of
// any table: InnoDB does not show which table. InnoDB's view is a tenth of a second old, and older
// while other clients read it more often than that. Without the right PROCESS it returns none.
func (i *Inspector) OpenTransactions(ctx context.Context, age time.Duration, limit int) ([]inspect.Holder, error) {
	return inspection.OpenTransactions(classify, age, limit, func() ([]inspect.Holder, error) {
		return list(ctx, i.on.db, fmt.Sprintf(openTransactions, age.Microseconds(), limit))
	})
}

func isMariaDB(version string) bool { return strings.Contains(version, "MariaDB") }

// list reads holders, and their details in performance_schema.
func list(ctx context.Context, q sqlx.QueryerContext, query string) ([]inspect.Holder, error) {
	var rows []struct {
		Session             int64
		TrxState            string `db:"trx_state"`
		Since               sql.NullString
		Login, Host         string
		Command, Info       string
		Program, Statements string `db:"-"`
	}
	err := sqlx.SelectContext(ctx, q, &rows, query)
	if n := errorNumber(err); n == missingRight || n == missingTableRight {
		return nil, nil
	}
	if err != nil || len(rows) == 0 {
		return []inspect.Holder{}, err
	}
	sessions := make([]string, len(rows))
	for i, r := range rows {
		sessions[i] = fmt.Sprint(r.Session)
	}
	known, err := texts(ctx, q, programs, sessions)
	if err == nil && len(known) == 0 {
		known, err = texts(ctx, q, allPrograms, sessions)
	}
	if err != nil {
		return nil, err
	}
	last, err := texts(ctx, q, statements, sessions)
	if err != nil {
		return nil, err
	}
	found := make([]inspect.Holder, len(rows))
	for i, r := range rows {
		h := inspect.Holder{Session: sessions[i], Login: r.Login, Program: known[r.Session], Host: r.Host, State: state(r.TrxState, r.Command, r.Session)}
		if h.Since, err = parseTime(r.Since); err != nil {
			return nil, err
		}
		if r.Info == "" {
			r.Info = last[r.Session]
		}
		h.Statement = inspection.Cut(r.Info)
		found[i] = h
	}
	return found, nil
}

// state returns the session's state, in the server's words, and whether its transaction waits
// itself.
func state(transaction, command string, session int64) string {
	switch {
	case session == 0:
		return "prepared, without a session: XA RECOVER lists it"
	case command == "":
		return transaction
	case transaction == "RUNNING":
		return command
	default:
		return command + ", " + transaction
	}
}

// texts reads the texts of the sessions that have one. It is no error if the server has no
// performance_schema, or hides it from the login.
func texts(ctx context.Context, q sqlx.QueryerContext, query string, sessions []string) (map[int64]string, error) {
	var rows []struct {
		Session int64
		Text    sql.NullString
	}
	err := sqlx.SelectContext(ctx, q, &rows, fmt.Sprintf(query, strings.Join(sessions, ",")))
	if err != nil && !slices.Contains([]uint64{missingRight, missingTableRight, missingColumnRight, noSuchTable, unknownTable}, errorNumber(err)) {
		return nil, err
	}
	all := make(map[int64]string)
	for _, r := range rows {
		all[r.Session] = r.Text.String
	}
	return all, nil
}

func parseTime(text sql.NullString) (time.Time, error) {
	if !text.Valid {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.DateTime, text.String)
	if err != nil {
		return time.Time{}, errors.New("malformed start time of a transaction: " + text.String)
	}
	return t, nil
}
