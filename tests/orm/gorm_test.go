package orm

import (
	"context"
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/verifier"
)

type usesGORM struct{ db *gorm.DB }

func newGORM(t *testing.T, url string) program {
	return usesGORM{openGORM(t, url, &gorm.Config{})}
}

func newGORMWithStatements(t *testing.T, url string) program {
	return usesGORM{openGORM(t, url, &gorm.Config{PrepareStmt: true})}
}

func openGORM(t *testing.T, url string, config *gorm.Config) *gorm.DB {
	config.Logger = logger.Discard
	db, err := gorm.Open(postgres.Open(url), config)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	return db
}

// order is GORM's and bun's row of orders.
type order struct {
	ID   int64 `bun:",pk,autoincrement"`
	Body string
}

func (p usesGORM) send(ctx context.Context, s *sender.Sender, body string, end error) error {
	return p.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := tx.Create(&order{Body: body}).Error; err != nil {
			return err
		}
		if _, err := s.SendTx(ctx, bridge.SQL(tx.Statement.ConnPool.(bridge.SQLTx)), about(body)); err != nil {
			return err
		}
		return end
	})
}

func (p usesGORM) receive(ctx context.Context, guard *idempotency.Guard, d amqp.Delivery) error {
	return guard.HandleTx(ctx, d, func(ctx context.Context, claim idempotency.Claim) error {
		return p.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			if fresh, err := claim(ctx, bridge.SQL(tx.Statement.ConnPool.(bridge.SQLTx))); err != nil || !fresh {
				return err
			}
			return tx.Create(&order{Body: received(d)}).Error
		})
	})
}

// GORM's transaction in a transaction is a savepoint.
func TestANestedTransactionOfGORMTakesBackItsOwnMessages(t *testing.T) {
	t.Parallel()
	for name, statements := range map[string]bool{"": false, "statements": true} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t)
			p := usesGORM{openGORM(t, s.DatabaseURL, &gorm.Config{PrepareStmt: statements})}
			err := p.db.Transaction(func(tx *gorm.DB) error {
				inner := usesGORM{tx}
				if err := inner.send(t.Context(), s.Sender, "three pears", errUndone); !errors.Is(err, errUndone) {
					return err
				}
				return inner.send(t.Context(), s.Sender, "two apples", nil)
			})
			if err != nil {
				t.Fatal(err)
			}
			wantOrders(t, s, "two apples")
			v := s.Verify(verifier.Options{})
			defer v.Stop()
			if d := s.Receive("orders", 1)[0]; string(d.Body) != "two apples" {
				t.Errorf("received %q", d.Body)
			}
			s.Eventually("the other is dropped", func() bool { return v.Stats().Dropped == 1 })
		})
	}
}

func TestOutsideOfATransactionGORMHasNone(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for _, statements := range []bool{false, true} {
		db := openGORM(t, s.DatabaseURL, &gorm.Config{PrepareStmt: statements})
		if _, ok := db.WithContext(t.Context()).Statement.ConnPool.(bridge.SQLTx); ok {
			t.Errorf("with PrepareStmt %t, a %T is a transaction", statements, db.Statement.ConnPool)
		}
	}
}
