// Package postgres keeps the ledger and the inbox in a PostgreSQL database, version 13 or later.
// Package driver lists the promises of a ledger and an inbox. This comment explains how PostgreSQL
// keeps them.
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
// CONFLICT DO NOTHING in a transaction of its own at READ COMMITTED, and rolls back. If the other
// transaction commits, nothing is inserted. If it rolls back (or its session dies, or the savepoint
// is rolled back), the row is inserted. lock_timeout, set for that transaction only, ends the wait
// with SQLSTATE 55P03. While Settle waits it holds no lock that another transaction could wait for,
// so it takes part in no deadlock.
//
// Every lookup and every INSERT also checks the ledger's identity. So a pool that now leads to
// another database gets an error and not a verdict. A copy of the database has the same identity.
// So every outcome also names the server, by its port and the time of its start
// (pg_postmaster_start_time), to the microsecond: a verifier believes one server only, and proves
// anew after a restart. Only a machine that was cloned while the server ran has the same name.
//
// The non-waiting lookup is one SELECT in its own snapshot. PostgreSQL has no dirty reads at any
// isolation level, so every row it returns has committed. The lookup and the DELETE are in
// functions that turn the planner's enable_seqscan off, because the statistics may show a busy
// ledger as empty. Due, Claim and Touch are such functions too. (Sweep may read such a ledger
// whole, but no message waits for it.) Leave the role's default_transaction_isolation at its
// default. With serializable the lookup is correct too, but it and the senders may get
// serialization failures.
//
// Forget deletes its rows with one statement under a lock_timeout of 100 ms. If that statement
// meets a locked row, Forget deletes the rows one by one, and skips the locked ones. It needs no
// further right. Each statement commits by itself. If the host of a settle's client vanishes,
// idle_in_transaction_session_timeout ends the settle after 10 s.
//
// ALTER TABLE and VACUUM FULL lock the whole table, and statements wait for such locks before the
// bridge's time-outs apply. During such work all methods wait until their context ends. The proof
// of a verifier that starts meanwhile gives up its lock after 3 s, so that the work and the senders
// go on.
//
// # Carried messages
//
// A carried message is a bytea in its row of bridge_ledger. recorded_at and stage_at come from one
// reading of clock_timestamp(). A partial index on stage_at (WHERE stage_at IS NOT NULL) finds the
// due rows in their order; plain rows are not in it. Due reads a snapshot, at most as many rows as
// its limit. Claim and Touch lock rows FOR NO KEY UPDATE SKIP LOCKED by their IDs, and change
// those, in one statement that commits by itself. So they wait for no row and are in no deadlock.
// Claim compares the stage time when it locks the row, so of two concurrent Claims the second finds
// the row locked or its stage time changed.
//
// Touch turns synchronous_commit off for its own statement. That is safe: if a crash of the server
// undoes it, the row is due at its old stage time, and a verifier publishes one copy too many. A
// Claim always waits for the disk, and for a synchronous standby unless the login's
// synchronous_commit is local. If a crash undid it, the row would show that no copy of the message
// was published, and Cancel would delete the row of a message that a receiver has. Due waits for no
// standby. A failover may undo a row that Due has seen, but the copy is judged like every staged
// message, and the judgement waits for the standby.
//
// Each Claim and Touch leaves a dead version of the row, with an inline message of up to about 2
// kB; a larger message is stored apart (TOAST) and not copied. While an old transaction keeps dead
// versions from being removed, a Due from the first row on skips them each time (measured: 50 ms
// with 300,000).
//
// # Orphans
//
// recorded_at is the time of the INSERT (clock_timestamp()). A row that carries a message is no
// orphan. Orphans reads the whole ledger, which has no index by time: a million rows in about a
// second, measured. Sweep deletes by key, FOR UPDATE SKIP LOCKED.
//
// migrate.Ledger makes five attempts, and waits at most 3 s for a table's lock in each. If it fails
// because a transaction stays open longer, call it again.
//
// # A table of the application's own
//
// OpenOwnTable reads the IDs from a table that has them already; see bridge.OwnTable. A read does
// not wait, and the bridge cannot insert into that table. So Record takes an advisory lock for each
// ID, which lasts as long as the sender's transaction. Settle waits for that lock, and then reads
// the row.
//
// These locks are in memory shared by all transactions of the server. It has room for
// max_locks_per_transaction times the connections and somewhat more: a server with default settings
// (64 times 100) gave one transaction 12,000 and refused 13,000 (measured). Hundreds of messages in
// one transaction need no change. For thousands raise the setting, or use bridge_ledger, which
// takes no such locks. Without room Record fails, and the transaction must roll back. Other
// transactions may get the same error meanwhile.
//
// # A schema of the bridge's own
//
// By default the connection's search_path finds the tables and functions, so it must be the same
// for all their users. Schema names the schema instead:
//
//	err = migrate.Schema("messaging").Ledger(ctx, db, migrate.PostgreSQL)
//	ledger, err := postgres.Schema("messaging").Open(ctx, db)
//
// Every statement then names "messaging".bridge_ledger, and so do the functions' bodies, so no
// search_path matters: neither the application's in its transaction nor the empty one of a restored
// dump. The schema must exist before the migration. Its name has at most 63 bytes, no control
// characters and no backslash. Two schemas of one database hold two bridges, each with an identity,
// verifiers and a staging queue of its own.
//
// Open refuses functions that do not name the schema: the tables were made without Schema, or the
// schema was renamed. Run the CREATE FUNCTION statements that migrate.Schema.Print prints.
//
// # Rights
//
// bridgectl grants prints these for a role, in addition to USAGE on the schema:
//
//	sender      INSERT on bridge_ledger, SELECT on bridge_identity and bridge_ledger_version
//	  to cancel SELECT and DELETE on bridge_ledger (migrate.Canceller)
//	verifier    a sender's rights, SELECT and DELETE on bridge_ledger, SELECT on bridge_watermark,
//	            and EXECUTE on bridge_committed and bridge_forget, which PUBLIC has unless
//	            ALTER DEFAULT PRIVILEGES has revoked it
//	  to stage carried messages again
//	            also UPDATE (stage_at) on bridge_ledger and EXECUTE on bridge_due, bridge_claim and
//	            bridge_touch
//	bridgectl delayed now
//	            also UPDATE (recorded_at) on bridge_ledger
//	sweeper     also UPDATE on bridge_watermark and UPDATE (stage_at) on bridge_ledger, which
//	            FOR UPDATE needs
//	receiver    SELECT on bridge_inbox_version, and
//	  Handle    INSERT on bridge_inbox; for HandleBatch also SELECT; also SELECT and DELETE,
//	            to purge old keys, unless Options.Retention is negative
//	  AtMostOnce, Accept, Work
//	            SELECT, INSERT and DELETE on bridge_inbox, and SELECT, INSERT, UPDATE and DELETE
//	            on bridge_inbox_pending
//	  Latest, Ordered, HighWater
//	            SELECT, INSERT and UPDATE on bridge_mark; for Ordered also SELECT, INSERT and
//	            DELETE on bridge_kept
//	migrator      CREATE on the schema, and ownership of existing tables. In a database made
//	            by PostgreSQL 15 or newer only its owner has that right on the schema public.
//
// With a table of the application's own, sender and verifier also need USAGE on its schema and
// SELECT on its column. The sender needs no INSERT on bridge_ledger.
//
// # For operators
//
//	inspector := postgres.Inspect(ledger)
//	findings, err := inspector.Diagnose(ctx)
//	v, err := verifier.New(ledger, broker, &verifier.Options{Watcher: inspector})
//
//	findings, err = postgres.DiagnoseInbox(ctx, db) // of a receiver
//
// To see the holders of a row a verifier needs no further right. But unless it is in
// pg_read_all_stats, it sees only process ID, login and program of other roles' sessions, and
// OpenTransactions leaves these sessions out. OpenTransactions lists transactions, also prepared
// ones, that hold a lock for writing on the ledger's table or the own table. Diagnose needs a
// verifier's rights and reports missing ones; with pg_read_all_stats it sees the age of all
// transactions.
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
// with an exception: if something ends the wait, the commit stays, and becomes visible. A client
// whose context ends during COMMIT ends the wait (pgx sends a cancellation), and so do
// pg_cancel_backend and a restart of the server. A failover then undoes a transaction whose row was
// seen.
//
// So if synchronous_standby_names is set and synchronous_commit is neither off nor local for the
// verifier's login, both lookups wait for the standby before they return a row as committed. They
// commit a record of their own to the log (pg_logical_emit_message, which PUBLIC may execute). That
// COMMIT waits until the standby has the log up to there, with all earlier commits in it.
// Concurrent lookups share one. Measured on PostgreSQL 15 with a standby on the same machine: a
// lookup that finds a row takes 0.7 ms longer, as long as a sender's COMMIT takes, and 4,600
// lookups a second run at the same time instead of 5,000 to 14,000. Without synchronous replication
// it costs nothing.
//
// While no standby is connected, such a lookup fails after the caller's time-out, with an error
// that names the standby, and returns no outcome. The senders' COMMITs wait too. If
// pg_cancel_backend ends a lookup's wait, the lookup believes a row that the standby may lack.
//
// # Failovers
//
//   - The standby replicates synchronously: synchronous_standby_names is set, and synchronous_commit
//     is on, remote_apply or remote_write for senders and verifiers. Then a failover loses and invents
//     nothing, if it promotes a standby that commits waited for: with several standbys, the one that
//     has received the most log. Rows deleted by Forget may be back: their messages were forwarded.
//   - No connection reaches the old primary any more (fencing). target_session_attrs=read-write does
//     not ensure that: it takes the first host that accepts writes, also an old primary. Each outcome
//     names its server. A verifier believes one server only, and drops nothing before it has seen
//     that senders commit there.
//
// # Requirements
//
//   - synchronous_commit stays on for senders. If it is off, a crash of the server can undo a
//     transaction whose message has been forwarded. (Forget and Touch turn it off for their own
//     statements: a lost one costs only a duplicate or an orphan row. Claim turns it on.)
//   - A failover to a standby that lagged behind can undo transactions too. If that matters,
//     replicate synchronously ('Failovers', above).
//   - All senders and verifiers use one primary. If several nodes take writes (EDB Postgres
//     Distributed, pgEdge, logical replication in both directions), no node waits for the locks of
//     another: a transaction that is open on one looks rolled back on the others, and its messages
//     are dropped. Check refuses a ledger that an enabled subscription writes to. Diagnose warns of
//     the extensions bdr and spock. No other such system is recognised.
//   - A copy of a database has the same identity. Before a copy gets a verifier of its own,
//     change it: bridgectl identity new, or migrate.NewIdentity.
//   - The bridge's tables are logged. A crash empties an UNLOGGED table: committed transactions
//     would look rolled back. Check and OpenInbox refuse such tables.
//   - synchronous_commit stays on for receivers too. If it is off, a crash of the server can undo
//     effects whose message has been acked. DiagnoseInbox reports it for a login.
//   - Without Schema, senders and verifiers find the tables by search_path. It must be the same for all.
package postgres
