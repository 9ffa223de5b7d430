package bridgectl_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite" // driver

	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// runSQL runs statements on PostgreSQL.
func runSQL(t *testing.T, address string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for _, statement := range statements {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// expectAllWell fails unless all of the findings are ok.
func (d diagnosis) expectAllWell(t *testing.T, code int, checks ...string) {
	t.Helper()
	if code != 0 || d.Errors+d.Warnings+d.Unknown != 0 {
		t.Errorf("exit code %d\n%s", code, d)
	}
	for _, check := range checks {
		d.expect(t, check, inspect.OK, "")
	}
}

func TestAHealthyPostgreSQLIsAllWell(t *testing.T) {
	t.Parallel()
	pg := servertest.StartPostgres(t, nil) // the shared one does not wait for the disk, which is an error
	b := withEnv(t, "BRIDGE_DATABASE_URL="+pg.URL())
	b.must("migrate", "up", "--ledger", "--inbox")
	d, code := b.also("BRIDGE_INBOX_URL=" + pg.URL()).examine("database")
	d.expectAllWell(t, code, "connection", "schema", "proof", "ledger", "durability", "clock", "inbox")
	if len(d.Groups) != 2 || d.Groups[0].Name != "Database (postgres)" || d.Groups[1].Name != "Inbox (postgres)" {
		t.Errorf("the groups are\n%s", d)
	}
}

func TestAHealthySQLiteIsAllWell(t *testing.T) {
	t.Parallel()
	b := withEnv(t, "BRIDGE_DATABASE_URL=sqlite:"+filepath.Join(t.TempDir(), "ledger.db"))
	b.must("migrate", "up")
	d, code := b.examine("database")
	d.expectAllWell(t, code, "connection", "schema", "proof")
	if text := b.must("doctor", "database"); !strings.HasPrefix(text, "Database (sqlite)\n  ok       connection") ||
		!strings.Contains(text, "\nno errors, no warnings, 0 unknown, ") || strings.Contains(text, "\x1b") {
		t.Errorf("as text:\n%s", text)
	}
}

func TestTheDoctorFindsWhatIsWrongWithADatabase(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		statements []string // nil: the tables are not made; DB stands for the database's name
		check      string
		words      string
	}{
		{"no tables", nil, "schema", "the tables of the ledger are not there"},
		{"an earlier version", []string{"DELETE FROM bridge_ledger_version WHERE version_id = 2"}, "schema", "are of version 1, this release needs 2"},
		{"a later version", []string{"INSERT INTO bridge_ledger_version (version_id, is_applied) VALUES (99, true)"}, "schema", "version 99, this release works with 2 and 3"},
		{"no identity", []string{"DELETE FROM bridge_identity"}, "ledger", "bridge_identity is empty"},
		{"a lookup that does not wait", []string{"ALTER TABLE bridge_ledger DROP CONSTRAINT bridge_ledger_pkey"}, "proof", "while the transaction was open"},
		{"a database that takes no writes", []string{"ALTER DATABASE DB SET default_transaction_read_only = on"}, "proof", "not a writable primary"},
		{"commits that do not wait for the disk", []string{"ALTER DATABASE DB SET synchronous_commit = off"}, "durability", "synchronous_commit is off"},
		{"an unlogged ledger", []string{"ALTER TABLE bridge_ledger SET UNLOGGED"}, "logged tables", "bridge_ledger: unlogged"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			address := servertest.PostgresDB(t)
			b := withEnv(t, "BRIDGE_DATABASE_URL="+address)
			if c.statements != nil {
				b.must("migrate", "up")
				name := address[strings.LastIndex(address, "/")+1:]
				name, _, _ = strings.Cut(name, "?")
				for _, statement := range c.statements {
					runSQL(t, address, strings.Replace(statement, "DATABASE DB", "DATABASE "+name, 1))
				}
			}
			d, code := b.examine("database")
			d.expect(t, c.check, inspect.Error, c.words)
			if code != exitUnwell {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

func TestTheDoctorFindsWhatIsWrongWithASQLiteFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	b := withEnv(t, "BRIDGE_DATABASE_URL=sqlite:"+path)
	d, code := b.examine("database")
	d.expect(t, "connection", inspect.Error, "BRIDGE_DATABASE_URL")
	if code != exitUnwell {
		t.Errorf("exit code %d", code)
	}
	b.must("migrate", "up")
	db, err := sqlx.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "PRAGMA journal_mode = delete"); err != nil {
		t.Fatal(err)
	}
	d, code = b.examine("database")
	d.expect(t, "ledger", inspect.Error, "must be wal")
	if code != exitUnwell {
		t.Errorf("exit code %d", code)
	}
}

func TestTheDoctorSaysWhyItCannotLookAtADatabase(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"postgres://user:s3cret@127.0.0.1:1/db", "postgres://user:s3cret/x@host/db", "oracle://user:s3cret@host/db"} {
		d, code := withEnv(t, "BRIDGE_DATABASE_URL="+address).examine("database")
		d.expect(t, "connection", inspect.Error, "BRIDGE_DATABASE_URL")
		if code != exitUnwell || strings.Contains(d.String(), "s3cret") || len(d.Groups) != 1 || len(d.Groups[0].Findings) != 1 {
			t.Errorf("%s: exit code %d\n%s", address, code, d)
		}
	}
	b := withEnv(t, "BRIDGE_DATABASE_URL=sqlite:"+filepath.Join(t.TempDir(), "ledger.db"))
	b.must("migrate", "up")
	d, code := b.also("BRIDGE_INBOX_URL=" + b.env[0][len("BRIDGE_DATABASE_URL="):]).examine("database")
	d.expect(t, "schema", inspect.Error, "the tables of the inbox are not there")
	if code != exitUnwell || len(d.Groups) != 2 {
		t.Errorf("exit code %d\n%s", code, d)
	}
}

// The proof leaves nothing behind, and the doctor changes nothing else.
func TestTheDoctorLeavesNoRow(t *testing.T) {
	t.Parallel()
	address := servertest.PostgresDB(t)
	b := withEnv(t, "BRIDGE_DATABASE_URL="+address)
	b.must("migrate", "up")
	d, _ := b.examine("database")
	d.expect(t, "proof", inspect.OK, "waits")
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var rows int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM bridge_ledger").Scan(&rows); err != nil || rows != 0 {
		t.Errorf("%d rows are left, %v", rows, err)
	}
}
