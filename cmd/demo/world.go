package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/pending"
)

// cleanLimit bounds the removal of the demo's schema and queues from servers that are not its own.
const cleanLimit = 10 * time.Second

// emailKey is the routing key of all messages.
const emailKey = "order"

// A world names the demo's servers, databases and queues. Every process gets it.
type world struct {
	AMQP  string // the broker
	Shop  string // the shop's database, with the ledger
	Post  string // the gateways' database, with their inbox
	Diary string // the database of each process's attempts

	Queue  string // the staging queue
	Emails string // the target, an exchange, and the gateways' queue behind it
	Plan   plan
}

func (w world) topology() bridge.Topology { return bridge.Topology{Queue: w.Queue} }

// A theatre owns the world's resources and removes them at the end.
type theatre struct {
	world
	dbs     *databases
	broker  *bridge.Broker
	copies  *copies
	mail    *mailServer
	program string           // the e-mail gateway
	effects *pending.Effects // reads the gateways' inbox
	undo    []func() error   // run in reverse order
}

// build makes a world by the configuration. After an error it leaves nothing behind.
func build(ctx context.Context, c config, out io.Writer) (_ *theatre, err error) {
	t := new(theatre)
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	suffix := uuid.NewString()[:8]
	t.Queue, t.Emails = "demo-"+suffix, "demo-"+suffix+".emails"
	folder, err := os.MkdirTemp("", "twoqueue-demo-")
	if err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	t.undo = append(t.undo, func() error { return os.RemoveAll(folder) })
	if err := t.buildDatabases(ctx, c, folder, "demo_"+suffix, out); err != nil {
		return nil, err
	}
	if err := t.buildBroker(ctx, c, out); err != nil {
		return nil, err
	}
	if err := t.buildMailServer(ctx); err != nil {
		return nil, err
	}
	if err := t.buildGateway(ctx, folder, out); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *theatre) buildDatabases(ctx context.Context, c config, folder, schema string, out io.Writer) error {
	file := func(name string) string { return "sqlite:" + filepath.Join(folder, name) }
	// Diary and post need not survive a power cut.
	const relaxed = "?_pragma=synchronous(normal)"
	t.Diary = file("diary.db") + relaxed
	t.Plan = plan{Seed: uint64(time.Now().UnixNano()), Orders: c.Orders}
	if c.Database.URL == "" {
		fmt.Fprintln(out, "database  SQLite files in a temporary folder. SQLite has one writer at a time:")
		fmt.Fprintln(out, "          while one transaction is held open, the whole shop waits; so few are,")
		fmt.Fprintln(out, "          for a second or two")
		t.Shop, t.Post = file("shop.db"), file("post.db")+relaxed
		t.Plan.Workers, t.Plan.Holders, t.Plan.Hold = 4, 3, 2*time.Second
	} else {
		fmt.Fprintf(out, "database  the PostgreSQL of BRIDGE_DATABASE_URL, in a schema %s\n", schema)
		if err := t.buildSchema(ctx, c.Database.URL, schema); err != nil {
			return fmt.Errorf("BRIDGE_DATABASE_URL: %w", err)
		}
		t.Plan.Workers, t.Plan.Holders, t.Plan.Hold = 6, 6, 5*time.Second
	}
	var err error
	if t.dbs, err = openDatabases(ctx, t.world); err != nil {
		return err
	}
	t.undo = append(t.undo, func() error { t.dbs.close(); return nil })
	return t.dbs.create(ctx)
}

// buildSchema creates a schema and puts it into the URLs' search_path.
func (t *theatre) buildSchema(ctx context.Context, address, schema string) error {
	if !strings.HasPrefix(address, "postgres") {
		return errors.New("must start with postgres://; unset it for SQLite, where the demo makes files of its own")
	}
	db, err := database.Open(ctx, address)
	if err != nil {
		return err
	}
	t.undo = append(t.undo, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), cleanLimit)
		defer cancel()
		_, err := db.ExecContext(ctx, "DROP SCHEMA IF EXISTS "+schema+" CASCADE")
		return errors.Join(err, db.Close())
	})
	if _, err := db.ExecContext(ctx, "CREATE SCHEMA "+schema); err != nil {
		return fmt.Errorf("create schema: %w", err)
	}
	parsed, err := url.Parse(address)
	if err != nil {
		return database.ErrURL // not err, which contains the URL
	}
	query := parsed.Query()
	query.Set("search_path", schema)
	parsed.RawQuery = query.Encode()
	t.Shop, t.Post = parsed.String(), parsed.String()
	return nil
}

func (t *theatre) buildBroker(ctx context.Context, c config, out io.Writer) error {
	t.AMQP = c.AMQP.URL
	if t.AMQP == "" {
		fmt.Fprintln(out, "broker    a private RabbitMQ; it takes some seconds to start")
		server, err := servers.StartRabbitMQ(ctx, nil)
		if err != nil {
			return err
		}
		t.undo = append(t.undo, func() error { server.Kill(); return server.Stop() }) // its data is not needed
		t.AMQP = server.URL()
	} else {
		fmt.Fprintf(out, "broker    the RabbitMQ of BRIDGE_AMQP_URL, in queues %s...\n", t.Queue)
	}
	var err error
	if t.broker, err = bridge.Dial(ctx, t.AMQP, &bridge.BrokerOptions{Name: "twoqueue demo"}); err != nil {
		return fmt.Errorf("BRIDGE_AMQP_URL: %w", err)
	}
	t.undo = append(t.undo, func() error { t.broker.Close(); return nil })
	if c.AMQP.URL != "" {
		t.undo = append(t.undo, t.deleteQueues)
	}
	if err := t.topology().Declare(ctx, t.broker); err != nil {
		return fmt.Errorf("BRIDGE_AMQP_URL: %w", err)
	}
	// The same declaration as the gateways', which start later.
	emails := idempotency.ReceiverOptions{RetryDelays: []time.Duration{}, DeliveryLimit: 1000}
	if _, err := idempotency.DeclareReceiver(ctx, t.broker, t.Emails, &emails); err != nil {
		return fmt.Errorf("BRIDGE_AMQP_URL: %w", err)
	}
	err = t.onChannel(ctx, func(ch *amqp.Channel) error {
		if err := ch.ExchangeDeclare(t.Emails, amqp.ExchangeFanout, true, false, false, false, nil); err != nil {
			return err
		}
		return ch.QueueBind(t.Emails, "", t.Emails, false, nil)
	})
	if err != nil {
		return fmt.Errorf("BRIDGE_AMQP_URL: %w", err)
	}
	return t.listen(ctx)
}

func (t *theatre) buildMailServer(ctx context.Context) error {
	mail, stop, err := startMailServer(ctx)
	if err != nil {
		return err
	}
	t.mail = mail
	t.undo = append(t.undo, stop)
	return nil
}

// queues returns all queues: through are the queues on a message's way, dead the dead queues.
func (t *theatre) queues() (through, dead []string) {
	topology := t.topology()
	return []string{topology.Queue, topology.WaitingQueue(), t.Emails}, []string{topology.DeadQueue(), t.Emails + ".dead"}
}

// depth is the number of messages that are ready in the queues.
func (t *theatre) depth(ctx context.Context, queues []string) (sum int, err error) {
	err = t.onChannel(ctx, func(ch *amqp.Channel) error {
		for _, name := range queues {
			queue, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
			if err != nil {
				return fmt.Errorf("look at queue %q: %w", name, err)
			}
			sum += queue.Messages
		}
		return nil
	})
	return sum, err
}

func (t *theatre) deleteQueues() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanLimit)
	defer cancel()
	return t.onChannel(ctx, func(ch *amqp.Channel) (err error) {
		through, dead := t.queues()
		for _, name := range append(through, dead...) {
			_, e := ch.QueueDelete(name, false, false, false)
			err = errors.Join(err, e)
		}
		return errors.Join(err, ch.ExchangeDelete(t.Emails, false, false))
	})
}

func (t *theatre) onChannel(ctx context.Context, do func(*amqp.Channel) error) error {
	conn, err := t.broker.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.OnChannel(do)
}

// close removes everything that build made.
func (t *theatre) close() error {
	var err error
	for i := len(t.undo) - 1; i >= 0; i-- {
		err = errors.Join(err, t.undo[i]())
	}
	t.undo = nil
	return err
}
