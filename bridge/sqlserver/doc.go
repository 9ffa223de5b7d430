// Package sqlserver keeps the ledger and the inbox in a database of SQL Server (2016
// or later) or Azure SQL. What a ledger and an inbox promise is in package driver; here
// is how this database keeps it.
//
//	db, err := sql.Open("sqlserver", "sqlserver://user:password@host?database=shop")
//	err = migrate.Ledger(ctx, db, migrate.SQLServer)
//	ledger, err := sqlserver.Open(ctx, db)
//
// It works over database/sql with github.com/microsoft/go-mssqldb, which the program
// imports; its version in this module's go.mod is the oldest that will do. Before
// 1.10 the driver could go on without a transaction after the server had ended it.
//
// # How it waits
//
// Who inserts a row has it locked exclusively until the transaction ends. Settle
// reads the row of the ID WITH (READCOMMITTEDLOCK): this takes shared locks also
// where READ_COMMITTED_SNAPSHOT, the default of Azure SQL, lets a plain SELECT read
// past an open transaction, of which it would then know nothing. So it waits for
// that transaction, and finds the row after a commit and nothing after a rollback.
// SET LOCK_TIMEOUT in the same text bounds the wait on the server, whose error 1222
// leaves the connection as it was. While it waits it holds nothing that anybody
// could wait for.
//
// The non-waiting lookup is a plain SELECT where READ_COMMITTED_SNAPSHOT is on: it reads
// what was committed when it began. Where that is off, it adds READPAST, which passes
// over locked rows; what it finds is not locked, so it has committed. This needs row
// locks to be the only ones: the ledger's key has ALLOW_PAGE_LOCKS = OFF, its table
// LOCK_ESCALATION = DISABLE, and no statement changes more than 500 rows. (An index
// without page locks can be rebuilt, not reorganized.) Whether READPAST passes over a row
// that optimized locking protects by its transaction's ID alone, Microsoft does not
// say: if it does not, one open row hides the others of its statement, and the proof
// refuses the ledger until READ_COMMITTED_SNAPSHOT is on.
//
// Statements by key carry FORCESEEK, for a plan that was made when the table was empty
// would come past the rows of others and wait for them; and those of every message
// KEEPFIXED PLAN, as the statistics of such a table go stale all the time.
//
// A DELETE is not a lookup: with optimized locking it may pass over a row that is
// still being inserted.
//
// Every lookup checks the ledger's identity as it goes, and every Settle that the
// database takes writes: a pool that has come to a readable secondary, where hints
// mean nothing, gets an error and not a verdict.
//
// # Parked messages and orphans
//
// A parked message is a row of bridge_parked. Unpark takes rows WITH (UPDLOCK,
// READPAST): any number of verifiers take different messages, and none waits for
// another. It has them locked while it stages, and when it is done it changes only
// such rows of the ledger as are not locked (READPAST); before, it waits for a Forget of
// the same IDs for a second at most. Record, both lookups and Forget have nothing to do
// with the table. Messages come in the order of uniqueidentifier, which is not that of
// age.
//
// recorded_at is the time of the INSERT, in UTC. Orphans reads the whole ledger, which
// has no index by time, and Sweep deletes by key, both WITH (READPAST). Orphans reads
// parked messages by locks as well, each after its row: read as of the statement's start,
// as READ_COMMITTED_SNAPSHOT would, a message that a sender commits meanwhile would be
// missed, and its row swept. It waits for such a lock for a second at most.
//
// # Where hints are ignored
//
// A server that speaks TDS but ignores lock hints, as Babelfish does, fails the
// proof that every verifier makes before it judges. Then driver.Prove makes the
// ledger fall back, for good, to an INSERT of the same ID that is rolled back: this
// waits on every server with unique keys, and fails with 2627 after a commit. Prove
// proves it as well, and refuses if that does not hold either. A verifier
// logs the choice. Two Unparks at once may then stage the same messages, and an Unpark or
// a Sweep that meets a locked row fails after a second; nothing is lost by either. A
// ledger on an own table has no such way. Babelfish 4.3 does not tell whether a commit is
// durable (PostgreSQL's synchronous_commit): Open believes it, and the doctor says that it
// does not know.
//
// # How IDs travel
//
// As the driver sends a uuid.UUID, which is a driver.Valuer of a string, it would be
// nvarchar. Its own type mssql.UniqueIdentifier would have to be imported. So an ID is
// sent as the 16 bytes of varbinary that SQL Server stores, which a CAST of the
// parameter makes a uniqueidentifier, and read by a CAST to binary(16); the
// connection's 'guid conversion' does not matter. Many IDs are the pieces of one
// parameter, for which there are four sizes: so every statement has four texts and
// four plans, and the limit of 2,100 parameters is far away. Messages, and the inbox's
// names, keys and texts, travel in parameters of a few lengths too, and are cut in the
// statement.
//
// # Settings
//
// What a statement depends on it sets itself: the isolation level, LOCK_TIMEOUT,
// NOCOUNT, XACT_ABORT. A text with parameters runs within sp_executesql, at whose
// end the server takes all SETs back, after an error too; so neither a pooled
// connection nor the caller's transaction keeps anything of it.
//
// Record and Claim work in transactions at every isolation level, with XACT_ABORT ON
// or OFF. A refused Claim leaves the transaction usable. A Claim at SNAPSHOT sees
// also what has been claimed after the snapshot.
//
// The driver drops a connection when a deadline passes, and keeps it when a context
// is cancelled. So the statements of the ledger's own pool never see a deadline, only
// a cancellation.
//
// ALTER TABLE and the like lock a table against everybody. A server that compiles a
// statement anew may wait for that before our LOCK_TIMEOUT is in force: during such
// work all methods may wait until their context ends.
//
// # Own tables
//
// OpenOwnTable reads a table of the application's own instead of bridge_ledger (see
// bridge.OwnTable), by the same two lookups: who inserts a row has its entry in the
// unique index locked as well. Record reads the rows in the caller's transaction, by
// READCOMMITTEDLOCK at every isolation level; should another open transaction have
// inserted such an ID, it waits for that one, as the session's LOCK_TIMEOUT allows.
//
// The lookups are right whatever locks the application takes; how long they wait is
// in its hands:
//
//   - Who changes a row later, delays a message that is not yet forwarded.
//   - READPAST does not pass over page locks, nor over the table lock that a statement
//     with thousands of rows takes: then many messages wait, one by one, for that
//     transaction. ALTER TABLE … SET (LOCK_ESCALATION = DISABLE) and ALTER INDEX … SET
//     (ALLOW_PAGE_LOCKS = OFF) prevent it.
//
// No security policy (row-level security) may hide rows of the table from the
// verifier's login: a hidden row looks rolled back, and its message is dropped. The
// server does not show policies to such a login, so Open cannot look for them.
//
// Where lock hints are ignored there is nothing to fall back to, as an INSERT into
// the application's table is out of the question. There Prove refuses the ledger
// with bridge.ErrProof, and what is sent stays in the staging queue: use
// bridge_ledger.
//
// # Rights
//
//	sender      INSERT on bridge_ledger, SELECT on bridge_identity and bridge_ledger_version
//	  to park   also INSERT on bridge_parked
//	verifier    what a sender needs, SELECT and DELETE on bridge_ledger, SELECT on bridge_watermark
//	  to unpark also SELECT, DELETE on bridge_parked and UPDATE on bridge_ledger
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
//
// To see who holds a message up (package sqlserverinspect) a verifier needs VIEW SERVER
// STATE (since 2022, VIEW SERVER PERFORMANCE STATE). In Azure SQL Database it needs VIEW
// DATABASE STATE, or, on Basic, S0 and S1 and in elastic pools, a login that is a member of
// ##MS_ServerStateReader##. Without it there is no answer; Diagnose tries it.
// OpenTransactions lists the sessions that have the table locked for a change of its rows.
// Diagnose needs a verifier's rights and reports those that are missing. A server that has
// no such views, as Babelfish may not, gives no answer either.
//
// With an own table:
//
//	sender    SELECT on the table, bridge_ledger, bridge_identity and bridge_ledger_version
//	verifier  the same, and INSERT and DELETE on bridge_ledger, where it proves the waiting
//	receiver  as above
//
// A login that lacks one gets an error that names the GRANT. (The sender does not read
// bridge_ledger then, but the catalogue shows a table only to who has a right on it.)
// Who calls migrate.Ledger or migrate.Inbox needs CREATE TABLE in the database, and
// ALTER, SELECT and INSERT on the schema.
//
// # What must be so
//
//   - Delayed durability DISABLED: Open and Check refuse any other. A crash of the
//     server could undo a transaction whose message has been forwarded.
//   - After a forced failover with data loss, the same can happen; so where that
//     matters, commit synchronously.
//   - One primary. Where several servers write to the database and send each other the
//     rows (peer-to-peer and merge replication, updatable subscriptions, SQL Data Sync),
//     the identity is the same everywhere, the proof holds at each, and a transaction that
//     is open at another looks rolled back: its message is dropped. Diagnose recognises
//     the replication of the ledger's table, SQL Data Sync it does not. Availability
//     groups and geo-replication have one primary.
//   - A connection string without ApplicationIntent=ReadOnly. Open and Check refuse
//     a database that does not take writes.
//   - A copy of a database is a ledger with the same identity. Before a copy gets a
//     verifier of its own, give it another: UPDATE bridge_identity SET [identity] =
//     NEWID().
//   - Senders and verifiers find the tables by the default schema of their users: it
//     must be the same.
//   - QUOTED_IDENTIFIER and the other ANSI settings ON, as the driver has them.
package sqlserver
