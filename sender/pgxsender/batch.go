package pgxsender

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/pgxbridge"
	"github.com/twoqueue/twoqueue/sender"
)

// SendBatch is SendTx of s in tx, together with a batch of statements that were not sent yet. They
// travel to the server with the INSERT of the messages' IDs, which saves a round trip. They are
// executed first, and their callbacks (pgx.QueuedQuery) run before anything is published. If one of
// them fails, nothing is published, and SendBatch returns the error. The caller must then roll
// back, as after any error of SendTx.
//
// Without messages the batch is sent alone. After bridge.ErrInvalidMessage it was not sent. The
// caller must not use the batch again. The batch must not begin a transaction (pgx.Batch.BeginTx),
// and each of its queued queries must be one statement. With an own table no round trip is saved.
func SendBatch(ctx context.Context, s *sender.Sender, tx pgx.Tx, batch *pgx.Batch, messages ...bridge.Message) ([]uuid.UUID, error) {
	if len(messages) == 0 {
		return nil, tx.SendBatch(ctx, batch).Close()
	}
	t := &batchTx{Tx: pgxbridge.Tx(tx), tx: tx, batch: batch}
	ids, err := s.SendTx(ctx, t, messages...)
	if t.failed != nil {
		return nil, t.failed // an error of the caller's statements, not of the ledger
	}
	return ids, err
}

// batchTx is a transaction whose first statement is sent with a batch.
type batchTx struct {
	bridge.Tx
	tx     pgx.Tx
	batch  *pgx.Batch // nil after it was sent
	failed error      // the error of one of the caller's statements
}

func (t *batchTx) Exec(ctx context.Context, statement string, args ...any) (changed int64, err error) {
	batch := t.batch
	if batch == nil {
		return t.Tx.Exec(ctx, statement, args...)
	}
	t.batch = nil
	reached := false
	batch.Queue(statement, args...).Fn = func(results pgx.BatchResults) error {
		reached = true
		tag, err := results.Exec()
		changed = tag.RowsAffected()
		return err
	}
	err = t.tx.SendBatch(ctx, batch).Close()
	if err != nil && !reached && !about(err, statement) {
		t.failed = err
	}
	return changed, err
}

// about reports whether pgx could not prepare this statement.
func about(err error, statement string) bool {
	var preparing pgx.ErrPreprocessingBatch
	return errors.As(err, &preparing) && preparing.SQL() == statement
}

func (t *batchTx) Query(ctx context.Context, statement string, args ...any) (bridge.Rows, error) {
	if batch := t.batch; batch != nil {
		t.batch = nil
		if t.failed = t.tx.SendBatch(ctx, batch).Close(); t.failed != nil {
			return nil, t.failed
		}
	}
	return t.Tx.Query(ctx, statement, args...)
}
