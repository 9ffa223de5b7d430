package sendertest

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
)

// A memory is a database that accepts every statement and has one table: the IDs of the ledger. It
// is the connector of Sender.DB.
type memory struct {
	mu        sync.Mutex
	committed []uuid.UUID
	open      map[*transaction]struct{}
	lose      bool // the answer of the next COMMIT is lost
	commits   bool // whether that COMMIT commits
}

// A transaction has its changes in order, and the number of changes at each savepoint.
type transaction struct {
	changes    []change
	savepoints []savepoint
}

// A change inserts a row or deletes it.
type change struct {
	id      uuid.UUID
	deletes bool
}

type savepoint struct {
	name    string
	changes int
}

// last returns the last change of a row.
func (tx *transaction) last(id uuid.UUID) (last change, ok bool) {
	for _, c := range slices.Backward(tx.changes) {
		if c.id == id {
			return c, true
		}
	}
	return change{}, false
}

func newMemory() *memory { return &memory{open: make(map[*transaction]struct{})} }

func (m *memory) ids() []uuid.UUID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.committed)
}

// has reports whether a row is committed, or in an open transaction.
func (m *memory) has(id uuid.UUID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for tx := range m.open {
		if last, ok := tx.last(id); ok && !last.deletes {
			return true
		}
	}
	return slices.Contains(m.committed, id)
}

// sees reports whether a row exists for tx. A row that another open transaction has changed is an
// error: a database would wait for that transaction.
func (m *memory) sees(tx *transaction, id uuid.UUID) (bool, error) {
	if last, ok := tx.last(id); ok {
		return !last.deletes, nil
	}
	for other := range m.open {
		if _, ok := other.last(id); ok {
			return false, fmt.Errorf("sendertest: row %s is locked by another open transaction; a database would wait for its end", id)
		}
	}
	return slices.Contains(m.committed, id), nil
}

func (m *memory) loseCommit(committed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lose, m.commits = true, committed
}

// errLost is the error of a COMMIT whose answer is lost.
var errLost = fmt.Errorf("sendertest: connection lost: %w", io.ErrUnexpectedEOF)

func (m *memory) end(tx *transaction, commit bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.open, tx)
	lost := commit && m.lose
	if lost {
		m.lose, commit = false, m.commits
	}
	if commit {
		for _, c := range tx.changes {
			if c.deletes {
				m.committed = slices.DeleteFunc(m.committed, func(id uuid.UUID) bool { return id == c.id })
			} else {
				m.committed = append(m.committed, c.id)
			}
		}
	}
	if lost {
		return errLost
	}
	return nil
}

// execute applies a statement to the table of IDs. Most statements change nothing.
func (m *memory) execute(tx *transaction, statement string, args []driver.NamedValue) (changed int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	records := strings.HasPrefix(statement, recordStatement)
	if records || statement == cancelStatement {
		if tx == nil {
			return 0, errors.New("sendertest: a message must be recorded or cancelled in a transaction")
		}
		for _, arg := range args {
			id, err := uuid.Parse(fmt.Sprint(arg.Value))
			if err != nil {
				return 0, err
			}
			there, err := m.sees(tx, id)
			switch {
			case err != nil:
				return 0, err
			case records && there:
				return 0, fmt.Errorf("%w: %s", bridge.ErrDuplicateID, id)
			case records || there:
				tx.changes = append(tx.changes, change{id, !records})
				changed++
			}
		}
		return changed, nil
	}
	verb, name := savepointIn(statement)
	if tx == nil || verb == "" {
		return 1, nil
	}
	if verb == "SAVE" {
		tx.savepoints = append(tx.savepoints, savepoint{name, len(tx.changes)})
		return 0, nil
	}
	for i, set := range slices.Backward(tx.savepoints) {
		if set.name == name {
			tx.changes, tx.savepoints = tx.changes[:set.changes], tx.savepoints[:i+1]
			return 0, nil
		}
	}
	return 0, fmt.Errorf("sendertest: there is no savepoint %s", name)
}

// savepointIn recognizes a statement that sets a savepoint (SAVE) or rolls back to one (ROLLBACK).
func savepointIn(statement string) (verb, name string) {
	words := strings.Fields(strings.ToUpper(strings.TrimSuffix(strings.TrimSpace(statement), ";")))
	words = slices.DeleteFunc(words, func(word string) bool {
		return slices.Contains([]string{"TO", "WORK", "TRAN", "TRANSACTION"}, word)
	})
	switch {
	case len(words) == 2 && (words[0] == "SAVEPOINT" || words[0] == "SAVE"):
		return "SAVE", words[1]
	case len(words) >= 2 && words[0] == "ROLLBACK":
		return "ROLLBACK", words[len(words)-1]
	}
	return "", ""
}

// Connect implements driver.Connector.
func (m *memory) Connect(context.Context) (driver.Conn, error) { return &conn{memory: m}, nil }

// Driver implements driver.Connector.
func (m *memory) Driver() driver.Driver { return notByName{} }

type notByName struct{}

func (notByName) Open(string) (driver.Conn, error) {
	return nil, errors.New("sendertest: open this database through New")
}

type conn struct {
	memory *memory
	tx     *transaction // nil: none is open
}

func (c *conn) Prepare(statement string) (driver.Stmt, error) { return &stmt{c, statement}, nil }
func (c *conn) Close() error                                  { return nil }
func (c *conn) Begin() (driver.Tx, error)                     { return c.BeginTx(context.Background(), driver.TxOptions{}) }

// BeginTx begins a transaction with any options.
func (c *conn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) {
	c.memory.mu.Lock()
	defer c.memory.mu.Unlock()
	c.tx = new(transaction)
	c.memory.open[c.tx] = struct{}{}
	return c, nil
}

func (c *conn) Commit() error   { return c.end(true) }
func (c *conn) Rollback() error { return c.end(false) }

func (c *conn) end(commit bool) error {
	tx := c.tx
	c.tx = nil
	return c.memory.end(tx, commit)
}

// CheckNamedValue accepts arguments of every type.
func (*conn) CheckNamedValue(*driver.NamedValue) error { return nil }

func (c *conn) ExecContext(_ context.Context, statement string, args []driver.NamedValue) (driver.Result, error) {
	changed, err := c.memory.execute(c.tx, statement, args)
	return result(changed), err
}

func (*conn) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return noRows{}, nil
}

type stmt struct {
	conn      *conn
	statement string
}

func (*stmt) Close() error                              { return nil }
func (*stmt) NumInput() int                             { return -1 }
func (*stmt) Query([]driver.Value) (driver.Rows, error) { return noRows{}, nil }
func (*stmt) CheckNamedValue(*driver.NamedValue) error  { return nil }
func (s *stmt) Exec([]driver.Value) (driver.Result, error) {
	return s.conn.ExecContext(context.Background(), s.statement, nil)
}

// A result is the number of changed rows.
type result int64

func (r result) LastInsertId() (int64, error) { return 1, nil }
func (r result) RowsAffected() (int64, error) { return int64(r), nil }

type noRows struct{}

func (noRows) Columns() []string         { return nil }
func (noRows) Close() error              { return nil }
func (noRows) Next([]driver.Value) error { return io.EOF }
