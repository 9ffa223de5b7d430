package bridgectl_test

import (
	"database/sql"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"  // driver
	_ "github.com/microsoft/go-mssqldb" // driver

	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// schema is one entry of migrate status -o json.
type schema struct {
	Part, Database, State, Identity string
	There, Wanted                   int
}

// databases returns, per kind, the address of an empty database and a function that runs a script
// on it as its administrator would.
var databases = map[string]func(t *testing.T) (address string, script func(text string) error){
	"postgres": func(t *testing.T) (string, func(string) error) {
		address := servertest.PostgresDB(t)
		return address, scripts(t, "pgx", address)
	},
	"sqlite": func(t *testing.T) (string, func(string) error) {
		path := filepath.Join(t.TempDir(), "ledger.db")
		run := scripts(t, "sqlite", "file:"+path+"?_pragma=journal_mode(wal)")
		must(t, run("SELECT 1"))
		return "sqlite:" + path, run
	},
	"mysql": func(t *testing.T) (string, func(string) error) {
		address := servertest.MariaDBDatabase(t)
		config, err := mysql.ParseDSN(address)
		must(t, err)
		config.MultiStatements = true
		return program.DatabaseURL(t, address), scripts(t, "mysql", config.FormatDSN())
	},
	// A model, unless a real server is configured.
	"sqlserver": func(t *testing.T) (string, func(string) error) {
		address := servertest.SQLServerDB(t, servertest.SQLServer(t, nil), true)
		run := scripts(t, "sqlserver", address)
		return address, func(text string) error {
			for batch := range strings.SplitSeq(text, "\nGO\n") {
				if err := run(batch); err != nil {
					return err
				}
			}
			return nil
		}
	},
}

func scripts(t *testing.T, driver, address string) func(text string) error {
	return func(text string) error {
		db, err := sql.Open(driver, address)
		if err != nil {
			return err
		}
		defer db.Close()
		db.SetMaxOpenConns(1)
		_, err = db.ExecContext(t.Context(), text)
		return err
	}
}

// status returns migrate status of ledger and inbox.
func (b *tool) status() (ledger, inbox schema) {
	b.t.Helper()
	var both []schema
	b.json(&both, "migrate", "status", "--ledger", "--inbox")
	if len(both) != 2 || both[0].Part != "ledger" || both[1].Part != "inbox" {
		b.t.Fatalf("migrate status: %+v", both)
	}
	return both[0], both[1]
}

// The script of migrate print does the same as migrate up: afterwards status reports current
// tables, up changes nothing, and the doctor's proof passes. A second run of the script changes
// nothing either.
func TestThePrintedMigrationMakesTheTables(t *testing.T) {
	t.Parallel()
	for kind, database := range databases {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			address, run := database(t)
			b := withEnv(t, "BRIDGE_DATABASE_URL="+address)
			for range 2 { // status changes nothing
				ledger, inbox := b.status()
				if ledger != (schema{Part: "ledger", Database: kind, State: "missing", Wanted: 4}) || inbox != (schema{Part: "inbox", Database: kind, State: "missing", Wanted: 3}) {
					t.Errorf("before: %+v, %+v", ledger, inbox)
				}
			}
			script := b.must("migrate", "print", "--ledger", "--inbox")
			if kind == "sqlserver" { // a transaction for each version and each table of versions
				if strings.Count(script, "BEGIN TRANSACTION;") != 9 || strings.Count(script, "COMMIT;\nGO\n") != 9 || !strings.Contains(script, "sqlcmd -b -x") {
					t.Errorf("the script has not nine transactions, or does not say how sqlcmd stops at an error:\n%s", script)
				}
			}
			must(t, run(script))
			ledger, inbox := b.status()
			if ledger.State != "current" || ledger.There != 4 || inbox.State != "current" || inbox.There != 3 || len(ledger.Identity) != 36 {
				t.Errorf("%+v, %+v", ledger, inbox)
			}
			if text := b.must("migrate", "up", "--ledger", "--inbox"); !regexp.MustCompile(`(?m)^ledger +` + kind + ` +4 +4 +current +` + ledger.Identity + `$`).MatchString(text) {
				t.Errorf("migrate up:\n%s", text)
			}
			if err := run(script); err != nil {
				t.Errorf("the script fails when it runs again: %v", err)
			}
			if once, both := b.status(); once != ledger || both != inbox {
				t.Errorf("up or the script has changed %+v, %+v to %+v, %+v", ledger, inbox, once, both)
			}
			d, _ := b.examine("database")
			d.expect(t, "proof", "ok", "waits")
		})
	}
}

// migrate print --from 1 completes a database of version 1.
func TestMigratePrintGoesOnFromAVersion(t *testing.T) {
	t.Parallel()
	address, run := databases["sqlite"](t)
	b := withEnv(t, "BRIDGE_DATABASE_URL="+address)
	all, rest := b.must("migrate", "print"), b.must("migrate", "print", "--from", "1")
	_, steps, _ := strings.Cut(rest, "\n\n")
	first, found := strings.CutSuffix(all, steps)
	if !found || steps == "" {
		t.Fatalf("the rest is not the end of all:\n%s\n%s", all, rest)
	}
	must(t, run(first))
	if ledger, _ := b.status(); ledger.State != "behind" || ledger.There != 1 {
		t.Errorf("%+v", ledger)
	}
	must(t, run(rest))
	if ledger, _ := b.status(); ledger.State != "current" {
		t.Errorf("%+v", ledger)
	}
}

// This release works with tables of the next version and refuses later ones.
func TestMigrateReportsTablesOfLaterReleases(t *testing.T) {
	t.Parallel()
	address, run := databases["sqlite"](t)
	b := withEnv(t, "BRIDGE_DATABASE_URL="+address)
	b.must("migrate", "up", "--ledger", "--inbox")
	current, _ := b.status()
	for _, c := range []struct {
		state, identity string
		level           inspect.Level
		says            string
	}{
		{"newer", current.Identity, inspect.Warning, "tables have version 5; this release, of version 4, works with them"},
		{"too new", "", inspect.Error, "is of version 6, this release works with 4 and 5"},
	} {
		for _, part := range []string{"ledger", "inbox"} {
			statement := "INSERT INTO bridge_" + part + "_version (version_id, is_applied) SELECT max(version_id) + 1, 1 FROM bridge_" + part + "_version"
			must(t, run(statement))
		}
		ledger, inbox := b.status()
		if ledger.State != c.state || ledger.Identity != c.identity || inbox.State != c.state {
			t.Errorf("%+v, %+v, must be %s with identity %q", ledger, inbox, c.state, c.identity)
		}
		d, _ := b.examine("database")
		d.expect(t, "schema", c.level, c.says)
		r := b.run("migrate", "up", "--ledger", "--inbox")
		if tooNew := c.state == "too new"; tooNew != (r.Code != 0) || tooNew && !strings.Contains(r.Stderr, "run the bridgectl of the release that made the tables") {
			t.Errorf("migrate up of tables that are %s: %+v", c.state, r)
		}
	}
}
