package pgxbridge

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/twoqueue/twoqueue/bridge"
)

// Tx returns tx as a bridge.Tx. A *pgxpool.Pool, a *pgxpool.Conn and a *pgx.Conn do not compile.
// After the end of tx its statements return pgx.ErrTxClosed. The bridge never commits it or rolls
// it back.
func Tx(tx pgx.Tx) bridge.Tx { return transaction{tx} }

type transaction struct{ tx pgx.Tx }

func (t transaction) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
	tag, err := t.tx.Exec(ctx, statement, args...)
	return tag.RowsAffected(), err
}

func (t transaction) Query(ctx context.Context, statement string, args ...any) (bridge.Rows, error) {
	rows, err := t.tx.Query(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	return rows, nil
}
