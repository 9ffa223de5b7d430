package stage

import (
	"context"
	"database/sql"
	"errors"

	_ "github.com/go-sql-driver/mysql" // driver

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// MariaDB is a database in the shared private server, which may be a MySQL.
var MariaDB = Database{
	Name: "mariadb",
	URL:  servertest.MariaDBDatabase,
	Open: func(ctx context.Context, url string) (*sql.DB, driver.Ledger, error) {
		db, err := sql.Open("mysql", url)
		if err != nil {
			return nil, nil, err
		}
		if err := migrate.Ledger(ctx, db, migrate.MySQL); err != nil {
			return nil, nil, errors.Join(err, db.Close())
		}
		ledger, err := mysql.Open(ctx, db)
		if err != nil {
			return nil, nil, errors.Join(err, db.Close())
		}
		return db, ledger, nil
	},
}
