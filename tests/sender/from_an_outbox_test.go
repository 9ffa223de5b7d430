package sender_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// Order is an order of the shop in sender/FROM_AN_OUTBOX.md.
type Order struct {
	Number    string    `db:"number"`
	MessageID uuid.UUID `db:"message_id"`
	Email     []byte    `db:"email"`
}

// The text between the marks must be in the guide too.

// Guide begin

// Before: the message is a row, and a poller publishes it.
func placeOrderBefore(ctx context.Context, tx *sql.Tx, o Order) error {
	if _, err := tx.ExecContext(ctx, `INSERT INTO orders (number) VALUES ($1)`, o.Number); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO outbox (id, body) VALUES ($1, $2)`, o.MessageID, o.Email)
	return err
}

// After: it is staged, under the ID that its row would have had.
func placeOrder(ctx context.Context, tx *sql.Tx, s *sender.Sender, o Order) error {
	if _, err := tx.ExecContext(ctx, `INSERT INTO orders (number) VALUES ($1)`, o.Number); err != nil {
		return err
	}
	_, err := s.SendTx(ctx, bridge.SQL(tx), email(o))
	return err
}

func email(o Order) bridge.Message {
	return bridge.Message{ID: o.MessageID, RoutingKey: "emails", Publishing: amqp.Publishing{Body: o.Email}}
}

// Guide end

// Guide begin

// Before, with sqlx.
func placeOrderBeforeX(ctx context.Context, tx *sqlx.Tx, o Order) error {
	if _, err := tx.NamedExecContext(ctx, `INSERT INTO orders (number) VALUES (:number)`, o); err != nil {
		return err
	}
	_, err := tx.NamedExecContext(ctx, `INSERT INTO outbox (id, body) VALUES (:message_id, :email)`, o)
	return err
}

// After, with sqlx.
func placeOrderX(ctx context.Context, tx *sqlx.Tx, s *sender.Sender, o Order) error {
	if _, err := tx.NamedExecContext(ctx, `INSERT INTO orders (number) VALUES (:number)`, o); err != nil {
		return err
	}
	_, err := s.SendTx(ctx, bridge.SQL(tx), email(o))
	return err
}

// Guide end

const guide = "../../sender/FROM_AN_OUTBOX.md"

// The guide has no Go code other than the code that runs here.
func TestTheGuideFromAnOutboxHasTheCode(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("from_an_outbox_test.go")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	marked := regexp.MustCompile(`(?s)\n// Guide begin\n(.*?)\n// Guide end\n`).FindAllStringSubmatch(string(source), -1)
	if len(marked) == 0 {
		t.Error("nothing is marked")
	}
	for _, m := range marked {
		if want := "```go\n" + strings.TrimSpace(m[1]) + "\n```\n"; !strings.Contains(string(text), want) {
			t.Errorf("%s does not have this block:\n%s", guide, want)
		}
	}
	if n := strings.Count(string(text), "```go\n"); n != len(marked) {
		t.Errorf("%s has %d blocks of Go, %d are marked here", guide, n, len(marked))
	}
}

// The shop's tables. An order's number is checked at COMMIT, when its message is already in the
// outbox or the staging queue.
const outboxTables = `
CREATE TABLE orders (number text UNIQUE DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE outbox (n bigserial, id uuid PRIMARY KEY, body bytea NOT NULL)`

// poller publishes the messages of the outbox, as a service with an outbox does.
type poller struct {
	db        *sql.DB
	broker    *bridge.Broker
	batches   int
	published int // including repeated ones
}

// poll takes one batch, publishes it, and commits when all messages are confirmed. Every third
// time it rolls back instead, as if it had died, so the same batch is published again.
func (p *poller) poll(ctx context.Context) error {
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	rows, err := tx.QueryContext(ctx, `DELETE FROM outbox WHERE id IN
		(SELECT id FROM outbox ORDER BY n LIMIT 20 FOR UPDATE SKIP LOCKED) RETURNING id, body`)
	if err != nil {
		return err
	}
	defer rows.Close()
	var batch []bridge.Outgoing
	for rows.Next() {
		m := amqp.Publishing{DeliveryMode: amqp.Persistent}
		if err := rows.Scan(&m.MessageId, &m.Body); err != nil {
			return err
		}
		batch = append(batch, bridge.Outgoing{Target: bridge.Target{RoutingKey: "emails"}, Publishing: m})
	}
	if err := rows.Err(); err != nil || len(batch) == 0 {
		return err
	}
	if err := p.broker.Publish(ctx, batch); err != nil {
		return err
	}
	p.published += len(batch)
	if p.batches++; p.batches%3 == 1 {
		return nil // runs the deferred rollback
	}
	return tx.Commit()
}

// start polls until stop is called or the test ends.
func (p *poller) start(t *testing.T) (stop func()) {
	stopping, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-stopping:
				return
			case <-ticker.C:
				ctx, cancel := context.WithTimeout(context.Background(), stage.Patience)
				err := p.poll(ctx)
				cancel()
				if err != nil {
					t.Errorf("poll: %v", err)
					return
				}
			}
		}
	}()
	stop = sync.OnceFunc(func() { close(stopping); <-ended })
	t.Cleanup(stop)
	return stop
}

// place places an order in a transaction of its own, in one of four ways.
func place(ctx context.Context, s *stage.Stage, withSqlx, bySender bool, o Order) error {
	tx, err := sqlx.NewDb(s.DB, "pgx").BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	switch {
	case bySender && withSqlx:
		err = placeOrderX(ctx, tx, s.Sender, o)
	case bySender:
		err = placeOrder(ctx, tx.Tx, s.Sender, o)
	case withSqlx:
		err = placeOrderBeforeX(ctx, tx, o)
	default:
		err = placeOrderBefore(ctx, tx.Tx, o)
	}
	if err != nil {
		return err
	}
	return tx.Commit()
}

// switchover counts the writers' orders.
type switchover struct {
	mu     sync.Mutex
	placed map[uuid.UUID]bool // the messages of committed orders
	outbox int                // committed orders, by the outbox
	sender int                // committed orders, by the sender
	staged int                // orders that were staged, committed or not
}

// write places orders: the orders in [from, to) by the sender, all others by the outbox. Every
// fifth order fails at COMMIT.
func (c *switchover) write(t *testing.T, s *stage.Stage, writer, orders, from, to int) {
	for i := range orders {
		o := Order{Number: fmt.Sprint(writer, "/", i), MessageID: uuid.New()}
		again := i%5 == 4
		if again {
			o.Number = fmt.Sprint(writer, "/", i-1)
		}
		o.Email = []byte(o.Number)
		bySender := from <= i && i < to
		err := place(t.Context(), s, writer%2 == 1, bySender, o)
		if again != (err != nil) {
			t.Errorf("order %d of writer %d: %v", i, writer, err)
		}
		c.mu.Lock()
		if bySender {
			c.staged++
		}
		switch {
		case again:
		case bySender:
			c.sender++
		default:
			c.outbox++
		}
		if !again {
			c.placed[o.MessageID] = true
		}
		c.mu.Unlock()
	}
}

// The writers switch to the sender one after the other, and two of them switch back, while the
// poller and a verifier run. Each committed order's message must arrive, and no other. Only the
// poller delivers messages twice, with the same ID.
func TestNothingIsLostWhileAnOutboxIsReplaced(t *testing.T) {
	t.Parallel()
	const orders = 40
	s := stage.New(t, stage.Postgres)
	s.Queue("emails", nil)
	if _, err := s.DB.ExecContext(t.Context(), outboxTables); err != nil {
		t.Fatal(err)
	}
	v := s.Verify(verifier.Options{})
	poller := &poller{db: s.DB, broker: s.Broker}
	stopPoller := poller.start(t)

	done := &switchover{placed: make(map[uuid.UUID]bool)}
	var writers sync.WaitGroup
	for writer, until := range []int{36, 36, orders, orders} {
		writers.Go(func() { done.write(t, s, writer, orders, 8*(writer+1), until) })
	}
	writers.Wait()

	// As the guide says, the poller is stopped when the outbox is empty and has no writer.
	s.Eventually("the outbox is empty", func() bool {
		var n int
		err := s.DB.QueryRowContext(t.Context(), `SELECT count(*) FROM outbox`).Scan(&n)
		return err == nil && n == 0
	})
	stopPoller()
	s.Eventually("all staged messages are judged", func() bool {
		return v.Stats().Forwarded+v.Stats().Dropped >= int64(done.staged) && s.Rows() == 0
	})
	v.Stop()
	s.WaitEmpty(s.Topology.Queue)
	s.WaitEmpty(s.Topology.WaitingQueue())
	copies, _ := s.Delivered(t, "emails", func(amqp.Delivery) bool { return true })
	repeated := stage.Compare(t, done.placed, copies)
	again := poller.published - done.outbox
	t.Logf("%d orders by the outbox, %d by the sender; the poller published %d messages, the verifier forwarded %d and dropped %d; %d came twice",
		done.outbox, done.sender, poller.published, v.Stats().Forwarded, v.Stats().Dropped, len(repeated))
	if len(repeated) != again || v.Stats().Forwarded != int64(done.sender) {
		t.Errorf("%d messages came twice, and the poller has published %d twice", len(repeated), again)
	}
	if done.outbox == 0 || done.sender == 0 || done.staged == done.sender || again == 0 {
		t.Error("a way was not taken, no staged message was rolled back, or none came twice: this shows nothing")
	}
}
