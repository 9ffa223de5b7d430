package sendertest_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/sender/sendertest"
)

// errNoFruit is the shop's own reason to roll back.
var errNoFruit = errors.New("not in stock")

// placeOrder is the code to test.
func placeOrder(ctx context.Context, db *sql.DB, s *sender.Sender, order string) error {
	return s.InTx(ctx, db, nil, func(tx *sender.Tx) error {
		_, err := tx.Send(bridge.Message{RoutingKey: "emails", Publishing: amqp.Publishing{Body: []byte(order)}})
		if err != nil {
			return err
		}
		if order == "" {
			return errNoFruit
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO orders VALUES ($1)`, order)
		return err
	})
}

func TestAnOrderSendsAnEmail(t *testing.T) {
	s := sendertest.New(t, nil)
	if err := placeOrder(t.Context(), s.DB, s.Sender, "two apples"); err != nil {
		t.Fatal(err)
	}
	sent := s.Committed()
	if len(sent) != 1 || sent[0].RoutingKey != "emails" || string(sent[0].Publishing.Body) != "two apples" {
		t.Errorf("sent %v", sent)
	}
}

func TestARefusedOrderSendsNothing(t *testing.T) {
	s := sendertest.New(t, nil)
	if err := placeOrder(t.Context(), s.DB, s.Sender, ""); !errors.Is(err, errNoFruit) {
		t.Fatal(err)
	}
	if sent := s.Committed(); len(sent) != 0 {
		t.Errorf("sent %v", sent)
	}
}

func TestAnOrderWithoutTheBrokerFails(t *testing.T) {
	s := sendertest.New(t, &sender.Options{Carry: sender.CarryNever})
	s.FailPublish(sendertest.ErrOut)
	if err := placeOrder(t.Context(), s.DB, s.Sender, "two apples"); !bridge.Retryable(err) {
		t.Error(err)
	}
	if sent := s.Committed(); len(sent) != 0 {
		t.Errorf("sent %v", sent)
	}
}

func TestTheAnswerToTheCommitIsLost(t *testing.T) {
	s := sendertest.New(t, nil)
	s.LoseCommit(true)
	if err := placeOrder(t.Context(), s.DB, s.Sender, "two apples"); !errors.Is(err, sender.ErrCommitUnknown) {
		t.Error(err)
	}
	if sent := s.Committed(); len(sent) != 1 {
		t.Errorf("sent %v", sent)
	}
}
