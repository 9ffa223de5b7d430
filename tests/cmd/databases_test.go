package cmd_test

import (
	"context"
	"database/sql"
	"net/url"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/twoqueue/twoqueue/bridge/driver"
	ledger "github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// mariaDB is a database whose tables the verifier makes, named by its URL.
var mariaDB = stage.Database{
	Name: "mariadb",
	URL: func(t testing.TB) string {
		config, err := mysql.ParseDSN(servertest.MariaDBDatabase(t))
		if err != nil {
			t.Fatal(err)
		}
		login := url.User(config.User)
		if config.Passwd != "" {
			login = url.UserPassword(config.User, config.Passwd)
		}
		return (&url.URL{Scheme: "mysql", User: login, Host: config.Addr, Path: "/" + config.DBName}).String()
	},
	Open: func(ctx context.Context, address string) (*sql.DB, driver.Ledger, error) {
		parsed, err := url.Parse(address)
		if err != nil {
			return nil, nil, err
		}
		config := mysql.NewConfig()
		config.User, config.Net, config.Addr, config.DBName = parsed.User.Username(), "tcp", parsed.Host, parsed.Path[1:]
		config.Passwd, _ = parsed.User.Password()
		return openMariaDB(ctx, config)
	},
}

func openMariaDB(ctx context.Context, config *mysql.Config) (*sql.DB, driver.Ledger, error) {
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, nil, err
	}
	db := sql.OpenDB(connector)
	opened, err := ledger.Open(ctx, db)
	return db, opened, err
}

func TestMariaDBByItsURL(t *testing.T) {
	t.Parallel()
	kind := mariaDB
	address := kind.URL(t)
	kind.URL = func(testing.TB) string { return address }
	p := start(t, "verifier", "-migrate", "BRIDGE_DATABASE_URL="+address)
	if code := p.Await(); code != 0 {
		t.Fatalf("exit code %d: %s", code, p.Stderr.String())
	}
	s := stage.New(t, kind)
	works(t, s)
	refused(t, 4, "BRIDGE_DATABASE_URL", "password", "BRIDGE_DATABASE_URL=mysql://nobody:"+password+"@"+hostOf(t, address)+"/x",
		"BRIDGE_AMQP_URL="+s.AMQP)
}

func hostOf(t *testing.T, address string) string {
	t.Helper()
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Host
}

// On the stand-in, unless BRIDGE_TEST_SQLSERVER_URL names a real server.
func TestSQLServerByItsURL(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.SQLServer)
	works(t, s)
	refused(t, 4, "BRIDGE_DATABASE_URL", "password", "BRIDGE_DATABASE_URL=sqlserver://nobody:"+password+"@"+hostOf(t, s.DatabaseURL)+"?database=x",
		"BRIDGE_AMQP_URL="+s.AMQP)
}
