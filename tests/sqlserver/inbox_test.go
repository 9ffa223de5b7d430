package sqlserver_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
)

// What one consumer has open holds no other up, and of its own only what is asked for:
// statements by consumer seek as well.
func TestWhatIsAskedOfOneConsumerWaitsForNoOther(t *testing.T) {
	onBoth(t, func(t *testing.T, address string) {
		db := connect(t, address)
		must(t, migrate.Inbox(t.Context(), db, migrate.SQLServer))
		inbox, err := sqlserver.OpenInbox(t.Context(), db)
		must(t, err)
		add := func(tx *sql.Tx, consumer, key string, due time.Duration) {
			t.Helper()
			_, err := inbox.Claim(t.Context(), bridge.SQL(tx), consumer, key)
			must(t, err)
			_, err = inbox.AddPending(t.Context(), bridge.SQL(tx), consumer, driver.Pending{Key: key, State: driver.Started, Run: "r", Message: []byte("m")}, due)
			must(t, err)
		}
		first := begin(t, db, nil)
		add(first, "ours", "overdue", -time.Hour)
		must(t, first.Commit())
		open := begin(t, db, nil)
		_, err = inbox.LockMark(t.Context(), bridge.SQL(open), "theirs", "entity")
		must(t, err)
		_, err = inbox.Keep(t.Context(), bridge.SQL(open), "theirs", "entity", 1, []byte("m"))
		must(t, err)
		add(open, "theirs", "overdue", -time.Hour)
		add(open, "ours, another", "overdue", -time.Hour)

		ctx, cancel := context.WithTimeout(t.Context(), patience/6)
		defer cancel()
		for doing, do := range map[string]func(tx *sql.Tx) error{
			"take": func(tx *sql.Tx) error {
				_, err := inbox.TakePending(ctx, bridge.SQL(tx), "ours", driver.Started)
				return err
			},
			"list": func(tx *sql.Tx) error {
				_, err := inbox.ListPending(ctx, bridge.SQL(tx), "ours", driver.Started, "", 10)
				return err
			},
			"count": func(tx *sql.Tx) error {
				_, err := inbox.CountPending(ctx, bridge.SQL(tx), "ours")
				return err
			},
			"read claims": func(tx *sql.Tx) error {
				_, err := inbox.Claimed(ctx, bridge.SQL(tx), "ours", "", 10)
				return err
			},
			"list kept": func(tx *sql.Tx) error {
				_, err := inbox.KeptEntities(ctx, bridge.SQL(tx), "ours", 10)
				return err
			},
			"doubt": func(tx *sql.Tx) error {
				_, err := inbox.DoubtOverdue(ctx, bridge.SQL(tx), "ours")
				return err
			},
		} {
			tx := begin(t, db, nil)
			if err := do(tx); err != nil {
				t.Fatalf("%s: %v", doing, err)
			}
			must(t, tx.Rollback())
		}

		// A row of ours that is not due may be in another transaction for as long as its
		// work takes.
		add(open, "ours", "under way", time.Hour)
		tx := begin(t, db, nil)
		n, err := inbox.DoubtOverdue(ctx, bridge.SQL(tx), "ours")
		must(t, err)
		if n != 1 {
			t.Errorf("%d in doubt, must be 1", n)
		}
	})
}
