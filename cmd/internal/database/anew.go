package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strings"
	"sync"

	"github.com/jmoiron/sqlx"
)

// anew is a connector that reads the URL before each connection, so a rotated password needs no
// restart.
type anew struct {
	read func() string
	make func(url string) (driver.Connector, error)

	mu   sync.Mutex
	url  string // of last
	last driver.Connector
}

// Connect implements driver.Connector.
func (a *anew) Connect(ctx context.Context) (driver.Conn, error) {
	connector, err := a.connector()
	if err != nil {
		return nil, err
	}
	return connector.Connect(ctx)
}

// Driver implements driver.Connector.
func (a *anew) Driver() driver.Driver {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last.Driver()
}

// connector returns the driver's connector for the present URL.
func (a *anew) connector() (driver.Connector, error) {
	url := a.read()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last != nil && url == a.url {
		return a.last, nil
	}
	if scheme(url) != scheme(a.url) && a.last != nil {
		return nil, fmt.Errorf("%w: it names another kind of database than at the start", ErrURL)
	}
	connector, err := a.make(url)
	if err != nil {
		return nil, err
	}
	a.url, a.last = url, connector
	return connector, nil
}

func scheme(url string) string {
	scheme, _, _ := strings.Cut(url, ":")
	return scheme
}

// connect returns a pool that makes its connections by a driver's connector. It makes the first.
func connect(ctx context.Context, driverName string, read func() string, make func(url string) (driver.Connector, error), classify func(error) error) (*sqlx.DB, error) {
	a := &anew{read: read, make: make}
	if _, err := a.connector(); err != nil {
		return nil, err
	}
	return ping(ctx, sqlx.NewDb(sql.OpenDB(a), driverName), classify)
}
