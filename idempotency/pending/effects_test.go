package pending_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
	"github.com/twoqueue/twoqueue/idempotency/pending"
)

func TestAMessageThatCannotBeHandledOnceIsDeadLetteredWithTheReason(t *testing.T) {
	var reason error
	bury := func(_ context.Context, _ amqp.Delivery, why error) error {
		reason = why
		return nil
	}
	r := newReceiver(t, pending.Options{Retention: 24 * time.Hour, MaxStored: 400, DeadLetter: bury})
	r.addWorker(pending.WorkerOptions{Retention: 24 * time.Hour, MaxStored: 400, DeadLetter: bury})
	ways := map[string]func(d amqp.Delivery) error{
		"AtMostOnce": func(d amqp.Delivery) error {
			return r.effects.AtMostOnce(t.Context(), r.DB, d, func(context.Context, amqp.Delivery) error {
				t.Error("the effect ran")
				return nil
			})
		},
		"Accept": func(d amqp.Delivery) error { return r.worker.Accept(t.Context(), r.DB, d) },
	}
	old := uuid.UUID{6: 0x70, 8: 0x80, 0: 1, 1: 0x80} // of 2022
	if made := wire.MadeAt(old); time.Since(made) < 48*time.Hour {
		t.Fatalf("made at %v", made)
	}
	dead := uint64(0)
	for _, c := range []struct {
		id   string
		size int
		want string
	}{
		{"m\xff", 0, "message ID is not UTF-8"},
		{old.String(), 0, idempotency.ErrTooOld.Error()},
		{"m1", 400, "Options.MaxStored"},
	} {
		for way, handle := range ways {
			d := r.Delivery(c.id)
			d.Body = make([]byte, c.size)
			reason = nil
			receivertest.Must(t, handle(d))
			if reason == nil || !strings.Contains(reason.Error(), c.want) {
				t.Errorf("%s of %q: dead-lettered for %v, must be for %s", way, c.id, reason, c.want)
			}
		}
		dead++
	}
	r.WantRows(0, 0)
	r.wantNothingPending()
	wantStats := func(want idempotency.Stats) {
		t.Helper()
		receivertest.WantStats(t, r.effects.Stats(), want)
		receivertest.WantStats(t, r.worker.Stats(), want)
	}
	wantStats(idempotency.Stats{DeadLettered: dead})

	r.Exec(`INSERT INTO bridge_inbox (consumer, key, claimed_at) VALUES ('shop', ?, 0)`, old.String()) // not purged yet, so it can be judged
	for _, handle := range ways {
		receivertest.Must(t, handle(r.Delivery(old.String())))
	}
	wantStats(idempotency.Stats{DeadLettered: dead, Duplicates: 1})
}
