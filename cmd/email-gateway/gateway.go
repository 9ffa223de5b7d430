package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/cmd/internal/transit"
	"github.com/twoqueue/twoqueue/idempotency"
)

// A gateway sends the e-mails of one queue.
type gateway struct {
	config   *config
	log      *slog.Logger
	db       *database.Database
	broker   *bridge.Broker
	guard    *idempotency.Guard
	statuses *statuses
	sessions *sessions
	metrics  *metrics
	room     *room
	parsing  chan struct{} // a token for each e-mail that is decoded

	end       context.Context // done when the time to drain is over: then no mail server is waited for
	consuming atomic.Bool
	held      sync.WaitGroup // a token for each message that is held
	unwritten chan struct{}  // tells settle that a status could not be written
}

// errNotDrained: the gateway has stopped in the middle of something.
var errNotDrained = errors.New("not drained in time; what was being sent is perhaps sent: see email-gateway doubtful list")

// work sends e-mails until ctx ends, then drains.
func work(ctx context.Context, c *config, stderr io.Writer) error {
	end, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	defer giveUp(nil)
	g := &gateway{config: c, log: c.Log.Logger(stderr), end: end, unwritten: make(chan struct{}, 1),
		room: &room{most: int(c.Max.HeldBytes)}, parsing: make(chan struct{}, c.SMTP.Sessions)}
	transit.Warn(g.log, prefix, c.Database.URL, c.AMQP.URL)
	mail, err := c.server()
	if err != nil {
		return err
	}
	if g.db, err = openDatabase(ctx, c); err != nil {
		return err
	}
	defer g.db.Close()
	if g.guard, g.statuses, err = open(ctx, c, g.db, g.log, g); err != nil {
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
	server, err := g.serve(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	return g.work(ctx, giveUp)
}

// besideSessions are the connections that a gateway uses beside those of its e-mails: one each
// for what is not sent (a duplicate, no e-mail at all), for Resume, settle, purge, a scrape and
// /readyz.
const besideSessions = 6

// openDatabase opens a gateway's pool. Nothing holds a connection while it waits for another.
func openDatabase(ctx context.Context, c *config) (*database.Database, error) {
	databaseURL, _ := c.secrets()
	db, err := database.OpenAnew(ctx, databaseURL.Reader())
	if err == nil {
		db.Limit(int(c.SMTP.Sessions) + besideSessions) // as the documentation promises to who counts them
	}
	return db, err
}

// open opens what both the gateway and its subcommands need. g is nil for these.
func open(ctx context.Context, c *config, db *database.Database, log *slog.Logger, g *gateway) (*idempotency.Guard, *statuses, error) {
	inbox, err := db.Inbox(ctx)
	if err != nil {
		return nil, nil, err
	}
	statuses := &statuses{db.DB, inbox}
	if err := statuses.check(ctx); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", bridge.ErrNoSchema, err)
	}
	options := c.options(log)
	options.HandBack = g == nil // no command but the gateway takes deliveries
	if g != nil {
		options.DeadLetter, options.FindOut = g.bury, g.findOut
	}
	guard, err := idempotency.New(inbox, consumer, &options)
	return guard, statuses, err
}

// greet makes sure that the mail server takes our login before anything is begun.
func (g *gateway) greet(ctx context.Context) error {
	session, err := g.sessions.tryTake(ctx)
	if err != nil {
		return err
	}
	g.sessions.put(session)
	return nil
}

// work runs all that runs until ctx ends, and drains; giveUp ends g.end.
func (g *gateway) work(ctx context.Context, giveUp context.CancelCauseFunc) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var parts sync.WaitGroup
		parts.Go(func() { g.consume(ctx) })
		parts.Go(func() { _ = g.guard.Resume(ctx, g.db.DB.DB, g.resume) })
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
		return nil
	case <-limit.C:
	}
	giveUp(errNotDrained)
	select { // what was being sent is written down
	case <-ended:
	case <-time.After(g.config.SMTP.Timeout.Duration()):
	}
	return errNotDrained
}

// consume holds a session with the broker, until ctx ends.
func (g *gateway) consume(ctx context.Context) {
	pauses := redials()
	for {
		began, err := g.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if began {
			pauses.Reset()
		}
		pause := pauses.NextBackOff()
		g.log.Warn("consumer session ended", "error", err, "retry_in", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// session consumes over one connection, which ends whole. Each message that it is
// given has a goroutine; prefetch bounds how many there are.
func (g *gateway) session(ctx context.Context) (began bool, err error) {
	conn, err := g.broker.Connect(ctx)
	if err != nil {
		return false, err
	}
	conn.BoundReadAhead(readAhead)
	ch, err := conn.Channel()
	if err != nil {
		conn.Close()
		return false, err
	}
	var deliveries <-chan amqp.Delivery
	err = ch.Qos(int(g.config.Prefetch), 0, false)
	if err == nil {
		const autoAck, exclusive, noLocal, noWait = false, false, false, false
		deliveries, err = ch.Consume(g.config.Queue, consumer, autoAck, exclusive, noLocal, noWait, nil)
	}
	if err != nil {
		conn.Close()
		return false, fmt.Errorf("consume: %w", err)
	}
	// A message is held no longer than its connection lives, or the gateway's life lasts.
	holding, letGo := context.WithCancelCause(ctx)
	defer letGo(errSessionOver)
	var session sync.WaitGroup
	defer g.held.Go(func() { // the acks need the connection
		session.Wait()
		conn.Close()
	})
	stop := context.AfterFunc(ctx, func() { _ = ch.Cancel(consumer, false) }) // closes deliveries
	defer stop()
	g.consuming.Store(true)
	defer g.consuming.Store(false)
	g.log.Info("consumer session started", "queue", g.config.Queue)
	for d := range deliveries {
		conn.Received(d)
		leave := g.room.take(d)
		if leave == nil {
			g.log.Info("e-mail goes back, since there is no room for it", "message_id", d.MessageId, "bytes", len(d.Body))
			continue
		}
		session.Go(func() {
			defer leave()
			g.deliver(holding, d)
		})
	}
	if err := conn.Err(); err != nil {
		return true, err
	}
	return true, errors.New("the broker has ended the consumer")
}

// readAhead is how many bytes of bodies the connection reads before the gateway takes them.
const readAhead = 1 << 20

var errSessionOver = errors.New("consumer session is over")

// purgeEvery is how often old statuses are looked for.
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
