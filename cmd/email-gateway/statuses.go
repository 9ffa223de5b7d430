package main

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
)

// tables are the migrations of the statuses' table, one folder for each database.
//
//go:embed sql
var tables embed.FS

// part is the name of these migrations, and of the table.
const part = "email_gateway"

// A status is what an operator asks about one e-mail, and what tells after a crash
// whether it was sent: 'sending' is committed before the mail server hears of the
// e-mail, and what came of it after the server's answer.
type status string

const (
	sending  status = "sending"
	retrying status = "retrying" // not sent; tried again
	sent     status = "sent"
	doubtful status = "doubtful" // nobody knows
	refused  status = "refused"  // not an e-mail, or not for this server; in the dead queue
	failed   status = "failed"   // given up; in the dead queue
)

// longestError is how much of an error a row keeps, in characters.
const longestError = 1000

// statuses is the table of e-mails. It has the recipients' addresses, and nothing
// else of what an e-mail says.
type statuses struct{ db *sqlx.DB }

// begin notes that a run begins to send, and returns its number, by which end knows
// it: the e-mail's attempts so far. They begin anew after a dead-lettering.
func (s *statuses) begin(ctx context.Context, id string, recipients []string) (attempt int, err error) {
	err = s.inTx(ctx, func(tx *sqlx.Tx) error {
		at := timestamp()
		// MySQL assigns from left to right.
		changed, err := s.exec(ctx, tx, `UPDATE email_gateway SET
attempts = CASE WHEN status IN ('refused', 'failed') THEN 1 ELSE attempts + 1 END,
status = ?, recipients = ?, changed_at = ? WHERE message_id = ?`, sending, strings.Join(recipients, ", "), at, id)
		if err == nil && changed == 0 {
			_, err = s.exec(ctx, tx, `INSERT INTO email_gateway (message_id, status, recipients, attempts, error, first_at, changed_at)
VALUES (?, ?, ?, 1, '', ?, ?)`, id, sending, strings.Join(recipients, ", "), at, at)
		}
		if err != nil {
			return err
		}
		return tx.GetContext(ctx, &attempt, tx.Rebind(`SELECT attempts FROM email_gateway WHERE message_id = ?`), id)
	})
	if err != nil {
		return 0, fmt.Errorf("note attempt: %w", err)
	}
	return attempt, nil
}

// end notes what has come of a run, unless a later one has begun.
func (s *statuses) end(ctx context.Context, id string, attempt int, now status, cause error) error {
	return s.set(ctx, id, now, cause, `AND attempts = ?`, attempt)
}

// giveUp notes what became of an e-mail that is in the dead queue, unless it is or may
// be sent. run is the number of a run that was not done, whose end may be unwritten, or 0.
func (s *statuses) giveUp(ctx context.Context, id string, run int, now status, cause error) error {
	return s.inTx(ctx, func(tx *sqlx.Tx) error {
		var known int
		err := tx.GetContext(ctx, &known, tx.Rebind(`SELECT count(*) FROM email_gateway WHERE message_id = ?`), id)
		if err != nil {
			return fmt.Errorf("note end: %w", err)
		}
		at := timestamp()
		if known == 0 {
			_, err = s.exec(ctx, tx, `INSERT INTO email_gateway (message_id, status, recipients, attempts, error, first_at, changed_at)
VALUES (?, ?, '', 0, ?, ?, ?)`, id, now, text(cause), at, at)
		} else {
			_, err = s.exec(ctx, tx, `UPDATE email_gateway SET status = ?, error = ?, changed_at = ?
WHERE message_id = ? AND (status NOT IN ('sent', 'sending', 'doubtful') OR status = 'sending' AND attempts = ?)`,
				now, text(cause), at, id, run)
		}
		if err != nil {
			return fmt.Errorf("note end: %w", err)
		}
		return nil
	})
}

// doubt notes that a run has not been heard of, unless it ends in this moment.
func (s *statuses) doubt(ctx context.Context, id string) error {
	return s.set(ctx, id, doubtful, errUnheard, `AND status = ?`, sending)
}

var errUnheard = errors.New("the gateway that was to send it has not been heard of")

// markSent notes what an operator has found out.
func (s *statuses) markSent(ctx context.Context, id string) error {
	return s.set(ctx, id, sent, nil, ``)
}

func (s *statuses) set(ctx context.Context, id string, now status, cause error, where string, more ...any) error {
	_, err := s.exec(ctx, s.db, `UPDATE email_gateway SET status = ?, error = ?, changed_at = ? WHERE message_id = ? `+where,
		append([]any{now, text(cause), timestamp(), id}, more...)...)
	if err != nil {
		return fmt.Errorf("note that it is %s: %w", now, err)
	}
	return nil
}

// get returns "" for an e-mail that was never tried.
func (s *statuses) get(ctx context.Context, id string) (status, error) {
	var is status
	err := s.db.GetContext(ctx, &is, s.db.Rebind(`SELECT status FROM email_gateway WHERE message_id = ?`), id)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("look up status: %w", err)
	}
	return is, nil
}

// check tells whether the table is there.
func (s *statuses) check(ctx context.Context) error {
	_, err := s.get(ctx, "")
	return err
}

// purgeBatch is how many rows one statement deletes at most.
const purgeBatch = 500

// purge deletes what has not changed since a time, but for what is not resolved.
func (s *statuses) purge(ctx context.Context, before time.Time) error {
	for {
		rows, err := s.db.QueryxContext(ctx, s.db.Rebind(`SELECT message_id FROM email_gateway
WHERE changed_at < ? AND status NOT IN ('sending', 'doubtful') ORDER BY changed_at`), before)
		if err != nil {
			return fmt.Errorf("purge statuses: %w", err)
		}
		ids, err := firstIDs(rows, purgeBatch)
		if err != nil {
			return fmt.Errorf("purge statuses: %w", err)
		}
		if len(ids) == 0 {
			return nil
		}
		query, args, err := sqlx.In(`DELETE FROM email_gateway WHERE message_id IN (?)`, ids)
		if err == nil {
			_, err = s.exec(ctx, s.db, query, args...)
		}
		if err != nil {
			return fmt.Errorf("purge statuses: %w", err)
		}
	}
}

func (s *statuses) exec(ctx context.Context, in sqlx.ExecerContext, query string, args ...any) (changed int64, err error) {
	result, err := in.ExecContext(ctx, s.db.Rebind(query), args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (s *statuses) inTx(ctx context.Context, work func(tx *sqlx.Tx) error) error {
	tx, err := s.db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // without effect after a commit
	if err := work(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// timestamp is what every database can keep.
func timestamp() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

func text(cause error) string {
	if cause == nil {
		return ""
	}
	runes := []rune(strings.ToValidUTF8(cause.Error(), "?"))
	return string(runes[:min(len(runes), longestError)])
}
