package mysql

import (
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
)

// IDs are in the statements as hexadecimal digits: with parameters the driver would prepare each
// statement first, and close it afterwards. Many IDs are one JSON array, which is joined to the
// table in that order, row by row by key: from a list, IN (…), the server may choose to read all of
// a small table instead, and a DELETE would then wait for the open rows of all transactions.
// MariaDB chooses that in a join too, unless the index is forced.
//
// The array's table is in a SELECT of its own: MySQL takes it in no other place of a statement that
// locks (error 3569), as MariaDB has no FOR UPDATE OF.
//
//	%[1]s the IDs, %[2]s the identity, %[3]s the table as l, by its index, %[4]s its column
const (
	ids = `(SELECT UNHEX(j.id) AS id FROM JSON_TABLE('%[1]s', '$[*]' COLUMNS (id CHAR(32) PATH '$')) j) ids`

	ledgerByKey = `bridge_ledger l FORCE INDEX (PRIMARY)`

	// Most transactions have one message, and the table of a JSON array costs more than its INSERT.
	recordOne = `INSERT INTO bridge_ledger (id)
SELECT UNHEX('%[1]s') FROM bridge_identity i WHERE i.one = 1 AND i.identity = UNHEX('%[2]s')`

	recordMany = `INSERT INTO bridge_ledger (id)
SELECT ids.id FROM bridge_identity i STRAIGHT_JOIN ` + ids + ` WHERE i.one = 1 AND i.identity = UNHEX('%[2]s')`

	// server names the instance. started is the time of its start, in seconds since 1970, preceded
	// by a part of its server_id: UUID_SHORT counts from there in its last 24 bits. It is in a
	// table of its own, so that each statement counts once and not for each row.
	server  = `CONCAT_WS(' ', /*!80000 @@GLOBAL.server_uuid, */ @@GLOBAL.hostname, @@GLOBAL.port, @@GLOBAL.server_id) AS server, s.started`
	started = `(SELECT UUID_SHORT() >> 24 AS started) s`

	// At least one row if the identity is right, with a null id for an ID that is not found.
	committed = `SELECT l.%[4]s AS id, ` + logged + `, ` + server + ` FROM ` + started + ` STRAIGHT_JOIN bridge_identity i STRAIGHT_JOIN ` + ids + `
LEFT JOIN %[3]s ON l.%[4]s = ids.id WHERE i.one = 1 AND i.identity = UNHEX('%[2]s')`

	// The same lookup, of rows that are not older than %[5]s microseconds.
	recent = `SELECT l.%[4]s AS id, ` + logged + `, ` + server + ` FROM ` + started + ` STRAIGHT_JOIN bridge_identity i STRAIGHT_JOIN ` + ids + `
LEFT JOIN %[3]s ON l.%[4]s = ids.id AND l.recorded_at BETWEEN UTC_TIMESTAMP(6) - INTERVAL %[5]s MICROSECOND AND UTC_TIMESTAMP(6)
WHERE i.one = 1 AND i.identity = UNHEX('%[2]s')`

	// Whether the server takes writes, see takesWrites. Since Check the pool may have come to a
	// replica, which has no locks of the sender's. So every statement whose result may be 'no row'
	// reads it.
	readOnly = `CONCAT_WS(' ', @@GLOBAL.read_only, @@GLOBAL.innodb_read_only) AS read_only`

	// One row if the identity is right, with a null id if the ID has none.
	settle = `SELECT l.%[4]s AS id, ` + logged + `, ` + readOnly + `, ` + server + ` FROM ` + started + ` STRAIGHT_JOIN bridge_identity i
LEFT JOIN %[3]s ON l.%[4]s = UNHEX('%[1]s') WHERE i.one = 1 AND i.identity = UNHEX('%[2]s') LOCK IN SHARE MODE`

	// lockFree locks the rows that no other transaction has locked.
	lockFree = `SELECT l.id FROM ` + ids + ` STRAIGHT_JOIN ` + ledgerByKey + ` ON l.id = ids.id FOR UPDATE SKIP LOCKED`

	forget = `DELETE l FROM (` + lockFree + `) free STRAIGHT_JOIN ` + ledgerByKey + ` ON l.id = free.id`

	// The existing rows, locked or not: a locked row must not be taken for a deleted one.
	present = `SELECT l.id FROM ` + ids + ` STRAIGHT_JOIN ` + ledgerByKey + ` ON l.id = ids.id`

	// Whether the identity is right, and the number of rows found.
	rows = `SELECT COUNT(i.one), COUNT(l.%[4]s) FROM bridge_identity i STRAIGHT_JOIN ` + ids + `
LEFT JOIN %[3]s ON l.%[4]s = ids.id WHERE i.one = 1 AND i.identity = UNHEX('%[2]s')`
)

// A column is the column of the IDs with its table and index; the names are quoted.
type column struct{ table, name, index string }

var ledgerColumn = column{table: "bridge_ledger", name: "id", index: "PRIMARY"}

// byIndex returns the table for a FROM.
func (c column) byIndex() string { return c.table + " l FORCE INDEX (" + c.index + ")" }

// statement fills in a statement. ids consists of digits and JSON's marks; more begins with the
// fifth value.
func (l *Ledger) statement(format, ids string, more ...any) string {
	return fmt.Sprintf(format, append([]any{ids, digits(l.Identity()), l.column.byIndex(), l.column.name}, more...)...)
}

func digits(id uuid.UUID) string { return hex.EncodeToString(id[:]) }

// array returns ids as the text of a JSON array, which contains only digits between quotes.
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
