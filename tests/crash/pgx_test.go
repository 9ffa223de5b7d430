package crash_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/sender/pgxsender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// sendByPgx places the orders by pgxsender.InTx.
func (v *victim) sendByPgx(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, v.DatabaseURL)
	if err != nil {
		return err
	}
	return pgxsender.InTx(ctx, v.sender, pool, pgx.TxOptions{}, func(tx *pgxsender.Transaction) error {
		if v.Early {
			if _, err := tx.Stage(ctx, messages(v.Orders, v.Target)...); err != nil {
				return err
			}
			v.stop(begun, v.Orders...)
		} else if _, err := tx.Send(messages(v.Orders, v.Target)...); err != nil {
			return err
		}
		for _, id := range v.Orders {
			if _, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, id.String()); err != nil {
				return fmt.Errorf("insert order: %w", err)
			}
		}
		return nil
	})
}

// The moments of a sender whose transactions are pgx's. The first statement of each takes
// the BEGIN along: it records early, or inserts the order.
func TestASenderByPgxIsKilled(t *testing.T) {
	for _, c := range []struct {
		when  string
		early bool
		kill  func(w *world, id uuid.UUID, b brief)
	}{
		{"after the record: nothing is sent", false, killedAfterRecord},
		{"after the early record: nothing is sent", true, killedAfterRecord},
		{"before the confirm: it has rolled back", false, killedBeforeConfirm},
		{"before the early confirm: it has rolled back", true, killedBeforeConfirm},
		{"between the early publish and the other statement: it has rolled back", true, killedBetween},
		{"before the answer to its COMMIT: it has committed", false, killedBeforeAnswer},
		{"after the commit", false, killedAfterCommit},
		{"after the commit of what was staged early", true, killedAfterCommit},
	} {
		t.Run(c.when, func(t *testing.T) {
			t.Parallel()
			w, id := newWorld(t, stage.New(t, stage.Postgres)), newIDs(1)[0]
			c.kill(w, id, brief{Role: aSender, Pgx: true, Early: c.early, Orders: []uuid.UUID{id}, Stops: map[point]uuid.UUID{}})
			w.wantOnce()
		})
	}
}

func killedAfterRecord(w *world, id uuid.UUID, b brief) {
	b.Stops[recorded] = id
	p := w.start(b)
	p.reached(recorded)
	w.wantOutcome(id, driver.StillOpen)
	p.kill()
	w.wantRolledBack(id, 1)
}

func killedBetween(w *world, id uuid.UUID, b brief) {
	b.Stops[begun] = id
	p := w.start(b)
	p.reached(begun)
	w.WaitDepth(w.Topology.Queue, 2)
	w.wantOutcome(id, driver.StillOpen)
	p.kill()
	w.wantRolledBack(id, 2)
}

func killedBeforeConfirm(w *world, id uuid.UUID, b brief) {
	valve, address := servertest.Through(w.t, w.AMQP)
	b.AMQP, b.Stops[ready] = address, id
	p := w.start(b)
	p.reached(ready)
	valve.HoldReplies()
	p.goOn()
	w.WaitDepth(w.Topology.Queue, 2)
	w.wantOutcome(id, driver.StillOpen)
	p.kill()
	w.wantRolledBack(id, 2)
}

func killedBeforeAnswer(w *world, id uuid.UUID, b brief) {
	valve, address := servertest.Through(w.t, w.DatabaseURL)
	b.DatabaseURL, b.Stops[recorded], b.Stops[placed] = address, id, id
	p := w.start(b)
	p.reached(recorded)
	valve.HoldReplies()
	p.goOn()
	w.wantOutcome(id, driver.Committed)
	p.kill()
	w.wantForwarded(id)
}

func killedAfterCommit(w *world, id uuid.UUID, b brief) {
	b.Stops[placed] = id
	p := w.start(b)
	p.reached(placed)
	p.kill()
	w.wantForwarded(id)
}

// wantRolledBack checks that the sender's second transaction has rolled back, after so many
// messages were staged by both.
func (w *world) wantRolledBack(id uuid.UUID, staged int) {
	w.t.Helper()
	w.wantOutcome(id, driver.RolledBack)
	w.wantHandedBack(staged)
	w.wantStats(w.finish(), 1, int64(staged-1))
}

func (w *world) wantForwarded(id uuid.UUID) {
	w.t.Helper()
	w.wantOutcome(id, driver.Committed)
	w.wantHandedBack(2)
	w.wantStats(w.finish(), 2, 0)
}
