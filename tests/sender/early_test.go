package sender_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// sizes are those of a message that gathers with others, and of one that travels alone.
var sizes = map[string]int{"in a group": 1, "alone": 9 << 10}

func sized(n int) bridge.Message {
	m := messages("target", 1)[0]
	m.Publishing.Body = make([]byte, n)
	return m
}

// ways are those in which a transaction sends. Each begins one, which then does what work
// does, and commits, or rolls back if there is an error.
var ways = map[string]func(ctx context.Context, s *sender.Sender, db *sql.DB, work func(bridge.Tx) error, msgs ...bridge.Message) ([]uuid.UUID, error){
	"SendTx": func(ctx context.Context, s *sender.Sender, db *sql.DB, work func(bridge.Tx) error, msgs ...bridge.Message) (ids []uuid.UUID, err error) {
		return ids, inTx(ctx, db, func(tx *sql.Tx) error {
			if err := work(bridge.SQL(tx)); err != nil {
				return err
			}
			ids, err = s.SendTx(ctx, bridge.SQL(tx), msgs...)
			return err
		})
	},
	"StageTx": func(ctx context.Context, s *sender.Sender, db *sql.DB, work func(bridge.Tx) error, msgs ...bridge.Message) (ids []uuid.UUID, err error) {
		return ids, inTx(ctx, db, func(tx *sql.Tx) error {
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
	},
	"InTx with Stage": func(ctx context.Context, s *sender.Sender, db *sql.DB, work func(bridge.Tx) error, msgs ...bridge.Message) (ids []uuid.UUID, err error) {
		return ids, s.InTx(ctx, db, nil, func(tx *sender.Tx) error {
			ids, _ = tx.Stage(ctx, msgs...) // InTx knows
			return work(tx)
		})
	},
}

// inTx commits what fn has done in a transaction, or rolls it back if there is an error.
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

// insert is the work of a transaction that places an order.
func insert(ctx context.Context, id int) func(bridge.Tx) error {
	return func(tx bridge.Tx) error {
		_, err := tx.Exec(ctx, fmt.Sprintf("INSERT INTO orders VALUES (%d)", id))
		return err
	}
}

// Rule 1 of package bridge; and publishing begins before the other statements are done.
func TestStagedEarlyMeansRecordedBeforeAndPublishedAtOnce(t *testing.T) {
	t.Parallel()
	onAll(t, func(t *testing.T, s *stage.Stage) {
		shop(t, s)
		for _, name := range []string{"StageTx", "InTx with Stage"} {
			t.Run(name, func(t *testing.T) {
				s.WaitEmpty("staging")
				depths := []int{}
				look := func() { depths = append(depths, len(s.Staged())) }
				failure := errors.New("the disk is full")
				var failing error
				r := &recorder{Recorder: s.Ledger, before: func() error { look(); return failing }, after: look}
				sndr := newSender(t, r, s.Broker, stage.Patience)
				ids, err := ways[name](t.Context(), sndr, s.DB, func(bridge.Tx) error {
					s.WaitDepth("staging", 1) // while the transaction is open; they travel together
					return nil
				}, messages("target", 3)...)
				if err != nil {
					t.Fatal(err)
				}
				if len(ids) != 3 || !slices.Equal(depths, []int{0, 0}) {
					t.Errorf("%d IDs; staged before and after Record: %v", len(ids), depths)
				}
				failing = failure
				if _, err := ways[name](t.Context(), sndr, s.DB, func(bridge.Tx) error { return nil }, messages("target", 3)...); !errors.Is(err, failure) {
					t.Errorf("error %v", err)
				}
				if n := len(s.Staged()); n != 3 {
					t.Errorf("%d messages were sent without a record", n-3)
				}
				settled(t, s, "target", ids...)
			})
		}
	})
}

// Rule 2 of package bridge: the transaction's other statements run while the broker keeps
// its confirm back, and the COMMIT does not.
func TestTheCommitWaitsForTheEarlyConfirm(t *testing.T) {
	t.Parallel()
	for size, bytes := range sizes {
		for _, name := range []string{"StageTx", "InTx with Stage"} {
			t.Run(name+", "+size, func(t *testing.T) {
				t.Parallel()
				s := stage.New(t, stage.Postgres)
				shop(t, s)
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
					}, sized(bytes))
					ended <- err
				}()
				s.WaitDepth("staging", before+1)
				<-worked
				select {
				case err := <-ended:
					t.Fatalf("ended before the confirm: %v", err)
				case <-time.After(time.Second):
				}
				if n := orders(t, s); n != 0 {
					t.Fatalf("%d orders are committed before the confirm", n)
				}
				valve.Release()
				if err := <-ended; err != nil {
					t.Fatal(err)
				}
				if n := orders(t, s); n != 1 {
					t.Errorf("%d orders", n)
				}
				settled(t, s, "target", ids...)
			})
		}
	}
}

// The time that the transaction spends in other statements does not count: a confirm that
// came in time is in time. One that did not come in time is late, however late Wait asks.
func TestTheTimeoutIsThatOfTheStaging(t *testing.T) {
	t.Parallel()
	for size, bytes := range sizes {
		t.Run(size, func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, stage.Postgres)
			s.Queue("target", nil)
			valve, broker := throughValve(t, s)
			const limit = 5 * time.Second
			sndr := newSender(t, s.Ledger, broker, limit)
			tx := begin(t, s.DB)
			confirmed, err := sndr.StageTx(t.Context(), bridge.SQL(tx), sized(bytes))
			if err != nil {
				t.Fatal(err)
			}
			<-time.After(2*limit + time.Second) // what another statement may take
			valve.HoldReplies()
			if err := confirmed.Wait(t.Context()); err != nil {
				t.Errorf("confirmed in time: %v", err)
			}

			late, err := sndr.StageTx(t.Context(), bridge.SQL(tx), sized(bytes))
			if err != nil {
				t.Fatal(err)
			}
			<-time.After(2*limit + time.Second)
			valve.Release()
			for range 2 {
				err := late.Wait(t.Context())
				if !errors.Is(err, bridge.ErrUnconfirmed) || !bridge.Retryable(err) {
					t.Errorf("confirmed too late: %v", err)
				}
				contains(t, err, "the transaction must roll back")
			}
			if err := confirmed.Wait(t.Context()); err != nil {
				t.Errorf("Wait has changed its mind: %v", err)
			}
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
			settled(t, s, "target")
		})
	}
}

// What fn does with the error of Stage does not matter.
func TestInTxRollsBackIfStageFailsWhateverFnSays(t *testing.T) {
	t.Parallel()
	invalid := stage.To("", "no target")
	onAll(t, func(t *testing.T, s *stage.Stage) {
		shop(t, s)
		known := stage.To("target", "known")
		known.ID = s.Commit(known)[0]
		for want, m := range map[error]bridge.Message{bridge.ErrInvalidMessage: invalid, bridge.ErrDuplicateID: known} {
			err := s.Sender.InTx(t.Context(), s.DB, nil, func(tx *sender.Tx) error {
				if _, err := tx.Stage(t.Context(), messages("target", 2)...); err != nil {
					return err
				}
				if err := order(t.Context(), tx, 1); err != nil {
					return err
				}
				if ids, err := tx.Stage(t.Context(), m); !errors.Is(err, want) || len(ids) != 0 {
					t.Errorf("Stage: IDs %v, error %v", ids, err)
				}
				return nil
			})
			if !errors.Is(err, want) || errors.Is(err, sender.ErrCommitUnknown) {
				t.Errorf("want %v, committed or failed otherwise: %v", want, err)
			}
			if n := orders(t, s); n != 0 {
				t.Errorf("%d orders are committed", n)
			}
		}
		settled(t, s, "target", known.ID)
	})
}

func TestARollbackToASavepointTakesBackWhatWasStagedEarly(t *testing.T) {
	t.Parallel()
	parked := func(t *testing.T, s *stage.Stage) {
		var err error
		if s.Sender, err = sender.New(s.Ledger, nil, &sender.Options{Queue: "staging", Parking: sender.ParkAlways}); err != nil {
			t.Fatal(err)
		}
	}
	for name, prepare := range map[string]func(*testing.T, *stage.Stage){
		"staged": func(*testing.T, *stage.Stage) {},
		"parked": parked,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onAll(t, func(t *testing.T, s *stage.Stage) {
				shop(t, s)
				prepare(t, s)
				var kept [4][]uuid.UUID
				if err := s.Sender.InTx(t.Context(), s.DB, nil, func(tx *sender.Tx) error {
					var errs [5]error
					kept[0], errs[0] = tx.Stage(t.Context(), messages("target", 1)...)
					errs[1] = undone(t.Context(), tx, func() error {
						_, err := tx.Stage(t.Context(), messages("target", 2)...)
						return err
					})
					kept[1], errs[2] = tx.Stage(t.Context(), messages("target", 1)...)
					kept[2], errs[3] = tx.Send(messages("target", 1)...)
					errs[4] = order(t.Context(), tx, 1)
					return errors.Join(errs[:]...)
				}); err != nil {
					t.Fatal(err)
				}
				if n := orders(t, s); n != 1 {
					t.Errorf("%d orders", n)
				}
				tx := begin(t, s.DB)
				if err := undone(t.Context(), bridge.SQL(tx), func() error {
					_, err := s.Sender.StageTx(t.Context(), bridge.SQL(tx), messages("target", 2)...)
					return err // nobody waits
				}); err != nil {
					t.Fatal(err)
				}
				var err error
				if kept[3], err = s.Sender.SendTx(t.Context(), bridge.SQL(tx), messages("target", 1)...); err != nil {
					t.Fatal(err)
				}
				commit(t, tx)
				unparked(t, s, "target", slices.Concat(kept[:]...)...)
			})
		})
	}
}

// undone undoes what fn does by a rollback to a savepoint.
func undone(ctx context.Context, tx bridge.Tx, fn func() error) error {
	if _, err := tx.Exec(ctx, "SAVEPOINT a"); err != nil {
		return err
	}
	if err := fn(); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "ROLLBACK TO a")
	return err
}

// unparked is settled where messages may be parked.
func unparked(t *testing.T, s *stage.Stage, queue string, want ...uuid.UUID) {
	t.Helper()
	v := s.Verify(verifier.Options{})
	s.Eventually("nothing is parked or recorded", func() bool {
		n, err := s.Ledger.CountParked(t.Context(), 100)
		return n == 0 && err == nil && s.Rows() == 0
	})
	v.Stop()
	settled(t, s, queue, want...)
}

// The broker is out when the transaction stages, or goes while it works.
func TestWhatIsStagedEarlyInAnOutageIsParked(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"StageTx", "InTx with Stage"} {
		for when, opts := range map[string]sender.Options{
			"out":    {Parking: sender.ParkOnOutage, ParkAfter: time.Second},
			"always": {Parking: sender.ParkAlways},
		} {
			t.Run(name+", "+when, func(t *testing.T) {
				t.Parallel()
				onAll(t, func(t *testing.T, s *stage.Stage) {
					shop(t, s)
					valve, broker := throughValve(t, s)
					opts.Queue, opts.Logger = "staging", stage.Logger(t)
					sndr, err := sender.New(s.Ledger, broker, &opts)
					if err != nil {
						t.Fatal(err)
					}
					valve.HoldRequests()
					var ids []uuid.UUID
					for n := range 3 { // the later ones know of the outage
						more, err := ways[name](t.Context(), sndr, s.DB, insert(t.Context(), n), messages("target", 2)...)
						if err != nil {
							t.Fatal(err)
						}
						ids = append(ids, more...)
					}
					valve.Cut()
					if n, err := s.Ledger.CountParked(t.Context(), 100); n != len(ids) || err != nil {
						t.Errorf("%d messages are parked (%v)", n, err)
					}
					if n := orders(t, s); n != 3 {
						t.Errorf("%d orders", n)
					}
					unparked(t, s, "target", ids...)
				})
			})
		}
	}
}

// The context of StageTx may end when it has returned, as that of a function does which
// makes one for itself. That of Wait bounds the wait.
func TestTheContextOfAnEarlyStagingBoundsItsStatement(t *testing.T) {
	t.Parallel()
	gone := errors.New("the customer is gone")
	for size, bytes := range sizes {
		t.Run(size, func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, stage.Postgres)
			s.Queue("target", nil)
			valve, broker := throughValve(t, s)
			sndr := newSender(t, s.Ledger, broker, stage.Patience)
			stageFor := func(tx bridge.Tx) *sender.Staged {
				t.Helper()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				staged, err := sndr.StageTx(ctx, tx, sized(bytes))
				if err != nil {
					t.Fatal(err)
				}
				return staged
			}
			valve.HoldReplies()
			first, second, third := begin(t, s.DB), begin(t, s.DB), begin(t, s.DB)
			kept, late, cancelled := stageFor(bridge.SQL(first)), stageFor(bridge.SQL(second)), stageFor(bridge.SQL(third))

			short, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			if err := late.Wait(short); !errors.Is(err, bridge.ErrUnconfirmed) || !bridge.Retryable(err) {
				t.Errorf("after the deadline: %v", err)
			}
			ended, end := context.WithCancelCause(t.Context())
			end(gone)
			for _, ctx := range []context.Context{ended, t.Context()} {
				if err := cancelled.Wait(ctx); !errors.Is(err, gone) || bridge.Retryable(err) {
					t.Errorf("cancelled: %v", err)
				}
			}
			if _, err := sndr.StageTx(ended, bridge.SQL(third), sized(bytes)); err == nil || bridge.Retryable(err) {
				t.Errorf("cancelled before: %v", err)
			}
			valve.Release()
			if err := kept.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			commit(t, first)
			for _, tx := range []*sql.Tx{second, third} {
				if err := tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
					t.Error(err)
				}
			}
			settled(t, s, "target", kept.IDs()...)
		})
	}
}

// Whoever rolls back need not wait; the goroutines' end is what servertest.Main looks at.
func TestARollbackWithoutWaitDeliversNothing(t *testing.T) {
	t.Parallel()
	onAll(t, func(t *testing.T, s *stage.Stage) {
		s.Queue("target", nil)
		valve, broker := throughValve(t, s)
		before := s.Depth("staging")
		sndr := newSender(t, s.Ledger, broker, deadline)
		valve.HoldReplies()
		for range 3 {
			tx := begin(t, s.DB)
			if _, err := sndr.StageTx(t.Context(), bridge.SQL(tx), append(messages("target", 2), sized(9<<10))...); err != nil {
				t.Fatal(err)
			}
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
		}
		s.WaitDepth("staging", before+9) // all the same
		valve.Release()
		settled(t, s, "target")
	})
}

// The messages are the caller's again when StageTx has returned.
func TestWhatIsStagedEarlyIsACopy(t *testing.T) {
	t.Parallel()
	for size, bytes := range sizes {
		t.Run(size, func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, stage.Postgres)
			s.Queue("target", nil)
			m := sized(bytes)
			inner := amqp.Table{"k": "as it was"}
			m.Publishing.Headers = amqp.Table{"inner": inner}
			tx := begin(t, s.DB)
			staged, err := s.Sender.StageTx(t.Context(), bridge.SQL(tx), m)
			if err != nil {
				t.Fatal(err)
			}
			m.Publishing.Body[0] = 'x'
			inner["k"] = "something else"
			staged.IDs()[0] = uuid.Nil
			if err := staged.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			commit(t, tx)
			d := s.Staged()[0]
			if got, _ := d.Headers["inner"].(amqp.Table); d.Body[0] != 0 || got["k"] != "as it was" {
				t.Errorf("staged %q… and %v", d.Body[:1], got)
			}
			settled(t, s, "target", staged.IDs()...)
		})
	}
}

func TestStagingNothingTouchesNothing(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.SQLite)
	staged, err := s.Sender.StageTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := staged.Wait(t.Context()); err != nil || len(staged.IDs()) != 0 {
		t.Errorf("IDs %v, %v", staged.IDs(), err)
	}
}

// Of messages that a goroutine stages while fn returns, those with an ID are delivered and
// the others are errors.
func TestStageBesideFnIsDeliveredOrAnError(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	shop(t, s)
	var sent []uuid.UUID
	var last error
	began, ended := make(chan struct{}, 1), make(chan struct{})
	err := s.Sender.InTx(t.Context(), s.DB, nil, func(tx *sender.Tx) error {
		go func() {
			defer close(ended)
			for {
				ids, err := tx.Stage(t.Context(), messages("target", 1)...)
				select {
				case began <- struct{}{}:
				default:
				}
				if last = err; err != nil {
					return
				}
				sent = append(sent, ids...)
			}
		}()
		<-began
		return nil
	})
	<-ended
	if err != nil {
		t.Fatal(err)
	}
	if !errors.Is(last, sql.ErrTxDone) {
		t.Errorf("after fn has returned: %v", last)
	}
	settled(t, s, "target", sent...)
}

// Those of a transaction travel with those of others, as SendTx's do.
func TestWhatIsStagedEarlyTravelsTogether(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	s.Queue("target", nil)
	valve, broker := throughValve(t, s)
	sndr := newSender(t, s.Ledger, broker, stage.Patience)
	before := s.Depth("staging")
	valve.HoldReplies()
	var ids []uuid.UUID
	var staged []*sender.Staged
	tx := begin(t, s.DB)
	for range 40 {
		one, err := sndr.StageTx(t.Context(), bridge.SQL(tx), messages("target", 1)...)
		if err != nil {
			t.Fatal(err)
		}
		staged, ids = append(staged, one), append(ids, one.IDs()...)
	}
	valve.Release()
	for _, one := range staged {
		if err := one.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	commit(t, tx)
	if n := s.Depth("staging") - before; n >= len(ids)/2 {
		t.Errorf("%d messages carry %d", n, len(ids))
	}
	settled(t, s, "target", ids...)
}
