package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/cmd/email-gateway/internal/email"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/pending"
)

var errHeld = errors.New("held for longer than EMAIL_HOLD")

// deliver handles one message until it is sent, a duplicate, doubtful, in the dead queue, or back in
// its own queue. It logs its errors and returns none.
func (g *gateway) deliver(ctx context.Context, d amqp.Delivery) error {
	g.held.Add(1)
	defer g.held.Done()
	defer g.metrics.hold()()
	log := g.log.With("message_id", d.MessageId)
	a := &attempt{gateway: g}
	ctx, cancel := context.WithTimeoutCause(ctx, g.config.Hold.Duration(), errHeld)
	defer cancel()
	if g.check(d) == nil {
		// AtMostOnce begins no attempt before there is a session, so that an outage of the mail
		// server, even for hours, uses up no attempt and makes no e-mail doubtful.
		waiting, cancel := context.WithTimeoutCause(g.stopping, g.config.Hold.Duration(), errHeld)
		defer cancel()
		var err error
		if a.session, err = g.sessions.take(waiting); err != nil {
			g.metrics.outcome(handedBack)
			log.Info("e-mail handed back", "reason", err)
			if g.stopping.Err() == nil { // else the end of the channel hands it back
				_ = d.Nack(false, true)
			}
			return nil
		}
	}
	err := g.effects.AtMostOnce(withAttempt(ctx, a), g.db.DB.DB, d, a.run)
	a.release()
	switch {
	case errors.Is(err, idempotency.ErrHandedBack), errors.Is(err, idempotency.ErrLeftUnacked):
		if a.failed > 0 { // else the next run takes the row for a run in progress
			g.note(ctx, d.MessageId, a.failed, retrying, err)
		}
		if errors.Is(err, idempotency.ErrLeftUnacked) && errors.Is(context.Cause(ctx), errHeld) {
			_ = d.Nack(false, true) // EMAIL_HOLD ended before the first attempt, and the gateway goes on
		}
		g.metrics.outcome(handedBack)
		log.Info("e-mail handed back", "reason", err)
	case err != nil:
		log.Warn("e-mail not acked; it is redelivered as a duplicate", "error", err)
	case !a.ended: // an earlier delivery has begun it: it is or will be sent or doubtful
		g.metrics.outcome(duplicate)
		log.Info("e-mail is a duplicate")
	}
	return nil
}

// check returns an error if a message is no e-mail. It decodes at most EMAIL_SMTP_SESSIONS messages
// at once, since a decoded message takes several times its bytes.
func (g *gateway) check(d amqp.Delivery) error {
	g.parsing <- struct{}{}
	defer func() { <-g.parsing }()
	_, err := g.parse(d)
	return err
}

// parse returns a message's e-mail. Its error is email.ErrRefused or email.ErrNotAllowed.
func (g *gateway) parse(d amqp.Delivery) (*email.Email, error) {
	// The ID becomes part of a header, and the key of a row.
	if id, err := uuid.Parse(d.MessageId); err != nil || id.String() != d.MessageId {
		return nil, fmt.Errorf("%w: the message ID is not a UUID in its canonical form", email.ErrRefused)
	}
	return email.Parse(d.Body, g.config.limits())
}

// findOut decides a message by its status, as after a crash between the status's commit and the
// inbox's. A run that only seemed dead does no harm: begin lets only one run send.
func (g *gateway) findOut(ctx context.Context, p pending.Message) (pending.Answer, error) {
	is, err := g.statuses.get(ctx, p.Key)
	switch {
	case err != nil:
		return pending.Unknown, err
	case is == sent:
		return pending.Happened, nil
	case is == sending:
		err := g.statuses.doubt(ctx, p.Key)
		if err == nil {
			g.metrics.outcome(doubtful)
			g.log.Error("e-mail is doubtful", "message_id", p.Key, "reason", errUnheard)
		}
		return pending.Unknown, err
	case is == doubtful:
		return pending.Unknown, nil
	case is == "" && time.Since(p.Since) > g.config.Retention.Duration():
		// The row may have said 'sent', and may have been purged, or lost with a backup.
		return pending.Unknown, nil
	}
	return pending.DidNotHappen, nil // no run has contacted the mail server since
}
