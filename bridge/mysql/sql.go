package mysql

import (
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
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
