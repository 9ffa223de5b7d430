// Package mssql is what packages sqlserver and sqlserverinspect both ask of a server, and
// read of its answers.
package mssql

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twoqueue/twoqueue/bridge/internal/lost"
)

// attempts is how often a statement is tried that the server gives up to end a deadlock, or whose
// connection is lost: the driver does not try again on another connection when the one that the
// pool gave was lost while idle (go-mssqldb 1.11, measured on the stand-in and on Babelfish).
const attempts = 5

// Try runs a statement of ours, which must be one that may run twice, under a
// context that never ends by a deadline: when a deadline passes the driver drops
// the connection, when a context is cancelled it tells the server and keeps it.
func Try(ctx context.Context, run func(ctx context.Context) error) error {
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	var err error
	for range attempts {
		if err = run(inner); inner.Err() != nil || Number(err) != DeadlockVictim && !lost.Is(err) {
			break
		}
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// ThisDatabase finds the current database in sys.databases d. In Azure SQL Database,
// DB_ID() need not be its database_id ('DB_ID (Transact-SQL)').
const ThisDatabase = `d.name = DB_NAME()`

// What a database must be like.
const (
	ReadWrite        = "READ_WRITE"
	Durable          = "DISABLED" // delayed durability
	MinCompatibility = 120        // SQL Server 2014
)

// ServerColumns are the columns of a Server. Properties that the server does not know
// are null.
const ServerColumns = `CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(60)) AS product,
	COALESCE(CAST(SERVERPROPERTY('EngineEdition') AS int), 0) AS edition,
	COALESCE(CAST(SERVERPROPERTY('babelfish') AS int), 0) AS babelfish`

// A Server is what a server says of itself ('SERVERPROPERTY (Transact-SQL)').
type Server struct {
	Product   sql.NullString // four numbers, the first of which is the major version
	Edition   int
	Babelfish bool
}

const (
	// minMajor is SQL Server 2016, the first to have DATEDIFF_BIG.
	minMajor = 13
	// lastOwnEdition is the last EngineEdition of a SQL Server that one runs oneself, but
	// for Azure SQL Edge. The later ones call themselves version 12, and so does Babelfish.
	lastOwnEdition = 4
)

// Check returns an error if the server is older than any that will do.
func (s Server) Check() error {
	major, _, _ := strings.Cut(s.Product.String, ".")
	if n, err := strconv.Atoi(major); s.Babelfish || s.Edition > lastOwnEdition || err == nil && n >= minMajor {
		return nil
	}
	return fmt.Errorf("the server is of version %q, must be %d (SQL Server 2016) at least", s.Product.String, minMajor)
}

// ParseTime reads a time in UTC, of style 126, in which a fraction of zero is left out. Babelfish
// writes a space for the T (measured on 4.3).
func ParseTime(text sql.NullString) (time.Time, error) {
	if !text.Valid {
		return time.Time{}, nil
	}
	return time.Parse("2006-01-02T15:04:05.999", strings.Replace(text.String, " ", "T", 1))
}
