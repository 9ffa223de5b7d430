package crash_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// serverKills returns how often a server is killed. The second kill meets processes that have
// recovered from one.
func serverKills() int {
	if *longFlag {
		return 20
	}
	return 2
}

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
	customers := w.start(brief{Role: aShop, Carry: sender.CarryNever})
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

// waitArrived waits until the target holds n messages. The target has no consumer.
func (w *world) waitArrived(n int) {
	w.t.Helper()
	w.Eventually("more has arrived", func() bool { return w.Depth(w.target) >= n })
}
