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
// DELETE would then wait for everybody's open rows.
//
//	%[1]s the IDs, %[2]s the identity, %[3]s the table, %[4]s its column
const (
	ids = `JSON_TABLE('%[1]s', '$[*]' COLUMNS (id CHAR(32) PATH '$')) ids`

	// Most transactions have one message, and the table of a JSON array costs more than
	// its INSERT.
	recordOne = `INSERT INTO bridge_ledger (id)
SELECT UNHEX('%[1]s') FROM bridge_identity i WHERE i.one = 1 AND i.identity = UNHEX('%[2]s')`

	recordMany = `INSERT INTO bridge_ledger (id)
SELECT UNHEX(ids.id) FROM bridge_identity i STRAIGHT_JOIN ` + ids + ` WHERE i.one = 1 AND i.identity = UNHEX('%[2]s')`

	// One row at least if the identity is right, with a null id for what is not found.
	committed = `SELECT l.%[4]s AS id FROM bridge_identity i STRAIGHT_JOIN ` + ids + `
LEFT JOIN %[3]s l ON l.%[4]s = UNHEX(ids.id) WHERE i.one = 1 AND i.identity = UNHEX('%[2]s')`

	// One row if the identity is right, with a null id if there is none. Where reads
	// go to a replica, the read-only server says so.
	settle = `SELECT l.%[4]s AS id, @@GLOBAL.read_only AS read_only FROM bridge_identity i
LEFT JOIN %[3]s l ON l.%[4]s = UNHEX('%[1]s') WHERE i.one = 1 AND i.identity = UNHEX('%[2]s') LOCK IN SHARE MODE`

	forget = `DELETE l FROM ` + ids + ` STRAIGHT_JOIN bridge_ledger l ON l.id = UNHEX(ids.id)`

	// Whether the identity is right, and how many rows are found.
	rows = `SELECT COUNT(i.one), COUNT(l.%[4]s) FROM bridge_identity i STRAIGHT_JOIN ` + ids + `
LEFT JOIN %[3]s l ON l.%[4]s = UNHEX(ids.id) WHERE i.one = 1 AND i.identity = UNHEX('%[2]s')`
)

// A column is where the IDs are; both names are quoted.
type column struct{ table, name string }

var ledgerColumn = column{table: "bridge_ledger", name: "id"}

// statement fills in one of the statements above. ids is of digits and JSON's marks.
func (l *Ledger) statement(format, ids string) string {
	return fmt.Sprintf(format, ids, digits(l.identity), l.column.table, l.column.name)
}

func digits(id uuid.UUID) string { return hex.EncodeToString(id[:]) }

// array returns ids as the text of a JSON array, in which there is nothing but
// digits between quotes.
func array(ids []uuid.UUID) string {
	all := make([]string, len(ids))
	for i, id := range ids {
		all[i] = digits(id)
	}
	text, err := json.Marshal(all)
	if err != nil {
		panic(err) // texts can always be marshalled
	}
	return string(text)
}
