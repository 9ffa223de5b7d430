package postgres

import (
	"context"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// Most transactions carry one message, so one message goes without an array: see recordOne. Both
// times of a row come from one reading of the clock. A published message is due after
// driver.PublishedGrace. The last parameter for an unpublished message is the earliest time at
// which it is due.
const (
	carryOnePublished = `INSERT INTO bridge_ledger (id, recorded_at, message, stage_at)
SELECT $1::text::uuid, t, $3::bytea, t + interval '1 s'
FROM bridge_identity, clock_timestamp() AS t WHERE identity = $2::text::uuid`

	carryOneUnpublished = `INSERT INTO bridge_ledger (id, recorded_at, message, stage_at)
SELECT $1::text::uuid, t, $3::bytea, t
FROM bridge_identity, greatest(clock_timestamp(), $4::text::timestamptz) AS t WHERE identity = $2::text::uuid`

	// The messages are pieces of one parameter, with these lengths. The subqueries hide the lengths
	// of the arrays: see recordMany.
	carryManyPublished = `INSERT INTO bridge_ledger (id, recorded_at, message, stage_at)
SELECT m.id, t, substring($3::bytea FROM m.first FOR m.length), t + interval '1 s'
FROM bridge_identity, clock_timestamp() AS t,
	unnest((SELECT $1::text::uuid[]), (SELECT $4::text::int[]), (SELECT $5::text::int[])) AS m (id, first, length)
WHERE identity = $2::text::uuid`

	carryManyUnpublished = `INSERT INTO bridge_ledger (id, recorded_at, message, stage_at)
SELECT m.id, t, substring($3::bytea FROM m.first FOR m.length), t
FROM bridge_identity, greatest(clock_timestamp(), $6::text::timestamptz) AS t,
	unnest((SELECT $1::text::uuid[]), (SELECT $4::text::int[]), (SELECT $5::text::int[])) AS m (id, first, length)
WHERE identity = $2::text::uuid`

	// If a Claim was open meanwhile, the server evaluates the condition anew. The plan is not kept:
	// see noPlanReuse.
	cancel = `DELETE FROM bridge_ledger WHERE id ` + amongIDs + ` AND stage_at <= recorded_at`

	// At least one row if the identity is right, with nulls if no row is due.
	due = `SELECT now() AS now, d.id, d.recorded_at, d.stage_at, d.bytes FROM bridge_identity i
LEFT JOIN bridge_due($2::text::timestamptz, $3::text::uuid, $4::text::int) d ON true WHERE i.identity = $1::text::uuid ORDER BY d.stage_at, d.id`

	// A claim waits for the disk, whatever the login's setting. Otherwise a Cancel after a crash of
	// the server could delete the row of a published message. Neither a claim nor a touch waits for
	// a row.
	claim = `WITH durable AS MATERIALIZED (
	SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'
), waits AS MATERIALIZED (SELECT count(*) FROM durable)
SELECT c.id, c.message FROM waits, bridge_claim($1::text::uuid[], $2::text::timestamptz[]) c`

	// A touch that a crash undoes costs at most a copy of a message, so it need not wait for the
	// disk.
	touchCarried = `WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
SELECT bridge_touch($1::text::uuid[]) FROM relaxed`
)

func (l *Ledger) carry(ctx context.Context, tx bridge.Tx, stage portable.Stage, messages []driver.Carried) (int64, error) {
	one, many := carryOnePublished, carryManyPublished
	var last []any
	if !stage.Published {
		one, many = carryOneUnpublished, carryManyUnpublished
		last = []any{stage.NotBefore.Format(time.RFC3339Nano)}
	}
	if len(messages) == 1 {
		return tx.Exec(ctx, l.schema.In(one), append([]any{messages[0].ID.String(), l.Identity().String(), portable.NotNil(messages[0].Message)}, last...)...)
	}
	ids := make([]uuid.UUID, len(messages))
	firsts, lengths := make([]int, len(messages)), make([]int, len(messages))
	all := []byte{}
	for i, m := range messages {
		ids[i], firsts[i], lengths[i] = m.ID, len(all)+1, len(m.Message)
		all = append(all, m.Message...)
	}
	return tx.Exec(ctx, l.schema.In(many), append([]any{array(ids), l.Identity().String(), all, numbers(firsts), numbers(lengths)}, last...)...)
}

func (l *Ledger) cancel(ctx context.Context, tx bridge.Tx, id uuid.UUID) (int64, error) {
	return tx.Exec(ctx, l.schema.In(cancel), array([]uuid.UUID{id}))
}

// due reads a snapshot that is no older than the returned time.
func (l *Ledger) due(ctx context.Context, after driver.DueRow, limit int) (rows []portable.DueRow, err error) {
	err = l.db.SelectContext(ctx, &rows, l.schema.In(due), l.Identity().String(), after.StageAt.UTC().Format(time.RFC3339Nano), after.ID.String(), strconv.Itoa(limit))
	return rows, err
}

func (l *Ledger) claim(ctx context.Context, rows []driver.DueRow) (messages []driver.Carried, err error) {
	ids := make([]uuid.UUID, len(rows))
	for i, row := range rows {
		ids[i] = row.ID
	}
	err = l.db.SelectContext(ctx, &messages, l.schema.In(claim), array(ids), stageTimes(rows))
	return messages, err
}

func (l *Ledger) touchCarried(ctx context.Context, ids []uuid.UUID) error {
	_, err := l.db.ExecContext(ctx, l.schema.In(touchCarried), array(ids))
	return err
}

// stageTimes returns the stage times as the text of a timestamptz[].
func stageTimes(rows []driver.DueRow) string {
	text := []byte{'{'}
	for i, row := range rows {
		if i > 0 {
			text = append(text, ',')
		}
		text = row.StageAt.UTC().AppendFormat(text, time.RFC3339Nano)
	}
	return string(append(text, '}'))
}
