package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
)

const (
	createOutboxMariaDB = `CREATE TABLE outbox (
	id bigint AUTO_INCREMENT PRIMARY KEY,
	message_id binary(16) NOT NULL,
	queue varchar(255) NOT NULL,
	body longblob NOT NULL,
	created_at datetime(6) NOT NULL DEFAULT (utc_timestamp(6))
) ENGINE = InnoDB`
	takeMariaDB = `SELECT id, message_id, queue, body FROM outbox ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED`
)

func insertOutboxMariaDB(ctx context.Context, tx bridge.Tx, queue string, bodies [][]byte) error {
	args := make([]any, 0, 3*len(bodies))
	for _, body := range bodies {
		id := uuid.New()
		args = append(args, id[:], queue, body)
	}
	_, err := tx.Exec(ctx, `INSERT INTO outbox (message_id, queue, body) VALUES (?, ?, ?)`+
		strings.Repeat(`, (?, ?, ?)`, len(bodies)-1), args...)
	return err
}

func relayOutboxMariaDB(ctx context.Context, p place, publisher *publisher, every time.Duration) error {
	db, err := p.open(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	return poll(ctx, every, nil, func() (int, error) {
		n, err := relayBatchMariaDB(ctx, db, publisher)
		if e := new(mysql.MySQLError); errors.As(err, &e) && (e.Number == deadlock || e.Number == lockTimeOut) {
			return batch, nil // at once again
		}
		return n, err
	})
}

const (
	deadlock    = 1213
	lockTimeOut = 1205
)

// relayBatchMariaDB selects, publishes and deletes in one transaction.
func relayBatchMariaDB(ctx context.Context, db *sql.DB, publisher *publisher) (int, error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }()
	letters, ids, err := readOutbox(ctx, tx)
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

// readOutbox reads the rows of a batch, and their keys as a list.
func readOutbox(ctx context.Context, tx *sql.Tx) (letters []letter, ids string, err error) {
	rows, err := tx.QueryContext(ctx, takeMariaDB)
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
