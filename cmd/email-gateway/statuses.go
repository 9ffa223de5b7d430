package main

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
)

// tables are the migrations of the table email_gateway, one folder for each database.
//
//go:embed sql
var tables embed.FS

// part is the name of these migrations, and of the table.
const part = "email_gateway"

// A status is the state of one e-mail. It tells operators, and after a crash the next gateway, whether
// the e-mail was sent: 'sending' is committed before the e-mail goes to the mail server, the result
// after the server's answer.
type status string

const (
	sending  status = "sending"
	retrying status = "retrying" // not sent; tried again
	sent     status = "sent"
	doubtful status = "doubtful" // the mail server may have accepted it
	refused  status = "refused"  // by the gateway's rules or the mail server; in the dead queue
	failed   status = "failed"   // given up; in the dead queue
)

// longestError is the number of characters of an error that a row keeps.
const longestError = 1000

// statuses is the table email_gateway, beside the inbox. Of an e-mail it has only the recipients'
// addresses.
type statuses struct {
	db       *sqlx.DB
	inbox    driver.PendingMessages
	inSchema func(statement string) string
}

func newStatuses(db *database.Database, inbox driver.PendingMessages) *statuses {
	return &statuses{db.DB, inbox, db.Statements(part)}
}

// sql returns a statement as the database takes it.
func (s *statuses) sql(statement string) string { return s.inSchema(s.db.Rebind(statement)) }

// errBegun: another run has begun to send the e-mail, and its result is not known. errSentBefore:
// another run has sent it.
var (
	errBegun      = errors.New("another attempt has begun to send it, and may have sent it")
	errSentBefore = errors.New("it was sent before")
)

// begin sets the status 'sending' for a run, and returns the run's number for end: the count of the
// e-mail's attempts, which starts again after a dead-lettering.
//
// Only one of two runs passes begin, whether they begin at once or one was frozen for a while: begin
// fails if the row says 'sending', 'doubtful' or 'sent'. The exception is a row that says 'sending'
// with the number notDone (0 for none): the caller's own earlier run, which certainly sent nothing and
// whose result may be unwritten. With an error the number is not 0 if the commit may have happened.
func (s *statuses) begin(ctx context.Context, id string, recipients []string, notDone int) (attempt int, err error) {
	err = s.inTx(ctx, func(tx *sqlx.Tx) error {
		at := timestamp()
		// MySQL assigns from left to right.
		changed, err := s.exec(ctx, tx, `UPDATE email_gateway SET
attempts = CASE WHEN status IN ('refused', 'failed') THEN 1 ELSE attempts + 1 END,
status = ?, recipients = ?, changed_at = ?
WHERE message_id = ? AND (status IN ('retrying', 'refused', 'failed') OR status = 'sending' AND attempts = ?)`,
			sending, strings.Join(recipients, ", "), at, id, notDone)
		if err != nil {
			return err
		}
		if changed == 0 {
			if err := s.first(ctx, tx, id, recipients, at); err != nil {
				return err
			}
		}
		return tx.GetContext(ctx, &attempt, s.sql(`SELECT attempts FROM email_gateway WHERE message_id = ?`), id)
	})
	if err != nil {
		return attempt, fmt.Errorf("record attempt: %w", err)
	}
	return attempt, nil
}

// first inserts the row of an e-mail that has none. If two runs do so at once, one fails.
func (s *statuses) first(ctx context.Context, tx *sqlx.Tx, id string, recipients []string, at time.Time) error {
	var is status
	err := tx.GetContext(ctx, &is, s.sql(`SELECT status FROM email_gateway WHERE message_id = ?`), id)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		_, err = s.exec(ctx, tx, `INSERT INTO email_gateway (message_id, status, recipients, attempts, error, first_at, changed_at)
VALUES (?, ?, ?, 1, '', ?, ?)`, id, sending, strings.Join(recipients, ", "), at, at)
		return err
	case err != nil:
		return err
	case is == sent:
		return errSentBefore
	}
	return errBegun
}

// end notes the result of a run, unless a later run has begun.
func (s *statuses) end(ctx context.Context, id string, attempt int, now status, cause error) error {
	return s.set(ctx, id, now, cause, `AND attempts = ?`, attempt)
}

// giveUp sets the status of an e-mail that is in the dead queue, unless the row says that the e-mail
// was or may have been sent. run is the number of a run that sent nothing and whose result may be
// unwritten, or 0.
func (s *statuses) giveUp(ctx context.Context, id string, run int, now status, cause error) error {
	return s.inTx(ctx, func(tx *sqlx.Tx) error {
		var known int
		err := tx.GetContext(ctx, &known, s.sql(`SELECT count(*) FROM email_gateway WHERE message_id = ?`), id)
		if err != nil {
			return fmt.Errorf("record result: %w", err)
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
			return fmt.Errorf("record result: %w", err)
		}
		return nil
	})
}

// doubt sets the status 'doubtful', unless the run has just noted its result.
func (s *statuses) doubt(ctx context.Context, id string) error {
	return s.set(ctx, id, doubtful, errUnheard, `AND status = ?`, sending)
}

var errUnheard = errors.New("the gateway that began to send it has recorded no result")

// markSent sets the status 'sent', by an operator's decision.
func (s *statuses) markSent(ctx context.Context, id string) error {
	return s.set(ctx, id, sent, nil, ``)
}

func (s *statuses) set(ctx context.Context, id string, now status, cause error, where string, more ...any) error {
	_, err := s.exec(ctx, s.db, `UPDATE email_gateway SET status = ?, error = ?, changed_at = ? WHERE message_id = ? `+where,
		append([]any{now, text(cause), timestamp(), id}, more...)...)
	if err != nil {
		return fmt.Errorf("set status %s: %w", now, err)
	}
	return nil
}

// get returns "" for an e-mail that was never tried.
func (s *statuses) get(ctx context.Context, id string) (status, error) {
	var is status
	err := s.db.GetContext(ctx, &is, s.sql(`SELECT status FROM email_gateway WHERE message_id = ?`), id)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("look up status: %w", err)
	}
	return is, nil
}

// recipients returns the addresses in an e-mail's row. It returns none if there is no row.
func (s *statuses) recipients(ctx context.Context, id string) ([]string, error) {
	var text string
	err := s.db.GetContext(ctx, &text, s.sql(`SELECT recipients FROM email_gateway WHERE message_id = ?`), id)
	switch {
	case errors.Is(err, sql.ErrNoRows), err == nil && text == "":
		return []string{}, nil
	case err != nil:
		return nil, fmt.Errorf("look up recipients: %w", err)
	}
	return strings.Split(text, ", "), nil
}

// release lets an e-mail be begun again, by an operator's decision, and reports whether its status is
// 'retrying' then. It changes the row only if the message is doubtful or failed in the inbox.
func (s *statuses) release(ctx context.Context, id string) (released bool, err error) {
	err = s.inTx(ctx, func(tx *sqlx.Tx) error {
		if _, err := s.inbox.DoubtOverdue(ctx, bridge.SQL(tx), consumer); err != nil {
			return err
		}
		_, p, err := s.inbox.LookUp(ctx, bridge.SQL(tx), consumer, id)
		if err != nil || p == nil || p.State != driver.Doubtful && p.State != driver.Failed {
			return err // effects.Retry returns the reason
		}
		_, err = s.exec(ctx, tx, `UPDATE email_gateway SET status = ?, changed_at = ?
WHERE message_id = ? AND status IN ('sending', 'doubtful')`, retrying, timestamp(), id)
		if err != nil {
			return fmt.Errorf("set status %s: %w", retrying, err)
		}
		var is status
		err = tx.GetContext(ctx, &is, s.sql(`SELECT status FROM email_gateway WHERE message_id = ?`), id)
		released = is == retrying
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		return err
	})
	return released, err
}

// check returns an error if the table is missing.
func (s *statuses) check(ctx context.Context) error {
	_, err := s.get(ctx, "")
	return err
}

// purgeBatch is how many rows one statement deletes at most.
const purgeBatch = 500

// purge deletes the rows that have not changed since the given time. It keeps 'sending' and 'doubtful'
// rows and the rows of pending messages: without its row, an e-mail that was sent looks unsent.
func (s *statuses) purge(ctx context.Context, before time.Time) error {
	pending, err := s.pending(ctx)
	if err != nil {
		return fmt.Errorf("purge statuses: %w", err)
	}
	for after := ""; ; {
		rows, err := s.db.QueryxContext(ctx, s.sql(`SELECT message_id FROM email_gateway
WHERE changed_at < ? AND status NOT IN ('sending', 'doubtful') AND message_id > ? ORDER BY message_id`), before, after)
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
		after = ids[len(ids)-1]
		ids = slices.DeleteFunc(ids, func(id string) bool { return pending[id] })
		if len(ids) == 0 {
			continue
		}
		query, args, err := sqlx.In(`DELETE FROM email_gateway WHERE changed_at < ? AND message_id IN (?)`, before, ids)
		if err == nil {
			_, err = s.exec(ctx, s.db, query, args...)
		}
		if err != nil {
			return fmt.Errorf("purge statuses: %w", err)
		}
	}
}

// pending returns the IDs of the inbox's pending messages.
func (s *statuses) pending(ctx context.Context) (map[string]bool, error) {
	ids := make(map[string]bool)
	for _, state := range pendingStates {
		err := s.eachPending(ctx, state, func(p driver.Pending) { ids[p.Key] = true })
		if err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// page is the number of pending messages that one query lists.
const page = 100

// eachPending calls do for each pending message in a state. It reads none of the messages.
func (s *statuses) eachPending(ctx context.Context, state driver.State, do func(driver.Pending)) error {
	for after := ""; ; {
		var found []driver.Pending
		err := s.inTx(ctx, func(tx *sqlx.Tx) (err error) {
			found, err = s.inbox.ListPending(ctx, bridge.SQL(tx), consumer, state, after, page)
			return err
		})
		if err != nil {
			return err
		}
		for _, p := range found {
			do(p)
			after = p.Key
		}
		if len(found) < page {
			return nil
		}
	}
}

func (s *statuses) exec(ctx context.Context, in sqlx.ExecerContext, query string, args ...any) (changed int64, err error) {
	result, err := in.ExecContext(ctx, s.sql(query), args...)
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

// timestamp returns the time in the precision that every database can store.
func timestamp() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

func text(cause error) string {
	if cause == nil {
		return ""
	}
	runes := []rune(strings.ToValidUTF8(cause.Error(), "?"))
	return string(runes[:min(len(runes), longestError)])
}
