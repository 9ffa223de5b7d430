package postgres

import (
	"context"
	"database/sql"
	"strconv"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

const (
	// The messages are pieces of one parameter, of these lengths.
	park = `INSERT INTO bridge_parked (id, message)
SELECT m.id, substring($3::bytea FROM m.first FOR m.length)
FROM bridge_identity i, unnest($1::text::uuid[], $4::text::int[], $5::text::int[]) AS m(id, first, length)
WHERE i.identity = $2::text::uuid`

	// The time-out gives back what was taken if we freeze; it must be longer than
	// driver.UnparkPatience.
	takeParked = `WITH patience AS MATERIALIZED (SELECT set_config('idle_in_transaction_session_timeout', '60s', true)),
taken AS MATERIALIZED (
	SELECT id, octet_length(message) AS size FROM bridge_parked
	WHERE id > $2::text::uuid ORDER BY id LIMIT $1::text::int FOR UPDATE SKIP LOCKED
)
SELECT taken.id, taken.size FROM patience, taken ORDER BY taken.id`

	loadParked = `SELECT id, message FROM bridge_parked WHERE id ` + amongAsked + ` ORDER BY id`

	touch = `WITH free AS MATERIALIZED (
	SELECT id FROM bridge_ledger WHERE id ` + amongAsked + ` FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE bridge_ledger l SET recorded_at = clock_timestamp() FROM free WHERE l.id = free.id RETURNING l.id`

	removeParked = `DELETE FROM bridge_parked WHERE id ` + amongAsked

	countParked = `SELECT count(*) FROM (SELECT FROM bridge_parked LIMIT $1::text::int) AS counted`
)

func (l *Ledger) park(ctx context.Context, tx bridge.Tx, messages []driver.Parked) (int64, error) {
	ids := make([]uuid.UUID, len(messages))
	firsts, lengths := make([]int, len(messages)), make([]int, len(messages))
	all := []byte{}
	for i, m := range messages {
		ids[i], firsts[i], lengths[i] = m.ID, len(all)+1, len(m.Message)
		all = append(all, m.Message...)
	}
	return tx.Exec(ctx, park, array(ids), l.Identity().String(), all, numbers(firsts), numbers(lengths))
}

// countParked reads a snapshot, in which messages are that an Unpark has taken.
func (l *Ledger) countParked(ctx context.Context, limit int) (n int, err error) {
	err = l.db.GetContext(ctx, &n, countParked, strconv.Itoa(limit))
	return n, err
}

// A shelf is a tables.Shelf at READ COMMITTED, where each statement sees what has
// committed before it.
type shelf struct {
	*sqlx.Tx
	ledger *Ledger
}

// openShelf begins what takes rows FOR UPDATE SKIP LOCKED, the oldest IDs first. A
// transaction that is idle for a minute while it stages is ended by the server.
func (l *Ledger) openShelf(ctx context.Context) (tables.Shelf, error) {
	tx, err := l.db.BeginTxx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return nil, err
	}
	return shelf{tx, l}, nil
}

func (s shelf) Take(ctx context.Context, after uuid.UUID, limit int) (taken []tables.Size, err error) {
	err = s.SelectContext(ctx, &taken, takeParked, strconv.Itoa(limit), after.String())
	return taken, err
}

// Recorded reads a snapshot that is younger than the locks of the taken rows: with
// these their rows in the ledger were committed.
func (s shelf) Recorded(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	found, _, err := s.ledger.find(ctx, s, committed, ids)
	return found, err
}

func (s shelf) Load(ctx context.Context, ids []uuid.UUID) (messages []driver.Parked, err error) {
	err = s.SelectContext(ctx, &messages, loadParked, array(ids))
	return messages, err
}

func (s shelf) Touch(ctx context.Context, ids []uuid.UUID) (touched []uuid.UUID, err error) {
	err = s.SelectContext(ctx, &touched, touch, array(ids))
	return touched, err
}

func (s shelf) Remove(ctx context.Context, ids []uuid.UUID) (int, error) {
	return tables.Changed(s.ExecContext(ctx, removeParked, array(ids)))
}
