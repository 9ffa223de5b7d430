package ledger_test

import (
	"database/sql"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/bridge/proof"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// A standby has advisory locks of its own, so it does not have the locks of a sender with an own
// table. A standby that lags behind could also show an older watermark.
func TestPostgresStandbyIsRefused(t *testing.T) {
	t.Parallel()
	primary := servertest.StartPostgres(t, nil)
	execute(t, migratedAt(t, primary.URL()), "CREATE TABLE orders (id uuid PRIMARY KEY)")
	onStandby := connect(t, servertest.StartStandby(t, primary, nil).URL()) // a copy, with all tables
	ledger := openLedger(t, onStandby)
	own, err := postgres.OpenOwnTable(t.Context(), onStandby, bridge.OwnTable{Table: "orders", Column: "id"})
	must(t, err)
	ledgertest.Finds(t, inspectorOf(t, ledger), "primary", inspect.Error, "standby")
	for _, ledger := range []driver.Ledger{ledger, own} {
		expectNotPrimary(t, "check", ledger.Check(t.Context()))
		expectNotPrimary(t, "prove", prove(t, ledger))
		outcome, _, err := ledger.Settle(t.Context(), newID(), time.Second)
		expectNotPrimary(t, "settle", err)
		if outcome != driver.StillOpen {
			t.Errorf("settle says %q, must say %q", outcome, driver.StillOpen)
		}
	}
	before, err := ledger.SweptBefore(t.Context())
	expectNotPrimary(t, "the watermark", err)
	if !before.IsZero() {
		t.Errorf("the watermark is %v", before)
	}
	if _, err := ledger.Sweep(t.Context(), time.Hour, 10); err != nil {
		expectNotPrimary(t, "sweep", err)
	}
}

func TestPostgresWithSettingsOfItsOwn(t *testing.T) {
	t.Parallel()
	server := servertest.StartPostgres(t, &servers.PostgresOptions{Config: []string{"max_prepared_transactions = 5", "wal_level = logical", "max_locks_per_transaction = 10", "wal_writer_delay = 10s"}})
	t.Run("a subscriber is refused", func(t *testing.T) { testPostgresSubscriberIsRefused(t, server) })
	t.Run("without room for its locks an own table records nothing", func(t *testing.T) { testPostgresOwnTableWithoutRoomForLocks(t, server) })
	t.Run("diagnose", func(t *testing.T) { testPostgresDiagnose(t, server) })
	t.Run("a claim outlives a crash of the server", func(t *testing.T) { testPostgresClaimOutlivesACrash(t, server) })
	t.Run("a proof ends with a restart", func(t *testing.T) {
		expectOtherInstance(t, openLedger(t, migratedAt(t, server.URL())), func() { must(t, server.Restart(t.Context())) })
	})
}

// If the claim were lost, a Cancel after the crash would cancel a message of which a copy exists.
// The server's WAL writer waits so long that the crash undoes every commit that does not wait for
// the disk.
func testPostgresClaimOutlivesACrash(t *testing.T, server *servers.Postgres) {
	db := migratedAt(t, server.URL())
	ledger := openLedger(t, db)
	id := newID()
	tx := begin(t, db)
	must(t, ledger.Record(t.Context(), bridge.SQL(tx), []driver.Entry{{ID: id, Message: []byte("later"), Unpublished: true}}))
	must(t, tx.Commit())
	due, _, err := ledger.Due(t.Context(), driver.DueRow{}, 1)
	must(t, err)
	claimed, err := ledger.Claim(t.Context(), due)
	if must(t, err); len(claimed) != 1 {
		t.Fatalf("%d messages are claimed, must be 1", len(claimed))
	}
	server.Kill()
	must(t, server.Restart(t.Context()))
	db = connect(t, server.URL())
	tx = begin(t, db)
	if done, err := openLedger(t, db).Cancel(t.Context(), bridge.SQL(tx), id); err != nil || done {
		t.Errorf("cancel of a claimed message after a crash returns %t, %v, must return false", done, err)
	}
}

// A transaction that is open on the publisher holds no lock at the subscriber, so it would look
// rolled back there. The same holds for an own table.
func testPostgresSubscriberIsRefused(t *testing.T, server *servers.Postgres) {
	root := connect(t, server.URL())
	databases := make(map[string]*sql.DB)
	for _, name := range []string{"publisher", "subscriber"} {
		execute(t, root, "CREATE DATABASE "+name)
		databases[name] = migratedAt(t, server.DatabaseURL(name))
		execute(t, databases[name], "CREATE TABLE orders (id uuid PRIMARY KEY)")
	}
	db := databases["subscriber"]
	// PostgreSQL 13 lets every login read only these columns.
	execute(t, db, "REVOKE SELECT ON pg_subscription FROM PUBLIC")
	execute(t, db, "GRANT SELECT (subdbid, subname, subowner, subenabled, subslotname, subpublications) ON pg_subscription TO PUBLIC")
	_, at := servertest.PostgresRole(t, server.DatabaseURL("subscriber"), append(slices.Clone(verifierRights), "SELECT ON orders")...)
	asVerifier := connect(t, at)
	own, err := postgres.OpenOwnTable(t.Context(), asVerifier, bridge.OwnTable{Table: "orders", Column: "id"})
	must(t, err)
	ledgers := map[string]driver.Ledger{"bridge_ledger": openLedger(t, asVerifier), "orders": own}
	for table, ledger := range ledgers {
		must(t, ledger.Check(t.Context()))
		execute(t, databases["publisher"], "CREATE PUBLICATION "+table+" FOR TABLE "+table)
		execute(t, databases["publisher"], "SELECT pg_create_logical_replication_slot('"+table+"', 'pgoutput')")
		execute(t, db, "CREATE SUBSCRIPTION "+table+" CONNECTION 'host=127.0.0.1 user=postgres dbname=publisher port="+
			strconv.Itoa(server.Port)+"' PUBLICATION "+table+" WITH (create_slot = false)")
		if err := ledger.Check(t.Context()); !errors.Is(err, bridge.ErrNotPrimary) || !strings.Contains(err.Error(), "subscription "+table) {
			t.Errorf("check of %s: %v, must be %v and name the subscription", table, err, bridge.ErrNotPrimary)
		}
		execute(t, db, "ALTER SUBSCRIPTION "+table+" DISABLE")
		must(t, ledger.Check(t.Context()))
	}
}

// Whatever defaults a role has, the ledger passes the proof or reports that it cannot be used.
func TestPostgresRoleDefaults(t *testing.T) {
	t.Parallel()
	for setting, want := range map[string]error{
		"default_transaction_isolation = 'repeatable read'":  nil,
		"default_transaction_isolation = 'serializable'":     nil,
		"default_transaction_isolation = 'read uncommitted'": nil,
		"lock_timeout = '1ms'":                               nil,
		"statement_timeout = '100ms'":                        nil, // shorter than the proof's wait
		"plan_cache_mode = 'force_generic_plan'":             nil,
		"default_transaction_read_only = on":                 bridge.ErrReadOnly,
		"search_path = 'nowhere'":                            bridge.ErrNoSchema,
	} {
		t.Run(setting, func(t *testing.T) {
			address, admin := migrated(t)
			role, at := servertest.PostgresRole(t, address, "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public")
			execute(t, admin, "ALTER ROLE "+role+" SET "+setting)
			db := connect(t, at)
			prove := func() error {
				ledger, err := postgres.Open(t.Context(), db)
				if err == nil {
					_, err = proof.Prove(t.Context(), ledger)
				}
				return err
			}
			err := prove()
			// On a busy machine the timeout may hit a statement other than the waiting one.
			// Repeating helps only then: the waiting one would be cancelled each time.
			for began := time.Now(); cancelled(err) && time.Since(began) < stage.Patience; {
				err = prove()
			}
			if !errors.Is(err, want) {
				t.Fatalf("the proof says %v, must say %v", err, want)
			}
			if !strings.Contains(setting, "isolation") {
				return
			}
			// Above READ COMMITTED a row that is committed while a settle waits for it causes a
			// serialization failure.
			id, ledger, outcome := newID(), openLedger(t, db), driver.StillOpen
			tx, settled := recorded(t, openLedger(t, admin), id), make(chan error, 1)
			go func() {
				outcome, _, err = ledger.Settle(t.Context(), id, 2*time.Minute)
				settled <- err
			}()
			awaitLock(t, admin)
			must(t, tx.Commit())
			must(t, servertest.Next(t, "the settle's end", settled))
			if outcome != driver.Committed {
				t.Errorf("settle says %q", outcome)
			}
		})
	}
}

// cancelled reports whether a statement was ended by statement_timeout.
func cancelled(err error) bool {
	pgErr := new(pgconn.PgError)
	return errors.As(err, &pgErr) && pgErr.Code == "57014"
}

func TestPostgresLeavesTheSessionAsItWas(t *testing.T) {
	t.Parallel()
	address, _ := migrated(t)
	db := connect(t, address)
	db.SetMaxOpenConns(1)
	ledger := openLedger(t, db)
	settings := func() (all string) {
		must(t, db.QueryRowContext(t.Context(), `SELECT string_agg(concat_ws(' ', name, setting, source), ', ' ORDER BY name)
			FROM pg_settings WHERE source = 'session' OR name ~ 'timeout|synchronous_commit'`).Scan(&all))
		return all
	}
	before := settings()
	use(t, ledger)
	if after := settings(); after != before {
		t.Errorf("the settings were %s\nare %s", before, after)
	}
}

// A crash empties unlogged tables: committed messages would look rolled back, and handled ones
// would look new.
func TestPostgresUnloggedTablesAreRefused(t *testing.T) {
	t.Parallel()
	_, admin := migrated(t)
	must(t, migrate.Inbox(t.Context(), admin, migrate.PostgreSQL))
	ledger := openLedger(t, admin)
	for _, table := range []string{"bridge_ledger", "bridge_identity", "bridge_watermark",
		"bridge_inbox", "bridge_inbox_pending", "bridge_mark", "bridge_kept"} {
		execute(t, admin, "ALTER TABLE "+table+" SET UNLOGGED")
		_, inbox := postgres.OpenInbox(t.Context(), admin)
		refused := errors.Join(prove(t, ledger), inbox)
		if !errors.Is(refused, bridge.ErrNoSchema) || !strings.Contains(refused.Error(), table) {
			t.Errorf("%s is unlogged: %v, must be %v", table, refused, bridge.ErrNoSchema)
		}
		execute(t, admin, "ALTER TABLE "+table+" SET LOGGED")
	}
	must(t, prove(t, ledger))
	_, err := postgres.OpenInbox(t.Context(), admin)
	must(t, err)
}
