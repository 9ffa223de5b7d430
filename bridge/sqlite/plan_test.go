package sqlite_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"io"
	"strings"
)

// A recorder is a driver.Connector whose connections remember their statements.
type recorder struct {
	under driver.Driver
	dsn   string
}

func (r recorder) Driver() driver.Driver { return r.under }

func (r recorder) Connect(context.Context) (driver.Conn, error) {
	conn, err := r.under.Open(r.dsn)
	if err != nil {
		return nil, err
	}
	return &recording{sqliteConn: conn.(sqliteConn), sent: map[string]sent{}}, nil
}

type sqliteConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

type recording struct {
	sqliteConn
	sent    map[string]sent // by the statement, since the last explanation
	scanned int
}

type sent struct {
	times int
	args  []driver.NamedValue
}

func (c *recording) record(query string, args []driver.NamedValue) {
	c.sent[query] = sent{c.sent[query].times + 1, args}
}

func (c *recording) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c.record(query, args)
	return c.sqliteConn.ExecContext(ctx, query, args)
}

func (c *recording) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	c.record(query, args)
	return c.sqliteConn.QueryContext(ctx, query, args)
}

// scanned explains the connection's statements, and counts the rows of every table or index that
// one of them reads from an end.
func scanned(ctx context.Context, db *sql.DB) (n int, err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	err = conn.Raw(func(driverConn any) error {
		c := driverConn.(*recording)
		for query, s := range c.sent {
			if err := c.explain(ctx, query, s); err != nil {
				return fmt.Errorf("explain %s: %w", query, err)
			}
		}
		clear(c.sent)
		n = c.scanned
		return nil
	})
	return n, err
}

func (c *recording) explain(ctx context.Context, query string, s sent) error {
	tables := map[int64]string{} // the table or index of each cursor
	return c.each(ctx, "EXPLAIN "+query, s.args, func(row []driver.Value) error {
		opcode, p1, p2 := row[1].(string), row[2].(int64), row[3].(int64)
		switch opcode {
		case "OpenRead", "OpenWrite":
			return c.each(ctx, fmt.Sprintf("SELECT tbl_name FROM sqlite_schema WHERE rootpage = %d", p2), nil, func(row []driver.Value) error {
				tables[p1] = row[0].(string)
				return nil
			})
		case "Rewind", "Last":
			if table, ok := tables[p1]; ok {
				return c.each(ctx, "SELECT count(*) FROM "+quote(table), nil, func(row []driver.Value) error {
					c.scanned += s.times * int(row[0].(int64))
					return nil
				})
			}
		}
		return nil
	})
}

// each calls fn with the rows of an unrecorded query.
func (c *recording) each(ctx context.Context, query string, args []driver.NamedValue, fn func(row []driver.Value) error) error {
	result, err := c.sqliteConn.QueryContext(ctx, query, args)
	if err != nil {
		return err
	}
	var all [][]driver.Value
	for {
		row := make([]driver.Value, len(result.Columns()))
		if err = result.Next(row); err != nil {
			break
		}
		all = append(all, row)
	}
	if err := result.Close(); err != nil {
		return err
	}
	if err != io.EOF {
		return err
	}
	for _, row := range all {
		if err := fn(row); err != nil {
			return err
		}
	}
	return nil
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
