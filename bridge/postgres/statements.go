package postgres

import (
	"strings"

	"github.com/twoqueue/twoqueue/bridge/internal/inspection"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// CASE WHEN $1 IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END
// keeps the server from reusing a plan, in a condition on a parameter that is never null. These
// tables are empty or small most of the time. A plan made for an empty table reads the whole table,
// and would be kept when the table fills (measured: 27 s to look up 500 IDs among 60,000 rows, 2 ms
// with a new plan). When the parameter's value is known the planner removes the condition; to a
// plan for any parameter it adds more than planning anew can cost.

// The statements of the ledger.
//
// They return times in microseconds since 1970 (see moment).
//
// They take IDs as the text of an array, or of a UUID, which every driver can send in every mode;
// their own text does not depend on the number of IDs. The text of an array is parsed once, in a
// subquery.
//
// A subquery hides the length of an array: planning an INSERT costs as much as executing it, and a
// statement with an array of visible length is planned anew each time. Most transactions have one
// message, and so one ID goes without an array.
//
// started, port and waits: no two servers on one machine have a port in common, and hardly two on
// different machines have started in the same microsecond, so these two name the instance. A
// restart is another instance. The address is left out, since one server may have several. waits is
// whether a commit of this session waits for a standby: see replica.go.
const (
	// Parameters: ID, identity.
	recordOne = `INSERT INTO bridge_ledger (id)
SELECT $1::text::uuid FROM bridge_identity WHERE identity = $2::text::uuid`

	// Parameters: IDs, identity.
	recordMany = `INSERT INTO bridge_ledger (id)
SELECT unnest((SELECT $1::text::uuid[])) FROM bridge_identity WHERE identity = $2::text::uuid`

	nameServer = `SELECT (SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint) AS started,
	(SELECT current_setting('port')::integer) AS port,
	(SELECT current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') NOT IN ('off', 'local')) AS waits`

	// The smallest write: it leaves only a record in the log.
	emit = `WITH emitted AS MATERIALIZED (SELECT pg_logical_emit_message(true, 'twoqueue', ''::text))
SELECT (SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint) AS started,
	(SELECT current_setting('port')::integer) AS port,
	(SELECT current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') NOT IN ('off', 'local')) AS waits
FROM emitted`

	// Parameters: IDs, identity. At least one row if the identity is right, with a null id if no ID
	// is found.
	committed = `SELECT l.id,
	(SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint) AS started,
	(SELECT current_setting('port')::integer) AS port,
	(SELECT current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') NOT IN ('off', 'local')) AS waits
FROM bridge_identity i
LEFT JOIN bridge_committed($1::text::uuid[]) AS l (id) ON true WHERE i.identity = $2::text::uuid`

	// The same lookup, of rows that are not older than an age. Parameters: IDs, identity, age.
	recent = `SELECT l.id,
	(SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint) AS started,
	(SELECT current_setting('port')::integer) AS port,
	(SELECT current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') NOT IN ('off', 'local')) AS waits
FROM bridge_identity i
LEFT JOIN bridge_ledger l ON l.id = ANY (ARRAY(SELECT unnest($1::text::uuid[])))
AND CASE WHEN $1::text IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END
	AND l.recorded_at BETWEEN clock_timestamp() - $3::text::interval AND clock_timestamp()
WHERE i.identity = $2::text::uuid`

	// Parameters: ID, identity, milliseconds. The INSERT reads from own, so that the time-out is set
	// before the INSERT waits. The other time-out removes the row if this process freezes before the
	// rollback.
	settle = `WITH own AS MATERIALIZED (
	SELECT set_config('lock_timeout', $3::text, true), set_config('idle_in_transaction_session_timeout', '10s', true)
	FROM bridge_identity WHERE identity = $2::text::uuid
), inserted AS (
	INSERT INTO bridge_ledger (id) SELECT $1::text::uuid FROM own ON CONFLICT DO NOTHING RETURNING id
)
SELECT (SELECT count(*) FROM own) AS own, (SELECT count(*) FROM inserted) AS inserted,
	(SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint) AS started,
	(SELECT current_setting('port')::integer) AS port,
	(SELECT current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') NOT IN ('off', 'local')) AS waits`

	// Parameters: IDs, wait. A DELETE that a crash undoes costs at most a duplicate or an orphan
	// row, so it need not wait for the disk. lock_timeout ends it at a locked row. (FOR UPDATE SKIP
	// LOCKED needs the right to UPDATE, and writes 60 bytes of WAL more for each row.)
	forget = `WITH relaxed AS MATERIALIZED (
	SELECT set_config('synchronous_commit', 'off', true), set_config('lock_timeout', $2::text, true)
)
SELECT bridge_forget($1::text::uuid[]) FROM relaxed`

	inRecovery = `SELECT pg_is_in_recovery()`

	standby = `SELECT pg_is_in_recovery() AS standby, current_setting('transaction_read_only')::boolean AS read_only`

	// Parameter: table. An open transaction of the publisher holds no lock here. PostgreSQL 13 lets
	// every login read the columns of pg_subscription named here, and not its oid
	// (system_views.sql).
	subscription = `SELECT s.subname FROM pg_subscription_rel r
JOIN pg_stat_subscription o ON o.subid = r.srsubid
JOIN pg_subscription s ON s.subname = o.subname AND s.subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())
WHERE r.srrelid = to_regclass($1::text) AND s.subenabled LIMIT 1`

	// Parameters: schema, table. Counts the functions in the schema that do not name the table:
	// their migration relied on search_path.
	foreign = `SELECT count(*) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = $1::text AND strpos(p.prosrc, $2::text) = 0
AND p.proname IN ('bridge_committed', 'bridge_forget', 'bridge_due', 'bridge_claim', 'bridge_touch')`

	// Parameter: tables. Returns the tables that a crash empties.
	unlogged = `SELECT c.relname FROM unnest($1::text::text[]) AS names(name)
JOIN pg_class c ON c.oid = to_regclass(names.name) WHERE c.relpersistence <> 'p' ORDER BY c.relname`
)

// settles is the beginning of a settle.
var settles, _, _ = strings.Cut(settle, "$3")

// The statements of carried messages. Both times of a row come from one reading of the clock. A
// published message is due after driver.PublishedGrace.
const (
	// Parameters: ID, identity, message.
	carryOnePublished = `INSERT INTO bridge_ledger (id, recorded_at, message, stage_at)
SELECT $1::text::uuid, t, $3::bytea, t + interval '1 s'
FROM bridge_identity, clock_timestamp() AS t WHERE identity = $2::text::uuid`

	// Parameters: ID, identity, message, earliest time at which it is due.
	carryOneUnpublished = `INSERT INTO bridge_ledger (id, recorded_at, message, stage_at)
SELECT $1::text::uuid, t, $3::bytea, t
FROM bridge_identity, greatest(clock_timestamp(), $4::text::timestamptz) AS t WHERE identity = $2::text::uuid`

	// Parameters: IDs, identity, all messages one after another, the places where they begin, their
	// lengths.
	carryManyPublished = `INSERT INTO bridge_ledger (id, recorded_at, message, stage_at)
SELECT m.id, t, substring($3::bytea FROM m.first FOR m.length), t + interval '1 s'
FROM bridge_identity, clock_timestamp() AS t,
	unnest((SELECT $1::text::uuid[]), (SELECT $4::text::int[]), (SELECT $5::text::int[])) AS m (id, first, length)
WHERE identity = $2::text::uuid`

	// The same parameters, and the earliest time at which they are due.
	carryManyUnpublished = `INSERT INTO bridge_ledger (id, recorded_at, message, stage_at)
SELECT m.id, t, substring($3::bytea FROM m.first FOR m.length), t
FROM bridge_identity, greatest(clock_timestamp(), $6::text::timestamptz) AS t,
	unnest((SELECT $1::text::uuid[]), (SELECT $4::text::int[]), (SELECT $5::text::int[])) AS m (id, first, length)
WHERE identity = $2::text::uuid`

	// Parameter: IDs. If a Claim was open meanwhile, the server evaluates the condition anew.
	cancel = `DELETE FROM bridge_ledger WHERE id = ANY (ARRAY(SELECT unnest($1::text::uuid[])))
AND CASE WHEN $1::text IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END
AND stage_at <= recorded_at`

	// Parameters: identity, stage time and ID of the row before, limit. At least one row if the
	// identity is right, with nulls if no row is due.
	due = `SELECT (extract(epoch FROM now()) * 1000000)::bigint AS now, d.id, (extract(epoch FROM d.recorded_at) * 1000000)::bigint AS recorded_at,
	(extract(epoch FROM d.stage_at) * 1000000)::bigint AS stage_at, d.bytes FROM bridge_identity i
LEFT JOIN bridge_due($2::text::timestamptz, $3::text::uuid, $4::text::int) d ON true WHERE i.identity = $1::text::uuid ORDER BY d.stage_at, d.id`

	// Parameters: IDs, stage times. A claim waits for the disk, whatever the login's setting.
	// Otherwise a Cancel after a crash of the server could delete the row of a published message.
	// Neither a claim nor a touch waits for a row. A driver that reads the message as text needs it
	// in hex.
	claim = `WITH durable AS MATERIALIZED (
	SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'
), waits AS MATERIALIZED (SELECT count(*) FROM durable), hex AS MATERIALIZED (SELECT set_config('bytea_output', 'hex', true))
SELECT c.id, c.message FROM waits, hex, bridge_claim($1::text::uuid[], $2::text::timestamptz[]) c`

	// Parameter: IDs. A touch that a crash undoes costs at most a copy of a message, so it need not
	// wait for the disk.
	touchCarried = `WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
SELECT bridge_touch($1::text::uuid[]) FROM relaxed`
)

// The statements of the sweep.
const (
	// Parameters: identity, age, limit. At least one row if the identity is right, with nulls if
	// there are no orphans.
	orphans = `SELECT o.id, (extract(epoch FROM o.recorded_at) * 1000000)::bigint AS recorded_at FROM bridge_identity i LEFT JOIN LATERAL (
	SELECT l.id, l.recorded_at FROM bridge_ledger l
	WHERE l.recorded_at < now() - $2::text::interval AND l.stage_at IS NULL
	ORDER BY l.recorded_at, l.id LIMIT $3::text::int
) o ON true WHERE i.identity = $1::text::uuid ORDER BY o.recorded_at, o.id`

	// Parameters: identity, time.
	raise = `UPDATE bridge_watermark SET swept_before = greatest(swept_before, $2::text::timestamptz)
WHERE EXISTS (SELECT FROM bridge_identity WHERE identity = $1::text::uuid)`

	// Parameters: IDs, time.
	sweep = `WITH free AS MATERIALIZED (
	SELECT id FROM bridge_ledger WHERE id = ANY (ARRAY(SELECT unnest($1::text::uuid[])))
	AND CASE WHEN $1::text IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END
	AND recorded_at < $2::text::timestamptz AND stage_at IS NULL
	FOR UPDATE SKIP LOCKED
)
DELETE FROM bridge_ledger l USING free WHERE l.id = free.id RETURNING l.id`

	// Parameter: identity.
	sweptBefore = `SELECT (extract(epoch FROM w.swept_before) * 1000000)::bigint AS swept_before, pg_is_in_recovery() AS standby
FROM bridge_identity i CROSS JOIN bridge_watermark w WHERE i.identity = $1::text::uuid`
)

// The statements on an own table, %[1]s, and its column, %[2]s.
//
// A read cannot wait for an insert here, and the bridge must not insert into this table. So Record
// takes an advisory lock for each ID that lasts as long as the sender's transaction. Settle waits
// for that lock and then reads with a snapshot taken after the wait. PostgreSQL releases a
// transaction's locks only after its outcome is visible.
const (
	// Parameters: IDs, identity, keys of the locks.
	hold = `WITH own AS MATERIALIZED (SELECT FROM bridge_identity WHERE identity = $2::text::uuid),
held AS MATERIALIZED (SELECT pg_advisory_xact_lock(key) FROM own, unnest($3::text::bigint[]) AS keys(key))
SELECT (SELECT count(*) FROM held), (SELECT count(*) FROM unnest($1::text::uuid[]) AS ids(id) JOIN %[1]s l ON l.%[2]s = ids.id
	WHERE CASE WHEN $1::text IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END)`

	// Parameters: key of the lock, milliseconds. The lock is taken after the time-out is set. It is
	// shared, so that several settles may wait for one ID.
	await = `WITH patience AS MATERIALIZED (
	SELECT set_config('lock_timeout', $2::text, true), set_config('idle_in_transaction_session_timeout', '10s', true)
)
SELECT pg_advisory_xact_lock_shared($1::text::bigint) FROM patience`

	// Parameters: ID, identity. A standby has advisory locks of its own, which no sender holds.
	outcome = `SELECT (SELECT count(*) FROM bridge_identity WHERE identity = $2::text::uuid) AS own,
	(SELECT count(*) FROM %[1]s l WHERE l.%[2]s = $1::text::uuid
		AND CASE WHEN $1::text IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END) AS found,
	pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean AS standby,
	(SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint) AS started,
	(SELECT current_setting('port')::integer) AS port,
	(SELECT current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') NOT IN ('off', 'local')) AS waits`

	// Parameters: IDs, identity.
	ownCommitted = `SELECT l.%[2]s AS id,
	(SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint) AS started,
	(SELECT current_setting('port')::integer) AS port,
	(SELECT current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') NOT IN ('off', 'local')) AS waits
FROM bridge_identity i
LEFT JOIN (unnest($1::text::uuid[]) AS ids(id) JOIN %[1]s l ON l.%[2]s = ids.id)
ON CASE WHEN $1::text IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END
WHERE i.identity = $2::text::uuid`

	// Parameters: schema, which may be empty, table, column. A unique index counts if it is on the
	// column alone, on all rows, and checked immediately.
	findColumn = `SELECT n.nspname AS schema, c.relname AS name, c.relkind IN ('r', 'p') AS is_table, c.relpersistence = 'p' AS logged,
	row_security_active(c.oid) AS row_security, a.attnum IS NOT NULL AS has_column,
	coalesce(format_type(a.atttypid, a.atttypmod), '') AS type,
	coalesce(has_schema_privilege(n.oid, 'USAGE') AND has_column_privilege(c.oid, a.attnum, 'SELECT'), false) AS readable,
	EXISTS (SELECT FROM pg_index x WHERE x.indrelid = c.oid AND x.indisunique AND x.indisvalid AND x.indimmediate
		AND x.indpred IS NULL AND x.indnkeyatts = 1 AND x.indkey[0] = a.attnum) AS has_index
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = $3::text AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relname = $2::text AND CASE WHEN $1::text = '' THEN pg_table_is_visible(c.oid) ELSE n.nspname = $1::text END`
)

// The statements of the inbox; portable.InboxStatements lists their parameters. They return messages
// as hex digits, since a driver may read a bytea as text in the login's bytea_output.
// statement_timestamp() never changes within a statement, so the planner can search an index for it.
const (
	claimOne = `INSERT INTO bridge_inbox (consumer, key) VALUES ($1, $2) ON CONFLICT DO NOTHING`

	// unnest returns the keys in their order, and so they are inserted in that order.
	claimMany = `INSERT INTO bridge_inbox (consumer, key) SELECT $1, unnest($2::text::text[]) ON CONFLICT DO NOTHING RETURNING key`
)

var inboxStatements = portable.InboxStatements{
	Unclaim: `DELETE FROM bridge_inbox
WHERE consumer = $1 AND CASE WHEN $1 IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END
AND key = $2`,

	Add: `INSERT INTO bridge_inbox_pending (consumer, message_key, state, run, attempts, since_ms, due_ms, error, message)
VALUES ($1, $2, $3, $4, $5, (extract(epoch FROM statement_timestamp()) * 1000)::bigint,
	(extract(epoch FROM statement_timestamp()) * 1000)::bigint + $6, $7, $8) ON CONFLICT DO NOTHING`,

	Look: `SELECT c.claimed, p.state, p.run, p.attempts, p.since_ms, p.error, encode(p.message, 'hex') AS message
FROM (SELECT count(*) AS claimed FROM bridge_inbox
	WHERE consumer = $1 AND CASE WHEN $1 IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END
	AND key = $2) c
LEFT JOIN bridge_inbox_pending p
ON p.consumer = $3 AND CASE WHEN $3 IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END
AND p.message_key = $4`,

	Change: `UPDATE bridge_inbox_pending SET state = $1, run = $2, attempts = $3,
	due_ms = (extract(epoch FROM statement_timestamp()) * 1000)::bigint + $4, error = $5, message = COALESCE($6, message)
WHERE consumer = $7 AND CASE WHEN $7 IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END
AND message_key = $8 AND run = $9`,

	Attach: `UPDATE bridge_inbox_pending SET message = $1
WHERE consumer = $2 AND CASE WHEN $2 IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END
AND message_key = $3 AND run = $4 AND message IS NULL`,

	Remove: `DELETE FROM bridge_inbox_pending
WHERE consumer = $1 AND CASE WHEN $1 IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END
AND message_key = $2 AND run = $3`,

	RemoveBare: `DELETE FROM bridge_inbox_pending
WHERE consumer = $1 AND CASE WHEN $1 IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END
AND message_key = $2 AND run = $3 AND message IS NULL`,

	Take: `SELECT message_key, state, run, attempts, since_ms, error, encode(message, 'hex') AS message FROM bridge_inbox_pending
WHERE consumer = $1 AND CASE WHEN $1 IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END
AND state = $2 AND due_ms <= (extract(epoch FROM statement_timestamp()) * 1000)::bigint AND message IS NOT NULL
ORDER BY due_ms LIMIT $3 FOR UPDATE SKIP LOCKED`,

	Doubt: `UPDATE bridge_inbox_pending
SET state = 'doubtful', due_ms = (extract(epoch FROM statement_timestamp()) * 1000)::bigint, error = 'started, no result since'
WHERE consumer = $1 AND CASE WHEN $1 IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END
AND state = 'started' AND due_ms < (extract(epoch FROM statement_timestamp()) * 1000)::bigint`,

	// Without the message: a page of large messages would fill the memory.
	List: `SELECT message_key, state, run, attempts, since_ms, error, CASE WHEN message IS NULL THEN 0 ELSE 1 END AS has_message
FROM bridge_inbox_pending
WHERE consumer = $1 AND CASE WHEN $1 IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END
AND state = $2 AND message_key > $3 ORDER BY message_key LIMIT $4`,

	Count: `SELECT state, count(*) FROM bridge_inbox_pending
WHERE consumer = $1 AND CASE WHEN $1 IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END
GROUP BY state`,

	Claimed: `SELECT key, (extract(epoch FROM statement_timestamp()) * 1000)::bigint - (extract(epoch FROM claimed_at) * 1000)::bigint AS age_ms
FROM bridge_inbox
WHERE consumer = $1 AND CASE WHEN $1 IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END
AND key > $2 ORDER BY key LIMIT $3`,

	Forget: `DELETE FROM bridge_inbox AS i WHERE key IN (
	($1), ($2), ($3), ($4), ($5), ($6), ($7), ($8), ($9), ($10),
	($11), ($12), ($13), ($14), ($15), ($16), ($17), ($18), ($19), ($20),
	($21), ($22), ($23), ($24), ($25), ($26), ($27), ($28), ($29), ($30),
	($31), ($32), ($33), ($34), ($35), ($36), ($37), ($38), ($39), ($40),
	($41), ($42), ($43), ($44), ($45), ($46), ($47), ($48), ($49), ($50),
	($51), ($52), ($53), ($54), ($55), ($56), ($57), ($58), ($59), ($60),
	($61), ($62), ($63), ($64), ($65), ($66), ($67), ($68), ($69), ($70),
	($71), ($72), ($73), ($74), ($75), ($76), ($77), ($78), ($79), ($80),
	($81), ($82), ($83), ($84), ($85), ($86), ($87), ($88), ($89), ($90),
	($91), ($92), ($93), ($94), ($95), ($96), ($97), ($98), ($99), ($100))
AND i.consumer = $101 AND CASE WHEN $101 IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END
AND (extract(epoch FROM claimed_at) * 1000)::bigint < (extract(epoch FROM statement_timestamp()) * 1000)::bigint - $102`,
}

// The statements of marks and kept messages; portable.EntityStatements lists their parameters.
var entityStatements = portable.EntityStatements{
	// An update that changes nothing locks the row. It is one statement, and the first of its
	// transaction that reads: so at any isolation level the transaction sees the mark left by the
	// lock's previous holder, or fails.
	LockMark: `INSERT INTO bridge_mark (consumer, name, mark) VALUES ($1, $2, '')
ON CONFLICT (consumer, name) DO UPDATE SET mark = bridge_mark.mark RETURNING mark`,

	SetMark: `UPDATE bridge_mark SET mark = $1, changed_at = now()
WHERE consumer = $2 AND CASE WHEN $2 IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END
AND name = $3`,

	Keep: `INSERT INTO bridge_kept (consumer, entity, version, message) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`,

	CountKept: `SELECT count(*) FROM bridge_kept
WHERE consumer = $1 AND CASE WHEN $1 IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END
AND entity = $2`,

	FirstKept: `SELECT version, encode(message, 'hex') AS message FROM bridge_kept
WHERE consumer = $1 AND CASE WHEN $1 IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END
AND entity = $2 ORDER BY version LIMIT 1`,

	Unkeep: `DELETE FROM bridge_kept
WHERE consumer = $1 AND CASE WHEN $1 IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END
AND entity = $2 AND version = $3`,

	KeptEntities: `SELECT k.entity, m.mark, k.lowest, k.kept, k.age
FROM (SELECT consumer, entity, min(version) AS lowest, count(*) AS kept, floor(extract(epoch FROM now() - min(kept_at)))::bigint AS age
FROM bridge_kept
WHERE consumer = $1 AND CASE WHEN $1 IS NULL THEN (SELECT count(*) FROM generate_series(1, 1000000000)) > 0 ELSE true END
GROUP BY consumer, entity) k
JOIN bridge_mark m ON m.consumer = k.consumer AND m.name = k.entity ORDER BY k.age DESC, k.entity LIMIT $2`,
}

// The statements of the inspector on rows that carry messages.
const (
	countCarried = `SELECT count(*) FROM (SELECT FROM bridge_ledger WHERE stage_at IS NOT NULL LIMIT $1::int) AS carried`

	carriedRows = `SELECT id::text AS id, floor(extract(epoch FROM recorded_at) * 1000)::bigint AS recorded_ms, floor(extract(epoch FROM stage_at) * 1000)::bigint AS stage_ms,
	octet_length(message) AS bytes
FROM bridge_ledger WHERE stage_at IS NOT NULL ORDER BY stage_at, bridge_ledger.id LIMIT $1::int`

	carriedRow = `SELECT id::text AS id, floor(extract(epoch FROM recorded_at) * 1000)::bigint AS recorded_ms, floor(extract(epoch FROM stage_at) * 1000)::bigint AS stage_ms,
	octet_length(message) AS bytes
FROM bridge_ledger WHERE id = $1::text::uuid AND stage_at IS NOT NULL`

	// The ORDER BY makes the planner read the index.
	countDelayed = `SELECT count(*) FROM (SELECT FROM bridge_ledger WHERE stage_at > now() AND stage_at <= recorded_at ORDER BY stage_at LIMIT $1::int) AS delayed`

	delayedRows = `SELECT id::text AS id, floor(extract(epoch FROM recorded_at) * 1000)::bigint AS recorded_ms, floor(extract(epoch FROM stage_at) * 1000)::bigint AS stage_ms,
	octet_length(message) AS bytes
FROM bridge_ledger WHERE stage_at > now() AND stage_at <= recorded_at ORDER BY stage_at, bridge_ledger.id LIMIT $1::int`

	// If a transaction was open meanwhile, the server evaluates the condition anew, with the same
	// t.
	advance = `UPDATE bridge_ledger SET recorded_at = t, stage_at = t FROM clock_timestamp() AS t
WHERE id = $1::text::uuid AND stage_at <= recorded_at AND stage_at > t`
)

var carriedStatements = inspection.CarriedStatements{
	Count: countCarried, Rows: carriedRows, Row: carriedRow, CountDelayed: countDelayed, Delayed: delayedRows, Advance: advance,
}

// The statements of the inspector on open transactions. Prepared transactions (two-phase commit)
// belong to no session. Each has a lock on its own number, and all its other locks have the same
// virtualtransaction.
const (
	// The time-outs are set before the statement that waits, so that they also bound the wait for a
	// table's lock.
	patient = `SELECT pg_backend_pid(), set_config('lock_timeout', $1::text, true), set_config('idle_in_transaction_session_timeout', '10s', true)`

	// The view pg_stat_activity would make a row of each session to find one.
	holders = `SELECT a.pid::text AS session, coalesce(pg_get_userbyid(a.usesysid), '') AS login, coalesce(a.application_name, '') AS program,
	coalesce(a.client_hostname, host(a.client_addr), '') AS host, coalesce(a.state, '') AS state, (extract(epoch FROM a.xact_start) * 1000000)::bigint AS since,
	coalesce(nullif(a.query, '<insufficient privilege>'), '') AS statement, array_to_string(pg_blocking_pids(a.pid), ', ') AS waits_for FROM (SELECT DISTINCT unnest(pg_blocking_pids($1::text::int)) AS pid) b, pg_stat_get_activity(b.pid) a`

	// pg_blocking_pids has 0 for a prepared transaction. pg_locks is read only then: it copies all
	// locks, and blocks all locking meanwhile (documentation of pg_locks).
	byPrepared = `SELECT 0 = ANY (pg_blocking_pids($1::text::int))`

	preparedHolders = `WITH waited AS MATERIALIZED (SELECT * FROM pg_locks WHERE pid = $1::text::int AND NOT granted)
SELECT 'prepared ' || p.gid AS session, p.owner AS login, '' AS program, '' AS host, 'prepared' AS state,
	(extract(epoch FROM p.prepared) * 1000000)::bigint AS since, '' AS statement, '' AS waits_for FROM waited w
JOIN pg_locks h ON h.granted AND h.pid IS NULL AND (h.locktype, h.database, h.relation, h.transactionid, h.classid, h.objid, h.objsubid)
	IS NOT DISTINCT FROM (w.locktype, w.database, w.relation, w.transactionid, w.classid, w.objid, w.objsubid)
JOIN pg_locks t ON t.locktype = 'transactionid' AND t.pid IS NULL AND t.virtualtransaction = h.virtualtransaction
JOIN pg_prepared_xacts p ON p.transaction = t.transactionid`

	seesOthers = `SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')`

	openTransactions = `WITH writers AS MATERIALIZED (
	SELECT DISTINCT l.pid, l.virtualtransaction FROM pg_locks l
	WHERE l.locktype = 'relation' AND l.relation = $1::text::regclass AND l.mode = 'RowExclusiveLock' AND l.granted
	AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
)
SELECT a.pid::text AS session, coalesce(pg_get_userbyid(a.usesysid), '') AS login, coalesce(a.application_name, '') AS program,
	coalesce(a.client_hostname, host(a.client_addr), '') AS host, coalesce(a.state, '') AS state, (extract(epoch FROM a.xact_start) * 1000000)::bigint AS since,
	coalesce(nullif(a.query, '<insufficient privilege>'), '') AS statement, array_to_string(pg_blocking_pids(a.pid), ', ') AS waits_for FROM (SELECT DISTINCT pid FROM writers) w JOIN pg_stat_activity a USING (pid)
WHERE a.pid <> pg_backend_pid() AND a.xact_start <= clock_timestamp() - $2::text::interval
UNION ALL
SELECT 'prepared ' || p.gid AS session, p.owner AS login, '' AS program, '' AS host, 'prepared' AS state,
	(extract(epoch FROM p.prepared) * 1000000)::bigint AS since, '' AS statement, '' AS waits_for FROM writers w
JOIN pg_locks t ON w.pid IS NULL AND t.locktype = 'transactionid' AND t.pid IS NULL AND t.virtualtransaction = w.virtualtransaction
JOIN pg_prepared_xacts p ON p.transaction = t.transactionid
WHERE p.prepared <= clock_timestamp() - $2::text::interval
ORDER BY since LIMIT $3::text::int`
)

// The statements of the inspector on the server. A setting is the session's, and so the login's; a
// time among them is in milliseconds, and a setting that the release lacks is missing.
const (
	clock = `SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint`

	serverState = `SELECT current_setting('server_version_num')::int AS number, current_setting('server_version') AS version,
	pg_is_in_recovery() AS standby, pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees_others,
	(SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user) AS role_limit,
	(SELECT datconnlimit FROM pg_database WHERE datname = current_database()) AS database_limit,
	(SELECT coalesce(sum(numbackends), 0) FROM pg_stat_database)::bigint AS used,
	(SELECT numbackends FROM pg_stat_database WHERE datname = current_database())::bigint AS used_database,
	(SELECT count(*) FROM pg_stat_activity WHERE usename = current_user) AS used_role,
	(SELECT extract(epoch FROM max(clock_timestamp() - xact_start)) FROM pg_stat_activity
		WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND datname = current_database()) AS oldest,
	(SELECT extract(epoch FROM max(clock_timestamp() - prepared)) FROM pg_prepared_xacts WHERE database = current_database()) AS prepared`

	settings = `SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit',
	'synchronous_standby_names', 'default_transaction_isolation', 'statement_timeout', 'transaction_timeout',
	'idle_in_transaction_session_timeout', 'lock_timeout', 'max_connections', 'superuser_reserved_connections',
	'reserved_connections', 'track_activities', 'track_activity_query_size', 'autovacuum')`

	// Roles, their databases, and the relaxed setting.
	relaxed = `SELECT coalesce(r.rolname, 'all roles') || coalesce(' in database ' || d.datname, '') || ' (' || c.setting || ')' AS who
FROM pg_db_role_setting s CROSS JOIN unnest(s.setconfig) AS c(setting)
LEFT JOIN pg_roles r ON r.oid = s.setrole LEFT JOIN pg_database d ON d.oid = s.setdatabase
WHERE lower(c.setting) IN ('synchronous_commit=off', 'synchronous_commit=false', 'synchronous_commit=no', 'synchronous_commit=0')
AND (s.setdatabase = 0 OR d.datname = current_database()) AND (s.setrole = 0 OR r.rolname <> current_user) ORDER BY who`

	// Extensions with which all nodes take writes.
	multimaster = `SELECT coalesce(string_agg(extname, ', '), '') FROM pg_extension WHERE extname IN ('bdr', 'spock')`

	bridgeTables = `SELECT c.relname AS name, c.relpersistence <> 'p' AS unlogged, row_security_active(c.oid) AS row_security,
	coalesce('autovacuum_enabled=false' = ANY (c.reloptions), false) AS no_vacuum,
	greatest(c.reltuples, coalesce(pg_stat_get_live_tuples(c.oid), 0))::bigint AS rows, coalesce(pg_stat_get_dead_tuples(c.oid), 0)::bigint AS dead
FROM pg_class c WHERE c.oid IN (to_regclass('bridge_ledger'), to_regclass('bridge_identity'), to_regclass('bridge_watermark'))
ORDER BY c.relname`

	login = `SELECT quote_ident(current_user)`

	// %s are values of the constants below.
	rights = `SELECT w.name || ' ON ' || w.relation ||
	CASE WHEN w.name = 'EXECUTE' AND to_regprocedure(regexp_replace(w.relation, '^FUNCTION ', '')) IS NULL THEN ' (which is not there: bridgectl migrate print)' ELSE '' END AS missing FROM (VALUES %s) AS w(relation, name)
WHERE NOT coalesce(CASE WHEN w.name = 'EXECUTE' THEN has_function_privilege(to_regprocedure(regexp_replace(w.relation, '^FUNCTION ', ''))::oid, w.name)
	WHEN left(w.name, 8) = 'UPDATE (' THEN has_column_privilege(to_regclass(w.relation)::oid, substr(w.name, 9, length(w.name) - 9), 'UPDATE')
	WHEN to_regclass(w.relation) IS NOT NULL THEN has_table_privilege(to_regclass(w.relation)::oid, w.name)
	OR w.name = 'UPDATE' AND has_any_column_privilege(to_regclass(w.relation)::oid, 'UPDATE') END, false)`
)

// The rights of migrate.Rights for a verifier, as values of the statement above.
const (
	verifierRights = `('bridge_ledger', 'SELECT'), ('bridge_ledger', 'INSERT'), ('bridge_ledger', 'DELETE'),
	('bridge_identity', 'SELECT'), ('bridge_ledger_version', 'SELECT'), ('bridge_watermark', 'SELECT'),
	('FUNCTION bridge_committed(uuid[])', 'EXECUTE'), ('FUNCTION bridge_forget(uuid[])', 'EXECUTE')`

	// The proof of an own table writes its canaries into bridge_ledger, and looks them up without a
	// function.
	ownTableRights = `('bridge_ledger', 'SELECT'), ('bridge_ledger', 'INSERT'), ('bridge_ledger', 'DELETE'),
	('bridge_identity', 'SELECT'), ('bridge_ledger_version', 'SELECT'), ('FUNCTION bridge_forget(uuid[])', 'EXECUTE')`

	stageRights = `('bridge_ledger', 'UPDATE (stage_at)'), ('FUNCTION bridge_due(timestamptz,uuid,int)', 'EXECUTE'),
	('FUNCTION bridge_claim(uuid[],timestamptz[])', 'EXECUTE'), ('FUNCTION bridge_touch(uuid[])', 'EXECUTE')`

	// The sweep locks rows, which needs UPDATE on a column.
	sweepRights = `('bridge_ledger', 'UPDATE (stage_at)'), ('bridge_watermark', 'UPDATE')`
)
