package mysql

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

var entities = portable.NewEntities(entityStatements, portable.EntityVerbs{
	Bind:        fill,
	LockMark:    lockMark,
	IsDuplicate: func(err error) bool { return errorNumber(err) == duplicateKey },
	Classify:    func(err error, _ string) error { return classify(err) },
})

func lockMark(ctx context.Context, tx bridge.Tx, consumer, name string) (mark string, err error) {
	statement, _ := fill(makeMark, consumer, name)
	if _, err := tx.Exec(ctx, statement); err != nil {
		return "", err
	}
	statement, _ = fill(readMark, consumer, name)
	rows, err := tx.Query(ctx, statement)
	if err == nil {
		_, err = portable.ReadRow(rows, &mark)
	}
	return mark, err
}

// fill inserts texts, as digits, messages, in base64, and numbers into a statement.
func fill(statement string, values ...any) (string, []any) {
	var filled []any
	for _, value := range values {
		switch value := value.(type) {
		case string:
			filled = append(filled, hex.EncodeToString([]byte(value)))
		case []byte:
			filled = append(filled, base64.StdEncoding.EncodeToString(value))
		default:
			filled = append(filled, value)
		}
	}
	return fmt.Sprintf(statement, filled...), nil
}
