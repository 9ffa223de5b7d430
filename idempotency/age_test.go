package idempotency_test

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
)

// uuidFrom is the nth UUIDv7 of a message that was made so long ago.
func uuidFrom(age time.Duration, n uint32) string {
	id := uuid.UUID{6: 0x70, 8: 0x80}
	ms := time.Now().Add(-age).UnixMilli()
	for i := range 6 {
		id[i] = byte(ms >> (8 * (5 - i)))
	}
	binary.BigEndian.PutUint32(id[12:], n)
	return id.String()
}

const day = 24 * time.Hour

// claimed puts a claim in the inbox as it was made so long ago.
func (r *receiver) claimed(key string, age time.Duration) {
	r.t.Helper()
	r.exec(`INSERT INTO bridge_inbox (consumer, key, claimed_at) VALUES ('shop', ?, unixepoch() - ?)`, key, int64(age/time.Second))
}

// fast makes the database fast, and not durable.
func (r *receiver) fast() {
	r.t.Helper()
	r.db.SetMaxOpenConns(1)
	r.exec(`PRAGMA synchronous = OFF`)
}

func TestAKeyThatIsTooOldToJudgeIsDeadLetteredAndNotHandled(t *testing.T) {
	for name, handle := range map[string]func(r *receiver, d amqp.Delivery) error{
		"Handle": func(r *receiver, d amqp.Delivery) error {
			return r.guard.Handle(r.t.Context(), r.db, d, mustNotRun(r.t))
		},
		"AtMostOnce": func(r *receiver, d amqp.Delivery) error {
			return r.guard.AtMostOnce(r.t.Context(), r.db, d, func(context.Context, amqp.Delivery) error {
				r.t.Error("the effect ran")
				return nil
			})
		},
		"Accept": func(r *receiver, d amqp.Delivery) error { return r.guard.Accept(r.t.Context(), r.db, d) },
	} {
		t.Run(name, func(t *testing.T) {
			var reason error
			r := newReceiver(t, idempotency.Options{Retention: 10 * day, DeadLetter: func(_ context.Context, _ amqp.Delivery, why error) error {
				reason = why
				return nil
			}})
			if err := handle(r, r.delivery(uuidFrom(10*day+time.Second, 1))); err != nil {
				t.Fatal(err)
			}
			if !errors.Is(reason, idempotency.ErrTooOld) {
				t.Errorf("reason is %v", reason)
			}
			r.wantSaid("ack 1")
			r.wantRows(0, 0)
			r.wantNothingPending()
			r.wantStats(idempotency.Stats{DeadLettered: 1})

			reason = nil
			known := uuidFrom(100*day, 1)
			r.claimed(known, 100*day) // not purged yet: it can be judged
			if err := handle(r, r.delivery(known)); err != nil {
				t.Fatal(err)
			}
			r.wantStats(idempotency.Stats{DeadLettered: 1, Duplicates: 1})
		})
	}
}

func TestAKeyThatIsNewEnoughOrTellsNoTimeIsHandled(t *testing.T) {
	for name, c := range map[string]struct {
		key       string
		retention time.Duration
	}{
		"new enough":           {uuidFrom(10*day-time.Minute, 1), 10 * day},
		"from the future":      {uuidFrom(-100*day, 1), 10 * day},
		"random":               {"f47ac10b-58cc-4372-a567-0e02b2c3d479", 10 * day},
		"the default's":        {uuidFrom(29*day, 1), 0},
		"keys kept for ever":   {uuidFrom(1000*day, 1), -1},
		"a number with zeroes": {"00000000000000000000004711", 10 * day},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReceiver(t, idempotency.Options{Retention: c.retention, DeadLetterExchange: true})
			if err := r.guard.Handle(t.Context(), r.db, r.delivery(c.key), placeOrder("m1")); err != nil {
				t.Fatal(err)
			}
			r.wantSaid("ack 1")
			r.wantRows(1, 1)
		})
	}
}

func TestAPurgeForgetsWhatIsOldAndNothingElse(t *testing.T) {
	r := newReceiver(t, idempotency.Options{Retention: 10 * day})
	r.fast()
	const old, young = 1300, 700
	for n := range uint32(old) {
		r.claimed(uuidFrom(20*day, n), 20*day)
		if n < young {
			r.claimed(uuidFrom(5*day, n), 5*day)
			r.claimed(fmt.Sprintf("z order %d", n), time.Duration(n%2*20)*day)
		}
	}
	r.claimed(uuidFrom(10*day+30*time.Minute, 1), 10*day+30*time.Minute) // within the margin
	r.exec(`INSERT INTO bridge_inbox (consumer, key, claimed_at) VALUES ('billing', 'b', 0)`)
	n, err := r.guard.Purge(t.Context(), r.db)
	if err != nil || n != old+young/2 {
		t.Errorf("forgot %d, %v; want %d", n, err, old+young/2)
	}
	if left := r.keys(); left != young+young/2+2 {
		t.Errorf("%d are left, want %d", left, young+young/2+2)
	}
	r.wantStats(idempotency.Stats{Purged: uint64(n), PurgePasses: 1})
	if n, err := r.guard.Purge(t.Context(), r.db); n != 0 || err != nil {
		t.Errorf("another pass forgot %d, %v", n, err)
	}
}

func TestAPurgeOfKeysForEverDoesNothing(t *testing.T) {
	r := newReceiver(t, idempotency.Options{Retention: -1})
	r.claimed(uuidFrom(10000*day, 1), 10000*day)
	if n, err := r.guard.Purge(t.Context(), r.db); n != 0 || err != nil {
		t.Errorf("forgot %d, %v", n, err)
	}
	r.wantRows(0, 1)
}

// Nobody calls Purge: who handles messages purges as well, and faster than it claims.
func TestHandlingPurges(t *testing.T) {
	r := newReceiver(t, idempotency.Options{Retention: 10 * day})
	r.fast()
	const old = 1200
	for n := range uint32(old) {
		r.claimed(uuidFrom(20*day, n), 20*day)
	}
	for n := range 1200 {
		err := r.guard.Handle(t.Context(), r.db, r.delivery(uuidFrom(0, uint32(n))), func(context.Context, *sql.Tx) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	if stats := r.guard.Stats(); stats.Purged != old || r.keys() != 1200 || stats.PurgePasses == 0 {
		t.Errorf("%d are left, stats are %+v", r.keys(), stats)
	}
}

func TestAPurgeThatFailsDoesNotTouchTheDelivery(t *testing.T) {
	r := newReceiver(t, idempotency.Options{Retention: 10 * day})
	r.fast()
	r.inbox.failClaimed = errNetwork
	for n := range 201 {
		err := r.guard.Handle(t.Context(), r.db, r.delivery(fmt.Sprint("m", n)), func(context.Context, *sql.Tx) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	r.wantRows(0, 201)
	r.wantStats(idempotency.Stats{Handled: 201})
}

func TestAKeyFunctionNamesTheMessage(t *testing.T) {
	byOrder := func(d amqp.Delivery) (string, error) {
		switch order := d.Headers["order"].(type) {
		case string:
			return order, nil
		case nil:
			return "", errors.New("no order")
		default:
			panic("order is no text")
		}
	}
	var reasons []string
	r := newReceiver(t, idempotency.Options{Key: byOrder, DeadLetter: func(_ context.Context, _ amqp.Delivery, why error) error {
		reasons = append(reasons, why.Error())
		return nil
	}})
	for id, headers := range map[string]amqp.Table{
		"m1": {"order": "4711"}, "m2": {"order": "4711"}, "m3": {"order": "4712"},
		"m4": nil, "m5": {"order": ""}, "m6": {"order": int32(7)}, "m7": {"order": string(make([]byte, 300))},
	} {
		d := r.delivery(id)
		d.Headers = headers
		if err := r.guard.Handle(t.Context(), r.db, d, placeOrder(id)); err != nil {
			t.Fatal(err)
		}
	}
	r.wantRows(2, 2)
	if stats := r.guard.Stats(); stats.Handled != 2 || stats.Duplicates != 1 || stats.DeadLettered != 4 {
		t.Errorf("stats are %+v, reasons %q", stats, reasons)
	}
}
