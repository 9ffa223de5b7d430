package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
)

// The pause between two runs of settle: settleSoon after the start and after a failed write of a
// status, then doubling up to settleSeldom.
const (
	settleSoon   = time.Second
	settleSeldom = time.Hour
)

// settle corrects the statuses from the inbox until ctx ends. A status is written before the inbox,
// so after a crash or an outage of the database a status may say 'sending' although the inbox is done
// with the e-mail.
func (g *gateway) settle(ctx context.Context) {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.Multiplier, pauses.MaxInterval = settleSoon, 2, settleSeldom
	for {
		settled, err := g.statuses.settle(ctx)
		for _, id := range settled {
			g.log.Info("e-mail was sent; its status is now sent", "message_id", id)
		}
		if err != nil && ctx.Err() == nil {
			g.log.Warn("statuses cannot be settled", "error", err)
		}
		select {
		case <-time.After(pauses.NextBackOff()):
		case <-g.unwritten:
			pauses.Reset()
			select { // the inbox's transaction has not committed yet
			case <-time.After(pauses.NextBackOff()):
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// write writes a status, and retries for EMAIL_SMTP_TIMEOUT, since the mail server's answer must not
// be lost. If it fails, settle corrects the status.
func (g *gateway) write(ctx context.Context, id string, now status, write func(ctx context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.config.SMTP.Timeout.Duration())
	defer cancel()
	_, err := backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, write(ctx) })
	if err == nil {
		return
	}
	g.log.Warn("status not written", "message_id", id, "status", now, "error", err)
	select {
	case g.unwritten <- struct{}{}:
	default: // settle will wake
	}
}

// settle sets the status 'sent' of each e-mail that the inbox is done with and whose status is
// 'sending' or 'doubtful', and returns their IDs. Done is final: a key that is claimed and not pending
// is never begun again.
func (s *statuses) settle(ctx context.Context) (settled []string, err error) {
	for after := ""; ; {
		ids, err := s.open(ctx, after)
		if err != nil {
			return settled, fmt.Errorf("list open statuses: %w", err)
		}
		for _, id := range ids {
			done, err := s.settleOne(ctx, id)
			if err != nil {
				return settled, fmt.Errorf("settle status: %w", err)
			}
			if done {
				settled = append(settled, id)
			}
			after = id
		}
		if len(ids) < settleBatch {
			return settled, nil
		}
	}
}

// settleBatch is how many statuses are read at once.
const settleBatch = 500

// open returns the first IDs after the given one whose status is 'sending' or 'doubtful'.
func (s *statuses) open(ctx context.Context, after string) (ids []string, err error) {
	rows, err := s.db.QueryxContext(ctx, s.sql(`SELECT message_id FROM email_gateway
WHERE message_id > ? AND status IN ('sending', 'doubtful') ORDER BY message_id`), after)
	if err != nil {
		return nil, err
	}
	return firstIDs(rows, settleBatch)
}

func (s *statuses) settleOne(ctx context.Context, id string) (done bool, err error) {
	err = s.inTx(ctx, func(tx *sqlx.Tx) error {
		claimed, pending, err := s.inbox.LookUp(ctx, bridge.SQL(tx), consumer, id)
		done = claimed && pending == nil
		return err
	})
	if err != nil || !done {
		return false, err
	}
	changed, err := s.exec(ctx, s.db, `UPDATE email_gateway SET status = ?, error = '', changed_at = ?
WHERE message_id = ? AND status IN ('sending', 'doubtful')`, sent, timestamp(), id)
	return changed > 0, err
}

// firstIDs reads up to n IDs and closes rows.
func firstIDs(rows *sqlx.Rows, n int) (ids []string, err error) {
	for len(ids) < n && rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		ids = append(ids, id)
	}
	return ids, errors.Join(rows.Err(), rows.Close())
}
