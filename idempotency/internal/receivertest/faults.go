package receivertest

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

// ErrNetwork is the error of a lost connection, ErrRefused the error of a refused statement.
var (
	ErrNetwork = errors.New("connection reset by peer")
	ErrRefused = errors.New("character has no equivalent in the database's encoding")
)

// A Database is a sqldriver.Connector over SQLite whose connections can be made to fail like a
// server's.
type Database struct {
	dsn   string
	under sqldriver.Driver

	OnConnect func() error                    // before a connection opens
	OnBegin   func(opts sqldriver.TxOptions)  // before a transaction, which then begins without options
	OnPing    func(ctx context.Context) error // before a ping
	OnCommit  func(commit func() error) error // replaces a commit; an error kills the connection

	mu   sync.Mutex
	open []*faultyConn
}

func newDatabase(dsn string) (*Database, error) {
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, err
	}
	return &Database{dsn: dsn, under: db.Driver()}, db.Close()
}

func (f *Database) Driver() sqldriver.Driver { return f.under }

func (f *Database) Connect(context.Context) (sqldriver.Conn, error) {
	if f.OnConnect != nil {
		if err := f.OnConnect(); err != nil {
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

// KillAll simulates a failover: every connection is lost.
func (f *Database) KillAll() {
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
	of   *Database
	dead atomic.Bool
}

func (c *faultyConn) Ping(ctx context.Context) error {
	if c.dead.Load() {
		return sqldriver.ErrBadConn
	}
	if c.of.OnPing != nil {
		if err := c.of.OnPing(ctx); err != nil {
			return err
		}
	}
	return c.sqliteConn.Ping(ctx)
}

func (c *faultyConn) IsValid() bool { return !c.dead.Load() && c.sqliteConn.IsValid() }

func (c *faultyConn) ExecContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	if c.dead.Load() {
		return nil, ErrNetwork
	}
	return c.sqliteConn.ExecContext(ctx, query, args)
}

func (c *faultyConn) BeginTx(ctx context.Context, opts sqldriver.TxOptions) (sqldriver.Tx, error) {
	if c.dead.Load() {
		return nil, sqldriver.ErrBadConn
	}
	if c.of.OnBegin != nil {
		c.of.OnBegin(opts)
		opts = sqldriver.TxOptions{}
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
	if tx.conn.of.OnCommit == nil {
		return tx.Tx.Commit()
	}
	err := tx.conn.of.OnCommit(tx.Tx.Commit)
	if err != nil {
		_ = tx.Tx.Rollback() // a server does that when a connection breaks
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

// An Inbox fails its first claims and locks of marks.
type Inbox struct {
	*sqlite.Inbox
	Failures atomic.Int32                    // how many calls are still to fail
	OnClaim  func(ctx context.Context) error // replaces a claim
	Before   func(ctx context.Context) error // called before a claim
	OnRemove func()                          // called before a pending message is removed
	Refused  string                          // the database refuses claims with this key, and still answers
	Held     string                          // another transaction has claimed this key, and does not end

	FailClaimed error // the error of the purge's reads
}

func (i *Inbox) Claimed(ctx context.Context, tx bridge.Tx, consumer, after string, limit int) ([]driver.Claimed, error) {
	if i.FailClaimed != nil {
		return nil, i.FailClaimed
	}
	return i.Inbox.Claimed(ctx, tx, consumer, after, limit)
}

func (i *Inbox) RemovePending(ctx context.Context, tx bridge.Tx, consumer, key, run string) (bool, error) {
	if i.OnRemove != nil {
		i.OnRemove()
	}
	return i.Inbox.RemovePending(ctx, tx, consumer, key, run)
}

func (i *Inbox) Claim(ctx context.Context, tx bridge.Tx, consumer string, keys []string) ([]string, error) {
	if i.Failures.Add(-1) >= 0 {
		return nil, ErrNetwork
	}
	if i.OnClaim != nil {
		return nil, i.OnClaim(ctx)
	}
	if i.Before != nil {
		if err := i.Before(ctx); err != nil {
			return nil, err
		}
	}
	if i.Refused != "" && slices.Contains(keys, i.Refused) {
		return nil, ErrRefused
	}
	if i.Held != "" && slices.Contains(keys, i.Held) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return i.Inbox.Claim(ctx, tx, consumer, keys)
}

func (i *Inbox) LockMark(ctx context.Context, tx bridge.Tx, consumer, name string) (string, error) {
	if i.Failures.Add(-1) >= 0 {
		return "", ErrNetwork
	}
	return i.Inbox.LockMark(ctx, tx, consumer, name)
}
