package ledger_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// The rights of each role, as the comments of packages postgres and mysql list them.
var (
	senderRights     = []string{"INSERT ON bridge_ledger", "SELECT ON bridge_identity", "SELECT ON bridge_ledger_version"}
	parkerRights     = append(slices.Clone(senderRights), "INSERT ON bridge_parked")
	verifierRights   = append(slices.Clone(senderRights), "SELECT, DELETE ON bridge_ledger", "SELECT ON bridge_watermark")
	unparkerRights   = append(slices.Clone(verifierRights), "SELECT, UPDATE, DELETE ON bridge_parked", "UPDATE (recorded_at) ON bridge_ledger")
	sweeperRights    = append(slices.Clone(unparkerRights), "UPDATE ON bridge_watermark")
	receiverRights   = []string{"INSERT ON bridge_inbox", "SELECT ON bridge_inbox_version"}
	purgerRights     = append(slices.Clone(receiverRights), "SELECT, DELETE ON bridge_inbox")
	atMostOnceRights = []string{"SELECT ON bridge_inbox_version", "SELECT, INSERT, DELETE ON bridge_inbox", "SELECT, INSERT, UPDATE, DELETE ON bridge_inbox_pending"}
	markerRights     = []string{"SELECT ON bridge_inbox_version", "SELECT, INSERT, UPDATE ON bridge_mark"}
	keeperRights     = append(slices.Clone(markerRights), "SELECT, INSERT, DELETE ON bridge_kept")
)

// A guarded database gives out roles.
type guarded struct {
	ledgertest.Harness
	admin *sql.DB
	as    func(t *testing.T, rights []string) *sql.DB
}

// guardedDatabases make a database of each kind that knows roles.
var guardedDatabases = map[string]func(t *testing.T) guarded{
	"postgres": func(t *testing.T) guarded {
		address, admin := migrated(t)
		must(t, migrate.Inbox(t.Context(), admin, migrate.PostgreSQL))
		return guarded{postgresHarness("pgx", nil), admin, func(t *testing.T, rights []string) *sql.DB {
			_, at := newRole(t, address, admin, rights...)
			return connect(t, at)
		}}
	},
	"mariadb": func(t *testing.T) guarded {
		config, admin := mariaDB(t)
		must(t, migrate.Inbox(t.Context(), admin, migrate.MySQL))
		return guarded{mariaDBHarness(), admin, func(t *testing.T, rights []string) *sql.DB {
			return mariaDBRole(t, config, admin, rights...)
		}}
	},
}

// A role may do some things and not others.
type role[Of any] struct {
	rights   []string
	may, not []func(ctx context.Context, of Of) error
}

// try fails unless of may do what the role is for, and nothing else for want of a right.
func (r role[Of]) try(t *testing.T, name string, of Of) {
	t.Helper()
	for i, do := range r.may {
		if err := do(t.Context(), of); err != nil {
			t.Errorf("%s: %d: %v", name, i, err)
		}
	}
	for i, do := range r.not {
		if err := do(t.Context(), of); err == nil || !strings.Contains(err.Error(), "denied") && !strings.Contains(err.Error(), " ON bridge_") {
			t.Errorf("%s, of what it may not do, %d: %v, must name the missing right", name, i, err)
		}
	}
}

// Each role does what it is for with the rights that are documented for it, and cannot do
// what another is for.
func TestEachRoleWorksWithItsRightsAndNoMore(t *testing.T) {
	for name, database := range guardedDatabases {
		t.Run(name, func(t *testing.T) {
			g := database(t)
			testLedgersRoles(t, g)
			testReceivingRoles(t, g)
		})
	}
}

func testLedgersRoles(t *testing.T, g guarded) {
	in := func(ctx context.Context, ledger driver.Ledger, do func(tx bridge.Tx, id uuid.UUID) error) (uuid.UUID, error) {
		tx := begin(t, ledger.DB())
		id := newID()
		if err := do(bridge.SQL(tx), id); err != nil {
			return id, errors.Join(err, tx.Rollback())
		}
		return id, tx.Commit()
	}
	recorded := func(ctx context.Context, ledger driver.Ledger) (uuid.UUID, error) {
		return in(ctx, ledger, func(tx bridge.Tx, id uuid.UUID) error { return ledger.Record(ctx, tx, []uuid.UUID{id}) })
	}
	send := func(ctx context.Context, ledger driver.Ledger) error {
		_, err := recorded(ctx, ledger)
		return err
	}
	park := func(ctx context.Context, ledger driver.Ledger) error {
		_, err := in(ctx, ledger, func(tx bridge.Tx, id uuid.UUID) error {
			err := ledger.Record(ctx, tx, []uuid.UUID{id})
			if err == nil {
				err = ledger.Park(ctx, tx, []driver.Parked{{ID: id, Message: []byte("x")}})
			}
			return err
		})
		return err
	}
	forget := func(ctx context.Context, ledger driver.Ledger) error { return ledger.Forget(ctx, []uuid.UUID{newID()}) }
	judge := func(ctx context.Context, ledger driver.Ledger) error {
		id, err := recorded(ctx, ledger)
		if err == nil {
			err = errors.Join(ledger.Check(ctx), driver.Prove(ctx, ledger))
		}
		if err != nil {
			return err
		}
		found, err := ledger.Committed(ctx, []uuid.UUID{id})
		outcome, settleErr := ledger.Settle(ctx, id, time.Second)
		_, markErr := ledger.SweptBefore(ctx)
		if err := errors.Join(err, settleErr, markErr); err != nil {
			return err
		}
		if len(found) != 1 || outcome != driver.Committed {
			return fmt.Errorf("the lookup finds %v, settle says %q", found, outcome)
		}
		return ledger.Forget(ctx, []uuid.UUID{id})
	}
	unpark := func(ctx context.Context, ledger driver.Ledger) error {
		n, err := ledger.Unpark(ctx, uuid.Nil, 1, func(context.Context, []driver.Parked) error { return nil })
		if err == nil && n != 1 {
			err = fmt.Errorf("%d messages are unparked", n)
		}
		return err
	}
	sweep := func(ctx context.Context, ledger driver.Ledger) error {
		swept, err := ledger.Sweep(ctx, time.Hour, 10)
		if err == nil && len(swept) != 1 {
			err = fmt.Errorf("swept are %v", swept)
		}
		return err
	}
	whole, err := g.Open(t.Context(), g.admin)
	must(t, err)
	must(t, send(t.Context(), whole)) // an orphan
	execute(t, g.admin, g.Older)
	for range 4 {
		must(t, park(t.Context(), whole))
	}
	for name, role := range map[string]role[driver.Ledger]{
		"sender":                {senderRights, list(send), list(park, forget, judge, unpark, sweep)},
		"sender that parks":     {parkerRights, list(send, park), list(forget, judge, unpark, sweep)},
		"verifier":              {verifierRights, list(judge), list(park, unpark, sweep)},
		"verifier that unparks": {unparkerRights, list(judge, unpark), list(park, sweep)},
		"verifier that sweeps":  {sweeperRights, list(judge, unpark, sweep), list(park)},
	} {
		ledger, err := g.Open(t.Context(), g.as(t, role.rights))
		must(t, err)
		role.try(t, name, ledger)
	}
}

func testReceivingRoles(t *testing.T, g guarded) {
	type receiver = func(ctx context.Context, tx *sql.Tx, inbox driver.Inbox) error
	claim := func(ctx context.Context, tx *sql.Tx, inbox driver.Inbox) error {
		_, err := inbox.Claim(ctx, bridge.SQL(tx), "consumer", newID().String())
		return err
	}
	purge := func(ctx context.Context, tx *sql.Tx, inbox driver.Inbox) error {
		claimed, err := inbox.Claimed(ctx, bridge.SQL(tx), "consumer", "", 10)
		if err != nil {
			return err
		}
		keys := []string{newID().String()}
		for _, c := range claimed {
			keys = append(keys, c.Key)
		}
		_, err = inbox.Forget(ctx, bridge.SQL(tx), "consumer", keys, 0)
		return err
	}
	pend := func(ctx context.Context, tx *sql.Tx, inbox driver.Inbox) error {
		const c, run = "consumer", "1"
		p := driver.Pending{Key: newID().String(), State: driver.Started, Run: run}
		var all []error
		add := func(err error) { all = append(all, err) }
		_, err := inbox.AddPending(ctx, bridge.SQL(tx), c, p, 0)
		if err != nil {
			return err
		}
		_, _, err = inbox.LookUp(ctx, bridge.SQL(tx), c, p.Key)
		add(err)
		_, err = inbox.AttachMessage(ctx, bridge.SQL(tx), c, p.Key, run, []byte("x"))
		add(err)
		_, err = inbox.DoubtOverdue(ctx, bridge.SQL(tx), c)
		add(err)
		_, err = inbox.TakePending(ctx, bridge.SQL(tx), c, driver.Doubtful)
		add(err)
		_, err = inbox.ChangePending(ctx, bridge.SQL(tx), c, run, p, 0)
		add(err)
		_, err = inbox.ListPending(ctx, bridge.SQL(tx), c, driver.Started, "", 1)
		add(err)
		_, err = inbox.CountPending(ctx, bridge.SQL(tx), c)
		add(err)
		_, err = inbox.RemoveBarePending(ctx, bridge.SQL(tx), c, p.Key, run)
		add(err)
		_, err = inbox.RemovePending(ctx, bridge.SQL(tx), c, p.Key, run)
		add(err)
		add(inbox.Unclaim(ctx, bridge.SQL(tx), c, p.Key))
		return errors.Join(all...)
	}
	mark := func(ctx context.Context, tx *sql.Tx, inbox driver.Inbox) error {
		if _, err := inbox.LockMark(ctx, bridge.SQL(tx), "consumer", "name"); err != nil {
			return err
		}
		return inbox.SetMark(ctx, bridge.SQL(tx), "consumer", "name", newID().String())
	}
	keep := func(ctx context.Context, tx *sql.Tx, inbox driver.Inbox) error {
		_, err := inbox.LockMark(ctx, bridge.SQL(tx), "consumer", "entity")
		if err == nil {
			_, err = inbox.Keep(ctx, bridge.SQL(tx), "consumer", "entity", 1, []byte("x"))
		}
		if err == nil {
			_, _, err = inbox.FirstKept(ctx, bridge.SQL(tx), "consumer", "entity")
		}
		if err == nil {
			err = inbox.Unkeep(ctx, bridge.SQL(tx), "consumer", "entity", 1)
		}
		return err
	}
	// in has a receiver do it in a transaction of its own.
	in := func(all ...receiver) (each []func(ctx context.Context, inbox driver.Inbox) error) {
		for _, do := range all {
			each = append(each, func(ctx context.Context, inbox driver.Inbox) error {
				tx := begin(t, inbox.DB())
				if err := do(ctx, tx, inbox); err != nil {
					return errors.Join(err, tx.Rollback())
				}
				return tx.Commit()
			})
		}
		return each
	}
	for name, role := range map[string]role[driver.Inbox]{
		"receiver":                     {receiverRights, in(claim), in(purge, pend, mark, keep)},
		"receiver that purges":         {purgerRights, in(claim, purge), in(pend, mark, keep)},
		"receiver for AtMostOnce":      {atMostOnceRights, in(claim, purge, pend), in(mark, keep)},
		"receiver for Latest":          {markerRights, in(mark), in(claim, purge, pend, keep)},
		"receiver for Ordered as well": {keeperRights, in(mark, keep), in(claim, purge, pend)},
	} {
		db := g.as(t, role.rights)
		inbox, err := g.OpenInbox(t.Context(), db)
		must(t, err)
		role.try(t, name, inbox)
		if _, err := g.Open(t.Context(), db); err == nil {
			t.Errorf("%s can open the ledger", name)
		}
	}
}

func list[T any](all ...T) []T { return all }

// Who migrates needs the rights that are documented for it, from nothing and again.
func TestWhoMigratesNeedsTheDocumentedRights(t *testing.T) {
	for name, db := range map[string]func(t *testing.T) *sql.DB{
		"postgres": func(t *testing.T) *sql.DB {
			address := servertest.PostgresDB(t)
			_, at := newRole(t, address, connect(t, address), "CREATE ON SCHEMA public")
			return connect(t, at)
		},
		"mysql": func(t *testing.T) *sql.DB {
			config := mariaDBConfig(t, servertest.MariaDBDatabase(t))
			return mariaDBRole(t, config, connectMariaDB(t, config),
				"SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX ON "+config.DBName+".*")
		},
	} {
		t.Run(name, func(t *testing.T) {
			dialect := map[string]migrate.Dialect{"postgres": migrate.PostgreSQL, "mysql": migrate.MySQL}[name]
			db := db(t)
			for range 2 {
				must(t, migrate.Ledger(t.Context(), db, dialect))
				must(t, migrate.Inbox(t.Context(), db, dialect))
			}
		})
	}
}
