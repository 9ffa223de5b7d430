package bridge

// An OwnTable is a table of the application's own whose rows already hold the
// message's ID, in a column with a unique index. The packages of the databases
// open a Ledger on it with OpenOwnTable: it reads the rows, inserts none and
// deletes none.
//
// What the application must do in return:
//
//   - Insert the row before the message is sent, in the same transaction and
//     behind the same savepoint. Record returns ErrNoRow for an ID without one.
//     It cannot see whether this transaction inserted the row; one that was there
//     before lets the message go out whatever becomes of the transaction.
//   - One message per row: the index keeps rows apart, not messages.
//   - Keep the row, and the ID in it, until the message has been forwarded: one
//     that is gone by then was rolled back, and its message is dropped.
//
// As the row is never deleted, a staged message that is delivered to a verifier
// once more is forwarded once more.
//
// The tables of the ledger must be in the same database all the same: what makes the
// identity is there, and the proof that lookups wait writes its canaries into
// bridge_ledger.
//
// Such a ledger has an identity of its own, made of the database's, the table's name
// with its schema and the column's: a message is judged by the table that it was
// recorded in, never by bridge_ledger or another own table, which know nothing of it.
// So its verifier opens the same OwnTable (BRIDGE_OWN_TABLE of cmd/verifier); any other
// sends its messages to the dead queue as foreign. Whoever renames the table first lets
// the queues run empty.
type OwnTable struct {
	// Table is 'table' or 'schema.table', spelt as in the database's catalogue:
	// upper and lower case differ. A name with a dot in it cannot be given.
	Table string
	// Column is of the database's type for UUIDs, and has a unique index of its own.
	Column string
}
