package bridgectl_test

import (
	"testing"

	_ "modernc.org/sqlite" // driver

	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// Each database's own tests check the findings of its Diagnose.
func TestTheDoctorFindsTheFaultsOfADatabase(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		do    string // empty: the tables are not created
		check string
		words string
	}{
		{"no tables", "", "schema", "the tables of the ledger are missing"},
		{"an earlier version", "DELETE FROM bridge_ledger_version WHERE version_id = 4", "schema", "the ledger's tables have version 3, this release needs 4"},
		{"no identity", "DELETE FROM bridge_identity", "ledger", "bridge_identity is empty"},
		{"a lookup that does not wait", "ALTER TABLE bridge_ledger DROP CONSTRAINT bridge_ledger_pkey", "proof", "while the transaction was open"},
		{"an unlogged ledger", "ALTER TABLE bridge_ledger SET UNLOGGED", "logged tables", "bridge_ledger: unlogged"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			address := servertest.PostgresDB(t)
			b := withEnv(t, "BRIDGE_DATABASE_URL="+address)
			if c.do != "" {
				b.must("migrate", "up")
				must(t, scripts(t, "pgx", address)(c.do))
			}
			d, code := b.examine("database")
			d.expect(t, c.check, inspect.Error, c.words)
			if code != exitUnwell {
				t.Errorf("exit code %d", code)
			}
		})
	}
}
