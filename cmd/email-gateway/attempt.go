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

// An attempt sends the e-mail of one delivery; again, if it is told to.
type attempt struct {
	gateway *gateway
	session *transport.Session // for the first run
	ended   bool               // somebody has counted what became of the delivery
	failed  int                // the number of its latest run, if that was not done
	resumed bool               // there is no delivery: the message comes from the inbox
}

type attemptKey struct{}

func withAttempt(ctx context.Context, a *attempt) context.Context {
	return context.WithValue(ctx, attemptKey{}, a)
}

// resume is the effect for what an operator, or findOut, has released.
func (g *gateway) resume(ctx context.Context, d amqp.Delivery) error {
	return (&attempt{gateway: g, resumed: true}).run(ctx, d)
}

// release gives a session back that was not used.
func (a *attempt) release() {
	if a.session != nil {
		a.gateway.sessions.put(a.session)
	}
}

// run is an pending.Effect. If the process dies
//
//	before begin has committed     the status tells that nothing was sent: findOut
//	from there to end's commit     the e-mail is doubtful
//	after it                       the status tells what was: findOut
func (a *attempt) run(ctx context.Context, d amqp.Delivery) error {
	g := a.gateway
	e, err := g.parse(d)
	if err != nil {
		return pending.NotDone(backoff.Permanent(err))
	}
	session := a.session
	if a.session = nil; session == nil {
		if session, err = g.sessions.tryTake(ctx); err != nil {
			g.metrics.attempt("unavailable")
			return pending.NotDone(err)
		}
	}
	defer g.sessions.put(session)
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

// conclude writes down what the n-th attempt has come to, and tells the guard.
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

// forGood ends an e-mail that is not sent. A delivery goes to the dead queue, and is
// counted there; a resumed message stays in the inbox.
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

// note writes what became of a run: without it a death in the next moment leaves the
// e-mail in doubt. The guard's own row is what decides.
func (g *gateway) note(ctx context.Context, id string, n int, now status, cause error) {
	g.write(ctx, id, now, func(ctx context.Context) error { return g.statuses.end(ctx, id, n, now, cause) })
}
