package verifier

import (
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

const (
	// unstageableLimit bounds the remembered rows. Further rows are tried again whenever they are due,
	// and the log does not name them.
	unstageableLimit = 10_000
	// unstageableFor is how long a row is remembered after it was last seen. A claimed row is due
	// again after StageAgainWithin at most.
	unstageableFor = 2 * driver.StageAgainWithin
)

// unstageable remembers carried rows whose message this session could not stage: the broker refuses
// it, or its record cannot be read.
type unstageable struct {
	mu   sync.Mutex
	rows map[uuid.UUID]time.Time // when the row was last due or claimed
}

// add remembers a row, and reports whether it was new.
func (u *unstageable) add(id uuid.UUID) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, known := u.rows[id]
	if !known && len(u.rows) == unstageableLimit {
		return false
	}
	if u.rows == nil {
		u.rows = make(map[uuid.UUID]time.Time)
	}
	u.rows[id] = time.Now()
	return !known
}

// see notes that a row is due.
func (u *unstageable) see(id uuid.UUID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, known := u.rows[id]; known {
		u.rows[id] = time.Now()
	}
}

// staged removes rows whose messages have been staged after all.
func (u *unstageable) staged(ids []uuid.UUID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, id := range ids {
		delete(u.rows, id)
	}
}

// removeGone removes rows that are gone from the ledger.
func (u *unstageable) removeGone() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for id, seen := range u.rows {
		if time.Since(seen) > unstageableFor {
			delete(u.rows, id)
		}
	}
}

func (u *unstageable) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.rows)
}
