package emailgateway_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/tests/program"
)

// The shop's ledger and the gateway's tables are in schemas that no search_path has. The shop's orders
// are where search_path finds them. The printed rights are enough for the gateway.
func TestShopAndGatewayWorkWithTheBridgeInASchema(t *testing.T) {
	t.Parallel()
	const ledger, inbox = `Ledger's "$1" ?`, `Inbox ?`
	w := newWorld(t)
	_, err := w.db.Exec(`DROP SCHEMA public CASCADE; CREATE SCHEMA public; CREATE SCHEMA "Ledger's ""$1"" ?"; CREATE SCHEMA "Inbox ?"`)
	w.must(err)
	schemas := []string{"BRIDGE_SCHEMA=" + ledger, "BRIDGE_INBOX_SCHEMA=" + inbox}
	verifier := []string{"BRIDGE_DATABASE_URL=" + w.url, schemas[0]}
	shop := []string{"SHOP_DATABASE_URL=" + w.url, "SHOP_SCHEMA=" + ledger}
	gateway := "EMAIL_SCHEMA=" + inbox
	owner, _ := w.login("migrate", schemas...)
	for _, r := range []program.Result{
		program.Run(t, "verifier", append(slices.Clone(verifier), "-migrate")...),
		program.Run(t, "shop", append(slices.Clone(shop), "-migrate")...),
		w.call("EMAIL_DATABASE_URL="+owner, gateway, "migrate"),
		w.call("EMAIL_DATABASE_URL="+owner, gateway, "migrate"), // nothing is left to do
	} {
		if r.Code != 0 {
			t.Fatalf("no tables: %s", r.Stderr)
		}
	}
	rows, err := w.db.Query(`SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')`)
	w.must(err)
	defer rows.Close()
	for rows.Next() {
		var schema, table string
		w.must(rows.Scan(&schema, &table))
		want := ledger
		switch {
		case table == "orders", table == "bridge_shop_version":
			want = "public"
		case strings.HasPrefix(table, "bridge_inbox"), table == "bridge_mark", table == "bridge_kept", strings.Contains(table, "email_gateway"):
			want = inbox
		}
		if schema != want {
			t.Errorf("%s is in the schema %s, must be in %s", table, schema, want)
		}
	}
	w.must(rows.Err())

	v := program.Start(t, "verifier", append(verifier, "BRIDGE_AMQP_URL="+w.amqp, "BRIDGE_ALLOW=:"+queue, "BRIDGE_HTTP_ADDR=none", "BRIDGE_LOG_FORMAT=text")...)
	t.Cleanup(func() { v.Kill() })
	v.Hear("session started")
	mailer, _ := w.login("gateway", schemas...)
	p := w.start("EMAIL_DATABASE_URL="+mailer, gateway)
	s := program.Start(t, "shop", append(shop, "SHOP_AMQP_URL="+w.amqp, "SHOP_EVERY=50ms", "SHOP_ROLL_BACK=2", "SHOP_SLOW=1000", "SHOP_LOG_FORMAT=text")...)
	t.Cleanup(func() { s.Kill() })
	w.eventually("e-mails are sent", func() bool { return w.count(p, "sent") >= 3 })
	if code := s.Stop(); code != 0 {
		t.Errorf("the shop ends with %d", code)
	}
	eachOrderHasOneEmail := func() bool { // the server may commit an order after the shop has ended
		var orders int
		w.must(w.db.QueryRow(`SELECT count(*) FROM orders`).Scan(&orders))
		return w.count(p, "sent") == orders && len(w.mail.Taken()) == orders
	}
	w.eventually("each order has one e-mail", eachOrderHasOneEmail)
	first := strings.Trim(strings.TrimSuffix(w.mail.Taken()[0].Get("Message-Id"), "@example.org>"), "<")
	w.wantDuplicate(p, first)
	if r := w.call("EMAIL_DATABASE_URL="+mailer, gateway, "doubtful", "list"); r.Code != 0 {
		t.Errorf("doubtful list: exit code %d, %s", r.Code, r.Stderr)
	}
	w.eventually("each order still has one e-mail", eachOrderHasOneEmail)
	for _, process := range []*program.Process{p, v} {
		if code := process.Stop(); code != 0 {
			t.Errorf("exit code %d: %s", code, process.Stderr.String())
		}
		if log := process.Stderr.String(); strings.Contains(log, "does not exist (SQLSTATE") {
			t.Errorf("a statement does not name the schema: %s", log)
		}
	}
}
