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

// duePage is how many keys due and dueStored return at most.
const duePage = 100

// TakePending implements driver.PendingMessages.
func (i *Inbox) TakePending(ctx context.Context, tx bridge.Tx, consumer string, state driver.State) (taken *driver.Pending, err error) {
	err = i.eachDue(ctx, tx, dueStored, consumer, state, func(key []byte) (bool, error) {
		found, err := portable.ReadPending(ctx, tx, i.schema.In(takeDue), packed(consumer), packBytes(key), packText(string(state)))
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
		n, err := tx.Exec(ctx, i.schema.In(doubtDue), packed(consumer), packBytes(key))
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
		keys, last, err := readDue(ctx, tx, i.schema.In(find), packed(consumer), packText(string(state)), after, after, packBytes(afterKey))
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
