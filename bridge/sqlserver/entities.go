package sqlserver

import (
	"context"
	"errors"
	"fmt"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

// The mark is locked by an update that changes nothing: it waits at every isolation
// level, and on a server that ignores hints. FORCESEEK as in the inbox; XACT_ABORT and NOCOUNT as in claim and
// record.
var (
	lockMark = packing.Unpack(`UPDATE m SET mark = mark OUTPUT inserted.mark FROM bridge_mark m WITH (ROWLOCK, FORCESEEK) WHERE consumer = bytes(@p1) AND [name] = bytes(@p2)`)

	makeMark = packing.Unpack(`SET XACT_ABORT OFF;
INSERT INTO bridge_mark (consumer, [name], mark) VALUES (bytes(@p1), bytes(@p2), 0x)`)

	setMark = packing.Unpack(`SET NOCOUNT OFF;
UPDATE m SET mark = bytes(@p3), changed_at = sysutcdatetime() FROM bridge_mark m WITH (ROWLOCK, FORCESEEK) WHERE consumer = bytes(@p1) AND [name] = bytes(@p2)`)

	keep = packing.Unpack(`SET XACT_ABORT OFF;
INSERT INTO bridge_kept (consumer, entity, [version], [message]) VALUES (bytes(@p1), bytes(@p2), @p3, bytes(@p4))`)

	countKept = packing.Unpack(`SELECT count(*) FROM bridge_kept WITH (ROWLOCK, FORCESEEK) WHERE consumer = bytes(@p1) AND entity = bytes(@p2)`)

	firstKept = packing.Unpack(`SELECT TOP (1) [version], [message] FROM bridge_kept WITH (ROWLOCK, FORCESEEK) WHERE consumer = bytes(@p1) AND entity = bytes(@p2) ORDER BY [version]`)

	unkeep = packing.Unpack(`DELETE k FROM bridge_kept k WITH (ROWLOCK, FORCESEEK) WHERE consumer = bytes(@p1) AND entity = bytes(@p2) AND [version] = @p3`)

	keptEntities = packing.Unpack(`SELECT TOP (@p2) k.entity, m.mark, k.lowest, k.kept, k.age
FROM (SELECT consumer, entity, min([version]) AS lowest, count(*) AS kept, DATEDIFF_BIG(second, min(kept_at), sysutcdatetime()) AS age
FROM bridge_kept WITH (ROWLOCK, FORCESEEK) WHERE consumer = bytes(@p1) GROUP BY consumer, entity) k
JOIN bridge_mark m WITH (ROWLOCK, FORCESEEK) ON m.consumer = k.consumer AND m.[name] = k.entity ORDER BY k.age DESC, k.entity`)
)

const (
	markRights = "SELECT, INSERT, UPDATE ON bridge_mark"
	keptRights = "SELECT, INSERT, DELETE ON bridge_kept"
)

// LockMark locks the mark in tx. It waits for an open transaction that has locked it,
// for as long as the session's LOCK_TIMEOUT allows. In a transaction at SNAPSHOT, a
// mark that was changed after the snapshot is an error (3960): roll back and try again.
func (*Inbox) LockMark(ctx context.Context, tx bridge.Tx, consumer, name string) (string, error) {
	if err := tables.CheckName(consumer, name); err != nil {
		return "", wrap("lock mark", err, markRights)
	}
	for range 2 { // the second time the row is there
		var mark []byte
		found, err := row(ctx, tx, lockMark, []any{packed(consumer), packed(name)}, &mark)
		if found || err != nil {
			return string(mark), wrap("lock mark", err, markRights)
		}
		_, err = tx.ExecContext(ctx, makeMark, packed(consumer), packed(name))
		if err == nil {
			return "", nil
		}
		if !isDuplicate(err) {
			return "", wrap("lock mark", err, markRights)
		}
	}
	return "", errors.New("lock mark: the row is hidden from this transaction: roll back and try again")
}

// SetMark changes the mark in tx, which has locked it.
func (*Inbox) SetMark(ctx context.Context, tx bridge.Tx, consumer, name, mark string) error {
	if err := errors.Join(tables.CheckName(consumer, name), tables.CheckMark(mark)); err != nil {
		return wrap("set mark", err, markRights)
	}
	result, err := tx.ExecContext(ctx, setMark, packed(consumer), packed(name), packed(mark))
	return wrap("set mark", tables.OneRow(result, err), markRights)
}

// Keep stores a message in tx, which has locked the entity's mark.
func (*Inbox) Keep(ctx context.Context, tx bridge.Tx, consumer, entity string, version int64, message []byte) (bool, error) {
	if err := tables.CheckName(consumer, entity); err != nil {
		return false, wrap("keep message", err, keptRights)
	}
	_, err := tx.ExecContext(ctx, keep, packed(consumer), packed(entity), version, packing.Bytes(message))
	if isDuplicate(err) {
		return false, nil
	}
	return err == nil, wrap("keep message", err, keptRights)
}

// CountKept counts the entity's stored messages.
func (*Inbox) CountKept(ctx context.Context, tx bridge.Tx, consumer, entity string) (n int, err error) {
	if err := tables.CheckName(consumer, entity); err != nil {
		return 0, wrap("count kept messages", err, keptRights)
	}
	_, err = row(ctx, tx, countKept, []any{packed(consumer), packed(entity)}, &n)
	return n, wrap("count kept messages", err, keptRights)
}

// FirstKept reads the entity's stored message with the lowest version.
func (*Inbox) FirstKept(ctx context.Context, tx bridge.Tx, consumer, entity string) (version int64, message []byte, err error) {
	if err := tables.CheckName(consumer, entity); err != nil {
		return 0, nil, wrap("read kept message", err, keptRights)
	}
	_, err = row(ctx, tx, firstKept, []any{packed(consumer), packed(entity)}, &version, &message)
	return version, message, wrap("read kept message", err, keptRights)
}

// Unkeep deletes a stored message in tx, which has locked the entity's mark.
func (*Inbox) Unkeep(ctx context.Context, tx bridge.Tx, consumer, entity string, version int64) error {
	if err := tables.CheckName(consumer, entity); err != nil {
		return wrap("delete kept message", err, keptRights)
	}
	_, err := tx.ExecContext(ctx, unkeep, packed(consumer), packed(entity), version)
	return wrap("delete kept message", err, keptRights)
}

// KeptEntities reads all that is stored for consumer, but not the messages. Without
// READ_COMMITTED_SNAPSHOT it waits for open transactions that handle such entities.
func (*Inbox) KeptEntities(ctx context.Context, tx bridge.Tx, consumer string, limit int) (all []driver.KeptEntity, err error) {
	if err := tables.CheckConsumer(consumer); err != nil {
		return nil, wrap("list kept messages", err, keptRights)
	}
	rows, err := tx.QueryContext(ctx, keptEntities, packed(consumer), int64(limit))
	if err == nil {
		all, err = tables.ReadKeptEntities(rows)
	}
	return all, wrap("list kept messages", err, keptRights)
}

// packed is a consumer, a key, a name or a mark as an argument.
func packed(s string) []byte { return packing.Bytes([]byte(s)) }

func row(ctx context.Context, tx bridge.Tx, query string, args []any, into ...any) (bool, error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return false, err
	}
	return tables.ReadRow(rows, into...)
}

// wrap says what was being done when err came about, if it did.
func wrap(doing string, err error, rights string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, classify(err, rights))
}
