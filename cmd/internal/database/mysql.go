package database

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/cmd/internal/certificates"
)

var mysqlKind = kind{
	dialect: migrate.MySQL,
	open:    openMySQL,
	in: func(migrate.Schema) openers {
		return openers{opens(mysql.Open, mysql.Inspect), opensOwn(mysql.OpenOwnTable, mysql.InspectOwnTable), opensInbox(mysql.OpenInbox)}
	},

	inboxDiagnose: mysql.DiagnoseInbox,
	tableLocks:    mysqlTableLocks,

	inClear: mysqlInClear, fixClear: "add tls=true, or ssl-ca=FILE",
}

// silence is the time that MySQL or SQL Server may take for an answer, unless the URL sets another.
// In MySQL's driver nothing else ends COMMIT and ROLLBACK. No statement of a worker takes as long.
const silence = 2 * time.Minute

// mysqlTableLocks cannot name the session that has the lock: that takes the right to read
// performance_schema, and on MariaDB a plugin.
const mysqlTableLocks = `SELECT CONCAT('a statement waits (', LEFT(COALESCE(info, ''), 200), ')') AS locked,
	CONCAT('another session: find it with SHOW FULL PROCESSLIST and the right PROCESS (', state, ')') AS holder
FROM information_schema.processlist WHERE user = SUBSTRING_INDEX(USER(), '@', 1) AND db = DATABASE() AND state LIKE 'Waiting for table%lock'
AND info REGEXP 'bridge_|email_gateway' AND time >= ? LIMIT 5`

func openMySQL(ctx context.Context, read func() string, create bool) (*sqlx.DB, error) {
	return connect(ctx, "mysql", read, func(address string) (driver.Connector, error) {
		config, err := mysqlConfig(address)
		if err != nil {
			return nil, err
		}
		if create { // a migration may take any time
			config.ReadTimeout = 0
		}
		connector, err := mysqldriver.NewConnector(config)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrURL, err)
		}
		return connector, nil
	}, classifyMySQL)
}

// mysqlConfig returns the driver's configuration for a URL. The URL's parameters are the driver's
// own, and ssl-ca, ssl-cert and ssl-key, which name files.
func mysqlConfig(address string) (*mysqldriver.Config, error) {
	parsed, err := parse(address, "mysql://user:password@host:port/database")
	if err != nil {
		return nil, err
	}
	query := parsed.Query()
	// MySQL's own programs have these parameters; the driver does not.
	secure, err := certificates.Take(query, "ssl-ca", "ssl-cert", "ssl-key")
	if err == nil && secure != nil && query.Has("tls") && query.Get("tls") != "true" {
		err = errors.New("tls must be true beside ssl-ca and ssl-cert; remove it")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrURL, err)
	}
	// The driver checks the parameters, in a DSN that has no secret.
	config, err := mysqldriver.ParseDSN("/?" + query.Encode())
	if err != nil {
		return nil, fmt.Errorf("%w: one of its parameters is not understood", ErrURL)
	}
	if secure != nil {
		config.TLS = secure
	}
	port := parsed.Port()
	if port == "" {
		port = "3306"
	}
	config.User = parsed.User.Username()
	config.Passwd, _ = parsed.User.Password()
	config.Net, config.Addr = "tcp", net.JoinHostPort(parsed.Hostname(), port)
	if config.TLS != nil {
		config.TLS.ServerName = parsed.Hostname() // ParseDSN has seen no host
	}
	config.DBName = strings.TrimPrefix(parsed.Path, "/")
	config.ParseTime, config.Loc = true, time.UTC
	config.Timeout = patience
	if !query.Has("readTimeout") {
		config.ReadTimeout = silence
	}
	config.Logger = &mysqldriver.NopLogger{}
	return config, nil
}

func mysqlInClear(address string) []string {
	config, err := mysqlConfig(address)
	if err != nil || config.TLS != nil && !config.TLS.InsecureSkipVerify && !config.AllowFallbackToPlaintext {
		return nil
	}
	host, _, _ := net.SplitHostPort(config.Addr)
	return []string{host}
}

func classifyMySQL(err error) error {
	const accessDenied, databaseDenied, noPassword, insecureTransport, unknownDatabase = 1045, 1044, 1698, 3159, 1049
	var answer *mysqldriver.MySQLError
	if errors.As(err, &answer) {
		switch answer.Number {
		case accessDenied, databaseDenied, noPassword:
			return fmt.Errorf("%w: %w", ErrCredentials, err)
		case insecureTransport:
			return fmt.Errorf("%w: %w", ErrClear, err)
		case unknownDatabase:
			return fmt.Errorf("%w: %w", ErrNoDatabase, err)
		}
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}
