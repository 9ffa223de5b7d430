package orm

import (
	"context"
	"database/sql"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"gorm.io/gorm"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/sender/gormsender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/verifier"
)

type email struct{ Body string }

// The text between the marks must be in the README too.

// README begin

// The shop, with GORM.
func placeOrderByGORM(ctx context.Context, db *gorm.DB, s *sender.Sender, body string) error {
	return gormsender.InTx(ctx, s, db, nil, func(tx *gormsender.Tx) error {
		if err := tx.Create(&order{Body: body}).Error; err != nil {
			return err // rolls back
		}
		_, err := tx.Send(bridge.Message{RoutingKey: "emails", Publishing: amqp.Publishing{Body: []byte(body)}})
		return err
	})
}

// The receiver, with GORM: its consumer calls this in the place of dedup.Handle.
func sendEmailByGORM(ctx context.Context, db *gorm.DB, dedup *idempotency.Deduplicator, d amqp.Delivery) error {
	pool, err := db.DB()
	if err != nil {
		return err
	}
	return dedup.Handle(ctx, pool, d, func(ctx context.Context, tx *sql.Tx) error {
		inTx := db.WithContext(ctx)
		inTx.Statement.ConnPool = tx // its statements run in tx; db.Statement stays as it is
		return inTx.Create(&email{Body: string(d.Body)}).Error
	})
}

// README end

func TestTheREADMEsGORMCodeSendsAndReceivesOnce(t *testing.T) {
	t.Parallel()
	for name, statements := range map[string]bool{"": false, "statements": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			s.Queue("emails", nil)
			if _, err := s.DB.ExecContext(t.Context(), `CREATE TABLE emails (body text PRIMARY KEY)`); err != nil {
				t.Fatal(err)
			}
			dedup, db := newDedup(t, s), openGORM(t, s.DatabaseURL, statements)
			ctx := t.Context()
			if err := placeOrderByGORM(ctx, db, s.Sender, "two apples"); err != nil {
				t.Fatal(err)
			}
			v := s.Verify(verifier.Options{})
			defer v.Stop()
			deliveries, stop := s.Consume("emails")
			defer stop()
			d := servertest.Next(t, "the order", deliveries)
			if err := sendEmailByGORM(ctx, db, dedup, d); err != nil {
				t.Fatal(err)
			}
			again := amqp.Publishing{MessageId: d.MessageId, Body: d.Body}
			if err := s.Channel.PublishWithContext(ctx, "", "emails", true, false, again); err != nil {
				t.Fatal(err)
			}
			if err := sendEmailByGORM(ctx, db, dedup, servertest.Next(t, "the copy", deliveries)); err != nil {
				t.Fatal(err) // a second INSERT would fail
			}
			var emails []email
			if err := db.Find(&emails).Error; err != nil || len(emails) != 1 || emails[0].Body != "two apples" {
				t.Errorf("e-mails %v (%v)", emails, err)
			}
			if got, want := dedup.Stats(), (idempotency.Stats{Handled: 1, Duplicates: 1}); got != want {
				t.Errorf("%+v, must be %+v", got, want)
			}
			var one bool
			if err := db.Raw(`SELECT e.xmin = i.xmin FROM emails e, bridge_inbox i`).Scan(&one).Error; err != nil || !one {
				t.Errorf("the claim and the e-mail are not of one transaction (%v)", err)
			}
		})
	}
}
