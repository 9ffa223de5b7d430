package bridge

// An OwnTable is a table of the application's own whose rows already hold the message's ID, in a
// column with a unique index. OpenOwnTable of each database's package opens a Ledger on it, which
// reads the rows, inserts none and deletes none.
//
// The application must:
//
//   - Insert the row before the message is sent, in the same transaction and behind the same
//     savepoint. Record returns ErrNoRow for an ID without a row, but cannot see which transaction
//     inserted the row: if the row was there before, the message goes out even if the transaction
//     rolls back.
//   - Send one message per row. The unique index prevents a second row with the ID, not a second
//     message.
//   - Keep the row, and the ID in it, until the message has been forwarded. A missing row looks
//     rolled back, and its message is dropped.
//
// As the row is never deleted, a staged message that is redelivered to a verifier is forwarded
// again.
//
// The tables of the ledger must still be in the same database: they hold the identity, and the
// proof that lookups wait writes its canaries into bridge_ledger, and with Canary also into the
// table.
//
// Such a ledger has an identity of its own, made from the database's identity, the names of table
// and schema, and the name of the column. So a message is judged by the table that recorded it,
// never by bridge_ledger or another own table. Its verifier must open the same OwnTable
// (BRIDGE_OWN_TABLE of cmd/verifier); any other verifier sends its messages to the dead queue as
// foreign. Before you rename the table, let the queues run empty.
type OwnTable struct {
	// Table is 'table' or 'schema.table', spelt as in the database's catalogue: upper and lower
	// case differ. No name may contain a dot.
	Table string
	// Column has the database's type for UUIDs, and a unique index of its own.
	Column string
	// Canary, if not empty, is an INSERT of one row into Table, with $id in place of a new ID, as a
	// string literal: INSERT INTO orders (id, customer) VALUES ($id, 0). For a column of bytes,
	// convert it: UNHEX(REPLACE($id, '-', '')). A verifier runs it at the start of each session, in
	// a transaction that it rolls back. This proves that the lookups wait for this very table, and
	// that nothing hides its rows from the verifier's login, as row-level security does. It needs
	// the right to INSERT. Triggers of the table run, and are rolled back; values of sequences are
	// used up. Empty: the proof uses bridge_ledger alone.
	Canary string
}
