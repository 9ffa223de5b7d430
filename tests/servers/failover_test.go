package servers_test

import (
	"database/sql"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql" // driver
	_ "github.com/jackc/pgx/v5/stdlib" // driver
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/tests/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func connect(t *testing.T, driver, address string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func exec(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatalf("run %q: %v", statement, err)
	}
}

func wantRows(t *testing.T, db *sql.DB, query string, want int) {
	t.Helper()
	var n int
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil || n != want {
		t.Errorf("%s: %d, %v, must be %d", query, n, err, want)
	}
}

// A synchronous standby has what the primary committed, takes writes once it is promoted, and
// the old primary comes back with its own data and takes writes as well.
func TestAPromotedStandbyAndItsOldPrimaryBothTakeWrites(t *testing.T) {
	primary := servertest.StartPostgres(t, &servers.PostgresOptions{Config: []string{"synchronous_standby_names = '*'"}})
	standby := servertest.StartStandby(t, primary, nil)
	old, promoted := connect(t, "pgx", primary.URL()), connect(t, "pgx", standby.URL())
	exec(t, old, "CREATE TABLE t (n int)")
	exec(t, old, "INSERT INTO t VALUES (1)")
	primary.Kill()
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, promoted, "INSERT INTO t VALUES (2)")
	wantRows(t, promoted, "SELECT count(*) FROM t", 2)
	if err := primary.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, old, "SET synchronous_commit = local; DELETE FROM t")
	wantRows(t, old, "SELECT count(*) FROM t", 0)
}

func TestAPromotedReplicaAndItsOldPrimaryBothTakeWrites(t *testing.T) {
	primary := servertest.StartMariaDB(t, &servers.MariaDBOptions{Config: append(servers.Replicates(),
		"rpl-semi-sync-master-enabled=ON", "rpl-semi-sync-master-timeout=600000", "rpl-semi-sync-master-wait-point=AFTER_SYNC")})
	replica := servertest.StartReplica(t, primary, &servers.MariaDBOptions{Config: []string{"rpl-semi-sync-slave-enabled=ON"}})
	old, promoted := connect(t, "mysql", primary.DSN()), connect(t, "mysql", replica.DSN())
	exec(t, old, "CREATE DATABASE d")
	exec(t, old, "CREATE TABLE d.t (n int)")
	exec(t, old, "INSERT INTO d.t VALUES (1)")
	wantRows(t, old, "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'Rpl_semi_sync_master_no_tx'", 0)
	primary.Kill()
	wantRows(t, promoted, "SELECT @@GLOBAL.read_only", 1)
	if err := replica.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantRows(t, promoted, "SELECT @@GLOBAL.read_only", 0)
	exec(t, promoted, "INSERT INTO d.t VALUES (2)")
	wantRows(t, promoted, "SELECT count(*) FROM d.t", 2)
	primary.Reconfigure("rpl-semi-sync-master-enabled=OFF") // it has no replica any more
	if err := primary.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, old, "DELETE FROM d.t")
	wantRows(t, old, "SELECT count(*) FROM d.t", 0)
}

// The kernel takes connections for a frozen broker, and nothing answers them.
func TestAFrozenBrokerAnswersNothingUntilItIsThawed(t *testing.T) {
	broker := servertest.StartRabbitMQ(t, nil)
	broker.Freeze()
	const moment = 300 * time.Millisecond
	dial := func(patience time.Duration) error {
		conn, err := amqp.DialConfig(broker.URL(), amqp.Config{Dial: amqp.DefaultDial(patience)})
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	if err := dial(moment); err == nil {
		t.Error("a frozen broker has answered")
	}
	broker.Thaw()
	if err := dial(servertest.Patience); err != nil {
		t.Errorf("the broker does not answer after the thaw: %v", err)
	}
	broker.Freeze() // the end of the test stops it nevertheless
}
