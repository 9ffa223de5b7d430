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

// How often statuses are settled: soon after the start and after a status could not be
// written, then after ever longer pauses.
const (
	settleSoon   = time.Second
	settleSeldom = time.Hour
)

// settle brings the statuses into line with the inbox until ctx ends. The two are
// written one after the other, so that a crash, or a database that does not answer for
// a while, leaves a status behind that says 'sending' of an e-mail with which the inbox
// is done.
func (g *gateway) settle(ctx context.Context) {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.Multiplier, pauses.MaxInterval = settleSoon, 2, settleSeldom
	for {
		settled, err := g.statuses.settle(ctx)
		for _, id := range settled {
			g.log.Info("e-mail was sent; its status says so now", "message_id", id)
		}
		if err != nil && ctx.Err() == nil {
			g.log.Warn("statuses cannot be settled", "error", err)
		}
		select {
		case <-time.After(pauses.NextBackOff()):
		case <-g.unwritten:
			pauses.Reset()
			select { // the inbox is not done yet
			case <-time.After(pauses.NextBackOff()):
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// write writes a status, for which it tries for a while, as the answer to an e-mail
// must not be lost. What could not be written settle finds.
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
	default: // settle knows
	}
}

// settle notes as sent what is not known to be, but is done by the inbox, and returns
// its IDs. Done is for ever: what is claimed and not pending is not begun again.
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

// open returns the first IDs after a given one that are being sent or in doubt.
func (s *statuses) open(ctx context.Context, after string) (ids []string, err error) {
	rows, err := s.db.QueryxContext(ctx, s.db.Rebind(`SELECT message_id FROM email_gateway
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
