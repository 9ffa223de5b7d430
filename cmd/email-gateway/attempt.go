package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/cmd/email-gateway/internal/email"
	"github.com/twoqueue/twoqueue/cmd/email-gateway/internal/transport"
	"github.com/twoqueue/twoqueue/idempotency/pending"
)

// An attempt sends the e-mail of one delivery. AtMostOnce may run it several times.
type attempt struct {
	gateway *gateway
	session *transport.Session // for the first run
	ended   bool               // the delivery's outcome has been counted
	failed  int                // the number of the latest run if it was not done, or 0
	resumed bool               // the message comes from the inbox, not from a delivery
}

type attemptKey struct{}

func withAttempt(ctx context.Context, a *attempt) context.Context {
	return context.WithValue(ctx, attemptKey{}, a)
}

// resume is the effect for a message that an operator or findOut has released.
func (g *gateway) resume(ctx context.Context, d amqp.Delivery) error {
	return (&attempt{gateway: g, resumed: true}).run(ctx, d)
}

// release returns the session if no run has used it.
func (a *attempt) release() {
	if a.session != nil {
		a.gateway.sessions.put(a.session)
	}
}

// run is a pending.Effect. If the process dies
//
//	before begin has committed     the status says that nothing was sent; findOut reads it
//	from there to end's commit     the e-mail is doubtful
//	after end's commit             the status says whether it was sent; findOut reads it
func (a *attempt) run(ctx context.Context, d amqp.Delivery) error {
	g := a.gateway
	session := a.session
	if a.session = nil; session == nil {
		err := g.check(d)
		if err != nil {
			return pending.NotDone(backoff.Permanent(err))
		}
		if session, err = g.sessions.tryTake(ctx); err != nil {
			g.metrics.attempt("unavailable")
			return pending.NotDone(err)
		}
	}
	defer g.sessions.put(session)
	e, err := g.parse(d) // not before there is a session: decoded messages are large
	if err != nil {
		return pending.NotDone(backoff.Permanent(err))
	}
	text, err := e.Compose(d.MessageId, time.Now())
	if err != nil {
		return pending.NotDone(backoff.Permanent(fmt.Errorf("%w: %w", email.ErrRefused, err)))
	}
	n, err := g.statuses.begin(ctx, d.MessageId, e.Recipients(), a.failed)
	switch {
	case errors.Is(err, errSentBefore):
		g.log.Warn("e-mail is not sent again", "message_id", d.MessageId, "reason", err)
		return nil
	case errors.Is(err, errBegun):
		a.count(doubtful)
		g.log.Error("e-mail is doubtful", "message_id", d.MessageId, "reason", err)
		return err
	case err != nil:
		if n > 0 {
			a.failed = n
		}
		return pending.NotDone(err)
	}
	a.failed = 0
	until, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(g.end, func() { cancel(context.Cause(g.end)) })()
	began := time.Now()
	err = session.Send(until, e.From.Address, e.Recipients(), text)
	g.metrics.took(time.Since(began))
	return a.conclude(ctx, d.MessageId, n, err)
}

var errGivenUp = errors.New("given up")

// conclude notes the result of the n-th attempt, and returns it in the form that AtMostOnce takes.
func (a *attempt) conclude(ctx context.Context, id string, n int, err error) error {
	g := a.gateway
	switch {
	case err == nil:
		g.metrics.attempt("sent")
		a.count(sent)
		g.log.Info("e-mail sent", "message_id", id, "attempt", n)
		g.note(ctx, id, n, sent, nil)
		return nil
	case errors.Is(err, transport.ErrTemporary) && n < int(g.config.Attempts):
		g.metrics.attempt("temporary")
		a.failed = n
		g.note(ctx, id, n, retrying, err)
		return pending.NotDone(err)
	case errors.Is(err, transport.ErrTemporary):
		g.metrics.attempt("temporary")
		err = fmt.Errorf("%w after %d attempts: %w", errGivenUp, n, err)
		return a.forGood(ctx, id, n, failed, err)
	case errors.Is(err, transport.ErrPermanent):
		g.metrics.attempt("permanent")
		return a.forGood(ctx, id, n, refused, err)
	}
	g.metrics.attempt("doubtful")
	a.count(doubtful)
	g.log.Error("e-mail is doubtful", "message_id", id, "attempt", n, "reason", err)
	g.note(ctx, id, n, doubtful, err)
	return err
}

// forGood gives up an e-mail that was not sent. AtMostOnce sends a delivery to the dead queue, and
// bury counts it. A resumed message stays in the inbox, so forGood counts it.
func (a *attempt) forGood(ctx context.Context, id string, n int, now status, err error) error {
	if a.failed = n; a.resumed {
		a.count(now)
	}
	a.gateway.note(ctx, id, n, now, err)
	return pending.NotDone(backoff.Permanent(err))
}

func (a *attempt) count(outcome status) {
	a.ended = true
	a.gateway.metrics.outcome(outcome)
}

// note writes a run's result into its status: without it a crash in the next moment leaves the
// e-mail in doubt. The row in the inbox decides, not the status.
func (g *gateway) note(ctx context.Context, id string, n int, now status, cause error) {
	g.write(ctx, id, now, func(ctx context.Context) error { return g.statuses.end(ctx, id, n, now, cause) })
}
