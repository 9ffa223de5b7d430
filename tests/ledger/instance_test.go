package ledger_test

import (
	"database/sql"
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/bridge/proof"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// A restart may bring back older data: the ledger believes no outcome before another proof.
func TestAProofEndsWithARestartOfItsPostgres(t *testing.T) {
	t.Parallel()
	server := servertest.StartPostgres(t, nil)
	db := migratedAt(t, server.URL())
	ledger, err := postgres.Open(t.Context(), db)
	must(t, err)
	expectOtherInstance(t, ledger, func() { must(t, server.Restart(t.Context())) })
}

func TestAProofEndsWithARestartOfItsMariaDB(t *testing.T) {
	t.Parallel()
	server := servertest.StartMariaDB(t, nil)
	db, err := sql.Open("mysql", server.DatabaseDSN("mysql"))
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	must(t, migrate.Ledger(t.Context(), db, migrate.MySQL))
	ledger, err := mysql.Open(t.Context(), db)
	must(t, err)
	expectOtherInstance(t, ledger, func() {
		// Two starts in neighbouring seconds cannot be distinguished.
		servertest.Eventually(t, "the server has run for two seconds", func() bool {
			var age int64
			must(t, db.QueryRowContext(t.Context(), "SELECT UNIX_TIMESTAMP() - ((UUID_SHORT() >> 24) & 4294967295)").Scan(&age))
			return age > 2
		})
		must(t, server.Restart(t.Context()))
	})
}

func expectOtherInstance(t *testing.T, ledger driver.Ledger, restart func()) {
	t.Helper()
	proven, err := proof.Prove(t.Context(), ledger)
	must(t, err)
	ids := []uuid.UUID{newID()}
	_, err = proven.Committed(t.Context(), ids)
	must(t, err)
	restart()
	servertest.Eventually(t, "the proof is over", func() bool {
		_, err := proven.Committed(t.Context(), ids)
		if err == nil {
			t.Fatal("an outcome of the restarted server is believed")
		}
		return errors.Is(err, bridge.ErrOtherInstance) // otherwise a broken connection
	})
	again, err := proof.Prove(t.Context(), ledger)
	must(t, err)
	_, err = again.Settle(t.Context(), ids[0], 0)
	must(t, err)
}
