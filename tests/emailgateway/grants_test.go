package emailgateway_test

import (
	"database/sql"
	"fmt"
	"regexp"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// permissions matches the three patterns of a printed command.
var permissions = regexp.MustCompile(`(?m)^rabbitmqctl set_permissions -p '[^']*' '[^']*' '([^']*)' '([^']*)' '([^']*)'$`)

// exchange is the exchange to which the senders publish.
const exchange = "twoqueue.stage"

// login creates a role's login at the database and at the broker, with the rights that bridgectl
// grants prints and no others, and returns the two addresses. env are further variables of bridgectl.
func (w *world) login(role string, env ...string) (database, broker string) {
	w.t.Helper()
	name, database := servertest.PostgresRole(w.t, w.url)
	grants := func(more ...string) string {
		w.t.Helper()
		r := program.Run(w.t, "bridgectl", append([]string{"BRIDGE_DATABASE_URL=" + w.url, "BRIDGE_AMQP_URL=" + w.amqp, "BRIDGE_ALLOW=:" + queue,
			"BRIDGE_EXCHANGE=" + exchange, "grants", role, "--login", name}, append(more, env...)...)...)
		if r.Code != 0 {
			w.t.Fatalf("grants %s: %s", role, r.Stderr)
		}
		return r.Stdout
	}
	_, err := w.db.Exec(grants())
	w.must(err)
	if rights := permissions.FindStringSubmatch(grants("--broker")); rights != nil {
		broker = servertest.User(w.t, w.amqp, rights[1], rights[2], rights[3])
	}
	return database, broker
}

// From the tables to the e-mail each program has a login of its own, with the printed rights of
// its role.
func TestThePrintedRightsAreEnoughForEachProgram(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.db.Exec(`DROP SCHEMA public CASCADE; CREATE SCHEMA public`)
	w.must(err)
	database, _ := w.login("migrate")
	for _, command := range [][]string{{"verifier", "BRIDGE_DATABASE_URL=" + database, "-migrate"}, {"email-gateway", "EMAIL_DATABASE_URL=" + database, "migrate"}} {
		if r := program.Run(t, command[0], command[1:]...); r.Code != 0 {
			t.Fatalf("%v: %s", command[0], r.Stderr)
		}
	}
	// From here on the owner has created the tables, and the administrator grants rights on them.
	database, broker := w.login("verifier")
	v := program.Start(t, "verifier", "BRIDGE_DATABASE_URL="+database, "BRIDGE_AMQP_URL="+broker, "BRIDGE_ALLOW=:"+queue, "BRIDGE_EXCHANGE="+exchange,
		"BRIDGE_HTTP_ADDR=none", "BRIDGE_LOG_FORMAT=text")
	t.Cleanup(func() { v.Kill() })
	v.Hear("session started")
	database, broker = w.login("gateway")
	p := w.start("EMAIL_DATABASE_URL="+database, "EMAIL_AMQP_URL="+broker)

	database, broker = w.login("sender")
	id := w.send(database, broker)
	w.wantStatus(id, "sent")
	bad := newID(t)
	w.publishAs(bad, "{")
	w.wantDead(dead{bad, "failed", "not JSON"})

	database, broker = w.login("operator")
	r := program.Run(t, "bridgectl", "BRIDGE_DATABASE_URL="+database, "BRIDGE_INBOX_URL="+database, "BRIDGE_AMQP_URL="+broker, "BRIDGE_ALLOW=:"+queue,
		"BRIDGE_EXCHANGE="+exchange, "doctor", "-o", "json")
	if !strings.Contains(r.Stdout, `"rights of a verifier"`) || strings.Count(r.Stdout, "GRANT ") > strings.Count(r.Stdout, "GRANT pg_read_all_stats ") { // the tests' server has other faults
		t.Errorf("doctor: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	if r := program.Run(t, "bridgectl", "BRIDGE_DATABASE_URL="+database, "BRIDGE_INBOX_URL="+database, "BRIDGE_AMQP_URL="+broker, "BRIDGE_EXCHANGE="+exchange, "message", id); r.Code != 0 {
		t.Errorf("message: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("the gateway ends with %d", code)
	}
	if code := v.Stop(); code != 0 {
		t.Errorf("the verifier ends with %d", code)
	}
	if log := v.Stderr.String() + p.Stderr.String(); strings.Contains(log, "denied") || strings.Contains(log, "ACCESS_REFUSED") {
		t.Errorf("a right is missing:\n%s", log)
	}
	w.wantTaken(id)
}

// send sends one e-mail by the bridge, and returns its ID.
func (w *world) send(database, broker string) string {
	w.t.Helper()
	db, err := sql.Open("pgx", database)
	w.must(err)
	defer db.Close()
	ledger, err := postgres.Open(w.t.Context(), db)
	w.must(err)
	b, err := bridge.Dial(w.t.Context(), broker, nil)
	w.must(err)
	defer b.Close()
	s, err := sender.New(ledger, b, &sender.Options{Exchange: exchange, Timeout: patience, Carry: sender.CarryNever})
	w.must(err)
	tx, err := db.BeginTx(w.t.Context(), nil)
	w.must(err)
	ids, err := s.SendTx(w.t.Context(), bridge.SQL(tx), bridge.Message{RoutingKey: queue, Publishing: amqp.Publishing{Body: []byte(body)}})
	w.must(err)
	w.must(tx.Commit())
	return fmt.Sprint(ids[0])
}
