package inspection

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// A Watch implements Holders of inspect.Watcher: one session settles an ID, another reads from the
// server which sessions it waits for.
type Watch struct {
	DB *sqlx.DB
	// Classify adds the bridge's error, with the fix, to the database's.
	Classify func(error) error
	// Begin opens a session, and returns the server's name for it. settle is called once: it settles
	// id in the session, for WatchWait at most, and closes the session.
	Begin func(ctx context.Context, id uuid.UUID) (session string, settle func() (driver.Outcome, error), err error)
	// Look returns, over another connection, the sessions that this session waits for.
	Look func(ctx context.Context, conn *sqlx.Conn, session string) ([]inspect.Holder, error)
	// Cancel ends the settle's context once the holders are found, for a driver that does that
	// without harm to the session. Otherwise the settle waits to its end.
	Cancel bool
	// Pause is how long to wait before the first look; the next pauses are longer.
	Pause time.Duration
}

// WatchWait is how long the settle waits.
const WatchWait = time.Second

// maxPauses is how many times Pause a pause is at most.
const maxPauses = 8

// Holders returns when the settle has returned, in any case.
func (w Watch) Holders(ctx context.Context, id uuid.UUID) ([]inspect.Holder, error) {
	found, err := w.holders(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("holders of %s: %w", id, w.Classify(err))
	}
	return found, nil
}

// OpenTransactions implements inspect.Watcher by list.
func OpenTransactions(classify func(error) error, age time.Duration, limit int, list func() ([]inspect.Holder, error)) (found []inspect.Holder, err error) {
	if err = portable.CheckAge(age, limit); err == nil {
		found, err = list()
	}
	if err != nil {
		return nil, fmt.Errorf("list open transactions: %w", classify(err))
	}
	return found, nil
}

func (w Watch) holders(ctx context.Context, id uuid.UUID) (holders []inspect.Holder, err error) {
	if err := CheckPool(w.DB); err != nil {
		return nil, err
	}
	settling, cancel := context.WithCancel(ctx)
	defer cancel()
	session, settle, err := w.Begin(settling, id)
	if ctx.Err() != nil && err != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	waiting, ended := context.WithCancel(ctx)
	result := make(chan error, 1)
	var outcome driver.Outcome
	go func() {
		defer ended()
		var err error
		outcome, err = settle()
		result <- err
	}()
	holders, looked, err := w.look(ctx, waiting, session, cancel)
	switch settled := <-result; {
	case err != nil, len(holders) > 0:
		return holders, err
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case settled != nil:
		return nil, settled
	case outcome == driver.StillOpen && !looked:
		return nil, ErrNotLooked
	default:
		return nil, nil
	}
}

// ErrNotLooked is the error of a Watch whose settle waited, but whose question for the holders had
// no answer in time: no connection was free, or the server was slow.
var ErrNotLooked = errors.New("no answer in time to the query for holders")

// look looks until it has found a holder, or until waiting has ended. looked is false if waiting
// had ended when the first answer came: that answer may be empty for this reason.
func (w Watch) look(ctx, waiting context.Context, session string, cancel func()) (holders []inspect.Holder, looked bool, err error) {
	pause := time.NewTimer(w.Pause)
	defer pause.Stop()
	select {
	case <-waiting.Done():
		return nil, false, nil
	case <-pause.C:
	}
	// If others have all the connections, wait no longer than the settle, which has one of them.
	conn, err := w.DB.Connx(waiting)
	if err != nil {
		if waiting.Err() != nil {
			err = nil
		}
		return nil, false, err
	}
	defer func() { _ = conn.Close() }()
	for n := time.Duration(1); waiting.Err() == nil; n++ {
		holders, err = w.Look(ctx, conn, session)
		if err != nil {
			return nil, true, err
		}
		// After the end of the settle the answer may be about another user of its session.
		if len(holders) > 0 && waiting.Err() == nil {
			if w.Cancel {
				cancel()
			}
			return holders, true, nil
		}
		holders, looked = nil, looked || waiting.Err() == nil
		pause.Reset(min(n, maxPauses) * w.Pause)
		select {
		case <-waiting.Done():
		case <-pause.C:
		}
	}
	return nil, looked, nil
}

// errOneConnection is the error of Holders on a pool that cannot have a second connection.
var errOneConnection = errors.New("pool allows 1 connection, needs at least 2")

// CheckPool returns an error unless the pool may have two connections.
func CheckPool(db *sqlx.DB) error {
	if db.Stats().MaxOpenConnections == 1 {
		return errOneConnection
	}
	return nil
}

// mostStatement bounds the bytes of a statement in a Holder.
const mostStatement = 1000

// Cut returns the beginning of a statement.
func Cut(statement string) string {
	if len(statement) <= mostStatement {
		return statement
	}
	n := mostStatement
	for n > 0 && !utf8.RuneStart(statement[n]) {
		n--
	}
	return statement[:n]
}
