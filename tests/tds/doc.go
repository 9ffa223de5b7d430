// Package tds is a stand-in for SQL Server, for tests: a small server that speaks
// TDS 7.4 to the real driver, go-mssqldb, and keeps its tables in memory.
//
//	server, err := tds.Start(nil)
//	db, err := sql.Open("sqlserver", server.URL("master"))
//
// The stand-in models documented behaviour, since the machines of these tests have no SQL Server.
// A test that passes here shows that the project works on a server that behaves as Microsoft's
// documents say. The same suite on a real SQL Server (see tests/sqlserver), and the proof that
// every verifier makes before it judges, show that SQL Server behaves so.
//
// The stand-in recognizes the statements of this project and its tests by their text: each form in
// this package is one statement. It answers any other statement with an error, never with a guess.
//
// # The model and its sources
//
// Quoted names are titles of pages on learn.microsoft.com.
//
//   - Packets, login, requests and tokens: [MS-TDS]. Every attention is acknowledged, even after
//     the request has ended: [MS-TDS] 2.2.1.7 and 3.3.5.9. A request must carry the descriptor of
//     the session's transaction: 2.2.5.3.2. The reset bit restores the session's settings:
//     2.2.3.1.2. Since 2014 it also restores the isolation level: 'sp_reset_connection' under 'SET
//     TRANSACTION ISOLATION LEVEL'.
//   - An error that ends the connection: DONE with the bit 0x100 ([MS-TDS] 2.2.7.6).
//   - A login to a database that is missing, offline or recovering is answered with 4060, then
//     18456: 'MSSQLSERVER_4060' and 'MSSQLSERVER_18456'. Public probes of SQL Server 2025 recorded
//     the order.
//   - A SET within sp_executesql ends with it: 'SET Statements (Transact-SQL)'.
//   - An insert, update or delete locks its row exclusively until the transaction ends. A change of
//     tables locks the table against all other sessions: 'Transaction locking and row versioning
//     guide'.
//   - At READ COMMITTED a SELECT waits for such a lock. With READ_COMMITTED_SNAPSHOT it does not
//     wait, and reads the row as committed when the statement began, even if the statement has
//     waited since: the same guide.
//   - READCOMMITTEDLOCK waits, even with READ_COMMITTED_SNAPSHOT. READPAST skips locked rows. It is
//     refused (650) at other levels than READ COMMITTED and REPEATABLE READ, and with
//     READ_COMMITTED_SNAPSHOT unless READCOMMITTEDLOCK is beside it: 'Table hints (Transact-SQL)'.
//   - UPDLOCK keeps others from locking the row, not from reading it: the same page. An UPDATE and
//     a DELETE with READPAST skip locked rows too. OUTPUT returns the changed rows, and is refused
//     (334) on a table with a trigger: 'OUTPUT clause'.
//   - Style 126 omits a fraction of zero: 'CAST and CONVERT (Transact-SQL)'.
//   - uniqueidentifier sorts by its last six bytes first: 'Comparing GUID and
//     uniqueidentifier values'.
//   - REPEATABLEREAD holds the lock of a row that was read until the transaction ends: 'Table
//     hints'. Here the lock is exclusive, since there are no shared ones.
//   - LOCK_TIMEOUT ends a wait with 1222 and keeps the transaction; 0 means not to wait at all: 'SET
//     LOCK_TIMEOUT (Transact-SQL)'.
//   - CREATE TABLE needs that right (262) and ALTER on the schema (2760, as for a schema that
//     does not exist): 'CREATE TABLE (Transact-SQL)'.
//   - IF with one condition that an object or a version does not exist, and its block: 'IF…ELSE
//     (Transact-SQL)'. BEGIN TRANSACTION and COMMIT in a batch: the pages of these names.
//   - A table with a filtered index can be changed, and the index created, only with
//     QUOTED_IDENTIFIER ON (1934): 'SET QUOTED_IDENTIFIER (Transact-SQL)', 'CREATE INDEX'. The
//     driver logs in as ODBC does, which turns on this and the other settings: [MS-TDS] 2.2.6.4,
//     fODBC. A seek in that index reads the rows between its bounds. A batch cannot refer to a
//     column that it has added to a table. A text that EXECUTE runs is its own batch: 'Batches',
//     'EXECUTE (Transact-SQL)'.
//   - A variable keeps one reading of the clock: 'DECLARE @local_variable'.
//   - A unique key: 2627 if the row exists, after waiting for the end of its transaction: 'Unique
//     constraints and check constraints'. With IGNORE_DUP_KEY the row is left out, without an error:
//     'ALTER INDEX (Transact-SQL)'.
//   - ROWCOUNT ends a statement, also an INSERT, UPDATE or DELETE, after that many rows: 'SET ROWCOUNT
//     (Transact-SQL)'. TEXTSIZE cuts off a varbinary(max) that a SELECT returns: 'SET TEXTSIZE
//     (Transact-SQL)'; here also a value that OUTPUT returns. NOCOUNT hides the number of changed
//     rows: 'SET NOCOUNT (Transact-SQL)'. At login the driver turns both limits off: [MS-TDS]
//     2.2.6.4, fODBC.
//   - A failed statement is undone alone, or the whole transaction with it if XACT_ABORT is ON: 'SET
//     XACT_ABORT (Transact-SQL)'. The victim of a deadlock loses its transaction (1205). It is the
//     transaction with the least to undo: 'Deadlocks guide'.
//   - SAVE TRANSACTION, and the rollback to it, which keeps the locks: 'SAVE
//     TRANSACTION (Transact-SQL)'.
//   - A readable secondary ignores hints, reads snapshots and writes nothing (3906): 'Offload
//     read-only workload to secondary replica of an Always On availability group'. A login with
//     ApplicationIntent=ReadOnly reaches it.
//   - The catalogue shows a login only the objects on which it has some right; here, all objects
//     on which VIEW DEFINITION is not denied: 'Metadata visibility configuration'. Unique indexes,
//     their columns, filters and whether they are disabled: 'sys.indexes' and 'sys.index_columns'.
//   - The properties of the database and of a table that the library diagnoses. Whether the login
//     has a right: 'HAS_PERMS_BY_NAME'. Lock escalation and page locks are stored without effect.
//   - varbinary compares as if the shorter value were padded with zeros: 0x61 = 0x6100. No page says
//     so. Microsoft confirmed it in 'Invalid equality comparison for varbinary data with right
//     padded zeros' on Connect, and tests/sqlserver/ask checks it.
//   - A quoted name, in which ]] means ]: 'Database identifiers'. The schema dbo is every login's
//     default.
//   - Which session waits for which, and which session has a table locked for a change:
//     'sys.dm_exec_requests', 'sys.dm_tran_locks' and the views of sessions and transactions. They
//     are refused (300, then 297; from 2022 on 371, as two independent public probes recorded) to a
//     login without VIEW SERVER PERFORMANCE STATE; 'sys.dm_exec_sessions' then shows it no other
//     session. Of a session they show its program, host, last text, and the beginning of its
//     transaction. A wait for a latch has -5 in place of a blocking session:
//     'sys.dm_exec_requests'.
//   - Azure SQL Database: its edition and version ('SERVERPROPERTY'), and a DB_ID() that
//     is not the database_id of sys.databases ('DB_ID').
//   - A statement on the inbox without FORCESEEK reads the whole table, as it may: 'Table hints'. A
//     change of a pending message's row locks the row and then its entry in the index of due
//     messages. A search by that index locks the entry and then the row, which may close a
//     deadlock: 'Deadlocks guide'. Only INDEX in the hint determines which of the two finds the
//     row.
//   - READUNCOMMITTED reads uncommitted rows, and waits for no row: 'Table hints'.
//   - A security policy hides rows from a login; a test denies 'ROWS ON table'. A row is read, and
//     waited for, before it is hidden: 'Row-level security'. No page states the order. The catalogue
//     shows a policy to a login with ALTER ANY SECURITY POLICY: 'sys.security_predicates'.
//   - A masked column, for a login without UNMASK: 'Dynamic data masking'.
//   - Whether a table is published, and whether peer to peer: 'sys.tables', 'syspublications'.
//   - FORCESEEK makes a statement read only the rows of its keys, and is an error (8622) if there is
//     nothing to seek: 'Table hints (Transact-SQL)'. A join hint fixes the join and its order, but
//     no access path: 'Join hints (Transact-SQL)'. With Options.Scan a statement without FORCESEEK
//     reads the whole table.
//   - A number as binary begins with its highest byte, and 0x0001e240 is 123456: 'binary and
//     varbinary (Transact-SQL)'. LEN does not count spaces at the end: 'LEN (Transact-SQL)'. It
//     counts characters as LEFT does: both pages, under supplementary characters.
//   - A plan is kept for a text and the declaration of its parameters: 'sp_executesql
//     (Transact-SQL)'. A statement that reads a small table is compiled anew after 500 changes of
//     the table: 'Statistics'. KEEPFIXED PLAN on the statement prevents this: 'Query hints
//     (Transact-SQL)'; so does STATISTICS_NORECOMPUTE on the table's key: 'CREATE INDEX
//     (Transact-SQL)'.
//   - Optimized locking protects a changed row by a lock on the transaction's ID alone,
//     unless a hint has requested a lock of the row: 'Optimized locking'. No page says whether
//     READPAST skips such a row: here it waits. No page says whether an UPDATE that changes nothing
//     stamps the row with that ID: here the row is free when the statement ends, unless a hint has
//     requested its lock.
//   - A server that ignores hints and reads snapshots. Like Babelfish 4.3 it also returns no
//     delayed_durability_desc, and has other numbers for a lock time-out and for a
//     missing table: measured.
//
// # Limits
//
// There are no shared or range locks: a reader without UPDLOCK holds nothing. There are no page or
// table locks, no lock escalation, and no locks of index entries except in the index of due
// messages. These exist only to be refused: a table with two keys, and rows in a view, in a
// memory-optimized table, or under a disabled or a filtered unique index. A SNAPSHOT transaction
// reads as a statement under READ_COMMITTED_SNAPSHOT does. An error ends the batch. There is no
// encryption. Speed is not modelled, and neither is the disk: committed data is lost with the
// process.
//
// A deadlock is found at once; a server takes seconds. A statement begins before it waits for a
// change of its table; a server may wait while it compiles the statement. The tables of a join are
// read in the order of the text. A DELETE that skips a row which another transaction is inserting,
// as under optimized locking with READ_COMMITTED_SNAPSHOT, is modelled only for the marks of
// entities. 'Table hints' allows one granularity hint per table, and counts READCOMMITTEDLOCK and
// ROWLOCK among them. Public programs use the two together, so the stand-in accepts both.
package tds
