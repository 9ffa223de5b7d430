package idempotency_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
)

var errNetwork = errors.New("connection reset by peer")

// A faultyDatabase is a sqldriver.Connector over SQLite whose connections can be
// made to fail as a server's do.
type faultyDatabase struct {
	dsn   string
	under sqldriver.Driver

	connect func() error                    // before a connection is made
	commit  func(commit func() error) error // in place of a commit; an error kills the connection

	mu   sync.Mutex
	open []*faultyConn
}

func newFaultyDatabase(dsn string) (*faultyDatabase, error) {
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, err
	}
	return &faultyDatabase{dsn: dsn, under: db.Driver()}, db.Close()
}

func (f *faultyDatabase) Driver() sqldriver.Driver { return f.under }

func (f *faultyDatabase) Connect(context.Context) (sqldriver.Conn, error) {
	if f.connect != nil {
		if err := f.connect(); err != nil {
			return nil, err
		}
	}
	conn, err := f.under.Open(f.dsn)
	if err != nil {
		return nil, err
	}
	faulty := &faultyConn{sqliteConn: conn.(sqliteConn), of: f}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open = append(f.open, faulty)
	return faulty, nil
}

// killAll is what a failover looks like to the client: every connection is gone.
func (f *faultyDatabase) killAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, conn := range f.open {
		conn.dead.Store(true)
	}
	f.open = nil
}

type sqliteConn interface {
	sqldriver.Conn
	sqldriver.ConnBeginTx
	sqldriver.ConnPrepareContext
	sqldriver.ExecerContext
	sqldriver.QueryerContext
	sqldriver.Pinger
	sqldriver.SessionResetter
	sqldriver.Validator
}

type faultyConn struct {
	sqliteConn
	of   *faultyDatabase
	dead atomic.Bool
}

func (c *faultyConn) Ping(ctx context.Context) error {
	if c.dead.Load() {
		return sqldriver.ErrBadConn
	}
	return c.sqliteConn.Ping(ctx)
}

func (c *faultyConn) IsValid() bool { return !c.dead.Load() && c.sqliteConn.IsValid() }

func (c *faultyConn) ExecContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	if c.dead.Load() {
		return nil, errNetwork
	}
	return c.sqliteConn.ExecContext(ctx, query, args)
}

func (c *faultyConn) BeginTx(ctx context.Context, opts sqldriver.TxOptions) (sqldriver.Tx, error) {
	if c.dead.Load() {
		return nil, sqldriver.ErrBadConn
	}
	tx, err := c.sqliteConn.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	return faultyTx{tx, c}, nil
}

type faultyTx struct {
	sqldriver.Tx
	conn *faultyConn
}

func (tx faultyTx) Commit() error {
	if tx.conn.of.commit == nil {
		return tx.Tx.Commit()
	}
	err := tx.conn.of.commit(tx.Tx.Commit)
	if err != nil {
		_ = tx.Tx.Rollback() // the server does that when a connection breaks
		tx.conn.dead.Store(true)
	}
	return err
}

func (tx faultyTx) Rollback() error {
	err := tx.Tx.Rollback()
	if tx.conn.dead.Load() {
		return sqldriver.ErrBadConn
	}
	return err
}

// A faultyInbox fails its first claims and locks of marks.
type faultyInbox struct {
	*sqlite.Inbox
	failures atomic.Int32                    // how many are still to fail
	onClaim  func(ctx context.Context) error // in place of a claim
	onRemove func()                          // before a pending message is removed
	held     string                          // another transaction has claimed this key, and does not end

	failClaimed error // of the purge's reads
}

func (i *faultyInbox) Claimed(ctx context.Context, tx bridge.Tx, consumer, after string, limit int) ([]driver.Claimed, error) {
	if i.failClaimed != nil {
		return nil, i.failClaimed
	}
	return i.Inbox.Claimed(ctx, tx, consumer, after, limit)
}

func (i *faultyInbox) RemovePending(ctx context.Context, tx bridge.Tx, consumer, key, run string) (bool, error) {
	if i.onRemove != nil {
		i.onRemove()
	}
	return i.Inbox.RemovePending(ctx, tx, consumer, key, run)
}

func (i *faultyInbox) Claim(ctx context.Context, tx bridge.Tx, consumer string, keys []string) ([]string, error) {
	if i.failures.Add(-1) >= 0 {
		return nil, errNetwork
	}
	if i.onClaim != nil {
		return nil, i.onClaim(ctx)
	}
	if i.held != "" && slices.Contains(keys, i.held) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return i.Inbox.Claim(ctx, tx, consumer, keys)
}

func (i *faultyInbox) LockMark(ctx context.Context, tx bridge.Tx, consumer, name string) (string, error) {
	if i.failures.Add(-1) >= 0 {
		return "", errNetwork
	}
	return i.Inbox.LockMark(ctx, tx, consumer, name)
}
