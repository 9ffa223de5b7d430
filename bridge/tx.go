package bridge

import (
	"context"
	"database/sql"
)

// Tx is the caller's transaction: it executes statements, counts changed rows, and reads rows. It
// has no Commit and no Rollback, since the transaction belongs to the caller (rule 11). SQL makes a
// Tx from a transaction of database/sql. A Tx may be used until the transaction ends, by one
// goroutine at a time.
type Tx interface {
	// Exec executes a statement and returns how many rows it has changed. Statement and arguments
	// are in the dialect of the database's package.
	Exec(ctx context.Context, statement string, args ...any) (changed int64, err error)

	// Query executes a statement and returns its rows. The caller reads them to the end
	// or closes them, before the next statement.
	Query(ctx context.Context, statement string, args ...any) (Rows, error)
}

// Rows are the result of Tx.Query. Next goes on to the next row. It returns false after the
// last one, or after an error, which Err returns. Scan copies the columns of the row as in
// database/sql. Close may be called more than once.
type Rows interface {
	Next() bool
	Scan(into ...any) error
	Err() error
	Close()
}

// SQLTx is the argument of SQL: a transaction of database/sql, such as *sql.Tx or *sqlx.Tx. A
// *sql.DB and a *sql.Conn have no Commit, so they do not compile: no statement can be sent outside
// of a transaction. The bridge never calls Commit or Rollback.
type SQLTx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	Commit() error
	Rollback() error
}

// SQL returns tx as a Tx. After the end of tx its statements return sql.ErrTxDone. Transactions
// of other libraries contain such a transaction (tests/orm runs each of these lines):
//
//	sqlc   bridge.SQL(tx)                                      the tx that WithTx is given
//	bun    bridge.SQL(tx.Tx)                                   tx itself compiles and fails: its Exec has no $1
//	GORM   bridge.SQL(tx.Statement.ConnPool.(bridge.SQLTx))    it panics outside of a transaction
//	ent    bridge.SQL(tx)                                      with its feature sql/execquery
//	pgx    pgxbridge.Tx(tx)
//
// In pgx, GORM and bun a transaction inside a transaction is a savepoint. Its rollback also removes
// the messages sent in it.
func SQL(tx SQLTx) Tx { return sqlTx{tx} }

type sqlTx struct{ tx SQLTx }

func (t sqlTx) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
	result, err := t.tx.ExecContext(ctx, statement, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (t sqlTx) Query(ctx context.Context, statement string, args ...any) (Rows, error) {
	rows, err := t.tx.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	return sqlRows{rows}, nil
}

type sqlRows struct{ *sql.Rows }

func (r sqlRows) Close() { _ = r.Rows.Close() } // Err returns the error
