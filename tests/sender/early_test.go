package sender_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// way is one way to send: it begins a transaction, does work in it, sends the messages, and
// commits. If there is an error it rolls back.
type way func(ctx context.Context, s *sender.Sender, db *sql.DB, work func(bridge.Tx) error, msgs ...bridge.Message) ([]uuid.UUID, error)

// ways are all ways to send. Two of them publish before the work begins.
var (
	ways = map[string]way{
		"SendTx": func(ctx context.Context, s *sender.Sender, db *sql.DB, work func(bridge.Tx) error, msgs ...bridge.Message) (ids []uuid.UUID, err error) {
			err = inTx(ctx, db, func(tx *sql.Tx) error {
				if err := work(bridge.SQL(tx)); err != nil {
					return err
				}
				ids, err = s.SendTx(ctx, bridge.SQL(tx), msgs...)
				return err
			})
			return ids, err
		},
		"StageTx": func(ctx context.Context, s *sender.Sender, db *sql.DB, work func(bridge.Tx) error, msgs ...bridge.Message) (ids []uuid.UUID, err error) {
			err = inTx(ctx, db, func(tx *sql.Tx) error {
				staged, err := s.StageTx(ctx, bridge.SQL(tx), msgs...)
				if err != nil {
					return err
				}
				if err := work(bridge.SQL(tx)); err != nil {
					return err
				}
				ids = staged.IDs()
				return staged.Wait(ctx)
			})
			return ids, err
		},
		"InTx with Send": inTxBy(func(_ context.Context, tx *sender.Tx, msgs ...bridge.Message) ([]uuid.UUID, error) {
			return tx.Send(msgs...)
		}),
		"InTx with Stage": inTxBy(func(ctx context.Context, tx *sender.Tx, msgs ...bridge.Message) ([]uuid.UUID, error) {
			return tx.Stage(ctx, msgs...)
		}),
	}
	early = map[string]bool{"StageTx": true, "InTx with Stage": true}
)

// inTxBy ignores the method's error in fn: InTx must return it.
func inTxBy(method func(context.Context, *sender.Tx, ...bridge.Message) ([]uuid.UUID, error)) way {
	return func(ctx context.Context, s *sender.Sender, db *sql.DB, work func(bridge.Tx) error, msgs ...bridge.Message) (ids []uuid.UUID, err error) {
		err = s.InTx(ctx, db, nil, func(tx *sender.Tx) error {
			ids, _ = method(ctx, tx, msgs...)
			return work(tx)
		})
		return ids, err
	}
}

// inTx runs fn in a transaction. It commits, or rolls back if there is an error.
func inTx(ctx context.Context, db *sql.DB, fn func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// insert returns work that places an order.
func insert(ctx context.Context, id int) func(bridge.Tx) error {
	return func(tx bridge.Tx) error { return order(ctx, tx, id) }
}

// Rule 1 of package bridge. Early staged messages must also be published before the transaction's
// other statements are done.
func TestRecordComesBeforePublish(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	shop(t, s)
	var all []uuid.UUID
	for name, send := range ways {
		before := len(s.Staged())
		var staged []int
		look := func() { staged = append(staged, len(s.Staged())-before) }
		var failing error
		r := &recorder{Recorder: s.Ledger, before: func() error { look(); return failing }, after: look}
		sndr := newSender(t, r, s.Broker, stage.Patience)
		depth := s.Depth("staging")
		ids, err := send(t.Context(), sndr, s.DB, func(bridge.Tx) error {
			if early[name] {
				s.WaitDepth("staging", depth+1) // while the transaction is open; they are one group
			}
			return nil
		}, messages("target", 3)...)
		if err != nil {
			t.Fatal(err)
		}
		if look(); len(ids) != 3 || !slices.Equal(staged, []int{0, 0, 3}) {
			t.Errorf("%s: %d IDs; staged before and after Record and at the end: %v", name, len(ids), staged)
		}
		failing = errors.New("the disk is full")
		if _, err := send(t.Context(), sndr, s.DB, func(bridge.Tx) error { return nil }, messages("target", 3)...); !errors.Is(err, failing) {
			t.Errorf("%s: error %v", name, err)
		}
		if n := len(s.Staged()) - before; n != 3 {
			t.Errorf("%s: %d messages were sent without a record", name, n-3)
		}
		all = append(all, ids...)
	}
	settled(t, s, "target", all...)
}

// Rule 2 of package bridge: while the broker holds back its confirm, the transaction's other
// statements run, and its COMMIT does not.
func TestTheCommitWaitsForTheEarlyConfirm(t *testing.T) {
	t.Parallel()
	for name, bytes := range map[string]int{"StageTx": 9 << 10, "InTx with Stage": 1} { // alone, and in a group
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, stage.Postgres)
			shop(t, s)
			m := stage.To("target", strings.Repeat("x", bytes))
			valve, broker := throughValve(t, s)
			sndr := newSender(t, s.Ledger, broker, stage.Patience)
			before := s.Depth("staging")
			valve.HoldReplies()
			worked, ended := make(chan struct{}), make(chan error, 1)
			var ids []uuid.UUID
			go func() {
				var err error
				ids, err = ways[name](t.Context(), sndr, s.DB, func(tx bridge.Tx) error {
					defer close(worked)
					return insert(t.Context(), 1)(tx)
				}, m)
				ended <- err
			}()
			s.WaitDepth("staging", before+1)
			servertest.Next(t, "the transaction has done its work", worked)
			// Other transactions begin now and commit.
			const others = 5
			var all []uuid.UUID
			for i := range others {
				more, err := ways[name](t.Context(), s.Sender, s.DB, insert(t.Context(), 2+i), m)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, more...)
			}
			if n := orders(t, s); n != others || len(ended) > 0 {
				t.Fatalf("%d of %d orders are committed, one before the confirm", n, others)
			}
			valve.Release()
			if err := servertest.Next(t, "the sender returns", ended); err != nil {
				t.Fatal(err)
			}
			if n := orders(t, s); n != 1+others {
				t.Errorf("%d orders", n)
			}
			settled(t, s, "target", append(all, ids...)...)
		})
	}
}
