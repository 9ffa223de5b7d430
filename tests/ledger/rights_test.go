package ledger_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/pending"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// The rights for parts of a role, as the comments of packages postgres and mysql list them.
// migrate.Rights has the rights of whole roles, which bridgectl grants prints.
var (
	senderRights     = []string{"INSERT ON bridge_ledger", "SELECT ON bridge_identity", "SELECT ON bridge_ledger_version"}
	verifierRights   = append(slices.Clone(senderRights), "SELECT, DELETE ON bridge_ledger", "SELECT ON bridge_watermark")
	sweeperRights    = append(slices.Clone(verifierRights), "UPDATE ON bridge_watermark")
	receiverRights   = []string{"INSERT ON bridge_inbox", "SELECT ON bridge_inbox_version"}
	purgerRights     = append(slices.Clone(receiverRights), "SELECT, DELETE ON bridge_inbox")
	atMostOnceRights = []string{"SELECT ON bridge_inbox_version", "SELECT, INSERT, DELETE ON bridge_inbox", "SELECT, INSERT, UPDATE, DELETE ON bridge_inbox_pending"}
	markerRights     = []string{"SELECT ON bridge_inbox_version", "SELECT, INSERT, UPDATE ON bridge_mark"}
	keeperRights     = append(slices.Clone(markerRights), "SELECT, INSERT, DELETE ON bridge_kept")
)

// guarded is a database in which a test can create roles.
type guarded struct {
	kind  stage.Database
	of    migrate.Dialect
	as    func(t *testing.T, rights []string) *sql.DB
	open  func(ctx context.Context, db *sql.DB) (driver.Ledger, error)
	inbox func(ctx context.Context, db *sql.DB) (driver.Inbox, error)
	older string // makes rows of the ledger two hours older
}

// whole returns the rights of a whole role.
func (g guarded) whole(t *testing.T, role migrate.Role) []string {
	t.Helper()
	rights, err := migrate.Rights(g.of, role, "", "", "")
	must(t, err)
	return rights
}

// guardedKind returns the stage's kind of database for a harness, with an inbox.
func guardedKind(h ledgertest.Harness) stage.Database {
	kind := kindOf(h)
	open := kind.Open
	kind.Open = func(ctx context.Context, url string) (*sql.DB, driver.Ledger, error) {
		db, ledger, err := open(ctx, url)
		if err == nil {
			err = h.MigrateInbox(ctx, db)
		}
		return db, ledger, err
	}
	return kind
}

func postgresGuarded(t *testing.T) guarded {
	address := servertest.PostgresDB(t)
	execute(t, connect(t, address), `ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC`)
	h := postgresHarness("pgx", func(testing.TB) string { return address })
	return guarded{
		kind: guardedKind(h),
		of:   migrate.PostgreSQL,
		as: func(t *testing.T, rights []string) *sql.DB {
			if slices.Contains(rights, "SELECT, DELETE ON bridge_ledger") && slices.Contains(rights, "SELECT ON bridge_watermark") { // some of a verifier's rights
				rights = append(slices.Clone(rights), "EXECUTE ON FUNCTION bridge_committed, bridge_forget")
			}
			_, at := servertest.PostgresRole(t, address, rights...)
			return connect(t, at)
		},
		open:  func(ctx context.Context, db *sql.DB) (driver.Ledger, error) { return postgres.Open(ctx, db) },
		inbox: func(ctx context.Context, db *sql.DB) (driver.Inbox, error) { return postgres.OpenInbox(ctx, db) },
		older: h.Older,
	}
}

func mariaDBGuarded(t *testing.T) guarded {
	dsn := servertest.MariaDBDatabase(t)
	config := mariaDBConfig(t, dsn)
	h := mariaDBHarness()
	h.Create = func(testing.TB) func() (*sql.DB, error) {
		return func() (*sql.DB, error) { return sql.Open("mysql", dsn) }
	}
	return guarded{
		kind: guardedKind(h),
		of:   migrate.MySQL,
		as: func(t *testing.T, rights []string) *sql.DB {
			return mariaDBRole(t, config, connectMariaDB(t, config), rights...)
		},
		open:  func(ctx context.Context, db *sql.DB) (driver.Ledger, error) { return mysql.Open(ctx, db) },
		inbox: func(ctx context.Context, db *sql.DB) (driver.Inbox, error) { return mysql.OpenInbox(ctx, db) },
		older: h.Older,
	}
}

func TestPostgresRightsToCancel(t *testing.T) {
	t.Parallel()
	testRightsToCancel(t, postgresGuarded(t))
}

// Only a login with the canceller's rights can cancel a message, and only an operator can make it
// due.
func testRightsToCancel(t *testing.T, g guarded) {
	open := func(role migrate.Role) driver.Ledger {
		t.Helper()
		ledger, err := g.open(t.Context(), g.as(t, g.whole(t, role)))
		must(t, err)
		return ledger
	}
	admin, _, err := g.kind.Open(t.Context(), g.kind.URL(t))
	must(t, err)
	t.Cleanup(func() { must(t, admin.Close()) })
	senders, cancellers, verifiers, operators := open(migrate.Sender), open(migrate.Canceller), open(migrate.Verifier), open(migrate.Operator)
	id := newID()
	tx := begin(t, cancellers.DB())
	must(t, cancellers.Record(t.Context(), bridge.SQL(tx), []driver.Entry{{ID: id, Message: []byte("later"), NotBefore: time.Now().Add(time.Hour)}}))
	must(t, tx.Commit())

	tx = begin(t, senders.DB())
	if done, err := senders.Cancel(t.Context(), bridge.SQL(tx), id); err == nil || done {
		t.Errorf("a sender without the rights has cancelled: %t, %v", done, err)
	}
	must(t, tx.Rollback())
	if done, err := inspectorOf(t, verifiers).Advance(t.Context(), id); err == nil || done {
		t.Errorf("a verifier has made a delayed message due: %t, %v", done, err)
	}
	for _, want := range []bool{true, false} { // the first call has made it due
		if done, err := inspectorOf(t, operators).Advance(t.Context(), id); err != nil || done != want {
			t.Errorf("advance returns %t, %v, must return %t", done, err, want)
		}
	}
	for _, want := range []bool{true, false} {
		tx = begin(t, cancellers.DB())
		if done, err := cancellers.Cancel(t.Context(), bridge.SQL(tx), id); err != nil || done != want {
			t.Errorf("cancel returns %t, %v, must return %t", done, err, want)
		}
		must(t, tx.Commit())
	}
}

func TestPostgresEachRoleWorksWithItsRightsAndNoMore(t *testing.T) {
	t.Parallel()
	testEachRole(t, postgresGuarded)
}

// With its documented rights each role can do its work, from the sender to the receiver, in one
// session of the verifier. It cannot do the work of the next role. If a verifier lacks the right
// for a side job, such as staging again, it logs that once.
func testEachRole(t *testing.T, database func(t *testing.T) guarded) {
	for _, role := range []struct {
		name           string
		rights         func(whole []string) []string
		stages, sweeps bool
	}{
		{"verifier", func([]string) []string { return verifierRights }, false, false},
		{"verifier that stages again", func(whole []string) []string {
			rights := slices.DeleteFunc(slices.Clone(whole), func(right string) bool { return right == "SELECT, UPDATE ON bridge_watermark" })
			return append(rights, "SELECT ON bridge_watermark")
		}, true, false},
		{"whole verifier", func(whole []string) []string { return whole }, true, true},
	} {
		t.Run(role.name, func(t *testing.T) {
			g := database(t)
			s := stage.New(t, g.kind)
			queue := s.Queue("target", nil)
			open := func(rights []string) driver.Ledger {
				t.Helper()
				ledger, err := g.open(t.Context(), g.as(t, rights))
				must(t, err)
				return ledger
			}
			senders, receivers := open(g.whole(t, migrate.Sender)), g.as(t, receiverRights)
			send := func(body string) *sql.Tx {
				t.Helper()
				out, err := sender.New(senders, s.Broker, &sender.Options{Queue: s.Topology.Queue, Timeout: stage.Patience, Carry: sender.CarryNever})
				must(t, err)
				tx := begin(t, senders.DB())
				_, err = out.SendTx(t.Context(), bridge.SQL(tx), stage.To(queue, body))
				must(t, err)
				return tx
			}

			// An orphan, for the sweep.
			orphan := newID()
			must(t, recorded(t, senders, orphan).Commit())
			execute(t, s.DB, g.older)

			var log servertest.Log
			s.Ledger = open(role.rights(g.whole(t, migrate.Verifier)))
			if role.stages {
				must(t, s.Ledger.Touch(t.Context(), []uuid.UUID{orphan}))
			}
			v := s.Verify(verifier.Options{SweepAge: time.Hour, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			s.Eventually("a sweep", func() bool {
				return v.Stats().Swept == 1 || !role.sweeps && len(log.With("job=sweep")) == 1
			})

			must(t, send("committed").Commit())
			must(t, send("rolled back").Rollback())
			verifiers, admin := s.Ledger, s.DB
			s.Ledger, s.DB = senders, senders.DB()
			s.CommitCarried(stage.To(queue, "carried")) // by the sender's login; no queue has a copy
			s.Ledger, s.DB = verifiers, admin

			want := map[string]bool{"committed": true}
			if role.stages {
				want["carried"] = true
			}
			inbox, err := g.inbox(t.Context(), receivers)
			must(t, err)
			for _, d := range s.Receive(queue, len(want)) {
				if !want[string(d.Body)] {
					t.Errorf("received %q", d.Body)
				}
				for _, fresh := range []bool{true, false} {
					tx := begin(t, receivers)
					claimed, err := inbox.Claim(t.Context(), bridge.SQL(tx), "consumer", []string{d.MessageId})
					must(t, err)
					must(t, tx.Commit())
					if (len(claimed) == 1) != fresh {
						t.Errorf("the claim is %q, must be new: %t", claimed, fresh)
					}
				}
			}
			s.Eventually("the rolled-back one is dropped", func() bool { return v.Stats().Dropped == 1 })
			left := 0 // rows of the ledger
			for job, may := range map[string]bool{"stage": role.stages, "sweep": role.sweeps} {
				if !may {
					left++
					s.Eventually("the log names the missing right", func() bool { return len(log.With("job="+job)) == 1 })
				}
			}
			s.Eventually("the ledger is empty", func() bool { return s.Rows() == left })
			if n := v.Stats().Sessions; n != 1 {
				t.Errorf("%d sessions:\n%s", n, log.String())
			}
		})
	}
	t.Run("others", func(t *testing.T) {
		g := database(t)
		admin, _, err := g.kind.Open(t.Context(), g.kind.URL(t))
		must(t, err)
		t.Cleanup(func() { must(t, admin.Close()) })
		testReceivingRoles(t, g)
	})
}

// testReceivingRoles has each receiver try the work that its rights are for and the work that
// they are not for.
func testReceivingRoles(t *testing.T, g guarded) {
	senders := g.as(t, senderRights)
	ledger, err := g.open(t.Context(), senders)
	must(t, err)
	if _, err := ledger.Forget(t.Context(), []uuid.UUID{newID()}); err == nil || !strings.Contains(err.Error(), "denied") && !strings.Contains(err.Error(), "DELETE ON bridge_ledger") {
		t.Errorf("a sender deletes: %v, must name the missing right", err)
	}
	verbs := map[string][]string{
		"claim": {"claim"},
		"purge": {"claim", "read claims", "forget"},
		"pend":  {"add", "attach", "look up", "change", "remove"},
		"mark":  {"lock mark", "set mark"},
		"keep":  {"lock mark", "keep", "first kept", "unkeep"},
	}
	for name, role := range map[string]struct {
		rights []string
		may    string
	}{
		"receiver":                     {receiverRights, "claim"},
		"receiver that purges":         {purgerRights, "claim purge"},
		"receiver for AtMostOnce":      {atMostOnceRights, "claim purge pend"},
		"receiver for Latest":          {markerRights, "mark"},
		"receiver for Ordered as well": {keeperRights, "mark keep"},
		"whole receiver":               {g.whole(t, migrate.Receiver), "claim purge pend mark keep"},
		"whole receiver for effects":   {g.whole(t, migrate.Effects), "claim purge pend"},
	} {
		db := g.as(t, role.rights)
		inbox, err := g.inbox(t.Context(), db)
		must(t, err)
		for what, names := range verbs {
			tx := begin(t, db)
			var err error
			for _, v := range ledgertest.Verbs(inbox, "consumer", driver.Pending{Key: newID().String(), State: driver.Ready, Run: "1", Message: []byte("x")}) {
				if err == nil && slices.Contains(names, v.Name) {
					err = v.Do(t.Context(), bridge.SQL(tx))
				}
			}
			must(t, tx.Rollback())
			if may := strings.Contains(role.may, what); may != (err == nil) {
				t.Errorf("%s may %s: %t, must be %t (%v)", name, what, !may, may, err)
			}
		}
		if _, err := g.open(t.Context(), db); err == nil {
			t.Errorf("%s can open the ledger", name)
		}
		switch name {
		case "receiver":
			testHandle(t, db, inbox)
		case "receiver for AtMostOnce":
			testAtMostOnce(t, db, inbox)
			testAcceptAndWork(t, db, inbox)
		}
	}
}

func testHandle(t *testing.T, db *sql.DB, inbox driver.Inbox) {
	dedup, err := idempotency.New(inbox, "by Handle", &idempotency.Options{HandBack: true, Retention: -1})
	must(t, err)
	d := delivery()
	for range 2 {
		must(t, dedup.Handle(t.Context(), db, d, func(context.Context, *sql.Tx) error { return nil }))
	}
	if got := dedup.Stats(); got.Handled != 1 || got.Duplicates != 1 {
		t.Errorf("with a receiver's rights: %+v", got)
	}
	d = delivery()
	must(t, dedup.HandleWithClaim(t.Context(), d, func(ctx context.Context, claim idempotency.Claim) error {
		tx := begin(t, db)
		if fresh, err := claim(ctx, bridge.SQL(tx)); err != nil || !fresh {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	}))
}

// testAtMostOnce has an effect fail for certain, end in doubt, and be repeated by hand.
func testAtMostOnce(t *testing.T, db *sql.DB, inbox driver.Inbox) {
	effects, err := pending.New(inbox, "by AtMostOnce", &pending.Options{HandBack: true, Attempts: 1, MaxDelay: 100 * time.Millisecond})
	must(t, err)
	var failure error
	effect := func(context.Context, amqp.Delivery) error { return failure }
	d := delivery()
	failure = pending.NotDone(errors.New("no answer"))
	if err := effects.AtMostOnce(t.Context(), db, d, effect); !errors.Is(err, idempotency.ErrHandedBack) {
		t.Errorf("an effect that was not done: %v", err)
	}
	failure = errors.New("in doubt")
	must(t, effects.AtMostOnce(t.Context(), db, d, effect))
	must(t, effects.Retry(t.Context(), db, d.MessageId))
	failure = nil
	must(t, effects.AtMostOnce(t.Context(), db, d, effect))
	must(t, effects.AtMostOnce(t.Context(), db, delivery(), effect))
	if _, err := effects.Purge(t.Context(), db); err != nil {
		t.Error(err)
	}
}

func testAcceptAndWork(t *testing.T, db *sql.DB, inbox driver.Inbox) {
	worker, err := pending.NewWorker(inbox, "by Accept", &pending.WorkerOptions{HandBack: true})
	must(t, err)
	must(t, worker.Accept(t.Context(), db, delivery()))
	working, stop := context.WithCancel(t.Context())
	defer stop()
	var running sync.WaitGroup
	running.Go(func() {
		if err := worker.Work(working, db, func(context.Context, *sql.Tx, amqp.Delivery) error { return nil }); err != nil {
			t.Error(err)
		}
	})
	servertest.Eventually(t, "Work has handled a message", func() bool { return worker.Stats().Handled == 1 })
	stop()
	running.Wait()
}

// delivery returns a delivery whose acks are ignored.
func delivery() amqp.Delivery {
	return amqp.Delivery{MessageId: newID().String(), Acknowledger: noAcks{}, DeliveryTag: 1}
}

type noAcks struct{}

func (noAcks) Ack(uint64, bool) error        { return nil }
func (noAcks) Nack(uint64, bool, bool) error { return nil }
func (noAcks) Reject(uint64, bool) error     { return nil }

// ofInbox reports whether a right is for a table of the inbox.
func ofInbox(right string) bool {
	return strings.Contains(right, "bridge_inbox") || strings.Contains(right, "bridge_mark") || strings.Contains(right, "bridge_kept")
}

// An operator's printed rights do not suffice for a new identity, and the error names the missing
// right.
func TestPostgresNewIdentityNamesTheMissingRight(t *testing.T) {
	t.Parallel()
	address, admin := migrated(t)
	rights, err := migrate.Rights(migrate.PostgreSQL, migrate.Operator, "", "", "")
	must(t, err)
	_, at := servertest.PostgresRole(t, address, slices.DeleteFunc(rights, ofInbox)...)
	operator := connect(t, at)
	newIdentity := func() error {
		_, err := migrate.NewIdentity(t.Context(), operator, migrate.PostgreSQL, newID().String())
		return err
	}
	if err := newIdentity(); err == nil || !strings.Contains(err.Error(), "needs UPDATE ON bridge_identity") {
		t.Errorf("new identity: %v", err)
	}
	execute(t, admin, "GRANT UPDATE ON bridge_identity TO "+roleOf(t, at))
	must(t, newIdentity())
}

func TestPostgresRightsToMigrate(t *testing.T) {
	t.Parallel()
	address := servertest.PostgresDB(t)
	rights, err := migrate.Rights(migrate.PostgreSQL, migrate.Migrator, "", "", "")
	must(t, err)
	_, at := servertest.PostgresRole(t, address, rights...)
	testRightsToMigrate(t, connect(t, at), migrate.PostgreSQL)

	another := servertest.PostgresDB(t)
	execute(t, connect(t, another), "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
	_, at = servertest.PostgresRole(t, another)
	if err := migrate.Ledger(t.Context(), connect(t, at), migrate.PostgreSQL); err == nil || !strings.Contains(err.Error(), "grant this login CREATE on the schema") {
		t.Errorf("without the right it ends with %v", err)
	}
}

func testMariaDBRightsToMigrate(t *testing.T) {
	config := mariaDBConfig(t, servertest.MariaDBDatabase(t))
	rights, err := migrate.Rights(migrate.MySQL, migrate.Migrator, config.DBName, "", "")
	must(t, err)
	db := mariaDBRole(t, config, connectMariaDB(t, config), rights...)
	testRightsToMigrate(t, db, migrate.MySQL)
}

// With the documented rights a migrator can create the tables and migrate them again.
func testRightsToMigrate(t *testing.T, db *sql.DB, dialect migrate.Dialect) {
	for range 2 {
		must(t, migrate.Ledger(t.Context(), db, dialect))
		must(t, migrate.Inbox(t.Context(), db, dialect))
	}
}
