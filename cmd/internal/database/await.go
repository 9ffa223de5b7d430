package database

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	mssql "github.com/microsoft/go-mssqldb"
)

// How long a server may take to start, and how often the one who waits is told. Stacks
// start everything at once, on machines that are busy with it.
const (
	startPatience   = 2 * time.Minute
	attemptPatience = 30 * time.Second
	attemptPause    = 500 * time.Millisecond
	tellEvery       = 5 * time.Second
)

// Await connects like Create, and waits for up to two minutes for a server that is not
// there yet, or that says that it is starting. tell hears at once what is missing, and
// every few seconds what still is. What time does not mend, such as a wrong password, is returned at once.
func Await(ctx context.Context, url string, tell func(missing error)) (*Database, error) {
	return await(ctx, startPatience, tell, func(ctx context.Context) (*Database, error) {
		return open(ctx, url, true, attemptPatience)
	})
}

func await(ctx context.Context, patience time.Duration, tell func(error), connect func(context.Context) (*Database, error)) (*Database, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var told time.Time
	for {
		db, err := connect(ctx)
		if err == nil || !mayStart(err) {
			return db, err
		}
		if time.Since(told) >= tellEvery {
			told = time.Now()
			tell(err)
		}
		select {
		case <-time.After(attemptPause):
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil, ctx.Err()
			}
			return nil, fmt.Errorf("%w (waited for %v)", err, patience)
		}
	}
}

// mayStart tells whether an error is that of a server which does not answer yet, or which
// answers that it is starting or has no connection to spare.
func mayStart(err error) bool {
	var postgres *pgconn.PgError
	var mysql *mysqldriver.MySQLError
	var sqlserver mssql.Error
	switch {
	case errors.As(err, &postgres):
		const cannotConnectNow, tooManyConnections = "57P03", "53300"
		return postgres.Code == cannotConnectNow || postgres.Code == tooManyConnections
	case errors.As(err, &mysql):
		const tooManyConnections, shuttingDown = 1040, 1053
		return mysql.Number == tooManyConnections || mysql.Number == shuttingDown
	case errors.As(err, &sqlserver):
		const notReady, upgrading, notAvailable = 17187, 18401, 40613 // the last one on Azure
		return sqlserver.Number == notReady || sqlserver.Number == upgrading || sqlserver.Number == notAvailable
	}
	var name *net.DNSError
	return errors.As(err, &name) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysqldriver.ErrInvalidConn) ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.ETIMEDOUT)
}
