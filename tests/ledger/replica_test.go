package ledger_test

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// frozen is a replica that the primary waits for and that can be frozen.
type frozen interface {
	Freeze()
	Thaw()
}

// expectNothingBeforeTheReplica commits an ID while the replica is frozen. Others then see the
// row, and a failover would undo it. The ledger must not report it committed before the replica
// has it, and its error must name synchronous replication. end commits, or gives up waiting for
// the replica.
func expectNothingBeforeTheReplica(t *testing.T, ledger, impatient driver.Ledger, replica frozen, visible string, end func(tx *sql.Tx) error) {
	t.Helper()
	id := newID()
	tx := recorded(t, ledger, id)
	replica.Freeze()
	t.Cleanup(replica.Thaw)
	ended := make(chan error, 1)
	go func() { ended <- end(tx) }()
	servertest.Eventually(t, "others see the row", func() bool {
		var n int
		must(t, ledger.DB().QueryRowContext(t.Context(), visible).Scan(&n))
		return n > 0
	})
	const patience = 3 * time.Second
	for name, ask := range map[string]func(ctx context.Context) (bool, error){
		"look-up": func(ctx context.Context) (bool, error) {
			found, _, err := impatient.Committed(ctx, []uuid.UUID{id})
			return len(found) > 0, err
		},
		"settle": func(ctx context.Context) (bool, error) {
			outcome, _, err := impatient.Settle(ctx, id, time.Second)
			return outcome == driver.Committed, err
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		committed, err := ask(ctx)
		cancel()
		if committed && err == nil || err == nil || !strings.Contains(err.Error(), "synchronous") {
			t.Errorf("the %s, while the replica is away: committed %t, %v", name, committed, err)
		}
	}
	replica.Thaw()
	if err := servertest.Next(t, "the end of the commit", ended); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("commit: %v", err)
	}
	expectOutcome(t, ledger, id, driver.Committed)
}

// AFTER_COMMIT, MariaDB's default, shows a commit before the replica has it.
func TestMariaDBThatShowsACommitBeforeItsReplicaHasIt(t *testing.T) {
	t.Parallel()
	if _, db := mariaDB(t); isMySQL(t, db) {
		t.Log("on MySQL AFTER_SYNC is the default, and the variables belong to a plugin")
		return
	}
	primary := servertest.StartMariaDB(t, &servers.MariaDBOptions{Config: append(servers.Replicates(),
		"rpl-semi-sync-master-enabled=ON", "rpl-semi-sync-master-timeout=600000", "rpl-semi-sync-master-wait-point=AFTER_COMMIT")})
	replica := servertest.StartReplica(t, primary, &servers.MariaDBOptions{Config: []string{"rpl-semi-sync-slave-enabled=ON"}})
	db := onServer(t, primary)
	config := mariaDBConfig(t, primary.DatabaseDSN("ledger"))
	config.ReadTimeout = 4 * time.Second // nothing else ends the wait of a COMMIT
	expectNothingBeforeTheReplica(t, openMySQL(t, db), openMySQL(t, connectMariaDB(t, config)), replica,
		"SELECT COUNT(*) FROM bridge_ledger", (*sql.Tx).Commit)
}

// If a sender's context ends during COMMIT, its driver cancels the wait for the standby: the
// commit stands and is visible. An operator's cancellation has the same effect.
func TestPostgresThatShowsACommitBeforeItsStandbyHasIt(t *testing.T) {
	t.Parallel()
	primary := servertest.StartPostgres(t, &servers.PostgresOptions{Config: []string{"synchronous_standby_names = '*'"}})
	standby := servertest.StartStandby(t, primary, nil)
	admin := migratedAt(t, primary.URL())
	cancel := func(tx *sql.Tx) error {
		go func() {
			servertest.Eventually(t, "the COMMIT waits for the standby, and is cancelled", func() bool {
				var cancelled int
				must(t, admin.QueryRowContext(t.Context(), "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'").Scan(&cancelled))
				return cancelled > 0
			})
		}()
		return tx.Commit()
	}
	ledger := openLedger(t, admin)
	expectNothingBeforeTheReplica(t, ledger, ledger, standby, "SELECT count(*) FROM bridge_ledger", cancel)

	// If a login's commits wait for no standby, its lookups do not wait either.
	role, at := servertest.PostgresRole(t, primary.URL(), verifierRights...)
	execute(t, admin, "ALTER ROLE "+role+" SET synchronous_commit = local")
	local := connect(t, at)
	standby.Freeze()
	defer standby.Thaw() // before the role is dropped
	id := newID()
	execute(t, local, "INSERT INTO bridge_ledger VALUES ('"+id.String()+"')")
	expectOutcome(t, openLedger(t, local), id, driver.Committed)
}

// A pool may open a connection to another server, such as an old primary with the same ledger.
// That server's flush does not prove that a row on the first one is durable.
func TestAnotherServersLogMakesNothingDurable(t *testing.T) {
	t.Parallel()
	here, there := servertest.StartMariaDB(t, nil), servertest.StartMariaDB(t, nil)
	db, other := onServer(t, here), onServer(t, there)
	for _, server := range []*sql.DB{db, other} { // MySQL has a binary log by default, MariaDB has none
		execute(t, server, "SET GLOBAL sync_binlog = 0")
	}
	ledger, id := openMySQL(t, db), newID()
	execute(t, other, "UPDATE bridge_identity SET identity = UNHEX('"+strings.ReplaceAll(ledger.Identity().String(), "-", "")+"')")
	tx := recorded(t, ledger, id)
	must(t, tx.Commit())
	to, elsewhere := mariaDBConfig(t, here.DatabaseDSN("ledger")), mariaDBConfig(t, there.DatabaseDSN("ledger"))
	var dialled atomic.Int64
	var from int64 = 1 << 62 // the first connection to the other server
	to.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if dialled.Add(1) >= from {
			network, address = elsewhere.Net, elsewhere.Addr
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	pool := connectMariaDB(t, to)
	pool.SetMaxIdleConns(-1) // each statement uses a new connection
	torn := openMySQL(t, pool)
	if found, _, err := torn.Committed(t.Context(), []uuid.UUID{id}); len(found) != 1 || err != nil {
		t.Fatalf("with one server the row is not found: %v, %v", found, err)
	}
	from = dialled.Load() + 2 // the lookup's own connection is the last one to the first server
	if found, _, err := torn.Committed(t.Context(), []uuid.UUID{id}); !errors.Is(err, bridge.ErrOtherInstance) {
		t.Errorf("with another server's flush: %v, %v, must be ErrOtherInstance", found, err)
	}
}
