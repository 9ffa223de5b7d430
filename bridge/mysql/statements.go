package mysql

import (
	"github.com/twoqueue/twoqueue/bridge/internal/inspection"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// The statements of the ledger. IDs are in them as hexadecimal digits: with parameters the driver
// would prepare each statement first, and close it afterwards. Many IDs are one JSON array, which
// is joined to the table in that order, row by row by key: from a list, IN (…), the server may
// choose to read all of a small table instead, and a DELETE would then wait for the open rows of
// all transactions. MariaDB chooses that in a join too, unless the index is forced.
//
// The array's table is in a SELECT of its own: MySQL accepts it in no other place of a statement that
// locks (error 3569). FOR UPDATE OF is no way out, since MariaDB does not have it.
//
//	%[1]s the IDs, %[2]s the identity, %[3]s the table as l, by its index, %[4]s its column
//
// server and started name the instance. started is the time of its start, in seconds since 1970,
// preceded by a part of its server_id: UUID_SHORT counts from there in its last 24 bits. It is in a
// table of its own, so that each statement counts once and not for each row.
//
// logged is true if a commit is on the disk, and on the replica if the server waits for one, before
// others see it. It is on the disk if the server writes a binary log in files, and waits until the
// log is on the disk. Otherwise InnoDB shows the commit first, and a crash in between undoes it
// (MySQL bugs 74303, 75519 and 119759). MariaDB 12.3.1 introduced a binary log within InnoDB, which
// ignores sync_binlog; only from that version on does a server read the first comment. With
// AFTER_COMMIT a server that waits for a replica shows the commit first, and a failover in between
// undoes it. Only MariaDB reads the second comment. On MySQL these variables belong to a plugin,
// and AFTER_SYNC is the default.
//
// read_only is whether the server takes writes, see takesWrites. Since Check the pool may have come
// to a replica, which has no locks of the sender's. So settle and sweptBefore read it: for them a
// missing value is an answer, a rollback or no sweep.
const (
	// Most transactions have one message, and the table of a JSON array costs more than its INSERT.
	// The server takes less time for x'…' than for UNHEX('…'): see recordNow.
	recordOne = `INSERT INTO bridge_ledger (id)
SELECT x'%[1]s' FROM bridge_identity i WHERE i.one = 1 AND i.identity = x'%[2]s'`

	recordMany = `INSERT INTO bridge_ledger (id)
SELECT ids.id FROM bridge_identity i
STRAIGHT_JOIN (SELECT UNHEX(j.id) AS id FROM JSON_TABLE('%[1]s', '$[*]' COLUMNS (id CHAR(32) PATH '$')) j) ids
WHERE i.one = 1 AND i.identity = UNHEX('%[2]s')`

	nameServer = `SELECT CONCAT_WS(' ', /*!80000 @@GLOBAL.server_uuid, */ @@GLOBAL.hostname, @@GLOBAL.port, @@GLOBAL.server_id) AS server, s.started
FROM (SELECT UUID_SHORT() >> 24 AS started) s`

	// At least one row if the identity is right, with a null id for an ID that is not found.
	committed = `SELECT l.%[4]s AS id, @@GLOBAL.log_bin AND @@GLOBAL.sync_binlog = 1
/*M!120301 AND COALESCE(@@GLOBAL.binlog_storage_engine, '') = '' */
/*M!100600 AND NOT (@@GLOBAL.rpl_semi_sync_master_enabled AND @@GLOBAL.rpl_semi_sync_master_wait_point = 'AFTER_COMMIT') */ AS logged,
CONCAT_WS(' ', /*!80000 @@GLOBAL.server_uuid, */ @@GLOBAL.hostname, @@GLOBAL.port, @@GLOBAL.server_id) AS server, s.started
FROM (SELECT UUID_SHORT() >> 24 AS started) s STRAIGHT_JOIN bridge_identity i
STRAIGHT_JOIN (SELECT UNHEX(j.id) AS id FROM JSON_TABLE('%[1]s', '$[*]' COLUMNS (id CHAR(32) PATH '$')) j) ids
LEFT JOIN %[3]s ON l.%[4]s = ids.id WHERE i.one = 1 AND i.identity = UNHEX('%[2]s')`

	// The same lookup, of rows that are not older than %[5]s microseconds.
	recent = `SELECT l.%[4]s AS id, @@GLOBAL.log_bin AND @@GLOBAL.sync_binlog = 1
/*M!120301 AND COALESCE(@@GLOBAL.binlog_storage_engine, '') = '' */
/*M!100600 AND NOT (@@GLOBAL.rpl_semi_sync_master_enabled AND @@GLOBAL.rpl_semi_sync_master_wait_point = 'AFTER_COMMIT') */ AS logged,
CONCAT_WS(' ', /*!80000 @@GLOBAL.server_uuid, */ @@GLOBAL.hostname, @@GLOBAL.port, @@GLOBAL.server_id) AS server, s.started
FROM (SELECT UUID_SHORT() >> 24 AS started) s STRAIGHT_JOIN bridge_identity i
STRAIGHT_JOIN (SELECT UNHEX(j.id) AS id FROM JSON_TABLE('%[1]s', '$[*]' COLUMNS (id CHAR(32) PATH '$')) j) ids
LEFT JOIN %[3]s ON l.%[4]s = ids.id AND l.recorded_at BETWEEN UTC_TIMESTAMP(6) - INTERVAL %[5]s MICROSECOND AND UTC_TIMESTAMP(6)
WHERE i.one = 1 AND i.identity = UNHEX('%[2]s')`

	// One row if the identity is right, with a null id if the ID has none.
	settle = `SELECT l.%[4]s AS id, @@GLOBAL.log_bin AND @@GLOBAL.sync_binlog = 1
/*M!120301 AND COALESCE(@@GLOBAL.binlog_storage_engine, '') = '' */
/*M!100600 AND NOT (@@GLOBAL.rpl_semi_sync_master_enabled AND @@GLOBAL.rpl_semi_sync_master_wait_point = 'AFTER_COMMIT') */ AS logged,
CONCAT_WS(' ', @@GLOBAL.read_only, @@GLOBAL.innodb_read_only) AS read_only,
CONCAT_WS(' ', /*!80000 @@GLOBAL.server_uuid, */ @@GLOBAL.hostname, @@GLOBAL.port, @@GLOBAL.server_id) AS server, s.started
FROM (SELECT UUID_SHORT() >> 24 AS started) s STRAIGHT_JOIN bridge_identity i
LEFT JOIN %[3]s ON l.%[4]s = UNHEX('%[1]s') WHERE i.one = 1 AND i.identity = UNHEX('%[2]s') LOCK IN SHARE MODE`

	readOnlySettings = `SELECT CONCAT_WS(' ', @@GLOBAL.read_only, @@GLOBAL.innodb_read_only) AS read_only`

	clusterSettings = `SHOW GLOBAL VARIABLES
WHERE Variable_name IN ('wsrep_on', 'group_replication_single_primary_mode')`

	groupSettings = `SHOW SESSION VARIABLES
WHERE Variable_name IN ('group_replication_group_name', 'group_replication_consistency') AND Value <> ''`

	replicaStatus = `SHOW REPLICA STATUS`

	ledgerEngine = `SELECT engine FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name = 'bridge_ledger'`

	// The rows that no other transaction has locked are locked, and then deleted.
	forget = `DELETE l FROM (
	SELECT l.id FROM (SELECT UNHEX(j.id) AS id FROM JSON_TABLE('%[1]s', '$[*]' COLUMNS (id CHAR(32) PATH '$')) j) ids
	STRAIGHT_JOIN bridge_ledger l FORCE INDEX (PRIMARY) ON l.id = ids.id FOR UPDATE SKIP LOCKED
) free STRAIGHT_JOIN bridge_ledger l FORCE INDEX (PRIMARY) ON l.id = free.id`

	// The existing rows, locked or not: a locked row must not be taken for a deleted one.
	present = `SELECT l.id FROM (SELECT UNHEX(j.id) AS id FROM JSON_TABLE('%[1]s', '$[*]' COLUMNS (id CHAR(32) PATH '$')) j) ids
STRAIGHT_JOIN bridge_ledger l FORCE INDEX (PRIMARY) ON l.id = ids.id`
)

// The statements of carried messages. A message is in them as base64. As a parameter it would be
// text to the server, which converts it if character_set_connection differs from
// character_set_client (measured on MariaDB 10.11: the stored bytes then differ), and the driver
// would prepare the statement first.
//
// UTC_TIMESTAMP has one value within a statement, so an unpublished row has one time in both
// columns.
const (
	// The time of the record is recordNow, or recordLater for a delayed message. An INSERT with
	// recordNow and x'…' takes MariaDB 10.11 157 µs of processor time, with recordLater and
	// UNHEX('…') 181 µs.
	recordNow   = `UTC_TIMESTAMP(6)`
	recordLater = `GREATEST(UTC_TIMESTAMP(6), CAST('%s' AS DATETIME(6)))`

	// %[5]s is the message, %[6]d the microseconds from the record to the stage time, and %[7]s the
	// time of the record.
	carryOne = `INSERT INTO bridge_ledger (id, recorded_at, message, stage_at)
SELECT x'%[1]s', %[7]s, FROM_BASE64('%[5]s'), %[7]s + INTERVAL %[6]d MICROSECOND
FROM bridge_identity i WHERE i.one = 1 AND i.identity = x'%[2]s'`

	// One more for each row, separated by commas: %[1]s is the ID, %[2]s the message, %[3]d the
	// microseconds, and %[4]s the time of the record.
	carryMore = `INSERT INTO bridge_ledger (id, recorded_at, message, stage_at) VALUES `
	more      = `(x'%[1]s', %[4]s, FROM_BASE64('%[2]s'), %[4]s + INTERVAL %[3]d MICROSECOND)`

	// In a transaction at REPEATABLE READ, a DELETE of a missing row would lock the gap in which
	// senders insert: see cancel.
	seesRow           = `SELECT COUNT(*) FROM bridge_ledger l FORCE INDEX (PRIMARY) WHERE l.id = UNHEX('%[1]s')`
	insertPlaceholder = `INSERT IGNORE INTO bridge_ledger (id) VALUES (UNHEX('%[1]s'))`
	cancelRow         = `DELETE FROM bridge_ledger WHERE id = UNHEX('%[1]s') AND stage_at <= recorded_at`
	deletePlaceholder = `DELETE FROM bridge_ledger WHERE id = UNHEX('%[1]s')`

	// At least one row if the identity is right, with nulls if no row is due. The list begins
	// after the stage time %[5]s and the ID %[6]s, follows the index, which ends with the ID, and ends
	// at the limit.
	due = `SELECT CAST(UTC_TIMESTAMP(6) AS CHAR) AS now, o.id, CAST(o.recorded_at AS CHAR) AS recorded_at, CAST(o.stage_at AS CHAR) AS stage_at, o.bytes
FROM bridge_identity i LEFT JOIN (
	SELECT l.id, l.recorded_at, l.stage_at, OCTET_LENGTH(l.message) AS bytes FROM bridge_ledger l FORCE INDEX (bridge_ledger_stage_at)
	WHERE l.stage_at >= '%[5]s' AND l.stage_at <= UTC_TIMESTAMP(6) AND (l.stage_at > '%[5]s' OR l.id > UNHEX('%[6]s'))
	ORDER BY l.stage_at, l.id LIMIT %[7]d
) o ON 1 = 1 WHERE i.one = 1 AND i.identity = UNHEX('%[2]s') ORDER BY o.stage_at, o.id`

	// %[1]s are pairs of an ID and a stage time, %[5]d and %[6]d the bounds of the next stage time in
	// microseconds from now, %[7]s is the claim. The next stage time is after recorded_at even if the
	// clock has gone back: Cancel compares both. Of two claims of a row the second finds it locked,
	// or with another stage time. Without the LIMIT MySQL merges the tables of the two SELECTs, and
	// the UPDATE then waits for locked rows (seen on 9.7).
	claim = `UPDATE (
	SELECT l.id, ids.stage_at FROM (
		SELECT UNHEX(j.id) AS id, CAST(j.stage_at AS DATETIME(6)) AS stage_at
		FROM JSON_TABLE('%[1]s', '$[*]' COLUMNS (id CHAR(32) PATH '$[0]', stage_at CHAR(26) PATH '$[1]')) j
	) ids STRAIGHT_JOIN bridge_ledger l FORCE INDEX (PRIMARY) ON l.id = ids.id
	WHERE l.stage_at = ids.stage_at LIMIT 18446744073709551615 FOR UPDATE SKIP LOCKED
) free STRAIGHT_JOIN bridge_ledger l FORCE INDEX (PRIMARY) ON l.id = free.id
SET l.stage_at = GREATEST(UTC_TIMESTAMP(6), l.recorded_at) + INTERVAL LEAST(GREATEST(TIMESTAMPDIFF(MICROSECOND, l.recorded_at, UTC_TIMESTAMP(6)), %[5]d), %[6]d) MICROSECOND,
	l.claimed_by = UNHEX('%[7]s') WHERE l.stage_at = free.stage_at`

	// %[5]s is the claim.
	loadClaimed = `SELECT l.id, l.message
FROM (SELECT UNHEX(j.id) AS id FROM JSON_TABLE('%[1]s', '$[*]' COLUMNS (id CHAR(32) PATH '$')) j) ids
STRAIGHT_JOIN bridge_ledger l FORCE INDEX (PRIMARY) ON l.id = ids.id WHERE l.claimed_by = UNHEX('%[5]s')`

	// %[5]d and %[6]d are the same bounds.
	touchCarried = `UPDATE (
	SELECT l.id FROM (SELECT UNHEX(j.id) AS id FROM JSON_TABLE('%[1]s', '$[*]' COLUMNS (id CHAR(32) PATH '$')) j) ids
	STRAIGHT_JOIN bridge_ledger l FORCE INDEX (PRIMARY) ON l.id = ids.id
	WHERE l.stage_at IS NOT NULL LIMIT 18446744073709551615 FOR UPDATE SKIP LOCKED
) free STRAIGHT_JOIN bridge_ledger l FORCE INDEX (PRIMARY) ON l.id = free.id
SET l.stage_at = GREATEST(UTC_TIMESTAMP(6), l.recorded_at) + INTERVAL LEAST(GREATEST(TIMESTAMPDIFF(MICROSECOND, l.recorded_at, UTC_TIMESTAMP(6)), %[5]d), %[6]d) MICROSECOND`
)

// The statements of the sweep. Times are text in the statements and in their results: the driver's
// value of a DATETIME depends on its connection's parameters. %[5]s is the time, or the age in
// microseconds, %[6]d the limit.
const (
	// At least one row if the identity is right, with nulls if there are no orphans.
	orphans = `SELECT o.id, CAST(o.recorded_at AS CHAR) AS recorded_at FROM bridge_identity i LEFT JOIN (
	SELECT l.id, l.recorded_at FROM bridge_ledger l
	WHERE l.recorded_at < UTC_TIMESTAMP(6) - INTERVAL %[5]s MICROSECOND AND l.stage_at IS NULL
	ORDER BY l.recorded_at, l.id LIMIT %[6]d
) o ON 1 = 1 WHERE i.one = 1 AND i.identity = UNHEX('%[2]s') ORDER BY o.recorded_at, o.id`

	// The affected rows are 0 also if the watermark is that high already. The watermark has a table of
	// its own, because a sender at REPEATABLE READ locks the row of bridge_identity until it ends.
	raise = `UPDATE bridge_watermark SET swept_before = GREATEST(COALESCE(swept_before, '%[5]s'), '%[5]s') WHERE one = 1`

	// The rows are locked first, since there is no DELETE that skips locked rows.
	lockOld = `SELECT l.id FROM (SELECT UNHEX(j.id) AS id FROM JSON_TABLE('%[1]s', '$[*]' COLUMNS (id CHAR(32) PATH '$')) j) ids
STRAIGHT_JOIN bridge_ledger l FORCE INDEX (PRIMARY) ON l.id = ids.id
WHERE l.recorded_at < '%[5]s' AND l.stage_at IS NULL FOR UPDATE SKIP LOCKED`

	own = `SELECT COUNT(*) FROM bridge_identity WHERE one = 1 AND identity = UNHEX('%[2]s')`

	sweptBefore = `SELECT CAST(w.swept_before AS CHAR) AS swept_before, CONCAT_WS(' ', @@GLOBAL.read_only, @@GLOBAL.innodb_read_only) AS read_only
FROM bridge_identity i JOIN bridge_watermark w ON w.one = 1 WHERE i.one = 1 AND i.identity = UNHEX('%[2]s')`
)

// The statements on an own table.
const (
	// Returns whether the identity is right, and the number of rows found.
	rows = `SELECT COUNT(i.one), COUNT(l.%[4]s) FROM bridge_identity i
STRAIGHT_JOIN (SELECT UNHEX(j.id) AS id FROM JSON_TABLE('%[1]s', '$[*]' COLUMNS (id CHAR(32) PATH '$')) j) ids
LEFT JOIN %[3]s ON l.%[4]s = ids.id WHERE i.one = 1 AND i.identity = UNHEX('%[2]s')`

	// Parameters: column, schema, which may be empty, table. The catalogue shows a login only the
	// objects to which it has some right. Without aliases MySQL would return the columns' names in
	// capitals.
	findColumn = `SELECT t.table_schema AS in_schema, t.table_name AS in_table, c.column_name AS name,
COALESCE(t.engine, '') AS engine, c.column_type AS type
FROM information_schema.tables t LEFT JOIN information_schema.columns c
ON c.table_schema = t.table_schema AND c.table_name = t.table_name AND c.column_name = ?
WHERE t.table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND t.table_name = ?`

	// Parameters: schema, table, column. Returns the unique indexes on the column alone. sub_part is
	// set for an index on the beginning of a column.
	uniqueIndexes = `SELECT s.index_name AS name FROM information_schema.statistics s
WHERE s.table_schema = ? AND s.table_name = ? AND s.non_unique = 0
GROUP BY s.index_name HAVING COUNT(*) = 1 AND MIN(s.column_name) = ? AND COUNT(s.sub_part) = 0
ORDER BY s.index_name <> 'PRIMARY', s.index_name`
)

// The statements of the inbox; portable.InboxStatements lists their parameters. Bytes are in base64:
// see packing. TIMESTAMPDIFF counts from 1970 in UTC, so the session's time zone does not matter.
//
// By the primary key, a statement that finds due rows would lock and wait for all of the consumer's
// rows. So it searches the index of due times.
var inboxStatements = portable.InboxStatements{
	Unclaim: "DELETE FROM bridge_inbox WHERE consumer = FROM_BASE64(?) AND `key` = FROM_BASE64(?)",

	Add: `INSERT INTO bridge_inbox_pending (consumer, message_key, state, run, attempts, since_ms, due_ms, error, message)
VALUES (FROM_BASE64(?), FROM_BASE64(?), ?, ?, ?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000,
	TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000 + ?, CONVERT(FROM_BASE64(?) USING utf8mb4), FROM_BASE64(?))`,

	Look: `SELECT c.claimed, p.state, p.run, p.attempts, p.since_ms, p.error, p.message
FROM (SELECT count(*) AS claimed FROM bridge_inbox WHERE consumer = FROM_BASE64(?) AND ` + "`key`" + ` = FROM_BASE64(?)) c
LEFT JOIN bridge_inbox_pending p ON p.consumer = FROM_BASE64(?) AND p.message_key = FROM_BASE64(?)`,

	Change: `UPDATE bridge_inbox_pending SET state = ?, run = ?, attempts = ?,
	due_ms = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000 + ?,
	error = CONVERT(FROM_BASE64(?) USING utf8mb4), message = COALESCE(FROM_BASE64(?), message)
WHERE consumer = FROM_BASE64(?) AND message_key = FROM_BASE64(?) AND run = ?`,

	Attach: `UPDATE bridge_inbox_pending SET message = FROM_BASE64(?)
WHERE consumer = FROM_BASE64(?) AND message_key = FROM_BASE64(?) AND run = ? AND message IS NULL`,

	Remove: `DELETE FROM bridge_inbox_pending WHERE consumer = FROM_BASE64(?) AND message_key = FROM_BASE64(?) AND run = ?`,

	RemoveBare: `DELETE FROM bridge_inbox_pending WHERE consumer = FROM_BASE64(?) AND message_key = FROM_BASE64(?) AND run = ? AND message IS NULL`,

	Take: `SELECT message_key, state, run, attempts, since_ms, error, message FROM bridge_inbox_pending FORCE INDEX (bridge_inbox_pending_due)
WHERE consumer = FROM_BASE64(?) AND state = ? AND due_ms <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000
AND message IS NOT NULL ORDER BY due_ms LIMIT ? FOR UPDATE SKIP LOCKED`,

	Doubt: `UPDATE bridge_inbox_pending FORCE INDEX (bridge_inbox_pending_due)
SET state = 'doubtful', due_ms = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000, error = 'started, no result since'
WHERE consumer = FROM_BASE64(?) AND state = 'started' AND due_ms < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000`,

	// Without the message: a page of large messages would fill the memory.
	List: `SELECT message_key, state, run, attempts, since_ms, error, CASE WHEN message IS NULL THEN 0 ELSE 1 END AS has_message
FROM bridge_inbox_pending WHERE consumer = FROM_BASE64(?) AND state = ? AND message_key > FROM_BASE64(?) ORDER BY message_key LIMIT ?`,

	Count: `SELECT state, count(*) FROM bridge_inbox_pending WHERE consumer = FROM_BASE64(?) GROUP BY state`,

	Claimed: "SELECT `key`, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000" +
		" - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', claimed_at) DIV 1000 AS age_ms FROM bridge_inbox\n" +
		"WHERE consumer = FROM_BASE64(?) AND `key` > FROM_BASE64(?) ORDER BY `key` LIMIT ?",
}

const (
	// claimKeys begins the INSERT of up to 100 keys, each of them a claimKey of consumer and key as
	// hexadecimal digits. A duplicate is recognised by its error, which leaves the transaction
	// unchanged. INSERT IGNORE would take every other error for a duplicate too, and the count of
	// ON DUPLICATE KEY UPDATE depends on the driver's connection. MySQL has no RETURNING.
	claimKeys = "INSERT INTO bridge_inbox (consumer, `key`) VALUES "
	claimKey  = `(UNHEX('%x'), UNHEX('%x'))`

	// forgetKeys joins the keys, a JSON array, to the table in that order, row by row by key, like
	// the ledger's statements. Otherwise the server may choose to read all of a small table, and so
	// wait for others' claims. Its parameters are the keys, the consumer and the age in
	// milliseconds.
	forgetKeys = `DELETE i FROM (SELECT UNHEX(j.k) AS k FROM JSON_TABLE(?, '$[*]' COLUMNS (k VARCHAR(510) PATH '$')) j) ids
STRAIGHT_JOIN bridge_inbox i FORCE INDEX (PRIMARY) ON i.consumer = FROM_BASE64(?) AND i.` + "`key`" + ` = ids.k
WHERE TIMESTAMPDIFF(MICROSECOND, '1970-01-01', i.claimed_at) DIV 1000 < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000 - ?`
)

// The statements of marks and kept messages; portable.EntityStatements lists their parameters. Texts
// are in them as hexadecimal digits, as the IDs are, and a kept message in base64.
//
// The reads of kept messages lock nothing, not even the gap if there is none. At REPEATABLE READ
// they see the state of the transaction's first read. It is not older than the transaction's lock,
// since LockMark comes first.
const (
	makeMark = `INSERT INTO bridge_mark (consumer, name, mark) VALUES (UNHEX('%s'), UNHEX('%s'), '') ON DUPLICATE KEY UPDATE mark = mark`
	readMark = `SELECT mark FROM bridge_mark WHERE consumer = UNHEX('%s') AND name = UNHEX('%s') FOR UPDATE`
)

var entityStatements = portable.EntityStatements{
	SetMark:   `UPDATE bridge_mark SET mark = UNHEX('%s'), changed_at = UTC_TIMESTAMP(6) WHERE consumer = UNHEX('%s') AND name = UNHEX('%s')`,
	Keep:      `INSERT INTO bridge_kept (consumer, entity, version, message) VALUES (UNHEX('%s'), UNHEX('%s'), %d, FROM_BASE64('%s'))`,
	CountKept: `SELECT count(*) FROM bridge_kept WHERE consumer = UNHEX('%s') AND entity = UNHEX('%s')`,
	FirstKept: `SELECT version, message FROM bridge_kept WHERE consumer = UNHEX('%s') AND entity = UNHEX('%s') ORDER BY version LIMIT 1`,
	Unkeep:    `DELETE FROM bridge_kept WHERE consumer = UNHEX('%s') AND entity = UNHEX('%s') AND version = %d`,

	KeptEntities: `SELECT k.entity, m.mark, k.lowest, k.kept, k.age
FROM (SELECT consumer, entity, min(version) AS lowest, count(*) AS kept, TIMESTAMPDIFF(SECOND, min(kept_at), UTC_TIMESTAMP(6)) AS age
FROM bridge_kept WHERE consumer = UNHEX('%s') GROUP BY consumer, entity) k
JOIN bridge_mark m ON m.consumer = k.consumer AND m.name = k.entity ORDER BY k.age DESC, k.entity LIMIT %d`,
}

// The statements of the inspector on rows that carry messages.
const (
	countCarried = `SELECT COUNT(*) FROM (
	SELECT 1 FROM bridge_ledger l FORCE INDEX (bridge_ledger_stage_at) WHERE l.stage_at IS NOT NULL LIMIT ?
) carried`

	carriedRows = `SELECT HEX(l.id) AS id, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.recorded_at) DIV 1000 AS recorded_ms,
	TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.stage_at) DIV 1000 AS stage_ms, OCTET_LENGTH(l.message) AS bytes
FROM bridge_ledger l FORCE INDEX (bridge_ledger_stage_at) WHERE l.stage_at IS NOT NULL ORDER BY l.stage_at, l.id LIMIT ?`

	carriedRow = `SELECT HEX(l.id) AS id, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.recorded_at) DIV 1000 AS recorded_ms,
	TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.stage_at) DIV 1000 AS stage_ms, OCTET_LENGTH(l.message) AS bytes
FROM bridge_ledger l WHERE l.id = UNHEX(?) AND l.stage_at IS NOT NULL`

	countDelayed = `SELECT COUNT(*) FROM (
	SELECT 1 FROM bridge_ledger l FORCE INDEX (bridge_ledger_stage_at) WHERE l.stage_at > UTC_TIMESTAMP(6) AND l.stage_at <= l.recorded_at LIMIT ?
) carried`

	delayedRows = `SELECT HEX(l.id) AS id, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.recorded_at) DIV 1000 AS recorded_ms,
	TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.stage_at) DIV 1000 AS stage_ms, OCTET_LENGTH(l.message) AS bytes
FROM bridge_ledger l FORCE INDEX (bridge_ledger_stage_at) WHERE l.stage_at > UTC_TIMESTAMP(6) AND l.stage_at <= l.recorded_at ORDER BY l.stage_at, l.id LIMIT ?`

	// A server reads UTC_TIMESTAMP once per statement.
	advance = `UPDATE bridge_ledger SET recorded_at = UTC_TIMESTAMP(6), stage_at = UTC_TIMESTAMP(6)
WHERE id = UNHEX(?) AND stage_at <= recorded_at AND stage_at > UTC_TIMESTAMP(6)`
)

var carriedStatements = inspection.CarriedStatements{
	Count: countCarried, Rows: carriedRows, Row: carriedRow, CountDelayed: countDelayed, Delayed: delayedRows, Advance: advance,
}

// The statements of the inspector on open transactions. A transaction without a session is a
// prepared one (XA) whose session has ended. trx_started is in the server's own time zone, whatever
// the session's.
const (
	// %[1]s is the waiting session, %[2]s the ID, as in its statement: InnoDB may show the state of
	// some tenths of a second ago.
	holdersMariaDB = `SELECT DISTINCT b.trx_mysql_thread_id AS session, b.trx_state AS trx_state,
CAST(CONVERT_TZ(b.trx_started, 'SYSTEM', '+00:00') AS CHAR) AS since, COALESCE(p.user, '') AS login,
COALESCE(p.host, '') AS host, COALESCE(p.command, '') AS command, COALESCE(p.info, '') AS info FROM information_schema.innodb_lock_waits w
JOIN information_schema.innodb_trx r ON r.trx_id = w.requesting_trx_id
JOIN information_schema.innodb_trx b ON b.trx_id = w.blocking_trx_id
LEFT JOIN information_schema.processlist p ON p.id = b.trx_mysql_thread_id
WHERE r.trx_mysql_thread_id = %[1]s AND LOCATE('%[2]s', r.trx_query) > 0`

	holdersMySQL = `SELECT DISTINCT b.trx_mysql_thread_id AS session, b.trx_state AS trx_state,
CAST(CONVERT_TZ(b.trx_started, 'SYSTEM', '+00:00') AS CHAR) AS since, COALESCE(p.user, '') AS login,
COALESCE(p.host, '') AS host, COALESCE(p.command, '') AS command, COALESCE(p.info, '') AS info FROM performance_schema.data_lock_waits w
JOIN information_schema.innodb_trx r ON r.trx_id = w.requesting_engine_transaction_id
JOIN information_schema.innodb_trx b ON b.trx_id = w.blocking_engine_transaction_id
LEFT JOIN information_schema.processlist p ON p.id = b.trx_mysql_thread_id
WHERE r.trx_mysql_thread_id = %[1]s AND LOCATE('%[2]s', r.trx_query) > 0`

	// A session that records has this database as its default: its statements name the ledger
	// without a database.
	openTransactions = `SELECT b.trx_mysql_thread_id AS session, b.trx_state AS trx_state,
CAST(CONVERT_TZ(b.trx_started, 'SYSTEM', '+00:00') AS CHAR) AS since, COALESCE(p.user, '') AS login,
COALESCE(p.host, '') AS host, COALESCE(p.command, '') AS command, COALESCE(p.info, '') AS info FROM information_schema.innodb_trx b
LEFT JOIN information_schema.processlist p ON p.id = b.trx_mysql_thread_id
WHERE b.trx_rows_modified > 0 AND b.trx_mysql_thread_id <> CONNECTION_ID() AND (b.trx_mysql_thread_id = 0 OR p.db = DATABASE())
AND CONVERT_TZ(b.trx_started, 'SYSTEM', '+00:00') <= UTC_TIMESTAMP(6) - INTERVAL %d MICROSECOND
ORDER BY since LIMIT %d`

	// This works only with performance_schema, which is off by default on MariaDB.
	programs = `SELECT processlist_id AS session, attr_value AS text FROM performance_schema.session_account_connect_attrs
WHERE attr_name = 'program_name' AND processlist_id IN (%[1]s)`

	allPrograms = `SELECT processlist_id AS session, attr_value AS text FROM performance_schema.session_connect_attrs
WHERE attr_name = 'program_name' AND processlist_id IN (%[1]s)`

	statements = `SELECT t.processlist_id AS session, s.sql_text AS text FROM performance_schema.threads t
JOIN performance_schema.events_statements_current s ON s.thread_id = t.thread_id
WHERE t.processlist_id IN (%[1]s) AND s.sql_text IS NOT NULL ORDER BY s.event_id`
)

// The statements of the inspector on the server, and on the login.
const (
	clock = `SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000 AS SIGNED)`

	globals = `SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'read_only', 'super_read_only', 'innodb_read_only',
'innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', 'binlog_format', 'innodb_rollback_on_timeout', 'max_connections',
'binlog_storage_engine', 'wsrep_on', 'group_replication_single_primary_mode', 'group_replication_group_name', 'performance_schema',
'innodb_doublewrite', 'rpl_semi_sync_master_enabled', 'rpl_semi_sync_master_wait_point', 'rpl_semi_sync_source_enabled', 'rpl_semi_sync_source_wait_point')`

	// Variables of which the session has values of its own.
	session = `SHOW SESSION VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation', 'wait_timeout',
'max_statement_time', 'max_execution_time', 'max_allowed_packet', 'max_user_connections', 'group_replication_consistency')`

	status = `SHOW GLOBAL STATUS WHERE Variable_name = 'Threads_connected'`

	// In name@host the last @ separates the two, since a name may contain one.
	login = `SELECT CONCAT(QUOTE(LEFT(u, CHAR_LENGTH(u) - CHAR_LENGTH(SUBSTRING_INDEX(u, '@', -1)) - 1)), '@', QUOTE(SUBSTRING_INDEX(u, '@', -1)))
FROM (SELECT CURRENT_USER() AS u) me`

	engines = `SELECT table_name AS name, COALESCE(engine, '') AS engine, COALESCE(table_rows, 0) AS row_count
FROM information_schema.tables WHERE table_schema = DATABASE()
AND table_name IN ('bridge_ledger', 'bridge_identity', 'bridge_watermark', 'bridge_ledger_version') ORDER BY table_name`

	oldest = `SELECT MAX(TIMESTAMPDIFF(SECOND, CONVERT_TZ(b.trx_started, 'SYSTEM', '+00:00'), UTC_TIMESTAMP()))
FROM information_schema.innodb_trx b LEFT JOIN information_schema.processlist p ON p.id = b.trx_mysql_thread_id
WHERE b.trx_mysql_thread_id <> CONNECTION_ID() AND (b.trx_mysql_thread_id = 0 OR p.db = DATABASE())`
)
