package mysql

import (
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
)

// IDs stand in the statements as hexadecimal digits: parameters would make the
// driver prepare each statement first, and close it afterwards. Many IDs are one
// JSON array, which is joined to the table in that order, row by row by key: from
// a list, IN (…), the server may choose to read all of a small table instead, and a
// DELETE would then wait for everybody's open rows. MariaDB chooses that in a join too,
// unless the index is forced.
//
// The array's table stands in a SELECT of its own: MySQL takes it in no other place of
// a statement that locks (error 3569), as MariaDB has no FOR UPDATE OF.
//
//	%[1]s the IDs, %[2]s the identity, %[3]s the table as l, by its index, %[4]s its column
const (
	ids = `(SELECT UNHEX(j.id) AS id FROM JSON_TABLE('%[1]s', '$[*]' COLUMNS (id CHAR(32) PATH '$')) j) ids`

	ledgerByKey = `bridge_ledger l FORCE INDEX (PRIMARY)`

	// Most transactions have one message, and the table of a JSON array costs more than
	// its INSERT.
	recordOne = `INSERT INTO bridge_ledger (id)
SELECT x'%[1]s' FROM bridge_identity i WHERE i.one = 1 AND i.identity = x'%[2]s'`

	recordMany = `INSERT INTO bridge_ledger (id)
SELECT ids.id FROM bridge_identity i STRAIGHT_JOIN ` + ids + ` WHERE i.one = 1 AND i.identity = UNHEX('%[2]s')`

	// server names the instance, and started is when it did, in seconds since 1970, with a part of
	// its server_id before it: UUID_SHORT counts from there in its last 24 bits. It stands in a
	// table of its own, so that each statement counts once and not for each row.
	server  = `CONCAT_WS(' ', /*!80000 @@GLOBAL.server_uuid, */ @@GLOBAL.hostname, @@GLOBAL.port, @@GLOBAL.server_id) AS server, s.started`
	started = `(SELECT UUID_SHORT() >> 24 AS started) s`

	// One row at least if the identity is right, with a null id for what is not found.
	committed = `SELECT l.%[4]s AS id, ` + logged + `, ` + server + ` FROM ` + started + ` STRAIGHT_JOIN bridge_identity i STRAIGHT_JOIN ` + ids + `
LEFT JOIN %[3]s ON l.%[4]s = ids.id WHERE i.one = 1 AND i.identity = UNHEX('%[2]s')`

	// The same, of rows that are not older than %[5]s microseconds.
	recent = `SELECT l.%[4]s AS id, ` + logged + `, ` + server + ` FROM ` + started + ` STRAIGHT_JOIN bridge_identity i STRAIGHT_JOIN ` + ids + `
LEFT JOIN %[3]s ON l.%[4]s = ids.id AND l.recorded_at BETWEEN UTC_TIMESTAMP(6) - INTERVAL %[5]s MICROSECOND AND UTC_TIMESTAMP(6)
WHERE i.one = 1 AND i.identity = UNHEX('%[2]s')`

	// Whether the server takes writes, see takesWrites. A pool may have come to a replica
	// since Check has looked, where nobody holds the sender's locks: so every statement
	// asks that may say that a row is not there.
	readOnly = `CONCAT_WS(' ', @@GLOBAL.read_only, @@GLOBAL.innodb_read_only) AS read_only`

	// One row if the identity is right, with a null id if there is none.
	settle = `SELECT l.%[4]s AS id, ` + logged + `, ` + readOnly + `, ` + server + ` FROM ` + started + ` STRAIGHT_JOIN bridge_identity i
LEFT JOIN %[3]s ON l.%[4]s = UNHEX('%[1]s') WHERE i.one = 1 AND i.identity = UNHEX('%[2]s') LOCK IN SHARE MODE`

	// lockFree locks the rows that no other transaction has locked.
	lockFree = `SELECT l.id FROM ` + ids + ` STRAIGHT_JOIN ` + ledgerByKey + ` ON l.id = ids.id FOR UPDATE SKIP LOCKED`

	forget = `DELETE l FROM (` + lockFree + `) free STRAIGHT_JOIN ` + ledgerByKey + ` ON l.id = free.id`

	// removeOwn deletes a row that the same transaction has inserted.
	removeOwn = `DELETE l FROM ` + ledgerByKey + ` WHERE l.id = x'%[1]s'`

	// The rows that are there, locked or not: a locked row must not be taken for a deleted one.
	present = `SELECT l.id FROM ` + ids + ` STRAIGHT_JOIN ` + ledgerByKey + ` ON l.id = ids.id`

	// Whether the identity is right, and how many rows are found.
	rows = `SELECT COUNT(i.one), COUNT(l.%[4]s) FROM bridge_identity i STRAIGHT_JOIN ` + ids + `
LEFT JOIN %[3]s ON l.%[4]s = ids.id WHERE i.one = 1 AND i.identity = UNHEX('%[2]s')`
)

// A column is where the IDs are, and the index that finds them; the names are quoted.
type column struct{ table, name, index string }

var ledgerColumn = column{table: "bridge_ledger", name: "id", index: "PRIMARY"}

// byIndex is the table in a FROM.
func (c column) byIndex() string { return c.table + " l FORCE INDEX (" + c.index + ")" }

// statement fills in a statement. ids is of digits and JSON's marks; more begins with the fifth
// value.
func (l *Ledger) statement(format, ids string, more ...any) string {
	return fmt.Sprintf(format, append([]any{ids, digits(l.Identity()), l.column.byIndex(), l.column.name}, more...)...)
}

func digits(id uuid.UUID) string { return hex.EncodeToString(id[:]) }

// array returns ids as the text of a JSON array, in which there is nothing but
// digits between quotes.
func array(ids []uuid.UUID) string {
	all := make([]string, len(ids))
	for i, id := range ids {
		all[i] = digits(id)
	}
	return inJSON(all)
}

// inJSON returns texts as JSON.
func inJSON(texts any) string {
	text, err := json.Marshal(texts)
	if err != nil {
		panic(err) // texts can always be marshalled
	}
	return string(text)
}
