// Package postgres keeps the ledger and the inbox in a PostgreSQL database, version 13 or later.
// This comment explains how PostgreSQL keeps the promises of package driver; statements.go has the
// statements, each with its reason.
//
//	db, err := sql.Open("pgx", url)
//	err = migrate.Ledger(ctx, db, migrate.PostgreSQL)
//	ledger, err := postgres.Open(ctx, db)
//
// It works over database/sql with pgx's stdlib or with lib/pq, which the program imports. With
// lib/pq 1.12 a statement to a vanished database host waits until TCP gives up, a quarter of an
// hour on Linux, whatever the context: use pgx for a verifier.
//
// # How it waits
//
// A SELECT, with or without FOR SHARE, neither sees nor waits for a row that another transaction
// has inserted and not committed. An INSERT of the same key does wait. So Settle inserts the ID ON
// CONFLICT DO NOTHING in a transaction of its own, and rolls back. If the other transaction
// commits, nothing is inserted. If it rolls back (or its session dies, or the savepoint is rolled
// back), the row is inserted. lock_timeout bounds the wait. While Settle waits it holds no lock
// that another transaction could wait for. The non-waiting lookup is one SELECT in its own
// snapshot: PostgreSQL has no dirty reads at any isolation level.
//
// Every outcome names the server, by its port and the time of its start, to the microsecond. A
// verifier believes one server only, and proves anew after a restart. Only a machine that was
// cloned while the server ran has the same name.
//
// ALTER TABLE and VACUUM FULL lock the whole table, and statements wait for such locks before the
// bridge's time-outs apply. During such work all methods wait until their context ends. The proof
// of a verifier that starts meanwhile gives up its lock after 3 s, so that the work and the senders
// go on.
//
// # Carried messages and orphans
//
// A carried message is a bytea in its row of bridge_ledger, found by a partial index on stage_at. A
// Claim always waits for the disk, and for a synchronous standby unless the login's
// synchronous_commit is local. Due waits for no standby: a failover may undo a row that Due has
// seen, but the staged copy is judged like every message, and the judgement waits for the standby.
//
// Each Claim and Touch leaves a dead version of the row, with an inline message of up to about 2
// kB. While an old transaction keeps these from being removed, a Due skips them each time
// (measured: 50 ms with 300,000). Orphans reads the whole ledger: a million rows in about a second,
// measured.
//
// # A table of the application's own
//
// OpenOwnTable reads the IDs from a table that has them already; see bridge.OwnTable. A read does
// not wait, and the bridge cannot insert into that table. So Record takes an advisory lock for each
// ID, which lasts as long as the sender's transaction. Settle waits for that lock, and then reads
// the row.
//
// All transactions of the server share the memory for these locks. A server with default settings
// gave one transaction 12,000 and refused 13,000 (measured). For thousands of messages in one
// transaction raise max_locks_per_transaction, or use bridge_ledger, which takes no such locks.
// Without room Record fails, and other transactions may get the same error.
//
// # A schema of the bridge's own
//
// By default the connection's search_path finds the tables and functions, so it must be the same
// for all their users. A Schema names the schema in every statement and in the functions' bodies.
// Then no search_path matters, neither the application's nor the empty one of a restored dump.
//
//	err = migrate.Schema("messaging").Ledger(ctx, db, migrate.PostgreSQL) // CREATE SCHEMA comes first
//	ledger, err := postgres.Schema("messaging").Open(ctx, db)
//
// The name has at most 63 bytes, no control characters and no backslash. Each such schema has its
// own identity, verifiers and staging queue. Open refuses functions that do not name the schema, as
// after the schema was renamed, and names the fix.
//
// # Rights
//
// migrate.Rights returns the rights of each role, and bridgectl grants prints them. In addition:
//
//   - With a table of the application's own, sender and verifier need USAGE on its schema and
//     SELECT on its column. The sender needs no INSERT on bridge_ledger.
//   - PUBLIC has EXECUTE on the bridge's functions, unless ALTER DEFAULT PRIVILEGES has revoked it.
//   - The migrator must own the existing tables. In a database made by PostgreSQL 15 or newer only
//     the database's owner has CREATE on the schema public.
//   - An Inspector that is not in pg_read_all_stats sees only process ID, login and program of
//     other roles' sessions, and OpenTransactions leaves these sessions out.
//
// # Poolers and standbys
//
// Everything works behind PgBouncer in transaction pooling, since all settings are local to a
// transaction. Before PgBouncer 1.21 the driver must not use named prepared statements (pgx:
// default_query_exec_mode=exec or simple_protocol). Statement pooling does not work, since it
// refuses transactions. On a standby Check returns bridge.ErrNotPrimary.
//
// After a failed login PgBouncer makes all clients wait or fail for server_login_retry, 15 s by
// default: after a failover or a restart all work stops for that long. Set it to 1. A client cannot
// read this setting, so Diagnose does not report it.
//
// # Synchronous replication
//
// A commit that waits for a synchronous standby becomes visible to others when the standby has it,
// with an exception: if a client's context ends during COMMIT (pgx sends a cancellation), or
// pg_cancel_backend or a restart of the server ends the wait, the commit stays and becomes visible.
// A failover then undoes a transaction whose row was seen.
//
// So if synchronous_standby_names is set and synchronous_commit is neither off nor local for the
// verifier's login, both lookups wait for the standby before they return a row as committed: they
// commit a record of their own to the log (pg_logical_emit_message, which PUBLIC may execute).
// Concurrent lookups share one. Measured on PostgreSQL 15 with a standby on the same machine: a
// lookup that finds a row takes 0.7 ms longer, and 4,600 lookups a second run at the same time
// instead of 5,000 to 14,000.
//
// While no standby is connected, the senders' COMMITs wait, and a lookup fails after the caller's
// time-out, with an error that names the standby. If pg_cancel_backend ends a lookup's wait, the
// lookup believes a row that the standby may lack.
//
// A failover loses and invents nothing if
//
//   - synchronous_standby_names is set, synchronous_commit is on, remote_apply or remote_write for
//     senders and verifiers, and the promoted standby is one that commits waited for: with several,
//     the one that has received the most log. Rows deleted by Forget may be back: their messages
//     were forwarded.
//   - no connection reaches the old primary any more (fencing). target_session_attrs=read-write
//     does not ensure that: it takes the first host that accepts writes, also an old primary.
//
// # Requirements
//
//   - synchronous_commit stays on for senders and receivers. If it is off, a crash of the server
//     can undo a transaction whose message has been forwarded, or effects whose message has been
//     acked. (Forget and Touch turn it off for their own statements.) Diagnose and DiagnoseInbox
//     report it.
//   - default_transaction_isolation of the verifier's login stays at its default. With serializable
//     the lookup is correct too, but it and the senders may get serialization failures.
//   - All senders and verifiers use one primary. If several nodes take writes (EDB Postgres
//     Distributed, pgEdge, logical replication in both directions), no node waits for the locks of
//     another: a transaction that is open on one looks rolled back on the others, and its messages
//     are dropped. Check refuses a ledger that an enabled subscription writes to. Diagnose warns of
//     the extensions bdr and spock. No other such system is recognised.
//   - A copy of a database has the original's identity. Change it before the copy gets a verifier:
//     bridgectl identity new, or migrate.NewIdentity.
//   - The bridge's tables are logged. Check and OpenInbox refuse UNLOGGED tables, which a crash
//     empties: committed transactions would look rolled back.
package postgres
