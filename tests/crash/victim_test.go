package crash_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/sender/pgxsender"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

const briefVariable = "CRASH_TEST_BRIEF"

// brief says which role a victim plays, on which servers, and where it stops.
type brief struct {
	Role        role
	Kind        string // of the database
	DatabaseURL string
	AMQP        string
	Target      string
	Stops       map[point]uuid.UUID // points, with the message at which to stop
	Orders      []uuid.UUID         // of the sender's second transaction
	Early       bool                // the sender stages their messages before it inserts them
	Pgx         bool                // the sender uses pgxsender.InTx
	Carry       sender.Carry        // of the sender and the shop
	Delay       time.Duration       // of the sender's second transaction
	Options     verifier.Options
}

type role string

const (
	aSender   role = "sender"   // commits one order, then places some in a second transaction
	aVerifier role = "verifier" // works until it is killed
	aShop     role = "shop"     // places orders in all ways until it is killed
)

type point = string

const (
	ready    point = "the first order is committed" // of the sender, whatever the message
	recorded point = "recorded"
	begun    point = "staged early"
	staged   point = "staged and confirmed, or carried"
	placed   point = "committed"

	asked           point = "looked up, found or not"
	lookedUp        point = "looked up"
	settles         point = "about to settle"
	settled         point = "settled"
	forgets         point = "about to delete"
	forgot          point = "deleted"
	deletePretended point = "pretends to have deleted" // and goes on

	claimed point = "carried messages are claimed, and not yet staged"
)

type victim struct {
	brief
	db     *sql.DB
	ledger driver.Ledger
	broker *bridge.Broker
	sender *sender.Sender
	passed sync.Map // by point: the parent has let the victim go on there
}

func (v *victim) play() (err error) {
	ctx := context.Background()
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	for _, kind := range kinds {
		if kind.Name == v.Kind {
			v.db, v.ledger, err = kind.Open(ctx, v.DatabaseURL)
		}
	}
	if err != nil {
		return err
	}
	v.ledger = stage.Ageless{Ledger: v.ledger} // as Stage.Judging does
	v.ledger = &stoppingLedger{v.ledger, v}
	if v.broker, err = bridge.Dial(ctx, v.AMQP, &bridge.BrokerOptions{DialTimeout: stage.Patience, Logger: logger}); err != nil {
		return err
	}
	v.sender, err = sender.New(v.ledger, v.broker, &sender.Options{
		Queue: v.Options.Topology.Queue, Timeout: stage.Patience, Carry: v.Carry,
	})
	if err != nil {
		return err
	}
	switch v.Role {
	case aSender:
		return v.send(ctx)
	case aVerifier:
		v.Options.Logger = logger
		v.ledger.DB().SetMaxIdleConns(v.Options.Connections())
		worker, err := verifier.New(v.ledger, v.broker, &v.Options)
		if err != nil {
			return err
		}
		return worker.Run(ctx)
	case aShop:
		return v.keepShop(ctx)
	}
	return errors.New("unknown role")
}

// stop reports the point and waits for the parent's command if the victim has to stop there at
// one of these messages. It stops at each point once: a lookup or a settle may be repeated.
func (v *victim) stop(at point, ids ...uuid.UUID) {
	if _, passed := v.passed.Load(at); passed {
		return
	}
	if id, ok := v.Stops[at]; ok && slices.Contains(ids, id) {
		program.Stop(at)
		v.passed.Store(at, true)
	}
}

func (v *victim) send(ctx context.Context) error {
	// The first order opens the publishing channels. Later the valve would prevent that.
	tx, err := place(ctx, v.db, v.sender, v.Target, newIDs(1)...)
	if err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	v.stop(ready, v.Stops[ready])
	if v.Pgx {
		if err := v.sendByPgx(ctx); err != nil {
			return err
		}
		v.stop(placed, v.Orders...)
		return errors.New("the process was not killed")
	}
	var notBefore time.Time
	if v.Delay > 0 {
		notBefore = time.Now().Add(v.Delay)
	}
	if v.Early {
		tx, err = placeEarly(ctx, v.db, v.sender, v.Target, func() { v.stop(begun, v.Orders...) }, v.Orders...)
	} else {
		tx, err = placeDelayed(ctx, v.db, v.sender, v.Target, notBefore, v.Orders...)
	}
	if err != nil {
		return err
	}
	v.stop(staged, v.Orders...)
	if err := tx.Commit(); err != nil {
		return err
	}
	v.stop(placed, v.Orders...)
	return errors.New("the process was not killed")
}

// sendByPgx places the orders by pgxsender.InTx.
func (v *victim) sendByPgx(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, v.DatabaseURL)
	if err != nil {
		return err
	}
	return pgxsender.InTx(ctx, v.sender, pool, pgx.TxOptions{}, func(tx *pgxsender.Tx) error {
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

// stoppingLedger stops before or after operations on certain messages.
type stoppingLedger struct {
	driver.Ledger
	victim *victim
}

func (l *stoppingLedger) Record(ctx context.Context, tx bridge.Tx, entries []driver.Entry) error {
	err := l.Ledger.Record(ctx, tx, entries)
	if err == nil {
		for _, e := range entries {
			l.victim.stop(recorded, e.ID)
		}
	}
	return err
}

func (l *stoppingLedger) Committed(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, driver.Instance, error) {
	found, from, err := l.Ledger.Committed(ctx, ids)
	l.victim.stop(asked, ids...)
	l.victim.stop(lookedUp, found...)
	return found, from, err
}

func (l *stoppingLedger) Settle(ctx context.Context, id uuid.UUID, wait time.Duration) (driver.Outcome, driver.Instance, error) {
	l.victim.stop(settles, id)
	outcome, from, err := l.Ledger.Settle(ctx, id, wait)
	l.victim.stop(settled, id)
	return outcome, from, err
}

func (l *stoppingLedger) Forget(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	l.victim.stop(forgets, ids...)
	if id, ok := l.victim.Stops[deletePretended]; ok && slices.Contains(ids, id) {
		ids = slices.DeleteFunc(slices.Clone(ids), func(other uuid.UUID) bool { return other == id })
	}
	left, err := l.Ledger.Forget(ctx, ids)
	l.victim.stop(forgot, ids...)
	return left, err
}

func (l *stoppingLedger) Claim(ctx context.Context, rows []driver.DueRow) ([]driver.Carried, error) {
	messages, err := l.Ledger.Claim(ctx, rows)
	for _, m := range messages {
		l.victim.stop(claimed, m.ID)
	}
	return messages, err
}
