package database

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/inspect/postgresinspect"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/postgres"
)

var postgresKind = kind{
	dialect:  migrate.PostgreSQL,
	open:     openPostgres,
	ledger:   opens(postgres.Open, postgresinspect.New),
	ownTable: opensOwn(postgres.OpenOwnTable, postgresinspect.NewOwnTable),
	inbox:    opensInbox(postgres.OpenInbox),

	inClear: postgresInClear, mendClear: "add sslmode=verify-full",
}

func openPostgres(ctx context.Context, address string, _ bool) (*sqlx.DB, error) {
	config, err := postgresConfig(address)
	if err != nil {
		return nil, err
	}
	return ping(ctx, sqlx.NewDb(stdlib.OpenDB(*config), "pgx"), classifyPostgres)
}

func postgresConfig(address string) (*pgx.ConnConfig, error) {
	if _, err := parse(address, "postgres://user:password@host:port/database"); err != nil {
		return nil, err
	}
	config, err := pgx.ParseConfig(address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrURL, cause(err))
	}
	return config, nil
}

func postgresInClear(address string) (hosts []string) {
	config, err := postgresConfig(address)
	if err != nil {
		return nil
	}
	verified := func(c *tls.Config) bool { return c != nil && (!c.InsecureSkipVerify || c.VerifyPeerCertificate != nil) }
	if !verified(config.TLSConfig) {
		hosts = append(hosts, config.Host)
	}
	for _, next := range config.Fallbacks { // the other hosts, and the same ones without TLS
		if !verified(next.TLSConfig) {
			hosts = append(hosts, next.Host)
		}
	}
	return hosts
}

// cause is a refused parameter without pgx's text around it, which has the URL in it.
func cause(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return errors.New("one of its parameters is not understood")
}

func classifyPostgres(err error) error {
	var answer interface{ SQLState() string }
	if errors.As(err, &answer) && strings.HasPrefix(answer.SQLState(), "28") { // invalid authorization
		return fmt.Errorf("%w: %w", ErrCredentials, err)
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}
