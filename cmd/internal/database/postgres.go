package database

import (
	"context"
	"crypto/tls"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/postgres"
)

var postgresKind = kind{
	dialect: migrate.PostgreSQL,
	open:    openPostgres,
	in: func(schema migrate.Schema) openers {
		s := postgres.Schema(schema)
		return openers{opens(s.Open, postgres.Inspect), opensOwn(s.OpenOwnTable, postgres.InspectOwnTable), opensInbox(s.OpenInbox)}
	},

	inboxDiagnose: postgres.DiagnoseInbox,
	tableLocks:    postgresTableLocks,

	inClear: postgresInClear, fixClear: "add sslmode=verify-full",
}

// postgresTableLocks shows state and statement of other logins' sessions to a login in
// pg_read_all_stats only.
const postgresTableLocks = `WITH waiting AS MATERIALIZED (
	SELECT pid FROM pg_stat_activity WHERE usename = session_user AND datname = current_database()
	AND wait_event_type = 'Lock' AND wait_event = 'relation' AND query ~ 'bridge_|email_gateway'
	AND query_start <= clock_timestamp() - make_interval(secs => ?::int)
)
SELECT DISTINCT coalesce((SELECT l.relation::regclass::text FROM pg_locks l WHERE l.pid = w.pid AND NOT l.granted LIMIT 1), '') AS locked,
	CASE b.pid WHEN 0 THEN 'a prepared transaction' ELSE concat_ws(', ', 'session ' || b.pid, 'login ' || a.usename,
	'program ' || nullif(a.application_name, ''), a.state, 'transaction since ' || date_trunc('second', a.xact_start),
	'statement ' || left(nullif(a.query, '<insufficient privilege>'), 200)) END AS holder
FROM waiting w CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) b (pid) LEFT JOIN pg_stat_activity a ON a.pid = b.pid LIMIT 5`

func openPostgres(ctx context.Context, read func() string, _ bool) (*sqlx.DB, error) {
	return connect(ctx, "pgx", read, func(address string) (driver.Connector, error) {
		config, err := postgresConfig(address)
		if err != nil {
			return nil, err
		}
		return stdlib.GetConnector(*config), nil
	}, classifyPostgres)
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
	for _, next := range config.Fallbacks { // the other hosts, and the same hosts without TLS
		if !verified(next.TLSConfig) {
			hosts = append(hosts, next.Host)
		}
	}
	return hosts
}

// cause returns why a parameter is refused, without pgx's text around it, which has the URL.
func cause(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return errors.New("one of its parameters is not understood")
}

func classifyPostgres(err error) error {
	err = &attempts{err}
	var answer interface{ SQLState() string }
	if !errors.As(err, &answer) {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	const noDatabase = "3D000"
	switch state := answer.SQLState(); {
	case strings.HasPrefix(state, "28"): // invalid authorization
		return fmt.Errorf("%w: %w", ErrCredentials, err)
	case state == noDatabase:
		return fmt.Errorf("%w: %w", ErrNoDatabase, err)
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}

// attempts is pgx's error of several attempts: a heading, then a line for each attempt. By default
// pgx tries a connection with TLS first, then one without. Error omits the line of a server without
// TLS if another attempt has another error.
type attempts struct{ error }

func (a *attempts) Unwrap() error { return a.error }

func (a *attempts) Error() string {
	all := strings.Split(a.error.Error(), "\n")
	told := slices.DeleteFunc(slices.Clone(all), func(line string) bool { return strings.HasSuffix(line, ": server refused TLS connection") })
	if len(told) < 2 {
		told = all
	}
	return strings.Join(told, "\n")
}
