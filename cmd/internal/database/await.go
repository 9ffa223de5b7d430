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

	"github.com/cenkalti/backoff/v5"
	mysqldriver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	mssql "github.com/microsoft/go-mssqldb"
)

// How long a server may take to start (the last attempt may end later), and how long to pause at most between two attempts.
// Stacks start everything at once, on machines that are busy with it.
const (
	startPatience   = 2 * time.Minute
	attemptPatience = 30 * time.Second
	longestPause    = 5 * time.Second
)

// Await connects like Create, and waits for up to two minutes for a server that is not
// there yet, or that says that it is starting. tell hears after each attempt what is missing.
// An error that does not pass by itself, such as a wrong password, is returned at once. SQL
// Server answers alike for a missing and a recovering database, so both are waited for.
func Await(ctx context.Context, url string, tell func(missing error)) (*Database, error) {
	return Schema("").Await(ctx, url, tell)
}

func await(ctx context.Context, patience time.Duration, tell func(error), connect func() (*Database, error)) (*Database, error) {
	pauses := backoff.NewExponentialBackOff()
	pauses.MaxInterval = longestPause
	db, err := backoff.Retry(ctx, func() (*Database, error) {
		db, err := connect()
		if err != nil && !mayStart(err) {
			err = backoff.Permanent(err)
		}
		return db, err
	}, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(patience),
		backoff.WithNotify(func(missing error, _ time.Duration) { tell(missing) }))
	if err != nil && ctx.Err() == nil && mayStart(err) {
		err = fmt.Errorf("%w (waited for %v)", err, patience)
	}
	return db, err
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
		return reports(sqlserver, passingAtLogin...)
	}
	var name *net.DNSError
	return errors.As(err, &name) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysqldriver.ErrInvalidConn) ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.ETIMEDOUT)
}
