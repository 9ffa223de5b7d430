package ledger_test

import (
	"database/sql"
	"errors"
	"testing"

	driver "github.com/go-sql-driver/mysql"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/mysql"
)

// changedSince reports whether MariaDB has ended a transaction because a row has changed since its
// first read.
func changedSince(err error) bool {
	var refusal *driver.MySQLError
	return errors.As(err, &refusal) && refusal.Number == 1020
}

// A transaction that has read sees the state of its first read. MariaDB 11.8 ends it if it then
// meets a newer row (error 1020). In neither case does it get the claim.
func testMariaDBAClaimOfAnotherSinceTheFirstReadIsNotGiven(t *testing.T) {
	_, db := mariaDB(t)
	must(t, migrate.Inbox(t.Context(), db, migrate.MySQL))
	inbox, err := mysql.OpenInbox(t.Context(), db)
	must(t, err)
	execute(t, db, "CREATE TABLE shop (n INT) ENGINE = InnoDB")
	late := begin(t, db)
	var n int
	must(t, late.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM shop").Scan(&n))
	claim := func(tx *sql.Tx) (bool, error) {
		fresh, err := inbox.Claim(t.Context(), bridge.SQL(tx), "consumer", []string{"key"})
		return len(fresh) == 1, err
	}
	first := begin(t, db)
	if claimed, err := claim(first); err != nil || !claimed {
		t.Fatalf("the first claim: %t, %v", claimed, err)
	}
	must(t, first.Commit())
	claimed, err := claim(late)
	if claimed || err != nil && !changedSince(err) {
		t.Errorf("the claim after a read: %t, %v", claimed, err)
	}
	must(t, late.Rollback())
	if claimed, err := claim(begin(t, db)); err != nil || claimed {
		t.Errorf("the claim of a new transaction: %t, %v", claimed, err)
	}
}
