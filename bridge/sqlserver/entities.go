package sqlserver

import (
	"context"
	"errors"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// An update that changes nothing locks the mark: it waits at every isolation level, and on a server
// that ignores hints. No document promises that with optimized locking such an update keeps the row
// locked; UPDLOCK does, to the end of the transaction ('Table hints'). FORCESEEK as in the inbox;
// XACT_ABORT and NOCOUNT as in claim and record.
var (
	lockMark = packing.Unpack(`UPDATE m SET mark = m.mark OUTPUT inserted.mark FROM bridge_mark m WITH (UPDLOCK, ROWLOCK, FORCESEEK) WHERE m.consumer = bytes(@p1) AND m.[name] = bytes(@p2)`)

	makeMark = packing.Unpack(`SET XACT_ABORT OFF;
INSERT INTO bridge_mark (consumer, [name], mark) VALUES (bytes(@p1), bytes(@p2), 0x)`)

	setMark = packing.Unpack(`SET NOCOUNT OFF;
UPDATE m SET mark = bytes(@p3), changed_at = sysutcdatetime() FROM bridge_mark m WITH (ROWLOCK, FORCESEEK) WHERE m.consumer = bytes(@p1) AND m.[name] = bytes(@p2)`)

	keep = packing.Unpack(`SET XACT_ABORT OFF;
INSERT INTO bridge_kept (consumer, entity, [version], [message]) VALUES (bytes(@p1), bytes(@p2), @p3, bytes(@p4))`)

	countKept = packing.Unpack(`SELECT count(*) FROM bridge_kept WITH (ROWLOCK, FORCESEEK) WHERE consumer = bytes(@p1) AND entity = bytes(@p2)`)

	firstKept = packing.Unpack(`SELECT TOP (1) [version], [message] FROM bridge_kept WITH (ROWLOCK, FORCESEEK) WHERE consumer = bytes(@p1) AND entity = bytes(@p2) ORDER BY [version]`)

	unkeep = packing.Unpack(`DELETE k FROM bridge_kept k WITH (ROWLOCK, FORCESEEK) WHERE consumer = bytes(@p1) AND entity = bytes(@p2) AND [version] = @p3`)

	// Without READ_COMMITTED_SNAPSHOT it waits for open transactions that handle such entities.
	keptEntities = packing.Unpack(`SELECT TOP (@p2) k.entity, m.mark, k.lowest, k.kept, k.age
FROM (SELECT consumer, entity, min([version]) AS lowest, count(*) AS kept, DATEDIFF_BIG(second, min(kept_at), sysutcdatetime()) AS age
FROM bridge_kept WITH (ROWLOCK, FORCESEEK) WHERE consumer = bytes(@p1) GROUP BY consumer, entity) k
JOIN bridge_mark m WITH (ROWLOCK, FORCESEEK) ON m.consumer = k.consumer AND m.[name] = k.entity ORDER BY k.age DESC, k.entity`)
)

const (
	markRights = "SELECT, INSERT, UPDATE ON bridge_mark"
	keptRights = "SELECT, INSERT, DELETE ON bridge_kept"
)

func entitiesIn(in schema.Name) portable.Entities {
	m := marks{in}
	return portable.NewEntities(portable.EntityDialect{
		Bind:         func(statement string, args ...any) (string, []any) { return in.In(statement), pack(args) },
		LockMark:     m.lock,
		SetMark:      m.set,
		Keep:         keep,
		CountKept:    countKept,
		FirstKept:    firstKept,
		Unkeep:       unkeep,
		KeptEntities: keptEntities,
		IsDuplicate:  isDuplicate,
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
		_, err = tx.Exec(ctx, m.schema.In(makeMark), packed(consumer), packed(name))
		if err == nil || !isDuplicate(err) {
			return "", err
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
			args[i] = packing.Bytes(arg)
		}
	}
	return args
}

// packed returns a consumer, a key, a name or a mark as an argument.
func packed(s string) []byte { return packing.Bytes([]byte(s)) }
