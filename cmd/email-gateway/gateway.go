package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/cmd/internal/transit"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/pending"
)

// A gateway sends the e-mails of one queue.
type gateway struct {
	config   *config
	log      *slog.Logger
	db       *database.Database
	broker   *bridge.Broker
	effects  *pending.Effects
	statuses *statuses
	sessions *sessions
	metrics  *metrics
	consumer *idempotency.Consumer
	parsing  chan struct{} // a token for each message that is being decoded

	stopping  context.Context // done when the gateway stops: nothing waits for a session any more
	end       context.Context // done when EMAIL_DRAIN is over: nothing waits for the mail server any more
	held      sync.WaitGroup  // counts the messages that are held
	unwritten chan struct{}   // wakes settle after a failed write of a status
}

// errNotDrained: the gateway has stopped before every message was done.
var errNotDrained = errors.New("not drained in time; e-mails that were being sent may have been sent: see email-gateway doubtful list")

// work sends e-mails until ctx ends, then drains.
func work(ctx context.Context, c *config, stderr io.Writer) error {
	end, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	defer giveUp(nil)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	g := &gateway{config: c, log: c.Log.Logger(stderr), stopping: ctx, end: end, unwritten: make(chan struct{}, 1),
		parsing: make(chan struct{}, c.SMTP.Sessions)}
	transit.Warn(g.log, prefix, c.Database.URL, c.AMQP.URL)
	mail, err := c.server()
	if err != nil {
		return err
	}
	if g.db, err = openDatabase(ctx, c); err != nil {
		return err
	}
	defer g.db.Close()
	if g.effects, g.statuses, err = open(ctx, c, g.db, g.log, g); err != nil {
		return err
	}
	g.sessions = newSessions(mail, int(c.SMTP.Sessions), g.log)
	defer g.sessions.close()
	if err := g.greet(ctx); err != nil {
		return &mailError{err}
	}
	_, brokerURL := c.secrets()
	if g.broker, err = bridge.Dial(ctx, c.AMQP.URL, &bridge.BrokerOptions{Name: consumer, Logger: g.log, URL: brokerURL.Again()}); err != nil {
		return err
	}
	defer g.broker.Close()
	if err := g.declare(ctx); err != nil {
		return err
	}
	g.metrics = newMetrics(g)
	g.consumer, err = idempotency.NewConsumer(g.broker, c.Queue, g.metrics.receiver.Handler(g.deliver), &idempotency.ConsumerOptions{Workers: int(c.Prefetch),
		Prefetch: int(c.Prefetch), MaxBytes: int(c.Max.HeldBytes), Drain: c.Drain.Duration(), Logger: g.log})
	if err != nil {
		return err
	}
	g.metrics.receiver.Watch(g.consumer)
	server, err := g.serve(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	return g.work(ctx, stop, giveUp)
}

// besideSessions is the number of database connections beside one for each session: one each for
// messages that are not sent (duplicates, malformed ones), for Resume, settle, purge, a scrape and
// /readyz.
const besideSessions = 6

// openDatabase opens a gateway's pool. No goroutine holds a connection while it waits for another.
func openDatabase(ctx context.Context, c *config) (*database.Database, error) {
	databaseURL, _ := c.secrets()
	db, err := c.Schema.OpenAnew(ctx, databaseURL.Reader())
	if err == nil {
		db.Limit(int(c.SMTP.Sessions) + besideSessions) // the number in the documentation
	}
	return db, err
}

// open opens the inbox and the statuses. g is nil for a subcommand.
func open(ctx context.Context, c *config, db *database.Database, log *slog.Logger, g *gateway) (*pending.Effects, *statuses, error) {
	inbox, err := db.Inbox(ctx)
	if err != nil {
		return nil, nil, err
	}
	statuses := newStatuses(db, inbox)
	if err := statuses.check(ctx); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", bridge.ErrNoSchema, err)
	}
	options := c.options(log)
	options.HandBack = g == nil // subcommands take no deliveries
	if g != nil {
		options.DeadLetter, options.FindOut = g.bury, g.findOut
	}
	effects, err := pending.New(inbox, consumer, &options)
	return effects, statuses, err
}

// greet opens a session, so that the gateway does not start unless the mail server accepts its login.
func (g *gateway) greet(ctx context.Context) error {
	session, err := g.sessions.tryTake(ctx)
	if err != nil {
		return err
	}
	g.sessions.put(session)
	return nil
}

// work runs consumer, Resume, settle and purge until ctx ends, then drains. stop ends ctx, giveUp ends
// g.end.
func (g *gateway) work(ctx context.Context, stop context.CancelFunc, giveUp context.CancelCauseFunc) error {
	var failure error // the consumer's
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var parts sync.WaitGroup
		parts.Go(func() {
			defer stop()
			failure = g.consumer.Run(ctx)
		})
		parts.Go(func() { _ = g.effects.Resume(ctx, g.db.DB.DB, g.resume) })
		parts.Go(func() { g.settle(ctx) })
		parts.Go(func() { g.purge(ctx) })
		parts.Wait()
		g.held.Wait()
	}()
	<-ctx.Done()
	g.log.Info("stopping", "drain", g.config.Drain.Duration())
	limit := time.NewTimer(g.config.Drain.Duration())
	defer limit.Stop()
	select {
	case <-ended:
		return failure
	case <-limit.C:
	}
	giveUp(errNotDrained)
	select { // time to note the results of runs in progress
	case <-ended:
	case <-time.After(g.config.SMTP.Timeout.Duration()):
	}
	return errNotDrained
}

// purgeEvery is the time between two purges of old statuses.
const purgeEvery = time.Hour

func (g *gateway) purge(ctx context.Context) {
	every := time.NewTicker(purgeEvery)
	defer every.Stop()
	for {
		if err := g.statuses.purge(ctx, timestamp().Add(-g.config.Retention.Duration())); err != nil && ctx.Err() == nil {
			g.log.Warn("old statuses cannot be purged", "error", err)
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
	}
}
