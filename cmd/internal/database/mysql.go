package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/mysql"
)

var mysqlKind = kind{
	dialect: migrate.MySQL,
	open:    openMySQL,
	ledger:  func(ctx context.Context, db *sql.DB) (bridge.Ledger, error) { return mysql.Open(ctx, db) },
	inbox:   func(ctx context.Context, db *sql.DB) (bridge.Inbox, error) { return mysql.OpenInbox(ctx, db) },
}

func openMySQL(ctx context.Context, address string, _ bool) (*sqlx.DB, error) {
	config, err := mysqlConfig(address)
	if err != nil {
		return nil, err
	}
	connector, err := driver.NewConnector(config)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrURL, err)
	}
	return ping(ctx, sqlx.NewDb(sql.OpenDB(connector), "mysql"), classifyMySQL)
}

// mysqlConfig makes of a URL what the driver wants; the URL's parameters are the
// driver's own.
func mysqlConfig(address string) (*driver.Config, error) {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Hostname() == "" || strings.Contains(parsed.Path, "@") || parsed.Fragment != "" {
		return nil, fmt.Errorf("%w: it must be mysql://user:password@host:port/database, with special characters in user and password percent-encoded", ErrURL)
	}
	// The parameters are checked by the driver, without anything secret beside them.
	config, err := driver.ParseDSN("/?" + parsed.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("%w: one of its parameters is not understood", ErrURL)
	}
	port := parsed.Port()
	if port == "" {
		port = "3306"
	}
	config.User = parsed.User.Username()
	config.Passwd, _ = parsed.User.Password()
	config.Net, config.Addr = "tcp", net.JoinHostPort(parsed.Hostname(), port)
	config.DBName = strings.TrimPrefix(parsed.Path, "/")
	config.ParseTime, config.Loc = true, time.UTC
	config.Timeout = patience
	config.Logger = &driver.NopLogger{}
	return config, nil
}

func classifyMySQL(err error) error {
	const accessDenied, databaseDenied, noPassword = 1045, 1044, 1698
	var answer *driver.MySQLError
	if errors.As(err, &answer) {
		switch answer.Number {
		case accessDenied, databaseDenied, noPassword:
			return fmt.Errorf("%w: %w", ErrCredentials, err)
		}
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}
