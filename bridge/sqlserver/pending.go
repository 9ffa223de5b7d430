package sqlserver

import (
	"context"
	"fmt"
	"math"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/mssql"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// Due rows are found and locked by two statements. The first reads keys by the index of due times,
// without locks ('READUNCOMMITTED', 'Table hints'): a key is a candidate only. The second locks one
// row by its clustered key, and checks that it is still due. LOCK_TIMEOUT 0 ends it if another
// transaction has locked the row, with any kind of lock: no document promises that READPAST skips a
// row that optimized locking protects by its transaction's ID.
//
// Every statement locks a row before the row's entry in the index. A statement that found the row
// by the index would lock them in the opposite order, and be in deadlock with a transaction that
// changes that row ('Deadlocks guide').
//
// A state must be a varchar like the column: a column converted to nvarchar cannot be sought under
// SQL collations ('Data type precedence'). XACT_ABORT and NOCOUNT as in claim and record. FORCESEEK
// beside INDEX is the form that Babelfish accepts too (measured on 4.3).
const (
	dueKeys = `SELECT TOP (100) message_key, due_ms
FROM bridge_inbox_pending WITH (READUNCOMMITTED, FORCESEEK, INDEX (bridge_inbox_pending_due))
WHERE consumer = bytes(@p1) AND state = CAST(text(@p2) AS varchar(16))
	AND due_ms >= @p3 AND due_ms <= ` + nowMS + ` AND (due_ms > @p4 OR message_key > bytes(@p5))`

	inOrder = ` ORDER BY due_ms, message_key`

	pendingByKey = `WITH (UPDLOCK, READCOMMITTEDLOCK, ROWLOCK, FORCESEEK, INDEX (bridge_inbox_pending_key))
WHERE consumer = bytes(@p1) AND message_key = bytes(@p2)`

	nowMS = `DATEDIFF_BIG(millisecond, '19700101', SYSUTCDATETIME())`
)

// duePage is how many keys dueKeys returns at most.
const duePage = 100

var (
	due       = packing.Unpack(dueKeys + inOrder)
	dueStored = packing.Unpack(dueKeys + ` AND message IS NOT NULL` + inOrder)

	takeDue = packing.Unpack(`SET XACT_ABORT OFF;
SET LOCK_TIMEOUT 0;
SELECT message_key, state, run, attempts, since_ms, error, message
FROM bridge_inbox_pending ` + pendingByKey + ` AND state = CAST(text(@p3) AS varchar(16)) AND due_ms <= ` + nowMS + ` AND message IS NOT NULL`)

	doubtDue = packing.Unpack(`SET NOCOUNT OFF;
SET XACT_ABORT OFF;
SET LOCK_TIMEOUT 0;
UPDATE t SET state = 'doubtful', due_ms = ` + nowMS + `, error = 'started, no result since'
FROM bridge_inbox_pending t ` + pendingByKey + ` AND state = 'started' AND due_ms < ` + nowMS)
)

// TakePending implements driver.PendingMessages.
func (i *Inbox) TakePending(ctx context.Context, tx bridge.Tx, consumer string, state driver.State) (taken *driver.Pending, err error) {
	err = i.eachDue(ctx, tx, dueStored, consumer, state, func(key []byte) (bool, error) {
		found, err := portable.ReadPending(ctx, tx, i.schema.In(takeDue), packed(consumer), packing.Bytes(key), packing.Text(string(state)))
		if len(found) > 0 {
			taken = &found[0]
		}
		return taken != nil, err
	})
	if err != nil {
		return nil, fmt.Errorf("take pending message: %w", classify(i.schema, err, pendingRights))
	}
	return taken, nil
}

// DoubtOverdue implements driver.PendingMessages. It skips a row that another transaction has
// locked; if the row is still overdue afterwards, the next DoubtOverdue makes it doubtful.
func (i *Inbox) DoubtOverdue(ctx context.Context, tx bridge.Tx, consumer string) (changed int64, err error) {
	err = i.eachDue(ctx, tx, due, consumer, driver.Started, func(key []byte) (bool, error) {
		n, err := tx.Exec(ctx, i.schema.In(doubtDue), packed(consumer), packing.Bytes(key))
		changed += n
		return false, err
	})
	if err != nil {
		return 0, fmt.Errorf("doubt pending messages: %w", classify(i.schema, err, pendingRights))
	}
	return changed, nil
}

// eachDue calls do with the keys of the due rows, in their order, until do returns that it is done.
// It skips rows that another transaction has locked.
func (i *Inbox) eachDue(ctx context.Context, tx bridge.Tx, find, consumer string, state driver.State, do func(key []byte) (done bool, err error)) error {
	if err := portable.CheckConsumer(consumer); err != nil {
		return err
	}
	after, afterKey := int64(math.MinInt64), []byte{}
	for {
		keys, last, err := readDue(ctx, tx, i.schema.In(find), packed(consumer), packing.Text(string(state)), after, after, packing.Bytes(afterKey))
		if err != nil {
			return err
		}
		for _, key := range keys {
			done, err := do(key)
			if mssql.Number(err) == mssql.LockTimeout {
				continue
			}
			if done || err != nil {
				return err
			}
		}
		if len(keys) < duePage {
			return nil
		}
		after, afterKey = last, keys[len(keys)-1]
	}
}

// readDue also returns when the last key was due.
func readDue(ctx context.Context, tx bridge.Tx, find string, args ...any) (keys [][]byte, last int64, err error) {
	rows, err := tx.Query(ctx, find, args...)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var key []byte
		if err := rows.Scan(&key, &last); err != nil {
			return nil, 0, err
		}
		keys = append(keys, key)
	}
	return keys, last, rows.Err()
}
