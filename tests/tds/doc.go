// Package tds is a stand-in for SQL Server, for tests: a small server that speaks
// TDS 7.4 to the real driver, go-mssqldb, and keeps its tables in memory.
//
//	server, err := tds.Start(nil)
//	db, err := sql.Open("sqlserver", server.URL("master"))
//
// It is a model of documented behaviour, made because there is no SQL Server for
// the machines that these tests run on. That a test passes here shows that the
// project does what it should on a server that behaves as Microsoft's documents
// say. That SQL Server does so shows the same suite on a real one (see
// tests/sqlserver), and the proof that every verifier makes before it judges.
//
// It knows the statements that this project and its tests send, by their text: each
// form in this package is one. Any other is answered with an error, never with a guess.
//
// # What is modelled, and where it is written
//
// Names are those of pages on learn.microsoft.com.
//
//   - Packets, login, requests and tokens: [MS-TDS]. Attention is acknowledged in
//     any case, also when the request has ended: [MS-TDS] 2.2.1.7 and 3.3.5.9. A
//     request must carry the descriptor of the session's transaction: 2.2.5.3.2.
//     The reset bit restores the session's settings: 2.2.3.1.2; the isolation level
//     with them since 2014: 'sp_reset_connection' under 'SET TRANSACTION ISOLATION
//     LEVEL'.
//   - A login to a database that is missing, offline or recovering is answered with 4060, then
//     18456: 'MSSQLSERVER_4060' and 'MSSQLSERVER_18456'; the order is recorded by public
//     probes of SQL Server 2025.
//   - A SET within sp_executesql ends with it: 'SET Statements (Transact-SQL)'.
//   - An insert, update or delete locks its row exclusively until the transaction
//     ends; a change of tables locks the table against everybody: 'Transaction
//     locking and row versioning guide'.
//   - At READ COMMITTED a SELECT waits for such a lock. With
//     READ_COMMITTED_SNAPSHOT it does not wait, and reads the row as it was committed
//     when the statement began, also if the statement has waited since: the same guide.
//   - READCOMMITTEDLOCK waits, whatever READ_COMMITTED_SNAPSHOT says; READPAST
//     skips rows that are locked, and is refused (650) at other levels than READ
//     COMMITTED and REPEATABLE READ, and with READ_COMMITTED_SNAPSHOT unless
//     READCOMMITTEDLOCK is beside it: 'Table hints (Transact-SQL)'.
//   - UPDLOCK keeps others from locking the row, not from reading it: the same page.
//     An UPDATE and a DELETE with READPAST pass over locked rows too; OUTPUT gives what
//     they have changed, and is refused (334) where a trigger is: 'OUTPUT clause'.
//   - Style 126 leaves out a fraction that is zero: 'CAST and CONVERT (Transact-SQL)'.
//   - uniqueidentifier sorts by its last six bytes first: 'Comparing GUID and
//     uniqueidentifier values'.
//   - REPEATABLEREAD holds the lock of the row that was read until the transaction ends:
//     the same. Here it is exclusive, for want of shared ones.
//   - LOCK_TIMEOUT ends a wait with 1222 and leaves the transaction as it is; 0 means not to wait at
//     all: 'SET LOCK_TIMEOUT (Transact-SQL)'.
//   - CREATE TABLE wants that right (262) and ALTER on the schema (2760, as for a schema that
//     does not exist): 'CREATE TABLE (Transact-SQL)'.
//   - IF with one condition that something is not there, and its block: 'IF…ELSE (Transact-SQL)'. BEGIN
//     TRANSACTION and COMMIT in a batch: the pages of these names.
//   - A table with a filtered index is changed with QUOTED_IDENTIFIER ON only (1934), and the index is
//     made so: 'SET QUOTED_IDENTIFIER (Transact-SQL)', 'CREATE INDEX'. The driver logs in as ODBC
//     does, which sets this and the other settings: [MS-TDS] 2.2.6.4, fODBC. A seek in that index reads
//     the rows between its bounds. A batch cannot refer to a column that it has added to a table;
//     a text that EXECUTE runs is a batch of its own: 'Batches', 'EXECUTE (Transact-SQL)'.
//   - A variable keeps one reading of the clock: 'DECLARE @local_variable'.
//   - A unique key: 2627 if the row is there, after waiting for its transaction's
//     end: 'Unique constraints and check constraints'.
//   - A statement that fails is undone alone, or the transaction with it if
//     XACT_ABORT is ON: 'SET XACT_ABORT (Transact-SQL)'. The victim of a deadlock
//     loses its transaction (1205), and is whoever has least to undo: 'Deadlocks guide'.
//   - SAVE TRANSACTION, and the rollback to it, which keeps the locks: 'SAVE
//     TRANSACTION (Transact-SQL)'.
//   - A readable secondary ignores hints, reads snapshots and writes nothing
//     (3906): 'Offload read-only workload to secondary replica of an Always On
//     availability group'. A login with ApplicationIntent=ReadOnly comes to it.
//   - The catalogue shows a login only what it has some right to; here, all on which
//     VIEW DEFINITION is not denied: 'Metadata visibility configuration'. Unique
//     indexes, their columns, filters and whether they are disabled: 'sys.indexes'
//     and 'sys.index_columns'.
//   - Of the database's and a table's properties those that the library diagnoses; of
//     rights, whether the login has one: 'HAS_PERMS_BY_NAME'. Lock escalation and page
//     locks are remembered and do nothing.
//   - varbinary compares as if the shorter value went on in zeros: 0x61 = 0x6100. No page
//     says so; Microsoft did, of 'Invalid equality comparison for varbinary data with
//     right padded zeros' on Connect, and tests/sqlserver/ask asks it.
//   - A quoted name, in which ]] means ]: 'Database identifiers'. The schema dbo is
//     every login's default.
//   - Who waits for whom, and who has a table locked for a change: 'sys.dm_exec_requests',
//     'sys.dm_tran_locks' and the views of sessions and transactions, refused (300, then
//     297; from 2022 on 371, as two independent public probes recorded) to a login that may
//     not VIEW SERVER PERFORMANCE STATE; 'sys.dm_exec_sessions'
//     then shows it no other session. Of a session: its program, host, last text, and when
//     its transaction began. A wait for a latch has no session that blocks it, but -5:
//     'sys.dm_exec_requests'.
//   - Azure SQL Database: its edition and version ('SERVERPROPERTY'), and a DB_ID() that
//     is not the database_id of sys.databases ('DB_ID').
//   - A statement on the inbox without FORCESEEK reads the whole table, which it may: 'Table
//     hints'. Who changes a pending message's row locks it and then its entry in the index of what
//     is due; who finds it by that index locks the entry and then the row, which may close a
//     deadlock: 'Deadlocks guide'. Only INDEX in the hint says by which of the two it is found.
//   - READUNCOMMITTED reads uncommitted rows, and waits for no row: 'Table hints'.
//   - A security policy hides rows from a login, which a test denies 'ROWS ON table'; a row is read,
//     and waited for, before it is hidden: 'Row-level security'. No page says in which order.
//   - A masked column, of a login that may not UNMASK: 'Dynamic data masking'.
//   - That a table is published, and whether peer to peer: 'sys.tables', 'syspublications'.
//   - FORCESEEK has a statement read no other rows than those of its keys, and is an
//     error (8622) where there is nothing to seek: 'Table hints (Transact-SQL)'. A join
//     hint fixes the join and its order, and no access path: 'Join hints (Transact-SQL)'.
//     Under Options.Scan a statement without FORCESEEK reads the whole table.
//   - A number as binary begins with its highest byte, and 0x0001e240 is 123456: 'binary and
//     varbinary (Transact-SQL)'. LEN does not count spaces at the end: 'LEN (Transact-SQL)'; it
//     counts characters as LEFT does: both pages, under supplementary characters.
//   - A plan is kept for a text and the declaration of its parameters: 'sp_executesql
//     (Transact-SQL)'. What reads a small table is compiled anew after 500 changes of it:
//     'Statistics'; unless it has KEEPFIXED PLAN: 'Query hints (Transact-SQL)', or the
//     table's key STATISTICS_NORECOMPUTE: 'CREATE INDEX (Transact-SQL)'.
//   - Optimized locking protects a changed row by a lock on the transaction's ID alone,
//     unless a hint has asked for a lock of the row: 'Optimized locking'. No page says
//     that READPAST skips a row that is protected so: here it waits. No page says that an
//     UPDATE which changes nothing stamps the row with that ID: here the row is free when the
//     statement ends, unless a hint has asked for its lock.
//   - Under READ_COMMITTED_SNAPSHOT, READPAST needs READCOMMITTEDLOCK beside it (650):
//     'Table hints (Transact-SQL)'.
//   - A server that ignores hints and reads snapshots. As Babelfish 4.3 it also does not
//     tell delayed_durability_desc, and has another number for a lock time-out and for a
//     missing table: measured.
//
// # What is not
//
// Shared and range locks: a reader without UPDLOCK holds nothing. Page and table locks,
// lock escalation, locks of the entries of other indexes than that one. A table with two keys, and rows
// in a view, in a memory-optimized table, or under a unique index that is filtered or an
// index that is disabled: these are there to be refused. A SNAPSHOT transaction reads as a statement under
// READ_COMMITTED_SNAPSHOT does. An error ends the batch. Encryption. Speed, disk: what is
// committed is lost with the process.
//
// A deadlock is found at once, where a server takes seconds. A statement begins before it
// waits for a change of its table, where a server may wait while it compiles it. The
// tables of a join are read in the order in which they stand. That a DELETE passes over a
// row which another transaction is inserting, as under optimized locking with
// READ_COMMITTED_SNAPSHOT, is modelled for the marks of entities alone. 'Table hints' allows
// one granularity hint for a table, and counts READCOMMITTEDLOCK and ROWLOCK among them;
// public programs use the two together, and here they may be.
package tds
