// Package sqlserver keeps the ledger and the inbox in a database of SQL Server (2016 or later) or
// Azure SQL. Package driver lists the promises of a ledger and an inbox. This comment explains how
// SQL Server keeps them.
//
//	db, err := sql.Open("sqlserver", "sqlserver://user:password@host?database=shop&encrypt=true")
//	err = migrate.Ledger(ctx, db, migrate.SQLServer)
//	ledger, err := sqlserver.Open(ctx, db)
//
// It works over database/sql with github.com/microsoft/go-mssqldb, which the program imports. The
// version in this module's go.mod is the oldest that works: before 1.10 the driver could go on
// without a transaction after the server had ended it.
//
// # How it waits
//
// A transaction that inserts a row locks it exclusively until it ends. Settle reads the row of the
// ID WITH (READCOMMITTEDLOCK), which always takes shared locks. (Under READ_COMMITTED_SNAPSHOT, the
// default of Azure SQL, a plain SELECT would not wait for an open transaction.) So Settle waits for
// that transaction, and finds the row after a commit and nothing after a rollback. SET LOCK_TIMEOUT
// in the same text bounds the wait on the server; its error 1222 does not change the connection.
// While Settle waits it holds no lock that another transaction could wait for.
//
// If READ_COMMITTED_SNAPSHOT is on, the non-waiting lookup is a plain SELECT, which reads the rows
// committed when it began. If it is off, the lookup adds READPAST, which skips locked rows. A row
// that it finds is not locked, so it has committed. This requires that there are only row locks:
// the ledger's key has ALLOW_PAGE_LOCKS = OFF, its table LOCK_ESCALATION = DISABLE, and no
// statement changes more than 500 rows. (An index without page locks can be rebuilt, not
// reorganized.) Microsoft does not document whether READPAST skips a row that optimized locking
// protects only by its transaction's ID. If it does not, one open row hides the other rows of its
// statement, and the proof refuses the ledger until READ_COMMITTED_SNAPSHOT is on. Nothing else
// depends on the answer: lists of rows are read as the lookup reads, a statement with READPAST that
// changes rows and meets LOCK_TIMEOUT tries each row alone, and pending messages are found without
// locks and locked one by one.
//
// Statements by key have FORCESEEK: a plan made for an empty table would read the rows of others
// and wait for them. Statements that run for every message also have KEEPFIXED PLAN, since the
// statistics of such a table go stale all the time.
//
// A DELETE is not a lookup: with optimized locking it may skip a row that is still being
// inserted.
//
// Every lookup also checks the ledger's identity, and every Settle that the database takes writes.
// So a pool that now leads to a readable secondary, where hints are ignored, gets an error and not
// a verdict. Every outcome also names the server, by @@SERVERNAME and the creation time of tempdb,
// which is made at every start. A verifier believes one server only. Azure SQL Database does not
// show tempdb, and Babelfish does not make it anew: there a restart is not noticed.
//
// # Carried messages
//
// A row may carry a message and then has a stage time. Due finds rows by the index
// bridge_ledger_stage_at, in the order of that time, and reads as the lookup does: the rows
// committed when it began, or WITH (READPAST) without locked rows. So Due waits for no row, and is
// in no deadlock with a transaction that has locked a row and waits for its entry in the index.
// Claim and Touch find rows by ID WITH (READPAST), are one UPDATE that commits at once, and skip
// locked rows as Forget does. Claim compares the stage time in the statement that changes it, so of
// two concurrent Claims one finds it changed. Times are datetime2(3). A comparison of a stage time
// uses whole milliseconds since 1970, so that nothing is rounded.
//
// Every statement reads the clock once, into a variable: a function that is twice in a statement
// may be evaluated twice, and a row whose message was not published must have a stage time equal to
// recorded_at.
//
// The index is filtered (WHERE stage_at IS NOT NULL): a row without a message has no entry in it
// and costs nothing more. A table with a filtered index takes INSERT, UPDATE and DELETE only from a
// session with QUOTED_IDENTIFIER, ANSI_NULLS, ANSI_PADDING, ANSI_WARNINGS, ARITHABORT and
// CONCAT_NULL_YIELDS_NULL ON and NUMERIC_ROUNDABORT OFF. Otherwise they fail with 1934 ('CREATE
// INDEX', 'SET QUOTED_IDENTIFIER'). The driver logs in as ODBC does, and the server then sets all
// of them so; ARITHABORT comes with ANSI_WARNINGS at every compatibility level that Open accepts.
// Do not change them in a transaction that records a message. Senders in other languages, SQL
// Server Agent, sqlcmd (which needs -I) and procedures created with QUOTED_IDENTIFIER OFF must set
// them before they change bridge_ledger.
//
// The migration locks bridge_ledger exclusively for a moment. It waits for open transactions for 3
// seconds at most; then it fails, and migrate.Ledger tries again, five times in all.
//
// # Orphans
//
// recorded_at is the time of the INSERT, in UTC. A carried row is no orphan. Orphans reads the
// whole ledger, which has no index by time, with the lookup's hints, and Sweep deletes by key WITH
// (READPAST).
//
// # Where hints are ignored
//
// A server that speaks TDS but ignores lock hints, as Babelfish does, fails the proof that every
// verifier makes before it judges. Then proof.Prove makes the ledger fall back, for good, to an
// INSERT of the same ID that is rolled back. This waits on every server with unique keys, and fails
// with 2627 after a commit. Prove proves this way too, and refuses the ledger if that fails as
// well. A verifier logs the choice. A Claim, a Touch, a Sweep or a Forget that meets a locked row
// then waits for a second before it skips it. Babelfish 4.3 does not show whether a commit is
// durable (PostgreSQL's synchronous_commit). Open assumes that it is, and the doctor reports that
// this is unknown.
//
// On 2026-11-24 the ledger ran on Babelfish 4.3 with thousands of transactions, kills and restarts,
// and no message was lost, invented or delivered twice. Statements that it refused were rewritten
// since, and the bridge as a whole has not run there again. An own table cannot be used there.
//
// # Settings
//
// Every statement sets the options that it depends on: the isolation level, LOCK_TIMEOUT, NOCOUNT,
// XACT_ABORT. A text with parameters runs within sp_executesql, and the server reverts all SETs at
// its end, also after an error. So neither a pooled connection nor the caller's transaction keeps
// any of them. IDs are sent as bytes, so the connection's 'guid conversion' does not matter.
//
// Record and Claim work in transactions at every isolation level, with XACT_ABORT ON or OFF. After
// a refused Claim the transaction stays usable. A Claim at SNAPSHOT also sees keys claimed after
// the snapshot.
//
// The driver drops a connection when a deadline passes, and keeps it when a context is cancelled.
// So the statements of the ledger's own pool never get a deadline, only a cancellation.
//
// ALTER TABLE and its like lock a table exclusively. A server that recompiles a statement may wait
// for such a lock before the bridge's LOCK_TIMEOUT applies. During such work all methods may wait
// until their context ends.
//
// # Own tables
//
// OpenOwnTable reads a table of the application's own instead of bridge_ledger (see
// bridge.OwnTable), by the same two lookups: an INSERT of a row also locks its entry in the unique
// index. Record reads the rows in the caller's transaction, with READCOMMITTEDLOCK at every
// isolation level. If another open transaction has inserted such an ID, Record waits for it, as the
// session's LOCK_TIMEOUT allows.
//
// The lookups are right with any locks of the application, but these locks decide how long the
// lookups wait:
//
//   - A later change of a row delays its message if that is not yet forwarded.
//   - READPAST does not skip page locks, nor the table lock that a statement with thousands of rows
//     takes. Then many messages wait, one by one, for that transaction. ALTER TABLE … SET
//     (LOCK_ESCALATION = DISABLE) and ALTER INDEX … SET (ALLOW_PAGE_LOCKS = OFF) prevent this.
//
// No security policy (row-level security) may hide rows of the table from the verifier's login: a
// hidden row looks rolled back, and its message is dropped. The server does not show policies to
// such a login, so Open cannot look for them; the proof finds one if bridge.OwnTable has a Canary.
//
// If the server ignores lock hints there is no fallback, since the bridge must not INSERT into the
// application's table. Then Prove refuses the ledger with bridge.ErrProof, and messages stay in the
// staging queue. Use bridge_ledger there.
//
// # A schema of the bridge's own
//
// By default the tables are in the login's default schema, or in dbo. Schema names the schema
// instead:
//
//	err = migrate.Schema("messaging").Ledger(ctx, db, migrate.SQLServer)
//	ledger, err := sqlserver.Schema("messaging").Open(ctx, db)
//
// Every statement then names [messaging].bridge_ledger, so logins may have any default schemas. The
// schema must exist before the migration. Its name has at most 128 characters and no control
// characters. Two schemas of one database hold two bridges, each with an identity, verifiers and a
// staging queue of its own.
//
// # Rights
//
// bridgectl grants prints these for a role.
//
//	sender      INSERT on bridge_ledger, SELECT on bridge_identity and bridge_ledger_version
//	  to cancel SELECT and DELETE on bridge_ledger (migrate.Canceller)
//	verifier    a sender's rights, SELECT, UPDATE and DELETE on bridge_ledger, SELECT on
//	            bridge_watermark
//	sweeper     a verifier's rights, and UPDATE on bridge_watermark
//	receiver    SELECT on bridge_inbox_version, and
//	  Handle    INSERT on bridge_inbox; also SELECT and DELETE, to purge old keys, unless
//	            Options.Retention is negative
//	  AtMostOnce, Accept, Work
//	            SELECT, INSERT and DELETE on bridge_inbox, and SELECT, INSERT, UPDATE and DELETE
//	            on bridge_inbox_pending
//	  Latest, Ordered, HighWater
//	            SELECT, INSERT and UPDATE on bridge_mark; for Ordered also SELECT, INSERT and
//	            DELETE on bridge_kept
//
// With an own table:
//
//	sender    SELECT on the table, bridge_ledger, bridge_identity and bridge_ledger_version
//	verifier  the same, and INSERT and DELETE on bridge_ledger, for the proof of the waiting
//	receiver  as above
//
// If a login lacks one of these, the error names the GRANT. (The sender does not read
// bridge_ledger, but the catalogue shows a table only to logins with a right on it.) migrate.Ledger
// and migrate.Inbox need CREATE TABLE in the database, and ALTER, SELECT, INSERT and UPDATE on the
// schema.
//
// # For operators
//
//	inspector := sqlserver.Inspect(ledger)
//	findings, err := inspector.Diagnose(ctx)
//	v, err := verifier.New(ledger, broker, &verifier.Options{Watcher: inspector})
//
//	findings, err = sqlserver.DiagnoseInbox(ctx, db) // of a receiver
//
// To see the holders of a row a verifier needs VIEW SERVER STATE (since 2022, VIEW SERVER
// PERFORMANCE STATE). In Azure SQL Database it needs VIEW DATABASE STATE, or, on Basic, S0 and S1
// and in elastic pools, a login that is a member of ##MS_ServerStateReader##. Without it there is no
// answer; Diagnose tries it. OpenTransactions lists the sessions that have the table locked for a
// change of its rows. Diagnose needs a verifier's rights and reports missing ones. A server without
// such views, perhaps Babelfish, gives no answer either.
//
// # Requirements
//
//   - Delayed durability is DISABLED. Otherwise a crash of the server could undo a transaction
//     whose message has been forwarded; Open and Check refuse such a database.
//   - A forced failover with data loss can undo transactions too. If that matters, commit
//     synchronously. Active geo-replication and failover groups of Azure SQL replicate
//     asynchronously. sp_wait_for_database_copy_sync waits for the secondary, after the COMMIT: a
//     message may be delivered before it returns.
//   - There is one primary. If several servers write to the database and send each other the
//     rows (peer-to-peer and merge replication, updatable subscriptions, SQL Data Sync), the
//     identity is the same everywhere, and the proof holds at each. But a transaction that is
//     open at another server looks rolled back, and its message is dropped. Diagnose recognises
//     the replication of the ledger's table, but not SQL Data Sync. Availability groups and
//     geo-replication have one primary.
//   - The connection string has no ApplicationIntent=ReadOnly. Open and Check refuse a database
//     that does not take writes.
//   - The connection string asks for TLS by encrypt=true or encrypt=strict: by default the driver
//     encrypts the login alone. It also bounds the wait for a silent server, by 'connection timeout' in
//     seconds: by default the driver waits until TCP gives up, after about a quarter of an hour. Give a
//     pool that migrates no such bound. The commands do all of this.
//   - A copy of a database has the same identity. Before a copy gets a verifier of its own,
//     change it: bridgectl identity new, or migrate.NewIdentity.
//   - Senders and verifiers find the tables by the default schema of their users, and if it has
//     no such table, in dbo. They must find the same tables. With a Schema no default matters.
//   - The compatibility level is 120 to 170. Open and Check refuse an older one.
//   - No column of the bridge's tables is encrypted by Always Encrypted. Leave it off in the
//     connection string of the verifier.
//   - Maintenance rebuilds the indexes of the bridge's tables, or leaves them out: it cannot
//     reorganize an index without page locks. Diagnose says so too.
//   - A serverless database of Azure SQL never pauses while a verifier runs: the verifier keeps
//     connections open.
//   - QUOTED_IDENTIFIER and the other ANSI settings are ON, as the driver sets them (see 'Carried
//     messages').
package sqlserver
