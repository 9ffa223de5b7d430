package orm

import (
	"context"
	"testing"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/twoqueue/twoqueue/bridge"
)

func openGORM(t *testing.T, url string, statements bool) *gorm.DB {
	db, err := gorm.Open(postgres.Open(url), &gorm.Config{PrepareStmt: statements, Logger: logger.Discard})
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

// order is a row of orders, for GORM and bun.
type order struct {
	ID   int64 `bun:",pk,autoincrement"`
	Body string
}

func onGORM(db *gorm.DB) inTx {
	return func(ctx context.Context, do work) error {
		return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			return do(bridge.SQL(tx.Statement.ConnPool.(bridge.SQLTx)), func(body string) error {
				return tx.Create(&order{Body: body}).Error
			})
		})
	}
}

// A transaction of GORM inside a transaction is a savepoint.
func TestANestedTransactionOfGORMTakesBackItsOwnMessages(t *testing.T) {
	t.Parallel()
	for name, statements := range map[string]bool{"": false, "statements": true} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t)
			testNested(t, s, openGORM(t, s.DatabaseURL, statements).Transaction(func(tx *gorm.DB) error {
				return sendNested(t.Context(), s, onGORM(tx))
			}))
		})
	}
}

func TestGORMHasNoTransactionOutsideOfOne(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for _, statements := range []bool{false, true} {
		db := openGORM(t, s.DatabaseURL, statements)
		if _, ok := db.WithContext(t.Context()).Statement.ConnPool.(bridge.SQLTx); ok {
			t.Errorf("with PrepareStmt %t, a %T is a transaction", statements, db.Statement.ConnPool)
		}
	}
}
