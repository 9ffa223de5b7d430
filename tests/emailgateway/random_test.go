package emailgateway_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/tests/emailgateway/mailserver"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// Two gateways on one queue are killed again and again, and the mail server fails at random in
// every way. No e-mail may be sent twice, and none lost.
func TestRandomFailuresSendNoEmailTwiceAndLoseNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const emails = 100
	dice := rand.New(rand.NewPCG(1, 2)) // the server calls for one visit at a time
	w.mail.Do(func(v mailserver.Visit) mailserver.Action {
		switch n := dice.IntN(100); {
		case n < 3:
			return mailserver.Action{Drop: true}
		case n < 4:
			return mailserver.Action{Stall: true}
		case n < 8 && v.Moment != mailserver.Greeting:
			return mailserver.Action{Reply: 451}
		}
		return mailserver.Action{}
	})
	env := []string{"EMAIL_SMTP_TIMEOUT=200ms", "EMAIL_SMTP_ANSWER=200ms", "EMAIL_ATTEMPTS=50", "EMAIL_HOLD=5s"}
	steady := func() *program.Process {
		for range 20 { // the mail server may refuse its very first session
			p := w.run(env...)
			w.eventually("it works, or has ended", func() bool {
				return p.HasEnded() || strings.Contains(p.Stderr.String(), "consumer session started")
			})
			if !p.HasEnded() {
				return p
			}
		}
		t.Fatal("no gateway starts")
		return nil
	}
	first, second := steady(), steady()
	ids := w.publish(emails)
	for i := range 6 {
		w.mail.WaitTaken(t, (i+1)*emails/10, servertest.Patience)
		if i%2 == 0 {
			first.Kill()
			first = steady()
		} else {
			second.Kill()
			second = steady()
		}
	}
	var open int
	w.eventually("all e-mails have ended", func() bool {
		w.must(w.db.QueryRow(`SELECT count(*) FROM email_gateway WHERE status NOT IN ('sent', 'doubtful')`).Scan(&open))
		var known int
		w.must(w.db.QueryRow(`SELECT count(*) FROM email_gateway`).Scan(&known))
		return open == 0 && known == emails
	}, func() string { return fmt.Sprint(open, " are open") })
	for _, p := range []*program.Process{first, second} {
		if code := p.Stop(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
	w.wantEmpty(queue)
	w.wantEmpty(queue + ".dead")
	taken := w.taken()
	doubtful := make(map[string]bool)
	w.eventually("all doubtful ones are listed", func() bool {
		clear(doubtful)
		for _, l := range w.list() {
			doubtful[l.ID] = true
		}
		var n int
		w.must(w.db.QueryRow(`SELECT count(*) FROM bridge_inbox_pending`).Scan(&n))
		return n == len(doubtful)
	})
	for _, id := range ids {
		switch {
		case taken[id] > 1:
			t.Errorf("%s was sent %d times", id, taken[id])
		case taken[id] == 0 && !doubtful[id]:
			t.Errorf("%s is lost", id)
		}
	}
	t.Logf("%d of %d were taken, %d are doubtful", len(taken), emails, len(doubtful))
	if len(doubtful) == 0 || len(doubtful) > emails/2 {
		t.Errorf("%d are doubtful: this shows nothing", len(doubtful))
	}
}
