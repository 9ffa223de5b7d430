package verifier

import (
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

const (
	// unstageableLimit bounds the rows that are remembered. Further ones are tried again whenever
	// they are due, and the log does not name them.
	unstageableLimit = 10_000
	// unstageableFor is how long a row is remembered that is not seen any more. A row that was
	// claimed is due again after StageAgainWithin at most.
	unstageableFor = 2 * driver.StageAgainWithin
)

// unstageable remembers carried rows whose message this session could not stage: the broker refuses
// it, its record cannot be read, or the allow-list does not permit its target.
type unstageable struct {
	mu   sync.Mutex
	rows map[uuid.UUID]unstageableRow
}

type unstageableRow struct {
	seen time.Time // when it was due or was claimed last
	// left: it is not claimed again, because its target is not permitted. Each claim would keep it
	// for longer from a verifier whose allow-list permits the target.
	left bool
}

// add tells whether the row was not remembered before, and is now.
func (u *unstageable) add(id uuid.UUID, left bool) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, known := u.rows[id]
	if !known && len(u.rows) == unstageableLimit {
		return false
	}
	if u.rows == nil {
		u.rows = make(map[uuid.UUID]unstageableRow)
	}
	u.rows[id] = unstageableRow{time.Now(), left}
	return !known
}

// see notes that a row is due, and tells whether it is to be left alone.
func (u *unstageable) see(id uuid.UUID) (left bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	row, known := u.rows[id]
	if known {
		row.seen = time.Now()
		u.rows[id] = row
	}
	return row.left
}

// staged is for rows whose messages could be staged after all.
func (u *unstageable) staged(ids []uuid.UUID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, id := range ids {
		delete(u.rows, id)
	}
}

// forgetGone forgets rows that are gone from the ledger.
func (u *unstageable) forgetGone() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for id, row := range u.rows {
		if time.Since(row.seen) > unstageableFor {
			delete(u.rows, id)
		}
	}
}

func (u *unstageable) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.rows)
}
