// Package sqlite keeps the ledger and the inbox in a SQLite file. What a ledger and an
// inbox promise is in package driver; here is how this database keeps it.
//
//	db, err := sql.Open("sqlite", "file:app.db?_pragma=journal_mode(wal)&_pragma=busy_timeout(5000)")
//	err = migrate.Ledger(ctx, db, migrate.SQLite)
//	ledger, err := sqlite.Open(ctx, db)
//
// It works over database/sql with modernc.org/sqlite, which the program imports.
//
// # How it waits
//
// SQLite has one writer at a time. In WAL mode, which is required, a reader sees
// the last commit and never waits: that is the non-waiting lookup, and what it
// finds has committed. The waiting lookup takes the write lock with BEGIN
// IMMEDIATE under a busy_timeout. Once it has it, nobody else has written
// anything that is not committed, so an ID that is absent was rolled back.
//
// The lock alone is not believed: on a file that could be opened for reading
// only, SQLite grants BEGIN IMMEDIATE as a mere read transaction while another
// process writes. So Settle writes too, and rolls back.
//
// # Parked messages and orphans
//
// A parked message is a row of bridge_parked. While Unpark stages it holds no lock, as
// every sender would have to wait for it: so two Unparks at once may stage the same
// messages, which are then delivered twice, with the same ID. Times are in whole
// seconds: recorded_at is that of the INSERT, rounded down. A Sweep waits for other
// writers, as every write does.
//
// # Who holds a message up
//
// SQLite does not tell: some process has the file's lock. So package sqliteinspect has no
// inspect.Watcher. Its Diagnose needs no rights but to read the file; it sees the pragmas of
// one of its own connections, not those of the senders'.
//
// # A table of the application's own
//
// OpenOwnTable reads the IDs from a table that has them already, in the same file;
// see bridge.OwnTable. The column must be of a text type, and hold canonical text in
// lower case.
//
// # What follows
//
//   - Every open transaction that has written delays every Settle, not only that
//     of its own IDs. There is no fairness: SQLite asks for the lock again after 1
//     to 25 ms, and under writers without a pause a Settle may say 'still open'
//     several times.
//   - The pool needs at least two connections.
//   - Give every connection a busy_timeout; without one, Record and Forget return
//     SQLITE_BUSY as soon as somebody else writes.
//   - Begin a transaction that first reads and then sends with _txlock=immediate:
//     SQLite does not let it write if another one has committed in between.
//   - A copy of the file is a ledger with the same identity. Before a copy gets a
//     verifier of its own, give it another: UPDATE bridge_identity SET identity = '…',
//     the text of a new UUID in small letters.
//   - All processes must be on one machine: WAL does not work over a network file
//     system.
//
// IDs are stored as text, readable in any shell, in a table without rowid: one
// B-tree, which is small and short-lived.
package sqlite
