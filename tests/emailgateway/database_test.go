package emailgateway_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/tests/emailgateway/mailserver"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// On every database for which there is a server: an e-mail is sent, sent at the third attempt,
// refused, given up, or doubtful and retried, and then a copy of each arrives. The other tests
// use PostgreSQL.
func TestEachDatabase(t *testing.T) {
	t.Parallel()
	for name, database := range map[string]func(t *testing.T) string{
		"postgres": func(t *testing.T) string { return servertest.PostgresDB(t) },
		"mariadb":  func(t *testing.T) string { return program.DatabaseURL(t, servertest.MariaDBDatabase(t)) },
		"sqlite":   func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "gateway.db") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorldOn(t, database(t))
			if r := w.call("migrate"); r.Code != 0 { // must change nothing
				t.Errorf("migrate again: exit code %d: %s", r.Code, r.Stderr)
			}
			refusals := map[string]int{"later@example.org": 2, "never@example.org": 1000}
			lost := true
			sender := ""
			w.mail.Do(func(v mailserver.Visit) mailserver.Action {
				switch {
				case v.Moment == mailserver.Rcpt:
					sender = v.Recipient
					if refusals[sender]--; refusals[sender] >= 0 {
						return mailserver.Action{Reply: 450}
					}
					if sender == "unknown@example.org" {
						return mailserver.Action{Reply: 550}
					}
				case v.Moment == mailserver.Answer && sender == "ann@example.org" && lost:
					lost = false
					return mailserver.Action{Drop: true}
				}
				return mailserver.Action{}
			})
			p := w.start("EMAIL_SMTP_SESSIONS=1") // the mail server handles one e-mail at a time
			ids := make(map[string]string)
			for _, to := range []string{"ok", "later", "never", "unknown", "ann"} {
				ids[to] = newID(t)
				w.publishAs(ids[to], strings.Replace(body, "ann@", to+"@", 1))
			}
			w.wantMetrics(p, `email_gateway_emails_total{outcome="sent"} 2`, `email_gateway_emails_total{outcome="refused"} 1`,
				`email_gateway_emails_total{outcome="failed"} 1`, `email_gateway_emails_total{outcome="doubtful"} 1`,
				`twoqueue_receiver_pending{consumer="email-gateway",state="doubtful"} 1`)
			for path, want := range map[string]string{"/livez": "ok\n", "/readyz": "ok\n"} {
				if code, text := p.Endpoint(path); code != 200 || text != want {
					t.Errorf("%s: %d %s", path, code, text)
				}
			}
			w.wantDead(dead{ids["unknown"], "failed", "recipient 1 of 1: refused permanently: 550"}, dead{ids["never"], "failed", "given up after 4 attempts"})
			w.wantDoubtful("connection lost", ids["ann"])
			w.decide("retry", ids["ann"])
			w.wantMetrics(p, `email_gateway_emails_total{outcome="sent"} 3`, `twoqueue_receiver_pending{consumer="email-gateway",state="doubtful"} 0`)
			for _, word := range []string{"sent", "retry"} {
				again := w.call("doubtful", word, ids["ann"])
				if again.Code != 1 || !strings.Contains(again.Stderr, "not pending; see email-gateway doubtful list") {
					t.Errorf("exit code %d, %s", again.Code, again.Stderr)
				}
			}
			for _, id := range ids {
				w.publishAs(id, body) // three are duplicates; the two dead ones count as new
			}
			w.wantMetrics(p, `email_gateway_emails_total{outcome="duplicate"} 3`, `email_gateway_emails_total{outcome="sent"} 5`,
				`email_gateway_attempts_total{result="sent"} 5`, `email_gateway_held 0`)
			if code := p.Stop(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			w.wantEmpty(queue + ".dead")
			w.wantEmpty(queue)
			var taken []string
			for _, e := range w.mail.Taken() {
				taken = append(taken, e.Get("Message-Id"))
				if e.From != "shop@example.org" || len(e.To) != 1 || e.Get("Subject") != "Your order" || !strings.Contains(e.Text, "Thank you.") {
					t.Errorf("%+v", e)
				}
			}
			var want []string
			for to, id := range ids {
				want = append(want, fmt.Sprintf("<%s@example.org>", id))
				if to == "ann" { // once in doubt, and once more by the operator's decision
					want = append(want, want[len(want)-1])
				}
			}
			slices.Sort(taken)
			slices.Sort(want)
			if !slices.Equal(taken, want) {
				t.Errorf("taken\n%v\nwant\n%v", taken, want)
			}
		})
	}
}

func TestOldStatusesArePurgedExceptUnresolvedOnes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const old, more = 1200, 3 // more than two batches
	_, err := w.db.Exec(`INSERT INTO email_gateway
SELECT 'old ' || i, 'sent', '', 1, '', now() - interval '3 hours', now() - interval '2 hours' FROM generate_series(1, $1::int) i
UNION ALL SELECT 'doubtful', 'doubtful', '', 1, '', now() - interval '3 hours', now() - interval '2 hours'
UNION ALL SELECT 'sending', 'sending', '', 1, '', now() - interval '3 hours', now() - interval '2 hours'
UNION ALL SELECT 'new', 'sent', '', 1, '', now() - interval '3 hours', now()`, old)
	w.must(err)
	p := w.start("EMAIL_RETENTION=1h")
	left := 0
	w.eventually("the old ones are gone", func() bool {
		w.must(w.db.QueryRow(`SELECT count(*) FROM email_gateway`).Scan(&left))
		return left == more
	}, func() string { return fmt.Sprint(left, " are left") })
	p.Stop()
	w.must(w.db.QueryRow(`SELECT count(*) FROM email_gateway WHERE message_id IN ('doubtful', 'sending', 'new')`).Scan(&left))
	if left != more {
		t.Errorf("%d of the rows that must stay are left", left)
	}
}
