package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/compose/servers"
)

// The business row's and the outbox's statements for MariaDB. The relay's commits wait for the disk
// here: MariaDB has no session setting to change that.
const (
	createOrdersMariaDB = `CREATE TABLE orders (id bigint AUTO_INCREMENT PRIMARY KEY, customer bigint NOT NULL, note text NOT NULL) ENGINE = InnoDB`
	insertOrderMariaDB  = `INSERT INTO orders (customer, note) VALUES (?, ?)`
	createOutboxMariaDB = `CREATE TABLE outbox (
	id bigint AUTO_INCREMENT PRIMARY KEY,
	message_id binary(16) NOT NULL,
	queue varchar(255) NOT NULL,
	body longblob NOT NULL,
	created_at datetime(6) NOT NULL DEFAULT (utc_timestamp(6))
) ENGINE = InnoDB`
	insertOutboxMariaDB = `INSERT INTO outbox (message_id, queue, body) VALUES (?, ?, ?)`
	takeOutboxMariaDB   = `SELECT id, message_id, queue, body FROM outbox ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED`
)

// newMariaDB creates a database on the MariaDB server, and starts the server when it is first
// needed.
func (w *world) newMariaDB(ctx context.Context, name string) (address string, err error) {
	if w.mariadb == nil {
		w.mariadb, err = servers.StartMariaDB(ctx, &servers.MariaDBOptions{
			Fast:   w.test,
			Config: []string{fmt.Sprintf("max-connections=%d", connections+100)},
		})
		if err != nil {
			return "", err
		}
	}
	if err := w.administerMariaDB(ctx, "CREATE DATABASE "+name); err != nil {
		return "", err
	}
	return (&url.URL{Scheme: "mysql", User: url.User("root"), Host: w.mariadb.Addr(), Path: "/" + name}).String(), nil
}

// administerMariaDB runs statements for the server as a whole.
func (w *world) administerMariaDB(ctx context.Context, statements ...string) error {
	db, err := sql.Open("mysql", w.mariadb.DSN())
	if err != nil {
		return err
	}
	defer db.Close()
	if w.versions.mariadb == "" {
		var version string
		if err := db.QueryRowContext(ctx, "SELECT version()").Scan(&version); err != nil {
			return fmt.Errorf("read version: %w", err)
		}
		version, _, _ = strings.Cut(version, "-")
		w.versions.mariadb = "MariaDB " + version
	}
	return run(ctx, db, statements...)
}

// openMariaDB opens the database at a URL of the form that the worker takes.
func openMariaDB(address string) (*sql.DB, error) {
	server, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	config := mysql.NewConfig()
	config.User, config.Net, config.Addr, config.DBName = server.User.Username(), "tcp", server.Host, strings.TrimPrefix(server.Path, "/")
	config.InterpolateParams = true // one round trip per statement, as with PostgreSQL
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

func insertManyMariaDB(ctx context.Context, tx bridge.Tx, queue string, bodies [][]byte) error {
	args := make([]any, 0, 3*len(bodies))
	for _, body := range bodies {
		id := uuid.New()
		args = append(args, id[:], queue, body)
	}
	_, err := tx.Exec(ctx, insertOutboxMariaDB+strings.Repeat(`, (?, ?, ?)`, len(bodies)-1), args...)
	return err
}

// relayMariaDB polls until ctx ends.
func relayMariaDB(ctx context.Context, p place, publisher *publisher, every time.Duration) error {
	db, err := p.open(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	return poll(ctx, every, nil, func() (int, error) {
		n, err := relayBatchMariaDB(ctx, db, publisher)
		const deadlock, lockTimeOut = 1213, 1205
		if e := new(mysql.MySQLError); errors.As(err, &e) && (e.Number == deadlock || e.Number == lockTimeOut) {
			return batch, nil // poll again at once
		}
		return n, err
	})
}

// relayBatchMariaDB selects, publishes and deletes in one transaction.
func relayBatchMariaDB(ctx context.Context, db *sql.DB, publisher *publisher) (int, error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }()
	letters, ids, err := readOutboxMariaDB(ctx, tx)
	if err != nil || len(letters) == 0 {
		return 0, err
	}
	if err := publisher.publish(ctx, letters...); err != nil {
		return 0, err
	}
	if _, err := tx.ExecContext(ctx, `DELETE FROM outbox WHERE id IN (`+ids+`)`); err != nil {
		return 0, err
	}
	return len(letters), tx.Commit()
}

// readOutboxMariaDB reads the rows of a batch, and their keys as a list.
func readOutboxMariaDB(ctx context.Context, tx *sql.Tx) (letters []letter, ids string, err error) {
	rows, err := tx.QueryContext(ctx, takeOutboxMariaDB)
	if err != nil {
		return nil, "", err
	}
	defer rows.Close()
	var list []string
	for rows.Next() {
		var id int64
		var message uuid.UUID
		var l letter
		if err := rows.Scan(&id, &message, &l.queue, &l.body); err != nil {
			return nil, "", err
		}
		l.id = message.String()
		letters, list = append(letters, l), append(list, fmt.Sprint(id))
	}
	return letters, strings.Join(list, ","), rows.Err()
}
