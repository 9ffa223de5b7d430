package sender_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// InnoDB ends a transaction at a deadlock. The statements that follow are committed one by one,
// and the COMMIT succeeds. SQLite ends one at a full disk, a cancelled statement and OR ROLLBACK;
// its COMMIT fails, after a Record that was committed at once. If fn ignores the error, InTx must not send: fn's first rows are lost.
// A message that was staged before the deadlock has lost its ledger row; it would be dropped
// although InTx returned nil.
func TestInTxNoticesThatItsTransactionHasEnded(t *testing.T) {
	t.Parallel()
	for name, send := range map[string]func(ctx context.Context, tx *sender.Tx) error{
		"Send": func(_ context.Context, tx *sender.Tx) error {
			_, err := tx.Send(stage.To("target", "body"))
			return err
		},
		"Stage": func(ctx context.Context, tx *sender.Tx) error {
			_, err := tx.Stage(ctx, stage.To("target", "body"))
			return err
		},
	} {
		for cause, c := range map[string]struct {
			kind stage.Database
			end  func(t *testing.T, s *stage.Stage) func(ctx context.Context, tx *sender.Tx) error
		}{
			"a deadlock": {stage.MariaDB, func(t *testing.T, s *stage.Stage) func(ctx context.Context, tx *sender.Tx) error {
				deadlock := servertest.NewDeadlock(t, s.DB)
				return func(ctx context.Context, tx *sender.Tx) error {
					_ = deadlock(servertest.InTx(ctx, tx))
					return nil
				}
			}},
			"a statement on tables": {stage.MariaDB, func(*testing.T, *stage.Stage) func(ctx context.Context, tx *sender.Tx) error {
				return func(ctx context.Context, tx *sender.Tx) error {
					_, err := tx.ExecContext(ctx, `CREATE TABLE archive (n INT)`)
					return err
				}
			}},
			"a full file": {stage.SQLite, func(t *testing.T, s *stage.Stage) func(ctx context.Context, tx *sender.Tx) error {
				_, err := s.DB.ExecContext(t.Context(), `CREATE TABLE archive (content BLOB)`)
				if err != nil {
					t.Fatal(err)
				}
				return func(ctx context.Context, tx *sender.Tx) error {
					_, err := tx.ExecContext(ctx, `PRAGMA max_page_count = 1`) // as many as there are
					if err != nil {
						return err
					}
					if _, err := tx.ExecContext(ctx, `INSERT INTO archive VALUES (zeroblob(1000000))`); err == nil {
						t.Error("the file is not full")
					}
					return nil
				}
			}},
			"a cancelled statement": {stage.SQLite, func(t *testing.T, s *stage.Stage) func(ctx context.Context, tx *sender.Tx) error {
				_, err := s.DB.ExecContext(t.Context(), `CREATE TABLE archive (n INT)`)
				if err != nil {
					t.Fatal(err)
				}
				return func(ctx context.Context, tx *sender.Tx) error {
					ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
					defer cancel()
					_, err := tx.ExecContext(ctx, `INSERT INTO archive WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n) SELECT n FROM n`)
					if err == nil {
						t.Error("an endless statement has ended")
					}
					return nil
				}
			}},
			"a conflict that rolls back": {stage.SQLite, func(t *testing.T, s *stage.Stage) func(ctx context.Context, tx *sender.Tx) error {
				return func(ctx context.Context, tx *sender.Tx) error {
					if _, err := tx.ExecContext(ctx, `INSERT OR ROLLBACK INTO bridge_ledger (id) SELECT NULL`); err == nil {
						t.Error("there is no conflict")
					}
					return nil
				}
			}},
		} {
			t.Run(name+" and "+cause, func(t *testing.T) {
				t.Parallel()
				s := stage.New(t, c.kind)
				s.Queue("target", nil)
				end := c.end(t, s)
				err := s.NewSender(sender.Options{Carry: sender.CarryNever}).InTx(t.Context(), s.DB, nil, func(tx *sender.Tx) error {
					if err := send(t.Context(), tx); err != nil {
						return err
					}
					return end(t.Context(), tx)
				})
				if !errors.Is(err, bridge.ErrTxEnded) || errors.Is(err, sender.ErrCommitUnknown) {
					t.Errorf("InTx: %v", err)
				}
				if name == "Send" {
					if depth, rows := s.Depth("staging"), s.Rows(); depth != 0 || rows != 0 {
						t.Errorf("%d messages are staged and %d IDs recorded", depth, rows)
					}
				}
			})
		}
	}
}
