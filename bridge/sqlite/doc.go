// Package sqlite keeps the ledger and the inbox in a SQLite file. This comment explains how SQLite
// keeps the promises of package driver.
//
//	db, err := sql.Open("sqlite", "file:app.db?_pragma=journal_mode(wal)&_pragma=busy_timeout(5000)")
//	err = migrate.Ledger(ctx, db, migrate.SQLite)
//	ledger, err := sqlite.Open(ctx, db)
//
// It works over database/sql with modernc.org/sqlite, which the program imports.
//
// # How it waits
//
// SQLite has one writer at a time. In WAL mode, which is required, a reader sees the last commit
// and never waits. So the non-waiting lookup is a SELECT, and every row it finds has committed. The
// waiting lookup takes the write lock with BEGIN IMMEDIATE under a busy_timeout. Once it has the
// lock, there are no uncommitted changes of others, so a missing ID was rolled back. The lock alone
// is not enough: on a file that could only be opened for reading, SQLite grants BEGIN IMMEDIATE as
// a mere read transaction while another process writes. So Settle also writes, and rolls back.
//
// Every outcome names the file, by its path, device and inode (on Windows by its path). If another
// file replaces it, a verifier begins anew. An open connection goes on with the removed file, so
// Check, with which each session begins, then closes the idle connections. If a verifier shares its
// pool with an application, restart the program after a restore.
//
// # Carried messages and orphans
//
// recorded_at is in whole seconds, rounded down, and stage_at in milliseconds. So an unpublished
// row has a stage_at of exactly 1000 times its recorded_at (a delayed row of at most that), and a
// published row has a stage_at of 1 to 2 s after its recorded_at.
//
// Claim, Touch and Forget wait half a second for other writers. If that is too short, they change
// nothing, which is no error. A Sweep waits as every write does. Claim runs with PRAGMA synchronous
// at full, so a crash of the machine cannot undo it: an undone claim would show that no copy of the
// message exists, and Cancel would cancel a message that was forwarded.
//
// # For operators
//
// SQLite does not show which process has the file's lock. So an Inspector is no inspect.Watcher.
// Diagnose only needs the right to read the file. It sees the pragmas of one of its own
// connections, not the senders'. Run a printed migration by sqlite3 -bail: without -bail sqlite3
// continues after an error.
//
// # Limits and requirements
//
//   - Every open transaction that has written delays every Settle, of any ID. There is no fairness:
//     SQLite tries the lock again after 1 to 25 ms. If others write without a pause, a Settle may
//     return 'still open' several times.
//   - The pool needs at least two connections.
//   - Open the file without cache=shared. With it, package modernc.org/sqlite waits for a lock of the
//     same process without a time-out, whatever the context (its conn.retry).
//   - Give every connection a busy_timeout; without one, Record returns SQLITE_BUSY as soon as
//     another connection writes.
//   - PRAGMA synchronous stays full, SQLite's default, for senders, verifiers and receivers. If it
//     is normal or off, a crash of the machine can undo a transaction whose message has been
//     forwarded or acked. Open and Check do not refuse it. Diagnose and DiagnoseInbox report it for
//     one of their own connections.
//   - SQLite rolls a transaction back if a statement that writes is cancelled by its context, finds
//     the disk full, or meets ON CONFLICT ROLLBACK. Later statements, a Record too, are then
//     committed one by one. So ignore no error of a statement. sender.InTx and package idempotency's
//     Handle notice it (bridge.ErrTxEnded), by a savepoint at the beginning that they release before
//     the COMMIT. SendTx and StageTx cannot notice it; the COMMIT then fails, but the messages are
//     delivered.
//   - If a transaction first reads and then sends, begin it with _txlock=immediate. Otherwise
//     SQLite does not let it write if another one has committed in between.
//   - In a table of the application's own (OpenOwnTable, bridge.OwnTable) the IDs are canonical
//     text in lower case.
//   - A copy of the file has the original's identity. Change it before the copy gets a verifier:
//     bridgectl identity new, or migrate.NewIdentity.
//   - All processes must be on one machine: WAL does not work over a network file system.
//   - All processes must open the file in one folder, by one name, because its -wal lies beside that
//     name. Mount the folder into a container, not the file, and make no hard link: a lookup with
//     another -wal would not see a committed row, and the file may be damaged
//     (sqlite.org/howtocorrupt.html, 'Multiple links to the same file').
package sqlite
