package bridgectl_test

import (
	"context"
	"database/sql"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/stdlib"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

var permissions = regexp.MustCompile(`(?m)^rabbitmqctl set_permissions -p '[^']*' '[^']*' '([^']*)' '([^']*)' '([^']*)'$`)

// With the printed rights a receiver declares its queues, handles a message, sends a reply in the
// same transaction, and publishes failing messages to its dead queue and a retry queue.
func TestThePrintedRightsAreEnoughForAReceiverThatDeclaresAndSends(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, exchange := range map[string]string{"default exchange": "", "exchange": "twoqueue.stage"} {
		t.Run(name, func(t *testing.T) {
			owner := servertest.PostgresDB(t)
			login, asLogin := servertest.PostgresRole(t, owner)
			b := withEnv(t, "BRIDGE_DATABASE_URL="+owner, "BRIDGE_AMQP_URL="+w.url, "BRIDGE_EXCHANGE="+exchange)
			b.must("migrate", "up", "--ledger", "--inbox")
			b.must("topology", "declare")
			grants := []string{"grants", string(migrate.Receiver), "--declares", "--sends", "--target", "requests", "--login", login}
			admin, err := sql.Open("pgx", owner)
			must(t, err)
			t.Cleanup(func() { _ = admin.Close() })
			_, err = admin.ExecContext(t.Context(), b.must(grants...))
			must(t, err)
			rights := permissions.FindStringSubmatch(b.must(append(grants, "--broker")...))
			if rights == nil {
				t.Fatal("no rights at the broker are printed")
			}
			asReceiver(t, asLogin, servertest.User(t, w.url, rights[1], rights[2], rights[3]), exchange)
		})
	}
	if r := withEnv(t).run("grants", "sender", "--database", "postgres", "--sends"); r.Code != 2 || !strings.Contains(r.Stderr, "leave them out") {
		t.Errorf("grants sender --sends: exit code %d, %s", r.Code, r.Stderr)
	}
}

// asReceiver works as a receiver does, with these logins.
func asReceiver(t *testing.T, database, broker, exchange string) {
	t.Helper()
	ctx := t.Context()
	db, err := sql.Open("pgx", database)
	must(t, err)
	defer func() { _ = db.Close() }()
	ledger, err := postgres.Open(ctx, db)
	must(t, err)
	inbox, err := postgres.OpenInbox(ctx, db)
	must(t, err)
	publisher, err := bridge.Dial(ctx, broker, nil)
	must(t, err)
	defer publisher.Close()
	s, err := sender.New(ledger, publisher, &sender.Options{Exchange: exchange})
	must(t, err)
	queues, err := idempotency.DeclareReceiver(ctx, publisher, "requests", nil)
	must(t, err)
	dedup, err := idempotency.New(inbox, "requests", &idempotency.Options{Attempts: 1, Queues: queues})
	must(t, err)

	conn, err := amqp.Dial(broker)
	must(t, err)
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	must(t, err)
	for _, body := range []string{"good", "bad", "later"} {
		must(t, channel.PublishWithContext(ctx, "", "requests", false, false, amqp.Publishing{MessageId: uuid.NewString(), ReplyTo: "replies", Body: []byte(body)}))
	}
	deliveries, err := channel.ConsumeWithContext(ctx, "requests", "", false, false, false, false, nil)
	must(t, err)
	for range 3 {
		d := servertest.Next(t, "request", deliveries)
		must(t, dedup.Handle(ctx, db, d, func(ctx context.Context, tx *sql.Tx) error {
			switch string(d.Body) {
			case "bad":
				return errors.New("bad request")
			case "later":
				return idempotency.RetryLater(errors.New("not yet"), time.Hour)
			}
			reply, err := idempotency.Reply(d, amqp.Publishing{Body: []byte("done")})
			if err != nil {
				return err
			}
			_, err = s.SendTx(ctx, bridge.SQL(tx), reply)
			return err
		}))
	}
	if stats := dedup.Stats(); stats.Handled != 1 || stats.DeadLettered != 1 || stats.RetriedLater != 1 {
		t.Errorf("handled, dead-lettered and retried later: %d, %d and %d, want 1 of each", stats.Handled, stats.DeadLettered, stats.RetriedLater)
	}
}
