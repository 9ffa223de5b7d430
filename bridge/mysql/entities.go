package mysql

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// Texts are in the statements as hexadecimal digits, as the IDs are, and a kept message in base64
// (see carried.go).
//
// The reads of kept messages lock nothing, not even the gap if there is none. At REPEATABLE READ
// they see the state of the transaction's first read. It is not older than the transaction's lock,
// since LockMark comes first.
const (
	makeMark = `INSERT INTO bridge_mark (consumer, name, mark) VALUES (UNHEX('%s'), UNHEX('%s'), '') ON DUPLICATE KEY UPDATE mark = mark`
	readMark = `SELECT mark FROM bridge_mark WHERE consumer = UNHEX('%s') AND name = UNHEX('%s') FOR UPDATE`
	setMark  = `UPDATE bridge_mark SET mark = UNHEX('%s'), changed_at = UTC_TIMESTAMP(6) WHERE consumer = UNHEX('%s') AND name = UNHEX('%s')`

	keep      = `INSERT INTO bridge_kept (consumer, entity, version, message) VALUES (UNHEX('%s'), UNHEX('%s'), %d, FROM_BASE64('%s'))`
	countKept = `SELECT count(*) FROM bridge_kept WHERE consumer = UNHEX('%s') AND entity = UNHEX('%s')`
	firstKept = `SELECT version, message FROM bridge_kept WHERE consumer = UNHEX('%s') AND entity = UNHEX('%s') ORDER BY version LIMIT 1`
	unkeep    = `DELETE FROM bridge_kept WHERE consumer = UNHEX('%s') AND entity = UNHEX('%s') AND version = %d`

	keptEntities = `SELECT k.entity, m.mark, k.lowest, k.kept, k.age
FROM (SELECT consumer, entity, min(version) AS lowest, count(*) AS kept, TIMESTAMPDIFF(SECOND, min(kept_at), UTC_TIMESTAMP(6)) AS age
FROM bridge_kept WHERE consumer = UNHEX('%s') GROUP BY consumer, entity) k
JOIN bridge_mark m ON m.consumer = k.consumer AND m.name = k.entity ORDER BY k.age DESC, k.entity LIMIT %d`
)

var entities = portable.NewEntities(portable.EntityDialect{
	Bind:         fill,
	LockMark:     lockMark,
	SetMark:      set,
	Keep:         keep,
	CountKept:    countKept,
	FirstKept:    firstKept,
	Unkeep:       unkeep,
	KeptEntities: keptEntities,
	IsDuplicate:  func(err error) bool { return errorNumber(err) == duplicateKey },
	Classify:     func(err error, _ string) error { return classify(err) },
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

func set(ctx context.Context, tx bridge.Tx, consumer, name, mark string) (changed int64, err error) {
	statement, _ := fill(setMark, mark, consumer, name)
	return tx.Exec(ctx, statement)
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
