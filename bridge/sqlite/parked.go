package sqlite

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

const (
	park = `INSERT INTO bridge_parked (id, message) SELECT ?, ? FROM bridge_identity WHERE identity = ?`

	takeParked = `SELECT id, length(message) AS size FROM bridge_parked WHERE id > ? ORDER BY id LIMIT ?`

	loadParked = `SELECT id, message FROM bridge_parked WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id`

	touch = `UPDATE bridge_ledger SET recorded_at = unixepoch() WHERE id IN (SELECT value FROM json_each(?)) RETURNING id`

	removeParked = `DELETE FROM bridge_parked WHERE id IN (SELECT value FROM json_each(?))`

	countParked = `SELECT count(*) FROM (SELECT 1 FROM bridge_parked LIMIT ?)`
)

func (l *Ledger) park(ctx context.Context, tx bridge.Tx, messages []driver.Parked) (changed int64, err error) {
	for _, m := range messages {
		n, err := tx.Exec(ctx, park, m.ID.String(), tables.NotNil(m.Message), l.Identity().String())
		if changed += n; err != nil {
			return changed, fmt.Errorf("message %s: %w", m.ID, err)
		}
	}
	return changed, nil
}

// countParked reads the last commit.
func (l *Ledger) countParked(ctx context.Context, limit int) (n int, err error) {
	err = l.db.GetContext(ctx, &n, countParked, limit)
	return n, err
}

// A shelf is a tables.Shelf that reads the last commit, statement by statement, and
// begins its transaction with the first statement that writes, when the messages are staged: nobody has to wait for the
// broker. So it locks nothing that would keep two Unparks at once from taking the same
// messages; both may stage them, and one of the two removes them.
type shelf struct {
	ledger *Ledger
	tx     *sqlx.Tx // nil before
}

func (l *Ledger) openShelf(context.Context) (tables.Shelf, error) { return &shelf{ledger: l}, nil }

func (s *shelf) Take(ctx context.Context, after uuid.UUID, limit int) (taken []tables.Size, err error) {
	err = s.ledger.db.SelectContext(ctx, &taken, takeParked, after.String(), limit)
	return taken, err
}

func (s *shelf) Recorded(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	found, _, err := s.ledger.lookUp(ctx, s.ledger.db, ids)
	return found, err
}

func (s *shelf) Load(ctx context.Context, ids []uuid.UUID) (messages []driver.Parked, err error) {
	err = s.ledger.db.SelectContext(ctx, &messages, loadParked, array(ids))
	return messages, err
}

func (s *shelf) Touch(ctx context.Context, ids []uuid.UUID) (touched []uuid.UUID, err error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	err = s.tx.SelectContext(ctx, &touched, touch, array(ids))
	return touched, err
}

func (s *shelf) Remove(ctx context.Context, ids []uuid.UUID) (int, error) {
	if err := s.begin(ctx); err != nil {
		return 0, err
	}
	return tables.Changed(s.tx.ExecContext(ctx, removeParked, array(ids)))
}

func (s *shelf) begin(ctx context.Context) (err error) {
	if s.tx == nil {
		s.tx, err = s.ledger.db.BeginTxx(ctx, nil)
	}
	return err
}

func (s *shelf) Commit() error { return s.tx.Commit() }

func (s *shelf) Rollback() error {
	if s.tx == nil {
		return nil
	}
	return s.tx.Rollback()
}
