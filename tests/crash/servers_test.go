package crash_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// serverKills returns how often a server is killed. The second kill meets processes that have
// recovered from one.
func serverKills() int { return scaled(2) }

func skipIfShort(t *testing.T) {
	if testing.Short() {
		t.Skip("kills a server")
	}
}

// some is the number of messages that must arrive between two kills.
const some = 100

// The verifier deletes rows without waiting for the disk, so a crash of the server may bring back
// rows of messages that were acked long ago: orphans.
func TestAKilledPostgreSQLLosesAndInventsNothing(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	server := servertest.StartPostgres(t, &servers.PostgresOptions{
		Config: []string{"recovery_init_sync_method = syncfs"}, // a faster restart, just as safe
	})
	kind := stage.Postgres
	kind.URL = func(testing.TB) string { return server.URL() }
	testKilledDatabase(t, kind, server)
}

func TestAKilledMariaDBLosesAndInventsNothing(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	server := servertest.StartMariaDB(t, nil)
	root, err := sql.Open("mysql", server.DSN())
	if err == nil {
		_, err = root.ExecContext(t.Context(), "CREATE DATABASE shop")
		err = errors.Join(err, root.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	kind := stage.MariaDB
	kind.URL = func(testing.TB) string { return server.DatabaseDSN("shop") }
	testKilledDatabase(t, kind, server)
}

func testKilledDatabase(t *testing.T, kind stage.Database, server interface {
	Kill()
	Restart(ctx context.Context) error
}) {
	t.Helper()
	w := newWorld(t, stage.New(t, kind))
	v := w.Verify(verifier.Options{})
	customers := w.start(shop(kind))
	var killed time.Time
	for range serverKills() {
		w.waitArrived(w.Depth(w.target) + some)
		server.Kill()
		killed = time.Now()
		w.must("restart database", server.Restart(t.Context()))
	}
	w.waitArrived(w.Depth(w.target) + some)
	customers.KillThere()
	v.Stop()
	w.finish()
	twice, rows := w.check()
	w.wantAtMost(1<<min(v.Stats().Sessions, 10), twice) // each end of a session may double a message that was not acked
	t.Logf("%d sessions, %d delivered more than once, %d rows left", v.Stats().Sessions, len(twice), len(rows))
	orders := w.IDs(w.t, `SELECT id FROM orders`)
	strangers := 0
	for _, id := range rows {
		if !slices.Contains(orders, id) {
			strangers++
		} else if seconds, nanoseconds := id.Time().UnixTime(); time.Unix(seconds, nanoseconds).After(killed) {
			t.Errorf("the row of order %s is left, and no kill has undone its deletion: it was placed later", id)
		}
	}
	if strangers > serverKills() {
		t.Errorf("%d rows belong to no order; a proof that dies leaves one", strangers)
	}
}

// Sender and verifier lose the broker, with all its queues.
func TestAKilledRabbitMQLosesAndInventsNothing(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	server := servertest.StartRabbitMQ(t, nil)
	var worlds []*world
	for _, kind := range kinds {
		worlds = append(worlds, newWorld(t, stage.On(t, kind, server.URL(), bridge.Topology{Queue: kind.Name})))
	}
	var verifiers []*stage.Running
	var customers []*process
	for _, w := range worlds {
		verifiers = append(verifiers, w.Verify(verifier.Options{}))
		customers = append(customers, w.start(shop(w.Kind)))
	}
	someArrive := func() {
		for _, w := range worlds {
			w.waitArrived(w.Depth(w.target) + some)
		}
	}
	for range serverKills() {
		someArrive()
		worlds[0].must("sync declarations", server.SyncDeclarations(t.Context()))
		server.Kill()
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, w := range worlds {
			w.reconnect()
		}
	}
	someArrive()
	for _, c := range customers { // all, before the first verifier stops
		c.KillThere()
	}
	for i, w := range worlds {
		verifiers[i].Stop()
		w.finish()
		w.t.Logf("%s: %d sessions", w.Kind.Name, verifiers[i].Stats().Sessions)
		w.wantNothingLost(int(verifiers[i].Stats().Sessions))
	}
}

// reconnect opens a new channel for the stage, once the restarted broker has all its queues back.
func (w *world) reconnect() {
	w.t.Helper()
	conn, err := amqp.Dial(w.AMQP)
	w.must("dial", err)
	w.t.Cleanup(func() { _ = conn.Close() })
	w.Eventually("the queues are back", func() bool {
		w.Channel, err = conn.Channel()
		w.must("open channel", err)
		_, err = w.Channel.QueueDeclarePassive(w.Topology.Queue, true, false, false, false, nil)
		return err == nil
	})
}
