package idempotency_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// A message whose headers leave no room for the reason can be read, and published again only as a
// record.
func TestADeadQueueTakesEveryMessageThatCanBeRead(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, "SQLite")
	url := servertest.Vhost(t)
	q := newQueueOn(t, url, limitless)
	broker, err := bridge.Dial(t.Context(), url, nil)
	must(t, err)
	defer broker.Close()
	const most = 8192 // elements of a table that amqp091-go reads
	many := make(amqp.Table, most)
	for n := range most {
		many[fmt.Sprint(n)] = true
	}
	for name, c := range map[string]struct {
		id, code string
		headers  amqp.Table
		attempts int64
		record   bool
	}{
		"plain":            {"m1", "failed", amqp.Table{"a": "b"}, 1, false},
		"full of headers":  {"m2", "failed", many, 1, true},
		"too old to judge": {"01890a5d-ac96-774b-bcce-b302099a8057", "too-old", nil, 0, false}, // of 2023
	} {
		t.Run(name, func(t *testing.T) {
			q.send(amqp.Publishing{MessageId: c.id, Headers: c.headers, Body: []byte("body")})
			dedup, err := idempotency.New(db.inbox, "dead "+name, &idempotency.Options{Attempts: 1, DeadLetter: idempotency.DeadQueue(broker, dead, q.name)})
			must(t, err)
			must(t, dedup.Handle(t.Context(), db.DB, next(t, q.consume()), func(context.Context, *sql.Tx) error { return errHandler }))
			d := q.nextDead()
			if _, record := d.Headers[wire.HeaderDeadRecord]; record != c.record {
				t.Errorf("it is a record: %t", record)
			}
			d, err = wire.OpenDead(d)
			must(t, err)
			text, _ := d.Headers[wire.HeaderDeadText].(string)
			if d.Headers[wire.HeaderDeadReason] != c.code || text == "" || d.MessageId != c.id || string(d.Body) != "body" {
				t.Errorf("dead letter %q: %q, headers %.200v", d.MessageId, d.Body, d.Headers)
			}
			if queue, ok := wire.ReceiverOf(d); !ok || queue != q.name {
				t.Errorf("a replay sends it to %q (%t), must send it to its receiver's queue", queue, ok)
			}
			if attempts := d.Headers[wire.HeaderDeadAttempts]; attempts != c.attempts {
				t.Errorf("it failed %v times, must be %d", attempts, c.attempts)
			}
			for name, value := range c.headers {
				if d.Headers[name] != value {
					t.Errorf("header %q is %v", name, d.Headers[name])
				}
			}
			q.wantEmpty()
		})
	}
}
