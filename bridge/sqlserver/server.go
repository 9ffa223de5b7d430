package sqlserver

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twoqueue/twoqueue/bridge/internal/lost"
	"github.com/twoqueue/twoqueue/bridge/internal/mssql"
)

// attempts is how often a statement is tried that the server ends because of a deadlock, or whose
// connection is lost: the driver does not try another connection if the pool's connection was lost
// while idle (go-mssqldb 1.11, measured on the stand-in and on Babelfish).
const attempts = 5

// try runs a statement, which must be repeatable, under a context that never ends by a deadline:
// when a deadline passes the driver drops the connection, when a context is cancelled it tells the
// server and keeps the connection.
func try(ctx context.Context, run func(ctx context.Context) error) error {
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	var err error
	for range attempts {
		if err = run(inner); inner.Err() != nil || mssql.Number(err) != mssql.DeadlockVictim && !lost.Is(err) {
			break
		}
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// The required state of a database.
const (
	readWrite        = "READ_WRITE"
	durable          = "DISABLED" // delayed durability
	minCompatibility = 120        // SQL Server 2014
)

// A release holds a server's own properties ('SERVERPROPERTY (Transact-SQL)').
type release struct {
	Product   sql.NullString // four numbers, the first of which is the major version
	Edition   int
	Babelfish bool
}

const (
	// minMajor is SQL Server 2016, the first to have DATEDIFF_BIG.
	minMajor = 13
	// lastOwnEdition is the last EngineEdition of a self-hosted SQL Server, except Azure SQL Edge.
	// The later ones report version 12, and so does Babelfish.
	lastOwnEdition = 4
)

// check returns an error if the server is too old.
func (s release) check() error {
	major, _, _ := strings.Cut(s.Product.String, ".")
	if n, err := strconv.Atoi(major); s.Babelfish || s.Edition > lastOwnEdition || err == nil && n >= minMajor {
		return nil
	}
	return fmt.Errorf("the server has version %q, must have at least %d (SQL Server 2016)", s.Product.String, minMajor)
}

// parseTime reads a time in UTC, of style 126, which leaves out a fraction of zero. Babelfish
// writes a space for the T (measured on 4.3).
func parseTime(text sql.NullString) (time.Time, error) {
	if !text.Valid {
		return time.Time{}, nil
	}
	return time.Parse("2006-01-02T15:04:05.999", strings.Replace(text.String, " ", "T", 1))
}
