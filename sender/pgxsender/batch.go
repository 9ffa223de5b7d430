package pgxsender

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/pgxbridge"
	"github.com/twoqueue/twoqueue/sender"
)

// SendBatch is SendTx of s in tx, where the statements of batch have not been sent yet: they
// travel to the server together with the INSERT of the messages' IDs, which saves a round
// trip. They come first, and their callbacks (pgx.QueuedQuery) run before anything is
// published. If one of them fails, nothing is, and SendBatch returns the error; the caller
// rolls back, as after any error of SendTx.
//
// Without messages batch is sent all the same. With an error that is
// bridge.ErrInvalidMessage it was not. The caller must not use batch again.
func SendBatch(ctx context.Context, s *sender.Sender, tx pgx.Tx, batch *pgx.Batch, messages ...bridge.Message) ([]uuid.UUID, error) {
	if len(messages) == 0 {
		return nil, tx.SendBatch(ctx, batch).Close()
	}
	return s.SendTx(ctx, &together{pgxbridge.Tx(tx), tx, batch}, messages...)
}

// together is a transaction whose first statement takes a batch along.
type together struct {
	bridge.Tx
	tx    pgx.Tx
	batch *pgx.Batch // nil when it was sent
}

func (t *together) Exec(ctx context.Context, statement string, args ...any) (changed int64, err error) {
	batch := t.batch
	if batch == nil {
		return t.Tx.Exec(ctx, statement, args...)
	}
	t.batch = nil
	batch.Queue(statement, args...).Exec(func(tag pgconn.CommandTag) error {
		changed = tag.RowsAffected()
		return nil
	})
	err = t.tx.SendBatch(ctx, batch).Close()
	return changed, err
}

func (t *together) Query(ctx context.Context, statement string, args ...any) (bridge.Rows, error) {
	if batch := t.batch; batch != nil {
		t.batch = nil
		if err := t.tx.SendBatch(ctx, batch).Close(); err != nil {
			return nil, err
		}
	}
	return t.Tx.Query(ctx, statement, args...)
}
