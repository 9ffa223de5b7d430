package tables

import (
	"context"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/inspect"
)

// WatchWait is how long a Watch waits for the row at most.
const WatchWait = time.Second

// A Watch is the Holders of inspect.Inspector: one connection waits for a row as a settle
// does, another asks the server whom it waits for.
type Watch struct {
	DB *sqlx.DB
	// Wait waits on a connection of its own, which it has already; the server ends it
	// after WatchWait. It returns nil if it did not have to wait, or no longer.
	Wait func(ctx context.Context) error
	// Ended tells whether the error of Wait means that it waited in vain.
	Ended func(err error) bool
	// Look asks, on another connection, whom Wait waits for.
	Look func(ctx context.Context, conn *sqlx.Conn) ([]inspect.Holder, error)
	// Wake ends Wait early, once it is known whom it waits for. Nil where that cannot
	// be done well.
	Wake func(ctx context.Context, conn *sqlx.Conn)
	// Pause is how long to wait before the first look; the next pauses are longer.
	Pause time.Duration
}

// maxPauses is how many times Pause a pause is at most.
const maxPauses = 8

// Run returns when Wait has returned, whatever happens.
func (w Watch) Run(ctx context.Context) (holders []inspect.Holder, err error) {
	waiting, ended := context.WithCancel(ctx)
	result := make(chan error, 1)
	go func() {
		result <- w.Wait(ctx)
		ended()
	}()
	holders, looked, err := w.look(ctx, waiting)
	switch waited := <-result; {
	case err != nil, len(holders) > 0:
		return holders, err
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case waited != nil && !w.Ended(waited):
		return nil, waited
	case waited != nil && !looked:
		return nil, ErrNotLooked
	default:
		return nil, nil
	}
}

// ErrNotLooked is the error of a Watch that has waited for somebody, and had no answer in
// time for whom: no connection was free, or the server was slow to tell.
var ErrNotLooked = errors.New("no answer in time who is waited for")

// look looks, while waiting has not ended, until it has found somebody. It has not looked
// if waiting had ended when the first answer came: that may be about nobody.
func (w Watch) look(ctx, waiting context.Context) (holders []inspect.Holder, looked bool, err error) {
	pause := time.NewTimer(w.Pause)
	defer pause.Stop()
	select {
	case <-waiting.Done():
		return nil, false, nil
	case <-pause.C:
	}
	// While others have all the connections, no longer than Wait: it has one of them.
	conn, err := w.DB.Connx(waiting)
	if err != nil {
		if waiting.Err() != nil {
			err = nil
		}
		return nil, false, err
	}
	defer func() { _ = conn.Close() }()
	for n := time.Duration(1); waiting.Err() == nil; n++ {
		holders, err = w.Look(ctx, conn)
		if err != nil {
			return nil, true, err
		}
		if len(holders) > 0 {
			if w.Wake != nil {
				w.Wake(ctx, conn)
			}
			return holders, true, nil
		}
		looked = looked || waiting.Err() == nil
		pause.Reset(min(n, maxPauses) * w.Pause)
		select {
		case <-waiting.Done():
		case <-pause.C:
		}
	}
	return nil, looked, nil
}

// errOneConnection is the error of a Holders on a pool that cannot have a second
// connection.
var errOneConnection = errors.New("the pool may have one connection, must have two at least")

// CheckPool returns an error unless the pool may have two connections.
func CheckPool(db *sqlx.DB) error {
	if db.Stats().MaxOpenConnections == 1 {
		return errOneConnection
	}
	return nil
}

// mostStatement is how much of a statement a Holder tells, in bytes.
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
