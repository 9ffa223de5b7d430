package bridgectl_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// With the printed rights every part works in a schema that is on no search_path: bridgectl's
// migration, the worker, a sender and an inbox.
func TestTheBridgeWorksInASchemaOfItsOwn(t *testing.T) {
	t.Parallel()
	const schema, inboxSchema = `Own "schema's" $1 ?`, `Inbox ?`
	ctx := t.Context()
	w := newWorld(t)
	owner := servertest.PostgresDB(t)
	admin, err := sql.Open("pgx", owner)
	must(t, err)
	t.Cleanup(func() { _ = admin.Close() })
	const quoted, inboxQuoted = `"Own ""schema's"" $1 ?"`, `"Inbox ?"`
	_, err = admin.ExecContext(ctx, `CREATE SCHEMA `+quoted+`; CREATE SCHEMA `+inboxQuoted)
	must(t, err)
	b := w.tool("BRIDGE_DATABASE_URL="+owner, "BRIDGE_SCHEMA="+schema, "BRIDGE_INBOX_SCHEMA="+inboxSchema, "BRIDGE_ALLOW=:emails")
	as := func(role string, flags ...string) string {
		t.Helper()
		login, at := servertest.PostgresRole(t, owner)
		_, err := admin.ExecContext(ctx, b.must(append([]string{"grants", role, "--login", login}, flags...)...))
		must(t, err)
		return at
	}
	b.also("BRIDGE_DATABASE_URL="+as("migrate")).must("migrate", "up", "--ledger", "--inbox")
	if status := b.must("migrate", "status", "--ledger", "--inbox"); strings.Count(status, "current") != 2 {
		t.Errorf("status:\n%s", status)
	}
	var elsewhere int
	must(t, admin.QueryRowContext(ctx, `SELECT count(*) FROM pg_class WHERE relname LIKE 'bridge%' AND relnamespace <>
		CASE WHEN relname ~ '^bridge_(inbox|mark|kept)' THEN $2 ELSE $1 END::text::regnamespace`, quoted, inboxQuoted).Scan(&elsewhere))
	if elsewhere > 0 {
		t.Errorf("%d relations are outside their schema", elsewhere)
	}

	w.queue("emails", nil)
	verifier := program.Command(t, "verifier")
	verifier.Env = append(verifier.Env, "BRIDGE_DATABASE_URL="+as("verifier"), "BRIDGE_SCHEMA="+schema, "BRIDGE_AMQP_URL="+w.url, "BRIDGE_ALLOW=:emails", "BRIDGE_HTTP_ADDR=none")
	program.StartCmd(t, verifier)

	db, err := sql.Open("pgx", as("receiver", "--sends"))
	must(t, err)
	defer func() { _ = db.Close() }()
	ledger, err := postgres.Schema(schema).Open(ctx, db)
	must(t, err)
	inbox, err := postgres.Schema(inboxSchema).OpenInbox(ctx, db)
	must(t, err)
	broker, err := bridge.Dial(ctx, w.url, nil)
	must(t, err)
	defer broker.Close()
	s, err := sender.New(ledger, broker, nil)
	must(t, err)
	must(t, s.InTx(ctx, db, nil, func(tx *sender.Tx) error {
		_, err := tx.Send(bridge.Message{RoutingKey: "emails", Publishing: amqp.Publishing{Body: []byte("one")}})
		return err
	}))
	conn, err := amqp.Dial(w.url)
	must(t, err)
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	must(t, err)
	deliveries, err := channel.ConsumeWithContext(ctx, "emails", "", false, false, false, false, nil)
	must(t, err)
	d := servertest.Next(t, "message", deliveries)
	dedup, err := idempotency.New(inbox, "mailer", &idempotency.Options{HandBack: true})
	must(t, err)
	must(t, dedup.Handle(ctx, db, d, func(context.Context, *sql.Tx) error { return nil }))

	stranger, at := servertest.PostgresRole(t, owner)
	without := b.also("BRIDGE_DATABASE_URL="+at, "BRIDGE_INBOX_URL="+at)
	found, _ := without.examine("database")
	refused := found.of("schema")
	if len(refused) != 2 {
		t.Fatalf("a login without rights:\n%s", found)
	}
	for _, finding := range refused {
		for _, statement := range strings.Split(strings.ReplaceAll(finding.Fix, " the login;", " "+stranger+";"), "\n") {
			if strings.HasPrefix(statement, "GRANT ") {
				_, err := admin.ExecContext(ctx, statement)
				must(t, err)
			}
		}
	}
	found, _ = without.examine("database")
	for _, finding := range found.of("schema") {
		if finding.Level != inspect.OK {
			t.Errorf("after the doctor's statements: %s > %s", finding.Text, finding.Fix)
		}
	}

	operator := b.also("BRIDGE_DATABASE_URL=" + as("operator"))
	found, _ = operator.until(func(d diagnosis, _ int) bool { return d.has("proof", inspect.OK, "") }, "database")
	found.expect(t, "rights of a verifier", inspect.OK, "")
	found.expect(t, "schema", inspect.OK, "")
	for _, command := range [][]string{{"orphans", "list"}, {"carried", "list"}, {"delayed", "list"}, {"pending", "list"}, {"marks", "list"}, {"marks", "list", "--consumer", "mailer"}, {"gaps", "list"}, {"status"}, {"message", d.MessageId}} {
		r := operator.run(command...)
		if strings.Contains(r.Stderr, "does not exist") || strings.Contains(r.Stderr, "permission") {
			t.Errorf("%s: %s", command[0], r.Stderr)
		}
	}
	if r := operator.also("BRIDGE_DATABASE_URL=mysql://u@127.0.0.1/shop").run("status"); r.Code != 2 || !strings.Contains(r.Stderr, "BRIDGE_SCHEMA") || !strings.Contains(r.Stderr, "name it in the URL") {
		t.Errorf("a schema on MySQL: exit code %d, %s", r.Code, r.Stderr)
	}
}
