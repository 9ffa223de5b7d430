package ledger_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// Without a binary log MariaDB shows a commit to others before it is on disk. A row that a lookup
// has found must survive a crash in this interval.
func TestARowThatMariaDBHasShownOutlivesItsCrash(t *testing.T) {
	if testing.Short() {
		t.Skip("kills a server")
	}
	t.Parallel()
	server := servertest.StartMariaDB(t, &servers.MariaDBOptions{Config: []string{"skip-log-bin", "innodb-flush-log-at-timeout=2700"}})
	db := onServer(t, server)
	for _, c := range []struct {
		name string
		look func(ledger driver.Ledger, id uuid.UUID) (found bool, err error) // nil: no lookup
		want driver.Outcome                                                   // after the crash
	}{
		{name: "no lookup", want: driver.RolledBack},
		{"Committed", func(ledger driver.Ledger, id uuid.UUID) (bool, error) {
			found, _, err := ledger.Committed(t.Context(), []uuid.UUID{id})
			return len(found) == 1, err
		}, driver.Committed},
		{"Settle", func(ledger driver.Ledger, id uuid.UUID) (bool, error) {
			outcome, _, err := ledger.Settle(t.Context(), id, time.Second)
			return outcome == driver.Committed, err
		}, driver.Committed},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.look == nil && isMySQL(t, db) {
				t.Skip("MySQL's log writer is too fast for a crash to come in between")
			}
			ledger, id := openMySQL(t, db), newID()
			tx := recorded(t, ledger, id)
			execute(t, db, "SET GLOBAL innodb_flush_log_at_trx_commit = 0") // makes the interval as long as the test needs
			must(t, tx.Commit())
			execute(t, db, "SET GLOBAL innodb_flush_log_at_trx_commit = 1")
			if c.look != nil {
				if found, err := c.look(ledger, id); err != nil || !found {
					t.Fatalf("found %t, error %v", found, err)
				}
			}
			server.Kill()
			must(t, server.Restart(t.Context()))
			expectOutcome(t, openMySQL(t, db), id, c.want)
		})
	}
	t.Run("a proof ends with a restart", func(t *testing.T) {
		expectOtherInstance(t, openMySQL(t, db), func() {
			// Two starts in neighbouring seconds cannot be distinguished.
			servertest.Eventually(t, "the server has run for two seconds", func() bool {
				var age int64
				must(t, db.QueryRowContext(t.Context(), "SELECT UNIX_TIMESTAMP() - ((UUID_SHORT() >> 24) & 4294967295)").Scan(&age))
				return age > 2
			})
			must(t, server.Restart(t.Context()))
		})
	})
}
