package sqlserver

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/mssql"
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

const (
	// Who has locked a row for an update keeps others from doing so, not from reading.
	takeParked = `SET LOCK_TIMEOUT 1000;
SELECT TOP (@p1) CAST(id AS binary(16)) AS id, DATALENGTH(message) AS size
FROM bridge_parked WITH (UPDLOCK, READCOMMITTEDLOCK, READPAST, ROWLOCK, FORCESEEK) WHERE id > CAST(@p2 AS uniqueidentifier) ORDER BY id`

	// Where READPAST does not pass over a locked row, the candidates are read as they were
	// committed, and each is locked alone.
	parkedVersions = `SELECT TOP (@p1) CAST(id AS binary(16)) AS id, DATALENGTH(message) AS size
FROM bridge_parked WITH (FORCESEEK) WHERE id > CAST(@p2 AS uniqueidentifier) ORDER BY id`

	takeOneParked = `SET LOCK_TIMEOUT 0;
SELECT CAST(id AS binary(16)) AS id, DATALENGTH(message) AS size
FROM bridge_parked WITH (UPDLOCK, READCOMMITTEDLOCK, ROWLOCK, FORCESEEK) WHERE id = CAST(@p1 AS uniqueidentifier)`

	countParked = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 1000;
SELECT count(*) FROM (SELECT TOP (@p1) id FROM bridge_parked$reading) AS counted`
)

// presentRows waits for transactions that have locked one of the rows.
const presentRows = `SELECT CAST(l.id AS binary(16)) AS id FROM bridge_identity i
LEFT JOIN ($asked INNER LOOP JOIN bridge_ledger l WITH (READCOMMITTEDLOCK, ROWLOCK, FORCESEEK) ON l.id = asked.id) ON 1 = 1
WHERE i.[identity] = CAST(@p3 AS uniqueidentifier)`

var (
	park = packing.Unpack(`SET NOCOUNT OFF;
INSERT INTO bridge_parked (id, message)
SELECT CAST(@p1 AS uniqueidentifier), bytes(@p2) FROM bridge_identity WHERE [identity] = CAST(@p3 AS uniqueidentifier)`)

	// A row that is locked must not be taken for one that is gone.
	present = forIDs(`SET LOCK_TIMEOUT 1000;
SET XACT_ABORT OFF;
` + presentRows)

	loadParked = forIDs(`SELECT CAST(p.id AS binary(16)) AS id, p.message
FROM $asked INNER LOOP JOIN bridge_parked p WITH (FORCESEEK) ON p.id = asked.id`)

	touch = passingOver(`UPDATE l SET recorded_at = sysutcdatetime() OUTPUT inserted.id
FROM $asked INNER LOOP JOIN bridge_ledger l WITH (` + readingPast + `) ON l.id = asked.id`)

	removeParked = forIDs(`SET NOCOUNT OFF;
DELETE p FROM $asked INNER LOOP JOIN bridge_parked p WITH (ROWLOCK, FORCESEEK) ON p.id = asked.id`)
)

func (l *Ledger) park(ctx context.Context, tx bridge.Tx, messages []driver.Parked) (changed int64, err error) {
	for _, m := range messages {
		n, err := tx.Exec(ctx, park, argument(m.ID), packing.Bytes(tables.NotNil(m.Message)), argument(l.Identity()))
		if changed += n; err != nil {
			return changed, fmt.Errorf("message %s: %w", m.ID, err)
		}
	}
	return changed, nil
}

// countParked counts past the rows that are being inserted or deleted.
func (l *Ledger) countParked(ctx context.Context, limit int) (n int, err error) {
	reading := " WITH (READCOMMITTEDLOCK, READPAST, ROWLOCK)"
	if l.versioned.Load() {
		reading = ""
	}
	text := strings.Replace(countParked, "$reading", reading, 1)
	err = mssql.Try(ctx, func(ctx context.Context) error { return l.db.GetContext(ctx, &n, text, limit) })
	return n, err
}

// A shelf is a tables.Shelf at READ COMMITTED, where each statement sees what has
// committed before it.
type shelf struct {
	*sqlx.Tx
	conn   *sqlx.Conn
	ledger *Ledger
}

// openShelf begins what takes rows WITH (UPDLOCK, READPAST), in the order of the key, which
// is not that of age. The transaction is not ctx's, for the reason in settleByInsert.
func (l *Ledger) openShelf(ctx context.Context) (tables.Shelf, error) {
	conn, err := l.db.Connx(ctx)
	if err != nil {
		return nil, err
	}
	tx, err := conn.BeginTxx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return &shelf{tx, conn, l}, nil
}

func (s *shelf) Rollback() error {
	defer func() { _ = s.conn.Close() }()
	return s.Tx.Rollback()
}

func (s *shelf) Take(ctx context.Context, after uuid.UUID, limit int) ([]tables.Size, error) {
	taken, err := s.sizes(ctx, takeParked, limit, argument(after))
	if mssql.Number(err) != mssql.LockTimeout || !s.ledger.versioned.Load() {
		return taken, err
	}
	candidates, err := s.sizes(ctx, parkedVersions, limit, argument(after))
	if err != nil {
		return nil, err
	}
	taken = nil
	for _, c := range candidates {
		one, err := s.sizes(ctx, takeOneParked, argument(c.ID))
		if err != nil && mssql.Number(err) != mssql.LockTimeout {
			return nil, err
		}
		taken = append(taken, one...)
	}
	return taken, nil
}

func (s *shelf) sizes(ctx context.Context, text string, args ...any) ([]tables.Size, error) {
	var rows []struct {
		ID   []byte
		Size int64
	}
	if err := s.SelectContext(ctx, &rows, text, args...); err != nil {
		return nil, err
	}
	sizes := make([]tables.Size, len(rows))
	for i, row := range rows {
		id, err := readID(row.ID)
		if err != nil {
			return nil, err
		}
		sizes[i] = tables.Size{ID: id, Size: row.Size}
	}
	return sizes, nil
}

// Recorded waits for a transaction that has locked a row, such as a Forget. If it waits in vain
// it goes on, and takes a row for present that may be gone.
func (s *shelf) Recorded(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	found, _, err := s.ledger.find(ctx, s, present, ids)
	if mssql.Number(err) == mssql.LockTimeout {
		_, _, err = s.ledger.find(ctx, s, s.ledger.committed(), ids) // is it still this ledger?
		return ids, err
	}
	return found, err
}

func (s *shelf) Load(ctx context.Context, ids []uuid.UUID) ([]driver.Parked, error) {
	text, packed, used := loadParked.fill(ids)
	var rows []struct{ ID, Message []byte }
	if err := s.SelectContext(ctx, &rows, text, packed, used); err != nil {
		return nil, err
	}
	messages := make([]driver.Parked, len(rows))
	for i, row := range rows {
		id, err := readID(row.ID)
		if err != nil {
			return nil, err
		}
		messages[i] = driver.Parked{ID: id, Message: row.Message}
	}
	return messages, nil
}

func (s *shelf) Touch(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	touched, _, err := touch.run(ids, func(text statement, ids []uuid.UUID) ([]uuid.UUID, error) { return text.change(ctx, s, ids) })
	return touched, err
}

func (s *shelf) Remove(ctx context.Context, ids []uuid.UUID) (int, error) {
	text, packed, used := removeParked.fill(ids)
	return tables.Changed(s.ExecContext(ctx, text, packed, used))
}

// find runs one of the statements that look IDs up, and check the identity as they go.
func (l *Ledger) find(ctx context.Context, q sqlx.QueryerContext, s statement, ids []uuid.UUID, further ...any) ([]uuid.UUID, driver.Instance, error) {
	text, packed, used := s.fill(ids)
	var rows []struct {
		ID       []byte
		Instance sql.NullString
	}
	if err := sqlx.SelectContext(ctx, q, &rows, text, append([]any{packed, used, argument(l.Identity())}, further...)...); err != nil {
		return nil, "", err
	}
	if len(rows) == 0 {
		return nil, "", tables.OtherLedger(l.Identity())
	}
	var found [][]byte
	for _, row := range rows {
		if row.ID != nil {
			found = append(found, row.ID)
		}
	}
	known, err := readIDs(found)
	return known, driver.Instance(rows[0].Instance.String), err
}
