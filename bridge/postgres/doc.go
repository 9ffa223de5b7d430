// Package postgres keeps the ledger and the inbox in a PostgreSQL database,
// version 13 or later. What a ledger and an inbox promise is in package driver; here is
// how this database keeps it.
//
//	db, err := sql.Open("pgx", url)
//	err = migrate.Ledger(ctx, db, migrate.PostgreSQL)
//	ledger, err := postgres.Open(ctx, db)
//
// It works over database/sql with pgx's stdlib or with lib/pq, which the program
// imports. With lib/pq 1.12 a statement waits for a database host that is gone until TCP
// gives up, a quarter of an hour on Linux, whatever the context says: a verifier wants pgx.
//
// # How it waits
//
// A SELECT, with or without FOR SHARE, neither sees nor waits for a row that
// another transaction has inserted and not committed. An INSERT of the same key
// does wait: so Settle inserts the ID ON CONFLICT DO NOTHING in a transaction of
// its own at READ COMMITTED, and rolls back. If the other one commits, nothing is
// inserted; if it rolls back (or its session dies, or the savepoint is rolled
// back), the row goes in. lock_timeout, set for that transaction only, ends the
// wait with SQLSTATE 55P03. While it waits it holds nothing that anybody could
// wait for, so it takes part in no deadlock.
//
// Every lookup and every INSERT checks the ledger's identity as it goes: a pool which
// has come to another database gets an error and not a verdict.
//
// The non-waiting lookup is one SELECT in its own snapshot. PostgreSQL has no
// dirty reads at any isolation level, so a hit has committed. It and the DELETE are in
// functions that turn the planner's enable_seqscan off: statistics make it take a busy ledger
// for empty. (Sweep and Unpark, beside the messages, may read such a ledger through.) Where
// the role's default_transaction_isolation is serializable the lookup is correct too, but may
// cost serialization failures, its own and the senders': leave it at the default.
//
// Locks on whole tables, as ALTER TABLE and VACUUM FULL take them, are waited for
// before any time-out of ours is in force: during such work all methods wait
// until their context ends.
//
// # Parked messages and orphans
//
// A parked message is a row of bridge_parked. Unpark takes rows FOR UPDATE SKIP LOCKED:
// any number of verifiers take different messages, and none waits for another. It
// has them locked while it stages, and when it is done it changes only such rows of
// the ledger as it can lock at once; so it is in no deadlock with Forget. Record, both
// lookups and Forget have nothing to do with the table.
//
// recorded_at is the time of the INSERT (clock_timestamp()). Orphans reads the whole
// ledger, which has no index by time: measured, a million rows in about a second.
// Sweep deletes by key, FOR UPDATE SKIP LOCKED.
//
// migrate.Ledger waits no longer than 3 s for a table's lock, and so fails while
// transactions are open for longer: call it again.
//
// # A table of the application's own
//
// OpenOwnTable reads the IDs from a table that has them already; see
// bridge.OwnTable. As a read waits for nothing, and the table is not ours to insert
// into, its Record takes an advisory lock for each ID, which lasts as long as the
// sender's transaction; Settle waits for that lock, and then reads the row.
//
// These locks are in the memory that all transactions of the server share, with
// room for max_locks_per_transaction times its connections and somewhat more:
// measured, a server as it comes (64 times 100) gave one transaction 12,000 and
// refused 13,000. Hundreds of messages in one transaction need no change. For thousands
// raise the setting, or use the ledger, which takes no such locks. Without room Record fails,
// and the transaction must roll back; others may meet the same error meanwhile.
//
// # Rights
//
// Beside USAGE on the schema:
//
//	sender      INSERT on bridge_ledger, SELECT on bridge_identity and bridge_ledger_version
//	  to park   also INSERT on bridge_parked
//	verifier    what a sender needs, SELECT and DELETE on bridge_ledger, SELECT on bridge_watermark,
//	            and EXECUTE on bridge_committed and bridge_forget, which PUBLIC has unless
//	            ALTER DEFAULT PRIVILEGES has taken it away
//	  to unpark also SELECT, UPDATE, DELETE on bridge_parked and UPDATE (recorded_at) on bridge_ledger
//	who sweeps  what an unparking verifier needs, and UPDATE on bridge_watermark
//	receiver    SELECT on bridge_inbox_version, and
//	  Handle    INSERT on bridge_inbox; also SELECT and DELETE, to purge old keys, unless
//	            Options.Retention is negative
//	  AtMostOnce, Accept, Work
//	            SELECT, INSERT and DELETE on bridge_inbox, and SELECT, INSERT, UPDATE and DELETE
//	            on bridge_inbox_pending
//	  Latest, Ordered, HighWater
//	            SELECT, INSERT and UPDATE on bridge_mark; for Ordered also SELECT, INSERT and
//	            DELETE on bridge_kept
//	who migrates  CREATE on the schema, and to own the tables that are there. In a database made
//	            by PostgreSQL 15 or newer only its owner has that right on the schema public.
//
// To see who holds a message up (package postgresinspect) a verifier needs no right
// beside; but of sessions of other roles it learns only the process ID, the login and
// the program, unless it is in pg_read_all_stats. OpenTransactions then leaves them
// out. It goes by locks for writing on the ledger's table, or on the own table,
// prepared transactions among them. Diagnose needs a verifier's rights and reports
// those that are missing; pg_read_all_stats lets it see the age of all transactions.
//
// With a table of the application's own, sender and verifier need USAGE on its
// schema and SELECT on its column beside, and the sender no INSERT on bridge_ledger.
//
// # Poolers and standbys
//
// Behind PgBouncer in transaction pooling everything works: all settings are
// local to a transaction. Before PgBouncer 1.21 the driver must not use named
// prepared statements (pgx: default_query_exec_mode=exec or simple_protocol).
// Statement pooling does not work: it refuses transactions. On a standby Check
// returns bridge.ErrNotPrimary.
//
// # What must be so
//
//   - synchronous_commit stays on for senders. Off, a crash of the server can undo
//     a transaction whose message has been forwarded. (Forget turns it off for its
//     own statement, where a lost DELETE costs a duplicate or an orphan row.)
//   - After a failover to a standby that lagged behind, the same; so where that
//     matters, replicate synchronously.
//   - All senders and verifiers use one primary. Where several nodes take writes (EDB
//     Postgres Distributed, pgEdge, logical replication in both directions), none
//     waits for the locks of another: a transaction that is open on one looks rolled
//     back on the others, and its messages would be dropped. Check refuses a ledger
//     that an enabled subscription writes to; Diagnose warns of the extensions bdr and
//     spock. Nothing else of the kind is recognised.
//   - A copy of a database is a ledger with the same identity. Before a copy gets
//     a verifier of its own, give it another: UPDATE bridge_identity SET identity =
//     gen_random_uuid().
//   - Senders and verifiers find the tables by search_path: it must be the same.
package postgres
