package ledger_test

import (
	"database/sql"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// Of two that wait for each other the server ends one; a forget begins again.
func testMariaDBForgetSurvivesADeadlock(t *testing.T) {
	_, db := mariaDB(t)
	ledger, err := mysql.Open(t.Context(), db)
	must(t, err)
	ids := []uuid.UUID{newID(), newID()}
	must(t, recorded(t, ledger, ids...).Commit())

	// The server ends the one that has changed less.
	execute(t, db, "CREATE TABLE ballast (n INT PRIMARY KEY) ENGINE = InnoDB")
	other := begin(t, db)
	for n := range 100 {
		_, err := other.ExecContext(t.Context(), "INSERT INTO ballast VALUES (?)", n)
		must(t, err)
	}
	_, err = other.ExecContext(t.Context(), lockRow(ids[1]))
	must(t, err)
	forgotten := make(chan error, 1)
	go func() { forgotten <- ledger.Forget(t.Context(), ids) }() // has the first, waits for the second
	awaitMariaDBLock(t, db, 1)
	_, err = other.ExecContext(t.Context(), lockRow(ids[0]))
	must(t, err)
	must(t, other.Rollback())
	must(t, servertest.Next(t, "the forget's end", forgotten))
	if found, _, err := ledger.Committed(t.Context(), ids); err != nil || len(found) > 0 {
		t.Errorf("after the forget: %v, %v", found, err)
	}
}

func lockRow(id uuid.UUID) string {
	return "SELECT id FROM bridge_ledger WHERE id = UNHEX('" + strings.ReplaceAll(id.String(), "-", "") + "') FOR UPDATE"
}

// A transaction that has read sees the state of that moment, and MariaDB 11.8 ends one that
// then meets a newer row (error 1020). A claim is not given in either case.
func testMariaDBAClaimOfAnotherSinceTheFirstReadIsNotGiven(t *testing.T) {
	_, db := mariaDB(t)
	must(t, migrate.Inbox(t.Context(), db, migrate.MySQL))
	inbox, err := mysql.OpenInbox(t.Context(), db)
	must(t, err)
	execute(t, db, "CREATE TABLE shop (n INT) ENGINE = InnoDB")
	late := begin(t, db)
	var n int
	must(t, late.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM shop").Scan(&n))
	claim := func(tx *sql.Tx) (bool, error) { return inbox.Claim(t.Context(), bridge.SQL(tx), "consumer", "key") }
	first := begin(t, db)
	if claimed, err := claim(first); err != nil || !claimed {
		t.Fatalf("the first claim: %t, %v", claimed, err)
	}
	must(t, first.Commit())
	claimed, err := claim(late)
	var refusal *driver.MySQLError
	if claimed || err != nil && !(errors.As(err, &refusal) && refusal.Number == 1020) {
		t.Errorf("the claim after a read: %t, %v", claimed, err)
	}
	must(t, late.Rollback())
	if claimed, err := claim(begin(t, db)); err != nil || claimed {
		t.Errorf("the claim of a new transaction: %t, %v", claimed, err)
	}
}

// InnoDB ends some of those that wait for a claim which is given back; once they
// begin again, one of them has it and the others know.
func testMariaDBManyClaimsOfOneKeyGiveItOnce(t *testing.T) {
	const claimers = 8
	_, db := mariaDB(t)
	must(t, migrate.Inbox(t.Context(), db, migrate.MySQL))
	inbox, err := mysql.OpenInbox(t.Context(), db)
	must(t, err)
	first := begin(t, db)
	_, err = inbox.Claim(t.Context(), bridge.SQL(first), "consumer", "key")
	must(t, err)
	claim := func() (bool, error) {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			return false, err
		}
		defer func() { _ = tx.Rollback() }()
		claimed, err := inbox.Claim(t.Context(), bridge.SQL(tx), "consumer", "key")
		if err != nil {
			return false, err
		}
		return claimed, tx.Commit()
	}
	var all sync.WaitGroup
	var given, deadlocks atomic.Int32
	for range claimers {
		all.Go(func() {
			claimed, err := claim()
			for refusal := (*driver.MySQLError)(nil); errors.As(err, &refusal) && refusal.Number == 1213; claimed, err = claim() {
				deadlocks.Add(1)
			}
			if err != nil {
				t.Error(err)
			}
			if claimed {
				given.Add(1)
			}
		})
	}
	awaitMariaDBLock(t, db, claimers)
	must(t, first.Rollback())
	all.Wait()
	if given.Load() != 1 {
		t.Errorf("the key was given %d times", given.Load())
	}
	t.Logf("%d deadlocks among %d claimers", deadlocks.Load(), claimers)
}
