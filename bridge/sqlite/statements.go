package sqlite

import (
	"github.com/twoqueue/twoqueue/bridge/internal/inspection"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// The statements of the ledger. They take IDs as one JSON array, so that each is one statement,
// whatever the number of IDs. file is the path of the file, "" if the database is in memory.
const (
	// Parameters: IDs, identity.
	record = `INSERT INTO bridge_ledger (id)
SELECT ids.value FROM bridge_identity i, json_each(?) ids WHERE i.identity = ?`

	nameFile = `SELECT (SELECT file FROM pragma_database_list WHERE name = 'main') AS file`

	// Parameters: IDs, identity, in table %[1]s with column %[2]s. At least one row if the identity
	// is right, with a null id if no ID is found.
	committed = `SELECT l.%[2]s AS id, r.read_uncommitted AS dirty, (SELECT file FROM pragma_database_list WHERE name = 'main') AS file
FROM bridge_identity i, pragma_read_uncommitted r
LEFT JOIN %[1]s l ON l.%[2]s IN (SELECT value FROM json_each(?)) WHERE i.identity = ?`

	// The same lookup, of rows that are not older than so many seconds. Parameters: IDs, identity,
	// seconds.
	recent = `SELECT l.id, r.read_uncommitted AS dirty, (SELECT file FROM pragma_database_list WHERE name = 'main') AS file
FROM bridge_identity i, pragma_read_uncommitted r
LEFT JOIN bridge_ledger l ON l.id IN (SELECT value FROM json_each(?1)) AND l.recorded_at BETWEEN unixepoch() - ?3 AND unixepoch()
WHERE i.identity = ?2`

	// Parameter: a new ID. It is a write, since BEGIN IMMEDIATE alone proves nothing: on a file that
	// is open for reading only, SQLite grants it as a read transaction while another process writes.
	// Only a write proves that no other writer is left. No other transaction waits for a new ID.
	settle = `INSERT INTO bridge_ledger (id) VALUES (?)`

	// Parameter: IDs.
	forget = `DELETE FROM bridge_ledger WHERE id IN (SELECT value FROM json_each(?))`
)

// The statements of carried messages. recorded_at is in whole seconds, stage_at in milliseconds,
// which are (julianday('now') - 2440587.5) * 86400000 since 1970. SQLite reads its clock once for
// each row that a statement returns.
const (
	// Parameters: ID, message, identity. The row is due driver.PublishedGrace after the record.
	carryPublished = `INSERT INTO bridge_ledger (id, recorded_at, message, stage_at)
SELECT ?, unixepoch(), ?, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + 1000 FROM bridge_identity WHERE identity = ?`

	// Parameters: ID, message, earliest time, identity. stage.at is the present second, or the given
	// time if that is later. A stage time between two seconds is before its recorded_at, never after
	// it.
	carryUnpublished = `INSERT INTO bridge_ledger (id, recorded_at, message, stage_at)
SELECT ?, (stage.at + 999) / 1000, ?, stage.at
FROM bridge_identity CROSS JOIN (SELECT max(unixepoch() * 1000, ?) AS at) stage WHERE identity = ?`

	// Parameter: ID.
	cancel = `DELETE FROM bridge_ledger WHERE id = ? AND stage_at <= recorded_at * 1000`

	// Parameters: identity, stage time and ID of the row before, limit. At least one row if the
	// identity is right, with nulls if no row is due.
	due = `WITH look AS MATERIALIZED (SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) AS now FROM bridge_identity WHERE identity = ?)
SELECT look.now, d.id, d.recorded_at, d.stage_at, d.bytes FROM look LEFT JOIN (
	SELECT l.id, l.recorded_at, l.stage_at, length(l.message) AS bytes FROM look CROSS JOIN bridge_ledger l
	WHERE l.stage_at <= look.now AND (l.stage_at, l.id) > (?, ?) ORDER BY l.stage_at, l.id LIMIT ?
) d ORDER BY d.stage_at, d.id`

	// Parameter: IDs with their stage times. The new stage time is between StageAgainAfter and
	// StageAgainWithin from now. It is after recorded_at even if the clock has gone back: Cancel
	// compares both.
	claim = `UPDATE bridge_ledger SET stage_at = max(CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), recorded_at * 1000)
	+ min(max(CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - recorded_at * 1000, 10000), 600000)
WHERE (id, stage_at) IN (SELECT value ->> 'id', value ->> 'at' FROM json_each(?)) RETURNING id, message`

	// Parameter: IDs. The same new stage time.
	touchCarried = `UPDATE bridge_ledger SET stage_at = max(CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), recorded_at * 1000)
	+ min(max(CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - recorded_at * 1000, 10000), 600000)
WHERE id IN (SELECT value FROM json_each(?)) AND stage_at IS NOT NULL`
)

// The statements of the sweep. Times are whole seconds, rounded down.
const (
	// Parameters: age, limit, identity. At least one row if the identity is right, with nulls if
	// there are no orphans.
	orphans = `SELECT o.id, o.recorded_at FROM bridge_identity i LEFT JOIN (
	SELECT l.id, l.recorded_at FROM bridge_ledger l
	WHERE l.recorded_at < unixepoch() - ? AND l.stage_at IS NULL
	ORDER BY l.recorded_at, l.id LIMIT ?
) o WHERE i.identity = ? ORDER BY o.recorded_at, o.id`

	// Parameters: time, identity.
	raise = `UPDATE bridge_watermark SET swept_before = max(coalesce(swept_before, ?1), ?1)
WHERE EXISTS (SELECT 1 FROM bridge_identity WHERE identity = ?2)`

	// Parameters: IDs, time.
	sweep = `DELETE FROM bridge_ledger WHERE id IN (SELECT value FROM json_each(?)) AND recorded_at < ? AND stage_at IS NULL RETURNING id`

	// Parameter: identity.
	sweptBefore = `SELECT w.swept_before FROM bridge_identity i CROSS JOIN bridge_watermark w WHERE i.identity = ?`
)

// The statements on an own table.
const (
	// Parameters: IDs, identity, in table %[1]s with column %[2]s. Returns whether the identity is
	// right, and the number of rows found.
	rows = `SELECT count(*) > 0, count(l.%[2]s) FROM bridge_identity i, json_each(?) ids
LEFT JOIN %[1]s l ON l.%[2]s = ids.value WHERE i.identity = ?`

	// Parameters: column, table. A unique index counts if it is on the column alone and on all rows.
	// The primary key is among the indexes, as it is text.
	findColumn = `SELECT c.name, upper(c.type) AS type, EXISTS (
	SELECT 1 FROM pragma_index_list(t.name) x WHERE x."unique" = 1 AND x.partial = 0
	AND (SELECT count(*) FROM pragma_index_info(x.name)) = 1 AND (SELECT k.name FROM pragma_index_info(x.name) k) = c.name
) AS unique_index
FROM sqlite_schema t LEFT JOIN pragma_table_info(t.name) c ON c.name = ?
WHERE t.type = 'table' AND t.name = ?`
)

// The statements of the inspector on rows that carry messages. They read the last commit.
const (
	// Parameter: limit.
	countCarried = `SELECT count(*) FROM (SELECT 1 FROM bridge_ledger WHERE stage_at IS NOT NULL LIMIT ?)`

	// Parameter: limit.
	carriedRows = `SELECT id, recorded_at * 1000 AS recorded_ms, stage_at AS stage_ms, length(message) AS bytes
FROM bridge_ledger WHERE stage_at IS NOT NULL ORDER BY stage_at, id LIMIT ?`

	// Parameter: ID.
	carriedRow = `SELECT id, recorded_at * 1000 AS recorded_ms, stage_at AS stage_ms, length(message) AS bytes
FROM bridge_ledger WHERE id = ? AND stage_at IS NOT NULL`

	// Parameter: limit.
	countDelayed = `SELECT count(*) FROM (SELECT 1 FROM bridge_ledger
WHERE stage_at > CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) AND stage_at <= recorded_at * 1000 ORDER BY stage_at, id LIMIT ?)`

	// Parameter: limit.
	delayedRows = `SELECT id, recorded_at * 1000 AS recorded_ms, stage_at AS stage_ms, length(message) AS bytes
FROM bridge_ledger
WHERE stage_at > CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) AND stage_at <= recorded_at * 1000 ORDER BY stage_at, id LIMIT ?`

	// Parameter: ID. SQLite reads its clock once per row.
	advance = `UPDATE bridge_ledger
SET recorded_at = (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + 999) / 1000, stage_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
WHERE id = ? AND stage_at <= recorded_at * 1000 AND stage_at > CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)`
)

var carriedStatements = inspection.CarriedStatements{
	Count: countCarried, Rows: carriedRows, Row: carriedRow, CountDelayed: countDelayed, Delayed: delayedRows, Advance: advance,
}

// The statements of the inspector on the file, and on one of the pool's connections.
const (
	pragmas = `SELECT sqlite_version() AS version, (SELECT journal_mode FROM pragma_journal_mode) AS journal,
	(SELECT synchronous FROM pragma_synchronous) AS synchronous, (SELECT timeout FROM pragma_busy_timeout) AS busy_timeout,
	(SELECT read_uncommitted FROM pragma_read_uncommitted) AS dirty,
	(SELECT file FROM pragma_database_list WHERE name = 'main') AS file,
	(SELECT count(*) FROM bridge_ledger) AS row_count`

	synchronous = `SELECT synchronous FROM pragma_synchronous`

	clock = `SELECT CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)`
)

// The statements of the inbox; portable.InboxStatements lists their parameters.
const (
	// lockForWriting takes the file's write lock for a transaction that has only read, and waits
	// for other writers: SQLite lets no transaction write that has read an older state. No key is
	// empty, so it changes no row.
	lockForWriting = `UPDATE bridge_inbox_pending SET run = run WHERE consumer = '' AND message_key = ''`

	// claimMore follows claimOne for each further key.
	claimOne  = `INSERT INTO bridge_inbox (consumer, key) VALUES (?, ?)`
	claimMore = `, (?, ?)`
	claimEnd  = ` ON CONFLICT DO NOTHING RETURNING key`
)

var inboxStatements = portable.InboxStatements{
	Unclaim: `DELETE FROM bridge_inbox WHERE consumer = ? AND key = ?`,

	Add: `INSERT INTO bridge_inbox_pending (consumer, message_key, state, run, attempts, since_ms, due_ms, error, message)
VALUES (?, ?, ?, ?, ?, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER),
	CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + ?, ?, ?) ON CONFLICT DO NOTHING`,

	Look: `SELECT c.claimed, p.state, p.run, p.attempts, p.since_ms, p.error, p.message
FROM (SELECT count(*) AS claimed FROM bridge_inbox WHERE consumer = ? AND key = ?) c
LEFT JOIN bridge_inbox_pending p ON p.consumer = ? AND p.message_key = ?`,

	Change: `UPDATE bridge_inbox_pending SET state = ?, run = ?, attempts = ?,
	due_ms = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + ?, error = ?, message = COALESCE(?, message)
WHERE consumer = ? AND message_key = ? AND run = ?`,

	Attach: `UPDATE bridge_inbox_pending SET message = ? WHERE consumer = ? AND message_key = ? AND run = ? AND message IS NULL`,

	Remove: `DELETE FROM bridge_inbox_pending WHERE consumer = ? AND message_key = ? AND run = ?`,

	RemoveBare: `DELETE FROM bridge_inbox_pending WHERE consumer = ? AND message_key = ? AND run = ? AND message IS NULL`,

	Take: `SELECT message_key, state, run, attempts, since_ms, error, message FROM bridge_inbox_pending
WHERE consumer = ? AND state = ? AND due_ms <= CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) AND message IS NOT NULL
ORDER BY due_ms LIMIT ?`,

	Doubt: `UPDATE bridge_inbox_pending
SET state = 'doubtful', due_ms = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), error = 'started, no result since'
WHERE consumer = ? AND state = 'started' AND due_ms < CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)`,

	// Without the message: a page of large messages would fill the memory.
	List: `SELECT message_key, state, run, attempts, since_ms, error, CASE WHEN message IS NULL THEN 0 ELSE 1 END AS has_message
FROM bridge_inbox_pending WHERE consumer = ? AND state = ? AND message_key > ? ORDER BY message_key LIMIT ?`,

	Count: `SELECT state, count(*) FROM bridge_inbox_pending WHERE consumer = ? GROUP BY state`,

	Claimed: `SELECT key, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - claimed_at * 1000 AS age_ms
FROM bridge_inbox WHERE consumer = ? AND key > ? ORDER BY key LIMIT ?`,

	Forget: `DELETE FROM bridge_inbox AS i WHERE key IN (
	(?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?),
	(?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?),
	(?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?),
	(?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?), (?))
AND i.consumer = ? AND claimed_at * 1000 < CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - ?`,
}

// The statements of marks and kept messages; portable.EntityStatements lists their parameters.
var entityStatements = portable.EntityStatements{
	// An update that changes nothing locks the file. It is one statement, and the first of its
	// transaction that reads: so the transaction sees the mark left by the lock's previous holder,
	// or fails.
	LockMark: `INSERT INTO bridge_mark (consumer, name, mark) VALUES (?, ?, '')
ON CONFLICT (consumer, name) DO UPDATE SET mark = bridge_mark.mark RETURNING mark`,

	SetMark:   `UPDATE bridge_mark SET mark = ?, changed_at = unixepoch() WHERE consumer = ? AND name = ?`,
	Keep:      `INSERT INTO bridge_kept (consumer, entity, version, message) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING`,
	CountKept: `SELECT count(*) FROM bridge_kept WHERE consumer = ? AND entity = ?`,
	FirstKept: `SELECT version, message FROM bridge_kept WHERE consumer = ? AND entity = ? ORDER BY version LIMIT 1`,
	Unkeep:    `DELETE FROM bridge_kept WHERE consumer = ? AND entity = ? AND version = ?`,

	KeptEntities: `SELECT k.entity, m.mark, k.lowest, k.kept, k.age
FROM (SELECT consumer, entity, min(version) AS lowest, count(*) AS kept, unixepoch() - min(kept_at) AS age
FROM bridge_kept WHERE consumer = ? GROUP BY consumer, entity) k
JOIN bridge_mark m ON m.consumer = k.consumer AND m.name = k.entity ORDER BY k.age DESC, k.entity LIMIT ?`,
}
