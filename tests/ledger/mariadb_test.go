package ledger_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/bridge/proof"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// notLatin1 are bytes that change if a server converts them from or to latin1.
var notLatin1 = []byte("gr\u00fc\u00dfe \u20ac\x00\xff")

// Whatever settings a connection has, the ledger passes the proof or reports that it cannot be
// used, and finds no uncommitted row.
func testMariaDBAnyConnection(t *testing.T) {
	root := connectMariaDB(t, mariaDBConfig(t, servertest.MariaDBDatabase(t)))
	for _, c := range []struct {
		setting, value string
		want           error
	}{
		// Not every release has all of these variables.
		{"tx_isolation", "'READ-UNCOMMITTED'", nil},
		{"tx_isolation", "'SERIALIZABLE'", nil},
		{"tx_read_only", "1", bridge.ErrReadOnly},
		{"transaction_isolation", "'READ-UNCOMMITTED'", nil}, // the newer name
		{"transaction_isolation", "'SERIALIZABLE'", nil},
		{"transaction_read_only", "1", bridge.ErrReadOnly},
		{"autocommit", "0", nil},
		{"innodb_lock_wait_timeout", "1", nil},
		{"innodb_lock_wait_timeout", "0", nil}, // do not wait at all
		{"max_statement_time", "0.5", nil},     // shorter than a settle's wait
		{"max_execution_time", "500", nil},
		{"sql_mode", "''", nil},
		{"sql_mode", flavourOf(t, root).oddMode, nil},
		{"character_set_connection", "latin1", nil},
		{"sql_safe_updates", "1", flavourOf(t, root).safeUpdates},
	} {
		var known int
		must(t, root.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+flavourOf(t, root).sessionVariables+" WHERE variable_name = ?", c.setting).Scan(&known))
		if known == 0 {
			continue
		}
		t.Run(c.setting+" = "+c.value, func(t *testing.T) {
			config, _ := mariaDB(t)
			config.Params = map[string]string{c.setting: c.value}
			db := connectMariaDB(t, config)
			ledger, err := mysql.Open(t.Context(), db)
			must(t, err)
			if _, err := proof.Prove(t.Context(), ledger); !errors.Is(err, c.want) {
				t.Fatalf("the proof says %v, must say %v", err, c.want)
			}
			if c.want != nil {
				return
			}
			id := newID()
			tx := recorded(t, ledger, id)
			if found, _, err := ledger.Committed(t.Context(), []uuid.UUID{id}); err != nil || len(found) > 0 {
				t.Errorf("the lookup of an uncommitted row: %v, %v", found, err)
			}
			must(t, tx.Commit())
			expectOutcome(t, ledger, id, driver.Committed)

			messages := [][]byte{notLatin1, []byte("'\\")}
			for _, n := range []int{1, 2} {
				entries := make([]driver.Entry, n)
				for i := range entries {
					entries[i] = driver.Entry{ID: newID(), Message: messages[i], Unpublished: true}
				}
				tx := begin(t, db)
				must(t, ledger.Record(t.Context(), bridge.SQL(tx), entries))
				must(t, tx.Commit())
				due, _, err := ledger.Due(t.Context(), driver.DueRow{}, 10)
				must(t, err)
				claimed, err := ledger.Claim(t.Context(), due)
				must(t, err)
				if len(claimed) != n {
					t.Errorf("%d messages are claimed, must be %d", len(claimed), n)
				}
				for _, m := range claimed {
					if i := slices.IndexFunc(entries, func(e driver.Entry) bool { return e.ID == m.ID }); i < 0 || !bytes.Equal(m.Message, entries[i].Message) {
						t.Errorf("a message comes back as %q", m.Message)
					}
				}
			}
		})
	}
}

// No verb changes a setting of its session. Holders changes none either; it uses two sessions.
func testMariaDBLeavesTheSessionAsItWas(t *testing.T) {
	config, admin := mariaDB(t)
	config.Params = map[string]string{"innodb_lock_wait_timeout": "7"}
	db := connectMariaDB(t, config)
	db.SetMaxOpenConns(2)
	db.SetMaxIdleConns(2)
	ledger, id := openMySQL(t, db), newID()
	settings := func() map[string]string { // of both sessions
		all := map[string]string{}
		for _, tx := range []*sql.Tx{begin(t, db), begin(t, db)} {
			var session string
			must(t, tx.QueryRowContext(t.Context(), "SELECT connection_id()").Scan(&session))
			rows, err := tx.QueryContext(t.Context(), "SHOW SESSION VARIABLES")
			must(t, err)
			for rows.Next() {
				var name, value string
				must(t, rows.Scan(&name, &value))
				all[session+": "+name] = value
			}
			must(t, errors.Join(rows.Err(), rows.Close()))
			defer func() { must(t, tx.Rollback()) }()
		}
		return all
	}
	before := settings()
	use(t, ledger)
	recorded(t, openMySQL(t, admin), id)
	if found := holders(t, ledger, id); len(found) != 1 {
		t.Errorf("the holders are %+v", found)
	}
	if found := holders(t, ledger, newID()); len(found) > 0 {
		t.Errorf("the holders are %+v", found)
	}
	after := settings()
	if len(after) != len(before) {
		t.Errorf("%d settings are %d", len(before), len(after))
	}
	for key, value := range after {
		_, name, _ := strings.Cut(key, ": ")
		if value != before[key] && name != "timestamp" && name != "statement_id" && !strings.HasPrefix(name, "gtid") && !strings.HasPrefix(name, "rand_seed") {
			t.Errorf("%s was %q, is %q", key, before[key], value)
		}
	}
}

// With this server setting a settle that times out ends its whole transaction, which is its own.
// After a failover a pool may connect to a reader, where no sender holds locks.
func TestMariaDBThatIsNoPrimaryIsRefused(t *testing.T) {
	t.Parallel()
	server := servertest.StartMariaDB(t, &servers.MariaDBOptions{Fast: true, Config: []string{"innodb_rollback_on_timeout=ON"}})
	db := onServer(t, server)
	ledger := openMySQL(t, db)
	must(t, prove(t, ledger))
	refused := func(why string) {
		t.Helper()
		expectNotPrimary(t, why+": check", ledger.Check(t.Context()))
		expectNotPrimary(t, why+": prove", prove(t, ledger))
	}
	noVerdict := func(why string) {
		t.Helper()
		outcome, _, err := ledger.Settle(t.Context(), newID(), time.Second)
		expectNotPrimary(t, why+": settle", err)
		before, markErr := ledger.SweptBefore(t.Context())
		expectNotPrimary(t, why+": the watermark", markErr)
		if outcome != driver.StillOpen || !before.IsZero() {
			t.Errorf("%s: settle says %q, the watermark is %v", why, outcome, before)
		}
	}
	execute(t, db, "SET GLOBAL read_only = 1")
	refused("a read-only server")
	noVerdict("a read-only server")
	execute(t, db, "SET GLOBAL read_only = 0")
	must(t, ledger.Check(t.Context()))

	words := flavourOf(t, db)
	execute(t, db, "SET GLOBAL server_id = 2")
	execute(t, db, words.follow)
	must(t, ledger.Check(t.Context()))
	execute(t, db, words.apply)
	refused("a replica")
	execute(t, db, words.stopApplying)
	must(t, ledger.Check(t.Context()))

	execute(t, db, "RESET REPLICA ALL")
	server.Reconfigure("innodb-read-only=ON")
	must(t, server.Restart(t.Context()))
	servertest.Eventually(t, "the pool has noticed the restart", func() bool { return db.PingContext(t.Context()) == nil })
	noVerdict("a reader")
	expectNotPrimary(t, "a reader: check", ledger.Check(t.Context()))
}

func testMariaDBLedgerOfAnotherEngineIsRefused(t *testing.T) {
	_, db := mariaDB(t)
	ledger, err := mysql.Open(t.Context(), db)
	must(t, err)
	execute(t, db, "ALTER TABLE bridge_ledger ENGINE = MyISAM")
	if _, err := mysql.Open(t.Context(), db); !errors.Is(err, bridge.ErrNoSchema) || !strings.Contains(err.Error(), "InnoDB") {
		t.Errorf("open: %v", err)
	}
	if err := ledger.Check(t.Context()); !errors.Is(err, bridge.ErrNoSchema) {
		t.Errorf("check: %v", err)
	}
}

// Every DDL statement commits by itself, so a migration can be interrupted after any of them.
func testMariaDBMigrationIsCompletedAfterACrashAnywhere(t *testing.T) {
	steps := []string{
		`CREATE TABLE bridge_ledger_version (id bigint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY,
			version_id bigint NOT NULL, is_applied boolean NOT NULL, tstamp datetime NULL DEFAULT current_timestamp)`,
		`INSERT INTO bridge_ledger_version (version_id, is_applied) VALUES (0, true)`,
		`CREATE TABLE bridge_ledger (id BINARY(16) NOT NULL PRIMARY KEY,
			recorded_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))) ENGINE = InnoDB`,
		`CREATE TABLE bridge_identity (one TINYINT NOT NULL DEFAULT 1 PRIMARY KEY, identity BINARY(16) NOT NULL) ENGINE = InnoDB`,
		`INSERT INTO bridge_identity (identity) VALUES (UNHEX('0192a0c0000070008000000000000001'))`,
		`INSERT INTO bridge_ledger_version (version_id, is_applied) VALUES (1, true)`,
		`CREATE TABLE bridge_parked (id BINARY(16) NOT NULL PRIMARY KEY, message LONGBLOB NOT NULL) ENGINE = InnoDB`,
		`CREATE TABLE bridge_watermark (one TINYINT NOT NULL DEFAULT 1 PRIMARY KEY, swept_before DATETIME(6) NULL) ENGINE = InnoDB`,
		`INSERT INTO bridge_watermark (one) VALUES (1)`,
		`INSERT INTO bridge_ledger_version (version_id, is_applied) VALUES (2, true)`,
		`ALTER TABLE bridge_ledger ADD COLUMN message LONGBLOB NULL, ADD COLUMN stage_at DATETIME(6) NULL,
			ADD COLUMN claimed_by BINARY(16) NULL, ADD INDEX bridge_ledger_stage_at (stage_at)`,
		`INSERT INTO bridge_ledger_version (version_id, is_applied) VALUES (3, true)`,
		`CREATE TABLE bridge_parked_moved (id BINARY(16) NOT NULL PRIMARY KEY, message LONGBLOB NOT NULL) ENGINE = InnoDB`,
		`DROP TABLE bridge_parked_moved`,
		`RENAME TABLE bridge_parked TO bridge_parked_moved`,
		`DROP TABLE bridge_parked_moved`,
	}
	const identified = 5 // after this number of statements the identity exists
	for n := range len(steps) + 1 {
		t.Run(fmt.Sprint("after ", n, " statements"), func(t *testing.T) {
			config := mariaDBConfig(t, servertest.MariaDBDatabase(t))
			admin := connectMariaDB(t, config)
			for _, step := range steps[:n] {
				execute(t, admin, step)
			}
			var all sync.WaitGroup
			for range 4 {
				db := connectMariaDB(t, config)
				all.Go(func() {
					if err := migrate.Ledger(t.Context(), db, migrate.MySQL); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			ledger, err := mysql.Open(t.Context(), admin)
			must(t, err)
			if made := ledger.Identity() == uuid.MustParse("0192a0c0-0000-7000-8000-000000000001"); made != (n >= identified) {
				t.Errorf("the identity is %s", ledger.Identity())
			}
			var versions int
			must(t, admin.QueryRowContext(t.Context(), "SELECT count(*) FROM bridge_ledger_version").Scan(&versions))
			if versions != 5 {
				t.Errorf("%d versions are noted, must be 0 to 4", versions)
			}
			if before, err := ledger.SweptBefore(t.Context()); !before.IsZero() || err != nil {
				t.Errorf("the watermark: %v, %v", before, err)
			}
		})
	}
}
