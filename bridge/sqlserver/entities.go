package sqlserver

import (
	"context"
	"errors"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

const (
	markRights = "SELECT, INSERT, UPDATE ON bridge_mark"
	keptRights = "SELECT, INSERT, DELETE ON bridge_kept"
)

func entitiesIn(in schema.Name) portable.Entities {
	m := marks{in}
	return portable.NewEntities(entityStatements, portable.EntityVerbs{
		Bind:        func(statement string, args ...any) (string, []any) { return in.In(statement), pack(args) },
		LockMark:    m.lock,
		SetMark:     m.set,
		IsDuplicate: isDuplicate,
		Classify: func(err error, doing string) error {
			if doing == portable.LockingMark || doing == portable.SettingMark {
				return classify(in, err, markRights)
			}
			return classify(in, err, keptRights)
		},
	})
}

// marks is the table of marks in a schema.
type marks struct{ schema schema.Name }

func (m marks) lock(ctx context.Context, tx bridge.Tx, consumer, name string) (string, error) {
	for range 2 { // the second time the row exists
		var mark []byte
		rows, err := tx.Query(ctx, m.schema.In(lockMark), packed(consumer), packed(name))
		if err != nil {
			return "", err
		}
		if found, err := portable.ReadRow(rows, &mark); found || err != nil {
			return string(mark), err
		}
		made, err := tx.Exec(ctx, m.schema.In(makeMark), packed(consumer), packed(name))
		if !isDuplicate(err) {
			return "", expectInserted("bridge_mark", made, 1, err)
		}
	}
	return "", errors.New("the row is hidden from this transaction: roll back and try again")
}

func (m marks) set(ctx context.Context, tx bridge.Tx, consumer, name, mark string) (changed int64, err error) {
	return tx.Exec(ctx, m.schema.In(setMark), packed(consumer), packed(name), packed(mark))
}

// pack packs texts and messages.
func pack(args []any) []any {
	for i, arg := range args {
		switch arg := arg.(type) {
		case string:
			args[i] = packed(arg)
		case []byte:
			args[i] = packBytes(arg)
		}
	}
	return args
}

// packed returns a consumer, a key, a name or a mark as an argument.
func packed(s string) []byte { return packBytes([]byte(s)) }
