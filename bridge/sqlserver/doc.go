// Package sqlserver keeps the ledger and the inbox in a database of SQL Server (2016 or later) or
// Azure SQL. This comment explains how SQL Server keeps the promises of package driver;
// statements.go has the statements, each with its reason.
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
// ID WITH (READCOMMITTEDLOCK), which takes shared locks even under READ_COMMITTED_SNAPSHOT, the
// default of Azure SQL. So Settle waits for that transaction, and finds the row after a commit and
// nothing after a rollback. SET LOCK_TIMEOUT in the same text bounds the wait on the server; its
// error 1222 does not change the connection. While Settle waits it holds no lock that another
// transaction could wait for.
//
// If READ_COMMITTED_SNAPSHOT is on, the non-waiting lookup is a plain SELECT, which reads the rows
// committed when it began. If it is off, the lookup adds READPAST, which skips locked rows. A row
// that it finds is not locked, so it has committed. This requires that there are only row locks:
// the ledger's key has ALLOW_PAGE_LOCKS = OFF, its table LOCK_ESCALATION = DISABLE, and no
// statement changes more than 500 rows. Microsoft does not document whether READPAST skips a row
// that optimized locking protects only by its transaction's ID. If it does not, one open row hides
// the other rows of its statement, and the proof refuses the ledger until READ_COMMITTED_SNAPSHOT
// is on. Nothing else depends on the answer. A DELETE is not a lookup: with optimized locking it
// may skip a row that is still being inserted.
//
// Every Settle checks that the database takes writes. So a pool that now leads to a readable
// secondary, where hints are ignored, gets an error and not a verdict. Every outcome names the
// server, by @@SERVERNAME and the creation time of tempdb, which is made at every start. A verifier
// believes one server only. Azure SQL Database does not show tempdb, and Babelfish does not make it
// anew: there a restart is not noticed.
//
// ALTER TABLE and its like lock a table exclusively. A server that recompiles a statement may wait
// for such a lock before the bridge's LOCK_TIMEOUT applies. During such work all methods may wait
// until their context ends.
//
// # Settings
//
// Every statement sets the options that it depends on, and the server reverts them at its end:
// neither a pooled connection nor the caller's transaction keeps them. So NOCOUNT, ROWCOUNT and
// TEXTSIZE of the caller's session, or of the server's 'user options', change no result. IDs are sent
// as bytes, so the connection's 'guid conversion' does not matter. Record and Claim work in
// transactions at every isolation level, with XACT_ABORT ON or OFF. After a refused Claim the
// transaction stays usable. A Claim at SNAPSHOT also sees keys claimed after the snapshot.
//
// bridge_ledger has a filtered index on its stage time. So it takes INSERT, UPDATE and DELETE only
// from a session with QUOTED_IDENTIFIER, ANSI_NULLS, ANSI_PADDING, ANSI_WARNINGS, ARITHABORT and
// CONCAT_NULL_YIELDS_NULL ON and NUMERIC_ROUNDABORT OFF. Otherwise they fail with 1934 ('CREATE
// INDEX', 'SET QUOTED_IDENTIFIER'). The driver logs in as ODBC does, and the server then sets all
// of them so; ARITHABORT comes with ANSI_WARNINGS at every compatibility level that Open accepts.
// Do not change them in a transaction that records a message. Senders in other languages, SQL
// Server Agent, sqlcmd (which needs -I) and procedures created with QUOTED_IDENTIFIER OFF must set
// them.
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
// without a message lost, invented or delivered twice. Statements that it refused were rewritten
// since, and the bridge as a whole has not run there again. An own table cannot be used there.
//
// # Own tables
//
// OpenOwnTable reads a table of the application's own instead of bridge_ledger (see
// bridge.OwnTable), by the same two lookups: an INSERT of a row also locks its entry in the unique
// index. If another open transaction has inserted such an ID, Record waits for it, as the session's
// LOCK_TIMEOUT allows. The application's own locks decide how long the lookups wait:
//
//   - A later change of a row delays its message if that is not yet forwarded.
//   - READPAST does not skip page locks, nor the table lock that a statement with thousands of rows
//     takes. Then many messages wait, one by one, for that transaction. ALTER TABLE … SET
//     (LOCK_ESCALATION = DISABLE) and ALTER INDEX … SET (ALLOW_PAGE_LOCKS = OFF) prevent this.
//
// No security policy (row-level security) may hide rows of the table from the verifier's login: a
// hidden row looks rolled back, and its message is dropped. The server does not show policies to
// such a login, so Open cannot look for them; the proof finds one if bridge.OwnTable has a Canary.
// Diagnose finds one for a login with ALTER ANY SECURITY POLICY, or VIEW DEFINITION on the policy.
//
// # A schema of the bridge's own
//
// By default the tables are in the default schema of the login's user, or in dbo; senders and
// verifiers must find the same tables. A Schema names the schema in every statement:
//
//	err = migrate.Schema("messaging").Ledger(ctx, db, migrate.SQLServer) // CREATE SCHEMA comes first
//	ledger, err := sqlserver.Schema("messaging").Open(ctx, db)
//
// The name has at most 128 characters and no control characters. Each such schema has its own
// identity, verifiers and staging queue.
//
// # Rights
//
// migrate.Rights returns the rights of each role, and bridgectl grants prints them. If a login
// lacks one of these, the error names the GRANT. In addition:
//
//   - With an own table, a sender needs SELECT on that table, bridge_ledger (the catalogue shows a
//     table only to logins with a right on it), bridge_identity and bridge_ledger_version. A
//     verifier also needs INSERT and DELETE on bridge_ledger, for the proof of the waiting.
//   - To see the holders of a row an Inspector needs VIEW SERVER STATE (since 2022, VIEW SERVER
//     PERFORMANCE STATE). In Azure SQL Database it needs VIEW DATABASE STATE, or, on Basic, S0 and
//     S1 and in elastic pools, a login that is a member of ##MS_ServerStateReader##. Without it
//     there is no answer; Diagnose tries it. A server without such views, perhaps Babelfish, gives
//     no answer either.
//
// # Requirements
//
//   - Delayed durability is DISABLED. Otherwise a crash of the server could undo a transaction
//     whose message has been forwarded; Open and Check refuse such a database.
//   - A forced failover with data loss can undo transactions too. If that matters, commit
//     synchronously. Active geo-replication and failover groups of Azure SQL replicate
//     asynchronously. sp_wait_for_database_copy_sync waits for the secondary, after the COMMIT: a
//     message may be delivered before it returns.
//   - There is one primary, as with availability groups and geo-replication. If several servers
//     write to the database and send each other the rows (peer-to-peer and merge replication,
//     updatable subscriptions, SQL Data Sync), the proof holds at each, but a transaction that is
//     open at another server looks rolled back, and its message is dropped. Diagnose recognises the
//     replication of the ledger's table, but not SQL Data Sync.
//   - The connection string has no ApplicationIntent=ReadOnly. Open and Check refuse a database
//     that does not take writes.
//   - The connection string asks for TLS by encrypt=true or encrypt=strict: by default the driver
//     encrypts the login alone. It also bounds the wait for a silent server, by 'connection
//     timeout' in seconds: by default the driver waits until TCP gives up, after about a quarter of
//     an hour. Give a pool that migrates no such bound. The commands do all of this.
//   - A copy of a database has the original's identity. Change it before the copy gets a verifier:
//     bridgectl identity new, or migrate.NewIdentity.
//   - The compatibility level is 120 to 170. Open and Check refuse an older one.
//   - The bridge's tables have no triggers, and no key of theirs has IGNORE_DUP_KEY. A statement that
//     returns changed rows fails with 334 on a table with a trigger; a Claim that the table does not
//     take returns an error.
//   - Automatic tuning of Azure SQL Database drops no index of the bridge's tables: its option
//     DROP INDEX does not know the indexes that hints name ('Performance recommendations').
//   - The database is not a ledger database (CREATE DATABASE ... WITH LEDGER = ON): there each deleted
//     row, also with its message, stays in a history table for ever.
//   - No column of the bridge's tables is encrypted by Always Encrypted. Leave it off in the
//     connection string of the verifier.
//   - Maintenance rebuilds the indexes of the bridge's tables, or leaves them out: it cannot
//     reorganize an index without page locks.
//   - A serverless database of Azure SQL never pauses while a verifier runs: the verifier keeps
//     connections open.
package sqlserver
