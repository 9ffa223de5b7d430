package sqlserver

import (
	"fmt"
	"strings"

	"github.com/twoqueue/twoqueue/bridge/internal/inspection"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// Every statement sets the options that it depends on: a pooled connection may have other settings.
// With parameters a text runs within sp_executesql, at whose end the server reverts its SETs.
// NOCOUNT would hide the number of changed rows. ROWCOUNT would end a statement after that many rows,
// without an error. TEXTSIZE would cut off messages that are read; 2147483647 is the most that a
// column holds. Times are text in ISO 8601, which no setting of the connection changes.
//
// KEEPFIXED PLAN is on the statements of every message. A ledger is empty most of the time, so its
// statistics go stale every 500 changes, and a statement that depends on them would be compiled
// anew each time. With FORCESEEK no plan is better than another.
//
// $ids stands for a table, named asked, of the IDs in the first @p2 bytes of @p1: see forIDs.
// $reading stands for the hints of a read that waits for no row: readingVersions with
// READ_COMMITTED_SNAPSHOT, where a SELECT reads the rows committed when it began, else readingPast.
// READPAST skips locked rows; no document states whether it skips a row that optimized locking
// protects by its transaction's ID.
const (
	readingVersions = "FORCESEEK"
	readingPast     = "READCOMMITTEDLOCK, READPAST, ROWLOCK, FORCESEEK"
)

// The statements of the ledger. instance is the server's name and its start, when it made tempdb.
// Azure SQL Database does not show tempdb; there the instance is the logical server's name.
// Babelfish does not make tempdb anew at a start.
const (
	nameServer = `SELECT CONCAT(@@SERVERNAME, ' ', (SELECT CONVERT(nvarchar(30), create_date, 126) FROM sys.databases WHERE name = 'tempdb')) AS instance`

	// @p3 is the identity, $table and $column are the table that is read. At least one row if the
	// identity is right, with a null id if no ID is found. The result is the requested ID, as the
	// column may have a mask. LOOP fixes the join; FORCESEEK restricts it to the requested rows.
	// $reading waits for no row, and LOCK_TIMEOUT 0 for no change of the table.
	committed = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 0;
SELECT CAST(asked.id AS binary(16)) AS id,
	CONCAT(@@SERVERNAME, ' ', (SELECT CONVERT(nvarchar(30), create_date, 126) FROM sys.databases WHERE name = 'tempdb')) AS instance
FROM bridge_identity i
LEFT JOIN ($ids INNER LOOP JOIN $table l WITH ($reading) ON l.$column = asked.id) ON 1 = 1
WHERE i.[identity] = CAST(@p3 AS uniqueidentifier)
OPTION (KEEPFIXED PLAN)`

	// The same lookup, of rows of bridge_ledger that are at most @p4 milliseconds old, an int.
	recent = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 0;
SELECT CAST(asked.id AS binary(16)) AS id,
	CONCAT(@@SERVERNAME, ' ', (SELECT CONVERT(nvarchar(30), create_date, 126) FROM sys.databases WHERE name = 'tempdb')) AS instance
FROM bridge_identity i
LEFT JOIN ($ids INNER LOOP JOIN bridge_ledger l WITH ($reading) ON l.id = asked.id
	AND l.recorded_at BETWEEN DATEADD(millisecond, -@p4, sysutcdatetime()) AND sysutcdatetime()) ON 1 = 1
WHERE i.[identity] = CAST(@p3 AS uniqueidentifier)
OPTION (KEEPFIXED PLAN)`

	// @p1 is 1. Returns 1 if READ_COMMITTED_SNAPSHOT is on.
	snapshotOn = `SET LOCK_TIMEOUT 0;
SELECT count(*) FROM sys.databases WHERE name = DB_NAME() AND is_read_committed_snapshot_on = @p1`

	// waitAtMost begins both ways to settle, with the milliseconds. LOCK_TIMEOUT takes no parameter.
	// A verifier's wait is constant, and so is the text.
	waitAtMost = "SET LOCK_TIMEOUT %d;\n"

	// @p1 is the ID, @p2 the identity. A readable secondary, where a connection may end up after a
	// failover, would ignore the hints and read an old state.
	settleBySelect = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SELECT (SELECT count(*) FROM bridge_identity WHERE [identity] = CAST(@p2 AS uniqueidentifier)) AS own,
	(SELECT count(*) FROM $table WITH (READCOMMITTEDLOCK, ROWLOCK, FORCESEEK) WHERE $column = CAST(@p1 AS uniqueidentifier)) AS found,
	CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(60)) AS updateability,
	CONCAT(@@SERVERNAME, ' ', (SELECT CONVERT(nvarchar(30), create_date, 126) FROM sys.databases WHERE name = 'tempdb')) AS instance
OPTION (KEEPFIXED PLAN)`

	// The other way to wait. @p1 is the ID, @p2 the identity.
	settleByInsert = `SET NOCOUNT OFF;
INSERT INTO bridge_ledger (id)
SELECT CAST(@p1 AS uniqueidentifier) FROM bridge_identity WHERE [identity] = CAST(@p2 AS uniqueidentifier)`
)

var (
	// @p3 is the identity.
	record = forIDs(`SET NOCOUNT OFF;
SET ROWCOUNT 0;
INSERT INTO bridge_ledger (id)
SELECT asked.id FROM bridge_identity i CROSS JOIN $ids WHERE i.[identity] = CAST(@p3 AS uniqueidentifier)
OPTION (KEEPFIXED PLAN)`)

	// forget skips locked rows: see skipLocked, also for $wait.
	forget = newSkipLocked("", `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT $wait;
DELETE l OUTPUT deleted.id
FROM $ids INNER LOOP JOIN bridge_ledger l WITH (READCOMMITTEDLOCK, READPAST, ROWLOCK, FORCESEEK) ON l.id = asked.id
OPTION (KEEPFIXED PLAN)`)

	// @p3 is the identity. A locked row must not be taken for a deleted one.
	stays = forIDs(`SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 0;
SELECT CAST(l.id AS binary(16)) AS id FROM bridge_identity i
LEFT JOIN ($ids INNER LOOP JOIN bridge_ledger l WITH (READCOMMITTEDLOCK, ROWLOCK, FORCESEEK) ON l.id = asked.id) ON 1 = 1
WHERE i.[identity] = CAST(@p3 AS uniqueidentifier)`)
)

// The statements of carried messages. @now is the database's time, read once: a function that is
// twice in a statement may be evaluated twice.
const (
	// @p1 is the ID. The hints keep a SERIALIZABLE transaction from locking the range in which
	// senders insert.
	cancelRow = `SET NOCOUNT OFF;
DELETE l FROM bridge_ledger l WITH (READCOMMITTEDLOCK, ROWLOCK, FORCESEEK) WHERE l.id = CAST(@p1 AS uniqueidentifier) AND l.stage_at <= l.recorded_at
OPTION (KEEPFIXED PLAN)`

	// The list begins after the stage time @p1 and the ID @p4; @p2 is the limit, @p3 the identity. A
	// filtered index is chosen only if the condition implies its filter, so the filter is repeated.
	// The statement waits for no row, and LOCK_TIMEOUT ends its wait for a change of the table. The
	// outer SELECT sorts at most @p2 rows.
	dueRows = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 1000;
DECLARE @now datetime2(3) = sysutcdatetime();
DECLARE @since datetime2(3) = CAST(@p1 AS datetime2(3));
SELECT CONVERT(nvarchar(23), @now, 126) AS now, CAST(d.id AS binary(16)) AS id, CONVERT(nvarchar(23), d.recorded_at, 126) AS recorded_at,
	CONVERT(nvarchar(23), d.stage_at, 126) AS stage_at, d.bytes
FROM bridge_identity i LEFT JOIN (
	SELECT TOP (@p2) l.id, l.recorded_at, l.stage_at, DATALENGTH(l.message) AS bytes
	FROM bridge_ledger l WITH ($reading, INDEX (bridge_ledger_stage_at))
	WHERE l.stage_at IS NOT NULL AND l.stage_at >= @since AND l.stage_at <= @now
		AND (l.stage_at > @since OR l.id > CAST(@p4 AS uniqueidentifier))
	ORDER BY l.stage_at, l.id
) d ON 1 = 1 WHERE i.[identity] = CAST(@p3 AS uniqueidentifier) ORDER BY d.stage_at, d.id
OPTION (KEEPFIXED PLAN)`
)

// Further columns of $ids, for carry and for claimRows.
const (
	withMessage = `, CAST(SUBSTRING(@p3, (pos + 1) / 2, 4) AS int) AS begins, CAST(SUBSTRING(@p3, (pos + 1) / 2 + 4, 4) AS int) AS bytes`
	withStageMS = `, CAST(SUBSTRING(@p3, (pos + 1) / 2, 8) AS bigint) AS stage_ms`
)

var (
	// @p3 are pairs of a message's place in @p4 and its length, 8 bytes for each ID, which are the
	// columns begins and bytes of $ids. @p5 is the identity. The stage time is @p6 milliseconds after
	// the record's time, which is not before @p7. NOCOUNT: only the INSERT may count, since an
	// assignment may count as one row ('@@ROWCOUNT').
	carry = forEach(withMessage, `SET ROWCOUNT 0;
SET NOCOUNT ON;
DECLARE @now datetime2(3) = (SELECT MAX(t) FROM (VALUES (sysutcdatetime()), (CAST(@p7 AS datetime2(3)))) AS times (t));
SET NOCOUNT OFF;
INSERT INTO bridge_ledger (id, recorded_at, message, stage_at)
SELECT asked.id, @now, SUBSTRING(@p4, asked.begins, asked.bytes), DATEADD(millisecond, @p6, @now)
FROM bridge_identity i CROSS JOIN $ids WHERE i.[identity] = CAST(@p5 AS uniqueidentifier)
OPTION (KEEPFIXED PLAN)`)

	// @p3 are the stage times in milliseconds since 1970, 8 bytes for each ID, which are the column
	// stage_ms of $ids; a comparison of milliseconds is exact. The new stage time is after recorded_at
	// even if the clock has gone back: Cancel compares both. DATEDIFF is evaluated only where it
	// cannot overflow. claimRows skips locked rows: see skipLocked, also for $wait.
	claimRows = newSkipLocked(withStageMS, `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET TEXTSIZE 2147483647;
SET LOCK_TIMEOUT $wait;
DECLARE @now datetime2(3) = sysutcdatetime();
UPDATE l SET stage_at = DATEADD(millisecond, CASE
	WHEN l.recorded_at > DATEADD(second, -10, @now) THEN 10000
	WHEN l.recorded_at < DATEADD(minute, -10, @now) THEN 600000
	ELSE DATEDIFF(millisecond, l.recorded_at, @now) END, CASE WHEN l.recorded_at > @now THEN l.recorded_at ELSE @now END) OUTPUT inserted.id, inserted.message
FROM $ids INNER LOOP JOIN bridge_ledger l WITH (READCOMMITTEDLOCK, READPAST, ROWLOCK, FORCESEEK) ON l.id = asked.id
WHERE DATEDIFF_BIG(millisecond, '19700101', l.stage_at) = asked.stage_ms
OPTION (KEEPFIXED PLAN)`)

	// touchCarried sets the same new stage time, and skips locked rows too.
	touchCarried = newSkipLocked("", `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT $wait;
DECLARE @now datetime2(3) = sysutcdatetime();
UPDATE l SET stage_at = DATEADD(millisecond, CASE
	WHEN l.recorded_at > DATEADD(second, -10, @now) THEN 10000
	WHEN l.recorded_at < DATEADD(minute, -10, @now) THEN 600000
	ELSE DATEDIFF(millisecond, l.recorded_at, @now) END, CASE WHEN l.recorded_at > @now THEN l.recorded_at ELSE @now END) OUTPUT inserted.id
FROM $ids INNER LOOP JOIN bridge_ledger l WITH (READCOMMITTEDLOCK, READPAST, ROWLOCK, FORCESEEK) ON l.id = asked.id
WHERE l.stage_at IS NOT NULL
OPTION (KEEPFIXED PLAN)`)
)

// The statements of the sweep.
const (
	// @p1 is the age in seconds, @p2 the limit, @p3 the identity. At least one row if the identity is
	// right, with nulls if there are no orphans. $hints stands for the hints of $reading without
	// FORCESEEK, since all rows are read.
	orphans = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 1000;
SELECT CAST(o.id AS binary(16)) AS id, CONVERT(nvarchar(23), o.recorded_at, 126) AS recorded_at
FROM bridge_identity i LEFT JOIN (
	SELECT TOP (@p2) l.id, l.recorded_at FROM bridge_ledger l$hints
	WHERE l.recorded_at < DATEADD(second, -@p1, sysutcdatetime()) AND l.stage_at IS NULL
	ORDER BY l.recorded_at, l.id
) o ON 1 = 1 WHERE i.[identity] = CAST(@p3 AS uniqueidentifier) ORDER BY o.recorded_at, o.id`

	// @p1 is the time, @p2 the identity.
	raise = `SET NOCOUNT OFF;
UPDATE bridge_watermark SET swept_before =
	CASE WHEN swept_before > CAST(@p1 AS datetime2(3)) THEN swept_before ELSE CAST(@p1 AS datetime2(3)) END
WHERE EXISTS (SELECT * FROM bridge_identity WHERE [identity] = CAST(@p2 AS uniqueidentifier))`

	// @p1 is the identity.
	sweptBefore = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SELECT CONVERT(nvarchar(23), w.swept_before, 126) AS swept_before,
	CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(60)) AS updateability
FROM bridge_identity i CROSS JOIN bridge_watermark w WHERE i.[identity] = CAST(@p1 AS uniqueidentifier)`
)

// sweep skips locked rows: see skipLocked, also for $wait. @p3 is the time.
var sweep = newSkipLocked("", `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT $wait;
DELETE l OUTPUT deleted.id
FROM $ids INNER LOOP JOIN bridge_ledger l WITH (READCOMMITTEDLOCK, READPAST, ROWLOCK, FORCESEEK) ON l.id = asked.id
WHERE l.recorded_at < CAST(@p3 AS datetime2(3)) AND l.stage_at IS NULL`)

// The statements of Open, and on an own table.
const (
	inboxState = `SELECT (SELECT max(version_id) FROM bridge_inbox_version) AS version, CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(60)) AS product,
	COALESCE(CAST(SERVERPROPERTY('EngineEdition') AS int), 0) AS edition,
	COALESCE(CAST(SERVERPROPERTY('babelfish') AS int), 0) AS babelfish`

	// unique_keys is the number of unique indexes on the column alone and on all rows. Columns that
	// are only included do not count. DB_ID() need not be the database_id in Azure SQL Database
	// ('DB_ID (Transact-SQL)'), so the database is found by its name. Properties that the server
	// lacks are null.
	state = `SELECT CAST(i.[identity] AS binary(16)) AS [identity],
	(SELECT max(version_id) FROM bridge_ledger_version) AS version,
	CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(60)) AS updateability,
	CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(60)) AS product,
	COALESCE(CAST(SERVERPROPERTY('EngineEdition') AS int), 0) AS edition,
	COALESCE(CAST(SERVERPROPERTY('babelfish') AS int), 0) AS babelfish,
	d.compatibility_level AS compatibility,
	d.delayed_durability_desc AS durability,
	TYPE_NAME(c.system_type_id) AS key_type,
	(SELECT count(*) FROM sys.indexes x
	WHERE x.object_id = c.object_id AND x.is_unique = 1 AND x.has_filter = 0 AND x.is_disabled = 0
	AND (SELECT max(k.column_id) FROM sys.index_columns k
		WHERE k.object_id = x.object_id AND k.index_id = x.index_id AND k.key_ordinal > 0 HAVING count(*) = 1) = c.column_id) AS unique_keys
FROM sys.databases d LEFT JOIN bridge_identity i ON 1 = 1
LEFT JOIN sys.columns c ON c.object_id = OBJECT_ID('bridge_ledger') AND c.name = 'id'
WHERE d.name = DB_NAME()`

	// @p1 is the table, @p2 the column. The catalogue shows a login only the objects to which it has
	// some right.
	findColumn = `SELECT SCHEMA_NAME(o.schema_id) AS in_schema, o.name AS in_table, o.type_desc AS kind,
	COALESCE(OBJECTPROPERTY(o.object_id, 'TableIsMemoryOptimized'), 0) AS in_memory,
	c.name AS name, TYPE_NAME(c.system_type_id) AS type,
	(SELECT count(*) FROM sys.indexes x
	WHERE x.object_id = c.object_id AND x.is_unique = 1 AND x.has_filter = 0 AND x.is_disabled = 0
	AND (SELECT max(k.column_id) FROM sys.index_columns k
		WHERE k.object_id = x.object_id AND k.index_id = x.index_id AND k.key_ordinal > 0 HAVING count(*) = 1) = c.column_id) AS unique_keys,
	(SELECT count(*) FROM sys.indexes x WHERE x.object_id = o.object_id AND x.type_desc = 'CLUSTERED COLUMNSTORE') AS columnstores,
	(SELECT count(*) FROM sys.indexes x WHERE x.object_id = o.object_id AND x.allow_row_locks = 0) AS no_row_locks
FROM sys.objects o LEFT JOIN sys.columns c ON c.object_id = o.object_id AND c.name = @p2
WHERE o.object_id = OBJECT_ID(@p1)`

	// @p3 is the identity, $table and $column are the table that is read. Returns whether the
	// identity is right, and the number of rows found: rows that the transaction has inserted and
	// committed rows, at every isolation level.
	rows = `SELECT (SELECT count(*) FROM bridge_identity WHERE [identity] = CAST(@p3 AS uniqueidentifier)) AS own,
	(SELECT count(*) FROM $ids INNER LOOP JOIN $table l WITH (READCOMMITTEDLOCK, ROWLOCK, FORCESEEK) ON l.$column = asked.id) AS found
OPTION (KEEPFIXED PLAN)`
)

// The statements of the inbox; portable.InboxStatements lists their parameters. Bytes and texts come
// packed: see packing. So SUBSTRING(@p1, 5, CAST(SUBSTRING(@p1, 1, 4) AS int)) are the bytes in @p1,
// and LEFT(@p1, LEN(@p1) - 1) is the text.
//
// With XACT_ABORT ON a duplicate would end the caller's transaction.
//
// FORCESEEK is in the FROM clause, where a target may have it: an optimizer that has seen a small
// table may otherwise choose to read all of it, and wait for the locks of others ('Table hints').
//
// A state must be a varchar like the column: a column converted to nvarchar cannot be sought under
// SQL collations ('Data type precedence').
var inboxStatements = portable.InboxStatements{
	Unclaim: `DELETE t FROM bridge_inbox t WITH (ROWLOCK, FORCESEEK)
WHERE consumer = SUBSTRING(@p1, 5, CAST(SUBSTRING(@p1, 1, 4) AS int)) AND [key] = SUBSTRING(@p2, 5, CAST(SUBSTRING(@p2, 1, 4) AS int))`,

	Add: `SET XACT_ABORT OFF;
SET NOCOUNT OFF;
INSERT INTO bridge_inbox_pending (consumer, message_key, state, run, attempts, since_ms, due_ms, error, message)
VALUES (SUBSTRING(@p1, 5, CAST(SUBSTRING(@p1, 1, 4) AS int)), SUBSTRING(@p2, 5, CAST(SUBSTRING(@p2, 1, 4) AS int)),
	LEFT(@p3, LEN(@p3) - 1), LEFT(@p4, LEN(@p4) - 1), @p5,
	DATEDIFF_BIG(millisecond, '19700101', SYSUTCDATETIME()), DATEDIFF_BIG(millisecond, '19700101', SYSUTCDATETIME()) + @p6,
	LEFT(@p7, LEN(@p7) - 1), SUBSTRING(@p8, 5, CAST(SUBSTRING(@p8, 1, 4) AS int)))`,

	// A look must not combine a present claim with a row as of the statement's start, as
	// READ_COMMITTED_SNAPSHOT would: a key that is claimed without a row is done. So it reads first
	// the claim, then the row, both by locks; REPEATABLEREAD makes a ReleasePending wait until
	// the row is read. Where hints are ignored, a statement reads one snapshot, and of two
	// transactions that take the same row the second finds that its run has changed.
	Look: `SET TEXTSIZE 2147483647;
SELECT c.claimed, p.state, p.run, p.attempts, p.since_ms, p.error, p.message
FROM (SELECT count(*) AS claimed FROM bridge_inbox WITH (REPEATABLEREAD, ROWLOCK, FORCESEEK)
	WHERE consumer = SUBSTRING(@p1, 5, CAST(SUBSTRING(@p1, 1, 4) AS int)) AND [key] = SUBSTRING(@p2, 5, CAST(SUBSTRING(@p2, 1, 4) AS int))) c
LEFT OUTER LOOP JOIN bridge_inbox_pending p WITH (READCOMMITTEDLOCK, ROWLOCK, FORCESEEK)
ON p.consumer = SUBSTRING(@p3, 5, CAST(SUBSTRING(@p3, 1, 4) AS int)) AND p.message_key = SUBSTRING(@p4, 5, CAST(SUBSTRING(@p4, 1, 4) AS int))`,

	Change: `SET NOCOUNT OFF;
UPDATE t SET state = LEFT(@p1, LEN(@p1) - 1), run = LEFT(@p2, LEN(@p2) - 1), attempts = @p3,
	due_ms = DATEDIFF_BIG(millisecond, '19700101', SYSUTCDATETIME()) + @p4, error = LEFT(@p5, LEN(@p5) - 1),
	message = COALESCE(SUBSTRING(@p6, 5, CAST(SUBSTRING(@p6, 1, 4) AS int)), message)
FROM bridge_inbox_pending t WITH (ROWLOCK, FORCESEEK)
WHERE consumer = SUBSTRING(@p7, 5, CAST(SUBSTRING(@p7, 1, 4) AS int)) AND message_key = SUBSTRING(@p8, 5, CAST(SUBSTRING(@p8, 1, 4) AS int))
	AND run = LEFT(@p9, LEN(@p9) - 1)`,

	Attach: `SET NOCOUNT OFF;
UPDATE t SET message = SUBSTRING(@p1, 5, CAST(SUBSTRING(@p1, 1, 4) AS int)) FROM bridge_inbox_pending t WITH (ROWLOCK, FORCESEEK)
WHERE consumer = SUBSTRING(@p2, 5, CAST(SUBSTRING(@p2, 1, 4) AS int)) AND message_key = SUBSTRING(@p3, 5, CAST(SUBSTRING(@p3, 1, 4) AS int))
	AND run = LEFT(@p4, LEN(@p4) - 1) AND message IS NULL`,

	Remove: `SET NOCOUNT OFF;
DELETE t FROM bridge_inbox_pending t WITH (ROWLOCK, FORCESEEK)
WHERE consumer = SUBSTRING(@p1, 5, CAST(SUBSTRING(@p1, 1, 4) AS int)) AND message_key = SUBSTRING(@p2, 5, CAST(SUBSTRING(@p2, 1, 4) AS int))
	AND run = LEFT(@p3, LEN(@p3) - 1)`,

	RemoveBare: `SET NOCOUNT OFF;
DELETE t FROM bridge_inbox_pending t WITH (ROWLOCK, FORCESEEK)
WHERE consumer = SUBSTRING(@p1, 5, CAST(SUBSTRING(@p1, 1, 4) AS int)) AND message_key = SUBSTRING(@p2, 5, CAST(SUBSTRING(@p2, 1, 4) AS int))
	AND run = LEFT(@p3, LEN(@p3) - 1) AND message IS NULL`,

	// Without the message: a page of large messages would fill the memory.
	List: `SET ROWCOUNT 0;
SELECT message_key, state, run, attempts, since_ms, error, CASE WHEN message IS NULL THEN 0 ELSE 1 END AS has_message
FROM bridge_inbox_pending WITH (ROWLOCK, FORCESEEK)
WHERE consumer = SUBSTRING(@p1, 5, CAST(SUBSTRING(@p1, 1, 4) AS int)) AND state = CAST(LEFT(@p2, LEN(@p2) - 1) AS varchar(16))
	AND message_key > SUBSTRING(@p3, 5, CAST(SUBSTRING(@p3, 1, 4) AS int)) ORDER BY message_key OFFSET 0 ROWS FETCH NEXT @p4 ROWS ONLY`,

	Count: `SET ROWCOUNT 0;
SELECT state, count(*) FROM bridge_inbox_pending WITH (ROWLOCK, FORCESEEK)
WHERE consumer = SUBSTRING(@p1, 5, CAST(SUBSTRING(@p1, 1, 4) AS int)) GROUP BY state`,

	Claimed: `SET ROWCOUNT 0;
SELECT [key], DATEDIFF_BIG(millisecond, '19700101', SYSUTCDATETIME()) - DATEDIFF_BIG(millisecond, '19700101', claimed_at) AS age_ms
FROM bridge_inbox WITH (ROWLOCK, FORCESEEK)
WHERE consumer = SUBSTRING(@p1, 5, CAST(SUBSTRING(@p1, 1, 4) AS int)) AND [key] > SUBSTRING(@p2, 5, CAST(SUBSTRING(@p2, 1, 4) AS int))
ORDER BY [key] OFFSET 0 ROWS FETCH NEXT @p3 ROWS ONLY`,

	Forget: withKeys(`SET NOCOUNT OFF;
SET ROWCOUNT 0;
DELETE i FROM (VALUES $keys) AS k (k)
INNER LOOP JOIN bridge_inbox i WITH (ROWLOCK, FORCESEEK) ON i.[key] = k.k
WHERE i.consumer = SUBSTRING(@p101, 5, CAST(SUBSTRING(@p101, 1, 4) AS int))
	AND DATEDIFF_BIG(millisecond, '19700101', claimed_at) < DATEDIFF_BIG(millisecond, '19700101', SYSUTCDATETIME()) - @p102`,
		`(SUBSTRING(@p%[1]d, 5, CAST(SUBSTRING(@p%[1]d, 1, 4) AS int)))`, 1, portable.ForgetKeys),
}

// withKeys puts, in place of $keys, one row for each of the keys in the parameters @pFIRST and
// following. In row %[1]d is the number of the parameter, and %[2]d the number of the row.
func withKeys(text, row string, first, keys int) string {
	rows := make([]string, keys)
	for n := range rows {
		rows[n] = fmt.Sprintf(row, first+n, n+1)
	}
	return strings.Replace(text, "$keys", strings.Join(rows, ", "), 1)
}

// claim holds a statement for each number of keys that it claims at most: few sizes, so that the
// server keeps few plans. @p1 is the consumer, and @p2 the number of keys that count.
var claim = map[int]string{1: claiming(1), 10: claiming(10), 100: claiming(100)}

func claiming(keys int) string {
	return withKeys(`SET XACT_ABORT OFF;
SET NOCOUNT OFF;
SET ROWCOUNT 0;
INSERT INTO bridge_inbox (consumer, [key]) SELECT SUBSTRING(@p1, 5, CAST(SUBSTRING(@p1, 1, 4) AS int)), k.k FROM (VALUES $keys) AS k (n, k) WHERE k.n <= @p2`,
		`(%[2]d, SUBSTRING(@p%[1]d, 5, CAST(SUBSTRING(@p%[1]d, 1, 4) AS int)))`, 3, keys)
}

// Due rows are found and locked by two statements. The first reads keys by the index of due times,
// without locks ('READUNCOMMITTED', 'Table hints'): a key is a candidate only. The second locks one
// row by its clustered key, and checks that it is still due. LOCK_TIMEOUT 0 ends it if another
// transaction has locked the row, with any kind of lock: no document promises that READPAST skips a
// row that optimized locking protects by its transaction's ID.
//
// Every statement locks a row before the row's entry in the index. A statement that found the row
// by the index would lock them in the opposite order, and be in deadlock with a transaction that
// changes that row ('Deadlocks guide'). FORCESEEK beside INDEX is the form that Babelfish accepts
// too (measured on 4.3).
const (
	// Parameters: consumer, state, due time of the row before, the same time again, key of that row.
	due = `SET ROWCOUNT 0;
SELECT TOP (100) message_key, due_ms
FROM bridge_inbox_pending WITH (READUNCOMMITTED, FORCESEEK, INDEX (bridge_inbox_pending_due))
WHERE consumer = SUBSTRING(@p1, 5, CAST(SUBSTRING(@p1, 1, 4) AS int)) AND state = CAST(LEFT(@p2, LEN(@p2) - 1) AS varchar(16))
	AND due_ms >= @p3 AND due_ms <= DATEDIFF_BIG(millisecond, '19700101', SYSUTCDATETIME())
	AND (due_ms > @p4 OR message_key > SUBSTRING(@p5, 5, CAST(SUBSTRING(@p5, 1, 4) AS int))) ORDER BY due_ms, message_key`

	// The same, of rows with a message.
	dueStored = `SET ROWCOUNT 0;
SELECT TOP (100) message_key, due_ms
FROM bridge_inbox_pending WITH (READUNCOMMITTED, FORCESEEK, INDEX (bridge_inbox_pending_due))
WHERE consumer = SUBSTRING(@p1, 5, CAST(SUBSTRING(@p1, 1, 4) AS int)) AND state = CAST(LEFT(@p2, LEN(@p2) - 1) AS varchar(16))
	AND due_ms >= @p3 AND due_ms <= DATEDIFF_BIG(millisecond, '19700101', SYSUTCDATETIME())
	AND (due_ms > @p4 OR message_key > SUBSTRING(@p5, 5, CAST(SUBSTRING(@p5, 1, 4) AS int))) AND message IS NOT NULL ORDER BY due_ms, message_key`

	// Parameters: consumer, key, state.
	takeDue = `SET XACT_ABORT OFF;
SET TEXTSIZE 2147483647;
SET LOCK_TIMEOUT 0;
SELECT message_key, state, run, attempts, since_ms, error, message
FROM bridge_inbox_pending WITH (UPDLOCK, READCOMMITTEDLOCK, ROWLOCK, FORCESEEK, INDEX (bridge_inbox_pending_key))
WHERE consumer = SUBSTRING(@p1, 5, CAST(SUBSTRING(@p1, 1, 4) AS int)) AND message_key = SUBSTRING(@p2, 5, CAST(SUBSTRING(@p2, 1, 4) AS int))
	AND state = CAST(LEFT(@p3, LEN(@p3) - 1) AS varchar(16)) AND due_ms <= DATEDIFF_BIG(millisecond, '19700101', SYSUTCDATETIME()) AND message IS NOT NULL`

	// Parameters: consumer, key.
	doubtDue = `SET NOCOUNT OFF;
SET XACT_ABORT OFF;
SET LOCK_TIMEOUT 0;
UPDATE t SET state = 'doubtful', due_ms = DATEDIFF_BIG(millisecond, '19700101', SYSUTCDATETIME()), error = 'started, no result since'
FROM bridge_inbox_pending t WITH (UPDLOCK, READCOMMITTEDLOCK, ROWLOCK, FORCESEEK, INDEX (bridge_inbox_pending_key))
WHERE consumer = SUBSTRING(@p1, 5, CAST(SUBSTRING(@p1, 1, 4) AS int)) AND message_key = SUBSTRING(@p2, 5, CAST(SUBSTRING(@p2, 1, 4) AS int))
	AND state = 'started' AND due_ms < DATEDIFF_BIG(millisecond, '19700101', SYSUTCDATETIME())`
)

// The statements of marks and kept messages.
const (
	// An update that changes nothing locks the mark: it waits at every isolation level, and on a
	// server that ignores hints. No document promises that with optimized locking such an update
	// keeps the row locked; UPDLOCK does, to the end of the transaction ('Table hints').
	// Parameters: consumer, name.
	lockMark = `UPDATE m SET mark = m.mark OUTPUT inserted.mark FROM bridge_mark m WITH (UPDLOCK, ROWLOCK, FORCESEEK)
WHERE m.consumer = SUBSTRING(@p1, 5, CAST(SUBSTRING(@p1, 1, 4) AS int)) AND m.[name] = SUBSTRING(@p2, 5, CAST(SUBSTRING(@p2, 1, 4) AS int))`

	// Parameters: consumer, name.
	makeMark = `SET XACT_ABORT OFF;
SET NOCOUNT OFF;
INSERT INTO bridge_mark (consumer, [name], mark)
VALUES (SUBSTRING(@p1, 5, CAST(SUBSTRING(@p1, 1, 4) AS int)), SUBSTRING(@p2, 5, CAST(SUBSTRING(@p2, 1, 4) AS int)), 0x)`

	// Parameters: consumer, name, mark.
	setMark = `SET NOCOUNT OFF;
UPDATE m SET mark = SUBSTRING(@p3, 5, CAST(SUBSTRING(@p3, 1, 4) AS int)), changed_at = sysutcdatetime()
FROM bridge_mark m WITH (ROWLOCK, FORCESEEK)
WHERE m.consumer = SUBSTRING(@p1, 5, CAST(SUBSTRING(@p1, 1, 4) AS int)) AND m.[name] = SUBSTRING(@p2, 5, CAST(SUBSTRING(@p2, 1, 4) AS int))`
)

var entityStatements = portable.EntityStatements{
	Keep: `SET XACT_ABORT OFF;
INSERT INTO bridge_kept (consumer, entity, [version], [message])
VALUES (SUBSTRING(@p1, 5, CAST(SUBSTRING(@p1, 1, 4) AS int)), SUBSTRING(@p2, 5, CAST(SUBSTRING(@p2, 1, 4) AS int)),
	@p3, SUBSTRING(@p4, 5, CAST(SUBSTRING(@p4, 1, 4) AS int)))`,

	CountKept: `SELECT count(*) FROM bridge_kept WITH (ROWLOCK, FORCESEEK)
WHERE consumer = SUBSTRING(@p1, 5, CAST(SUBSTRING(@p1, 1, 4) AS int)) AND entity = SUBSTRING(@p2, 5, CAST(SUBSTRING(@p2, 1, 4) AS int))`,

	FirstKept: `SET TEXTSIZE 2147483647;
SELECT TOP (1) [version], [message] FROM bridge_kept WITH (ROWLOCK, FORCESEEK)
WHERE consumer = SUBSTRING(@p1, 5, CAST(SUBSTRING(@p1, 1, 4) AS int)) AND entity = SUBSTRING(@p2, 5, CAST(SUBSTRING(@p2, 1, 4) AS int)) ORDER BY [version]`,

	Unkeep: `DELETE k FROM bridge_kept k WITH (ROWLOCK, FORCESEEK)
WHERE consumer = SUBSTRING(@p1, 5, CAST(SUBSTRING(@p1, 1, 4) AS int)) AND entity = SUBSTRING(@p2, 5, CAST(SUBSTRING(@p2, 1, 4) AS int)) AND [version] = @p3`,

	// Without READ_COMMITTED_SNAPSHOT it waits for open transactions that handle such entities.
	KeptEntities: `SET ROWCOUNT 0;
SELECT TOP (@p2) k.entity, m.mark, k.lowest, k.kept, k.age
FROM (SELECT consumer, entity, min([version]) AS lowest, count(*) AS kept, DATEDIFF_BIG(second, min(kept_at), sysutcdatetime()) AS age
FROM bridge_kept WITH (ROWLOCK, FORCESEEK) WHERE consumer = SUBSTRING(@p1, 5, CAST(SUBSTRING(@p1, 1, 4) AS int)) GROUP BY consumer, entity) k
JOIN bridge_mark m WITH (ROWLOCK, FORCESEEK) ON m.consumer = k.consumer AND m.[name] = k.entity ORDER BY k.age DESC, k.entity`,
}

// The statements of the inspector on rows that carry messages. $past is the hints by which a
// statement skips locked rows. It is left out where a plain SELECT reads the rows committed when it
// began: no document says that READPAST skips a row that optimized locking protects by its
// transaction's ID.
const (
	countCarried = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 1000;
SELECT count(*) FROM (
	SELECT TOP (@p1) l.stage_at FROM bridge_ledger l WITH ($past, INDEX (bridge_ledger_stage_at)) WHERE l.stage_at IS NOT NULL
) carried`

	carriedRows = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 1000;
SELECT TOP (@p1) CONVERT(nvarchar(36), l.id) AS id, DATEDIFF_BIG(millisecond, '19700101', l.recorded_at) AS recorded_ms,
	DATEDIFF_BIG(millisecond, '19700101', l.stage_at) AS stage_ms, DATALENGTH(l.message) AS bytes
FROM bridge_ledger l WITH ($past, INDEX (bridge_ledger_stage_at)) WHERE l.stage_at IS NOT NULL ORDER BY l.stage_at, l.id`

	carriedRow = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 1000;
SELECT CONVERT(nvarchar(36), l.id) AS id, DATEDIFF_BIG(millisecond, '19700101', l.recorded_at) AS recorded_ms,
	DATEDIFF_BIG(millisecond, '19700101', l.stage_at) AS stage_ms, DATALENGTH(l.message) AS bytes
FROM bridge_ledger l WITH ($past, FORCESEEK) WHERE l.id = CAST(@p1 AS uniqueidentifier) AND l.stage_at IS NOT NULL`

	// The index is filtered, so its condition is repeated, as in dueRows.
	countDelayed = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 1000;
SELECT count(*) FROM (
	SELECT TOP (@p1) l.stage_at FROM bridge_ledger l WITH ($past, INDEX (bridge_ledger_stage_at)) WHERE l.stage_at IS NOT NULL AND l.stage_at > sysutcdatetime() AND l.stage_at <= l.recorded_at
) carried`

	delayedRows = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 1000;
SELECT TOP (@p1) CONVERT(nvarchar(36), l.id) AS id, DATEDIFF_BIG(millisecond, '19700101', l.recorded_at) AS recorded_ms,
	DATEDIFF_BIG(millisecond, '19700101', l.stage_at) AS stage_ms, DATALENGTH(l.message) AS bytes
FROM bridge_ledger l WITH ($past, INDEX (bridge_ledger_stage_at)) WHERE l.stage_at IS NOT NULL AND l.stage_at > sysutcdatetime() AND l.stage_at <= l.recorded_at ORDER BY l.stage_at, l.id`

	// The hints are the same as in the statement that cancels. Only the UPDATE may count.
	advance = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET NOCOUNT ON;
DECLARE @now datetime2(3) = sysutcdatetime();
SET NOCOUNT OFF;
UPDATE l SET recorded_at = @now, stage_at = @now FROM bridge_ledger l WITH (READCOMMITTEDLOCK, ROWLOCK, FORCESEEK)
WHERE l.id = CAST(@p1 AS uniqueidentifier) AND l.stage_at <= l.recorded_at AND l.stage_at > @now`
)

var carriedStatements = inspection.CarriedStatements{
	Count: countCarried, Rows: carriedRows, Row: carriedRow, CountDelayed: countDelayed, Delayed: delayedRows, Advance: advance,
}

// The statements of the inspector on open transactions. The views show other sessions only to logins
// with the right to see them (see the package comment). Times there are in the server's own time
// zone. A settle also waits for a session without a transaction of its own in the views.
const (
	// blocking_session_id is not always a session ('sys.dm_exec_requests'): -4 and -5 are waits for
	// a latch, whose owner is unknown. Then no session holds the row.
	holders = `SELECT h.session AS session, COALESCE(s.login_name, '') AS login, COALESCE(s.program_name, '') AS program,
	COALESCE(s.host_name, '') AS host, COALESCE(s.status, '') AS status,
	CONVERT(nvarchar(23), DATEADD(minute, -DATEPART(TZOFFSET, SYSDATETIMEOFFSET()), a.transaction_begin_time), 126) AS since,
	COALESCE(r.blocking_session_id, 0) AS waits_for, LEFT(COALESCE(t.text, ''), 1000) AS statement
FROM (SELECT DISTINCT CAST(blocking_session_id AS int) AS session FROM sys.dm_exec_requests WHERE session_id = @p1 AND blocking_session_id NOT IN (0, -4, -5)) h
LEFT JOIN sys.dm_exec_sessions s ON s.session_id = h.session
LEFT JOIN sys.dm_tran_session_transactions st ON st.session_id = h.session
LEFT JOIN sys.dm_tran_active_transactions a ON a.transaction_id = st.transaction_id
LEFT JOIN sys.dm_exec_requests r ON r.session_id = h.session
LEFT JOIN sys.dm_exec_connections c ON c.session_id = h.session AND c.parent_connection_id IS NULL
OUTER APPLY sys.dm_exec_sql_text(c.most_recent_sql_handle) t
ORDER BY since, session`

	// A transaction that changes a row has an intent lock on its table.
	openTransactions = `SELECT TOP (@p3) h.session AS session, COALESCE(s.login_name, '') AS login, COALESCE(s.program_name, '') AS program,
	COALESCE(s.host_name, '') AS host, COALESCE(s.status, '') AS status,
	CONVERT(nvarchar(23), DATEADD(minute, -DATEPART(TZOFFSET, SYSDATETIMEOFFSET()), a.transaction_begin_time), 126) AS since,
	COALESCE(r.blocking_session_id, 0) AS waits_for, LEFT(COALESCE(t.text, ''), 1000) AS statement
FROM (SELECT DISTINCT request_session_id AS session FROM sys.dm_tran_locks
	WHERE resource_type = 'OBJECT' AND resource_database_id = DB_ID() AND resource_associated_entity_id = OBJECT_ID(@p1)
	AND request_status = 'GRANT' AND request_mode IN ('IX', 'SIX', 'UIX', 'X')) h
LEFT JOIN sys.dm_exec_sessions s ON s.session_id = h.session
LEFT JOIN sys.dm_tran_session_transactions st ON st.session_id = h.session
LEFT JOIN sys.dm_tran_active_transactions a ON a.transaction_id = st.transaction_id
LEFT JOIN sys.dm_exec_requests r ON r.session_id = h.session
LEFT JOIN sys.dm_exec_connections c ON c.session_id = h.session AND c.parent_connection_id IS NULL
OUTER APPLY sys.dm_exec_sql_text(c.most_recent_sql_handle) t
WHERE h.session <> @@SPID AND a.transaction_begin_time <= DATEADD(second, -@p2, SYSDATETIME())
ORDER BY since, session`
)

// The statements of the inspector on the server. Properties that it lacks are null.
const (
	clock = `SELECT DATEDIFF_BIG(millisecond, '19700101', SYSUTCDATETIME())`

	serverState = `SELECT CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(60)) AS product,
	COALESCE(CAST(SERVERPROPERTY('EngineEdition') AS int), 0) AS edition,
	COALESCE(CAST(SERVERPROPERTY('babelfish') AS int), 0) AS babelfish,
	CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(60)) AS updateability,
	d.compatibility_level AS compatibility,
	d.delayed_durability_desc AS durability,
	CAST(d.is_read_committed_snapshot_on AS int) AS rcsi,
	d.snapshot_isolation_state_desc AS snapshots,
	COALESCE(CAST(DATABASEPROPERTYEX(DB_NAME(), 'IsOptimizedLockingOn') AS int), 0) AS optimized,
	COALESCE((SELECT t.lock_escalation_desc FROM sys.tables t WHERE t.object_id = OBJECT_ID(@p1)), '') AS escalation,
	(SELECT count(*) FROM sys.indexes x WHERE x.object_id = OBJECT_ID(@p1) AND x.allow_page_locks = 1) AS page_locks,
	COALESCE((SELECT SUM(p.rows) FROM sys.partitions p WHERE p.object_id = OBJECT_ID('bridge_ledger') AND p.index_id IN (0, 1)), 0) AS row_count,
	COALESCE((SELECT CAST(t.is_replicated AS int) FROM sys.tables t WHERE t.object_id = OBJECT_ID(@p1)), 0) AS published,
	COALESCE((SELECT CAST(t.is_merge_published AS int) + CAST(t.is_sync_tran_subscribed AS int) FROM sys.tables t WHERE t.object_id = OBJECT_ID(@p1)), 0) AS merged
FROM sys.databases d WHERE d.name = DB_NAME()`

	durabilityState = `SELECT CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(60)) AS product,
	COALESCE(CAST(SERVERPROPERTY('EngineEdition') AS int), 0) AS edition,
	COALESCE(CAST(SERVERPROPERTY('babelfish') AS int), 0) AS babelfish, d.delayed_durability_desc AS durability FROM sys.databases d WHERE d.name = DB_NAME()`

	// These tables exist if something is published. 0x1: peer-to-peer ('syspublications',
	// 'sysarticles').
	peers = `SELECT count(*) FROM dbo.syspublications p JOIN dbo.sysarticles a ON a.pubid = p.pubid
WHERE a.objid = OBJECT_ID(@p1) AND p.options & 1 = 1`

	// Shows policies to a login with ALTER ANY SECURITY POLICY, or VIEW DEFINITION on the policy
	// ('sys.security_predicates', 'sys.security_policies'). Type 0 is a filter.
	policies = `SELECT count(*) FROM sys.security_predicates f JOIN sys.security_policies p ON p.object_id = f.object_id
WHERE f.target_object_id = OBJECT_ID(@p1) AND f.predicate_type = 0 AND p.is_enabled = 1`

	// A login that may not see other sessions sees only its own, and gets no error
	// ('sys.dm_exec_sessions').
	sessionSeen = `SELECT count(*) FROM sys.dm_exec_sessions WHERE session_id = @p1`

	login = `SELECT QUOTENAME(USER_NAME())`

	// %s are values of the constants below.
	rights = `SELECT w.name + ' ON ' + w.relation AS missing FROM (VALUES %s) AS w (relation, name)
WHERE COALESCE(HAS_PERMS_BY_NAME(w.relation, 'OBJECT', w.name), 0) = 0`
)

// The rights of migrate.Rights for a verifier, as values of the statement above.
const (
	// The proof of an own table writes its canaries into bridge_ledger.
	ownTableNeeds = `('bridge_ledger', 'SELECT'), ('bridge_ledger', 'INSERT'), ('bridge_ledger', 'DELETE'), ('bridge_identity', 'SELECT'), ('bridge_ledger_version', 'SELECT')`

	verifierNeeds = `('bridge_ledger', 'SELECT'), ('bridge_ledger', 'INSERT'), ('bridge_ledger', 'DELETE'), ('bridge_identity', 'SELECT'), ('bridge_ledger_version', 'SELECT'), ('bridge_watermark', 'SELECT')`

	stageNeeds = `('bridge_ledger', 'UPDATE')`

	sweepNeeds = `('bridge_watermark', 'UPDATE')`
)
