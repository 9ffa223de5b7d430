package sqlserver_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/idempotencytest"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/tds"
)

// Rows that one consumer has open block no other consumer, and block their own consumer only if a
// statement needs them: statements by consumer seek too.
func TestStatementsOfOneConsumerWaitForNoOther(t *testing.T) {
	onBoth(t, func(t *testing.T, address string) {
		db := connect(t, address)
		must(t, migrate.Inbox(t.Context(), db, migrate.SQLServer))
		inbox, err := sqlserver.OpenInbox(t.Context(), db)
		must(t, err)
		add := func(tx *sql.Tx, consumer, key string, due time.Duration) {
			t.Helper()
			_, err := inbox.Claim(t.Context(), bridge.SQL(tx), consumer, []string{key})
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
		for _, v := range ledgertest.Verbs(inbox, "ours", driver.Pending{Key: "overdue", State: driver.Started}) {
			if v.ByKey {
				continue
			}
			tx := begin(t, db, nil)
			must(t, v.Do(ctx, bridge.SQL(tx)))
			must(t, tx.Rollback())
		}

		// Another transaction may hold a row of ours that is not due, for as long as its work
		// takes.
		add(open, "ours", "under way", time.Hour)
		tx := begin(t, db, nil)
		n, err := inbox.DoubtOverdue(ctx, bridge.SQL(tx), "ours")
		must(t, err)
		if n != 1 {
			t.Errorf("%d in doubt, must be 1", n)
		}
	})
}

// A pool finds out that an idle connection was lost when a transaction begins on it. The transaction
// has done nothing, so it begins on another one, and no pause of a failed attempt passes.
func TestLostIdleConnectionsCostAReceiverNoAttempt(t *testing.T) {
	server := servertest.SQLServer(t, nil)
	admin, db := connect(t, server), connect(t, newDatabase(t, server, true))
	must(t, migrate.Inbox(t.Context(), db, migrate.SQLServer))
	inbox, err := sqlserver.OpenInbox(t.Context(), db)
	must(t, err)
	dedup, err := idempotency.New(inbox, "receiver", &idempotency.Options{MinDelay: patience, MaxDelay: patience, Hold: time.Hour, HandBack: true})
	must(t, err)
	const pool = 3
	db.SetMaxIdleConns(pool)
	var conns []*sql.Conn
	var sessions []string
	for range pool {
		conn, err := db.Conn(t.Context())
		must(t, err)
		var session string
		must(t, conn.QueryRowContext(t.Context(), "SELECT @@SPID").Scan(&session))
		conns, sessions = append(conns, conn), append(sessions, session)
	}
	for i, conn := range conns {
		must(t, conn.Close())
		execute(t, admin, "KILL "+sessions[i])
		servertest.Eventually(t, "the session has ended", func() bool {
			var n int
			must(t, admin.QueryRowContext(t.Context(), "SELECT count(*) FROM sys.dm_exec_sessions WHERE session_id = "+sessions[i]).Scan(&n))
			return n == 0
		})
	}
	d := idempotencytest.New(bridge.Message{RoutingKey: "receiver", Publishing: amqp.Publishing{Body: []byte("m")}})
	ctx, cancel := context.WithTimeout(t.Context(), patience/2)
	defer cancel()
	runs := 0
	err = dedup.Handle(ctx, db, d.Delivery, func(context.Context, *sql.Tx) error { runs++; return nil })
	if err != nil || runs != 1 || d.Outcome() != idempotencytest.Acked {
		t.Errorf("%d runs, %s, %v", runs, d.Outcome(), err)
	}
}

// A statement that looks for overdue rows reads the index first and then the row. A statement
// that changes a row changes the row first and then the index. Each may hold an entry that the
// other needs ('Deadlocks guide').
func TestALookForOverdueRowsAndAChangeDoNotDeadlock(t *testing.T) {
	inEachMode(t, func(t *testing.T, address string) {
		db := connect(t, address)
		must(t, migrate.Inbox(t.Context(), db, migrate.SQLServer))
		inbox, err := sqlserver.OpenInbox(t.Context(), db)
		must(t, err)
		const consumer = "receiver"
		p := driver.Pending{Key: "overdue", State: driver.Started, Run: "r"}
		added := begin(t, db, nil)
		_, err = inbox.AddPending(t.Context(), bridge.SQL(added), consumer, p, -time.Hour)
		must(t, err)
		must(t, added.Commit())

		owner, other := begin(t, db, nil), begin(t, db, nil)
		kept, err := inbox.AttachMessage(t.Context(), bridge.SQL(owner), consumer, p.Key, p.Run, []byte("m")) // locks only the row
		must(t, err)
		doubted := make(chan error, 1)
		go func() {
			_, err := inbox.DoubtOverdue(context.WithoutCancel(t.Context()), bridge.SQL(other), consumer)
			doubted <- errors.Join(err, other.Commit())
		}()
		servertest.Eventually(t, "the other waits or is through", func() bool {
			var n int
			must(t, db.QueryRowContext(t.Context(), waiting).Scan(&n))
			return n > 0 || len(doubted) > 0
		})
		changed, err := inbox.ChangePending(t.Context(), bridge.SQL(owner), consumer, p.Run, p, time.Hour)
		if err != nil || !kept || !changed {
			t.Errorf("change: %t, %t, %v", kept, changed, err)
		}
		must(t, owner.Commit())
		if err := servertest.Next(t, "the other is through", doubted); err != nil {
			t.Errorf("doubt: %v", err)
		}
	})
}

// With optimized locking an UPDATE that changes nothing leaves the row unlocked, unless a hint
// requests the lock.
func TestAMarkStaysLockedWithOptimizedLocking(t *testing.T) {
	server := servertest.SQLServerStandIn(t, &tds.Options{OptimizedLocking: true})
	for name, snapshot := range map[string]bool{"locking": false, "snapshot": true} {
		t.Run(name, func(t *testing.T) {
			db := connect(t, servertest.SQLServerDB(t, server.URL("master"), snapshot))
			must(t, migrate.Inbox(t.Context(), db, migrate.SQLServer))
			inbox, err := sqlserver.OpenInbox(t.Context(), db)
			must(t, err)
			lock := func(tx *sql.Tx) (string, error) {
				return inbox.LockMark(t.Context(), bridge.SQL(tx), "receiver", "entity")
			}
			made := begin(t, db, nil)
			_, err = lock(made)
			must(t, err)
			must(t, made.Commit())

			first, second := begin(t, db, nil), begin(t, db, nil)
			_, err = lock(first)
			must(t, err)
			locked := make(chan string, 1)
			go func() {
				mark, err := lock(second)
				if err != nil {
					t.Error(err)
				}
				locked <- mark
			}()
			servertest.Eventually(t, "the second waits", func() bool {
				var n int
				must(t, db.QueryRowContext(t.Context(), waiting).Scan(&n))
				return n > 0 || len(locked) > 0
			})
			if len(locked) > 0 {
				t.Fatal("the second has the lock while the first holds it")
			}
			must(t, inbox.SetMark(t.Context(), bridge.SQL(first), "receiver", "entity", "7"))
			must(t, first.Commit())
			if mark := <-locked; mark != "7" {
				t.Errorf("the second reads %q, must read 7", mark)
			}
		})
	}
}

// ROWCOUNT of the caller's session would end an INSERT or a list after some rows, without an error.
func TestTheCallersRowcountLimitsNoStatementOfTheInbox(t *testing.T) {
	db := connect(t, servertest.SQLServerDB(t, servertest.SQLServer(t, nil), true))
	must(t, migrate.Inbox(t.Context(), db, migrate.SQLServer))
	inbox, err := sqlserver.OpenInbox(t.Context(), db)
	must(t, err)
	keys := []string{"a", "b", "c"}
	sqlTx := begin(t, db, nil)
	execute(t, sqlTx, "SET ROWCOUNT 1")
	tx, ctx := bridge.SQL(sqlTx), t.Context()
	fresh, err := inbox.Claim(ctx, tx, "c", keys)
	must(t, err)
	for _, key := range keys {
		_, err := inbox.AddPending(ctx, tx, "c", driver.Pending{Key: key, State: driver.Ready, Run: "r", Message: []byte("m")}, 0)
		must(t, err)
		_, err = inbox.LockMark(ctx, tx, "c", key)
		must(t, err)
		_, err = inbox.Keep(ctx, tx, "c", key, 1, []byte("m"))
		must(t, err)
	}
	_, err = inbox.AddPending(ctx, tx, "c", driver.Pending{Key: "doubtful", State: driver.Doubtful, Run: "r"}, 0)
	must(t, err)
	claimed, err := inbox.Claimed(ctx, tx, "c", "", 10)
	must(t, err)
	listed, err := inbox.ListPending(ctx, tx, "c", driver.Ready, "", 10)
	must(t, err)
	states, err := inbox.CountPending(ctx, tx, "c")
	must(t, err)
	kept, err := inbox.KeptEntities(ctx, tx, "c", 10)
	must(t, err)
	forgotten, err := inbox.Forget(ctx, tx, "c", keys, -time.Minute)
	must(t, err)
	if len(fresh) != 3 || len(claimed) != 3 || len(listed) != 3 || len(states) != 2 || len(kept) != 3 || forgotten != 3 {
		t.Errorf("%d are fresh, %d claimed, %d listed, %d kept, %d forgotten, of 3; %d states of 2", len(fresh), len(claimed), len(listed), len(kept), forgotten, len(states))
	}
	must(t, sqlTx.Commit())
}

// An INSERT that leaves rows out without an error must not look like a claim.
func TestAClaimThatIsNotInsertedIsRefused(t *testing.T) {
	db := connect(t, servertest.SQLServerDB(t, servertest.SQLServer(t, nil), true))
	must(t, migrate.Inbox(t.Context(), db, migrate.SQLServer))
	inbox, err := sqlserver.OpenInbox(t.Context(), db)
	must(t, err)
	execute(t, db, "ALTER INDEX bridge_inbox_key ON bridge_inbox SET (IGNORE_DUP_KEY = ON)")
	tx := begin(t, db, nil)
	_, err = inbox.Claim(t.Context(), bridge.SQL(tx), "c", []string{"a"})
	must(t, err)
	if fresh, err := inbox.Claim(t.Context(), bridge.SQL(tx), "c", []string{"a"}); err == nil || !strings.Contains(err.Error(), "IGNORE_DUP_KEY") {
		t.Errorf("claim again: %q, %v", fresh, err)
	}
}
