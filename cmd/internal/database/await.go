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

// The time that a server may take to start (the last attempt may end later), the time of one
// attempt, and the longest pause between two. Stacks start everything at once, and that keeps their
// machines busy.
const (
	startPatience   = 2 * time.Minute
	attemptPatience = 30 * time.Second
	longestPause    = 5 * time.Second
)

// Await connects like Create, and waits up to two minutes for a server that does not answer yet or
// answers that it is starting. It calls tell with the error of each failed attempt. An error that
// does not pass by itself, such as a wrong password, is returned at once. SQL Server gives the same
// answer for a missing and for a recovering database, so Await waits for both.
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

// mayStart reports whether an error may pass by itself: a server does not answer yet, or answers
// that it is starting or has no free connection.
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
