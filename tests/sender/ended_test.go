package sender_test

import (
	"context"
	"errors"
	"testing"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// InnoDB ends a transaction at a deadlock. The statements that follow are committed one by one,
// and the COMMIT succeeds. If fn ignores the error, InTx must not send: fn's first rows are lost.
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
		for cause, end := range map[string]func(t *testing.T, s *stage.Stage) func(ctx context.Context, tx *sender.Tx) error{
			"a deadlock": func(t *testing.T, s *stage.Stage) func(ctx context.Context, tx *sender.Tx) error {
				deadlock := servertest.NewDeadlock(t, s.DB)
				return func(ctx context.Context, tx *sender.Tx) error {
					_ = deadlock(servertest.InTx(ctx, tx))
					return nil
				}
			},
			"a statement on tables": func(*testing.T, *stage.Stage) func(ctx context.Context, tx *sender.Tx) error {
				return func(ctx context.Context, tx *sender.Tx) error {
					_, err := tx.ExecContext(ctx, `CREATE TABLE archive (n INT)`)
					return err
				}
			},
		} {
			t.Run(name+" and "+cause, func(t *testing.T) {
				t.Parallel()
				s := stage.New(t, stage.MariaDB)
				s.Queue("target", nil)
				end := end(t, s)
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
