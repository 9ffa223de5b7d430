package emailgateway_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/twoqueue/twoqueue/tests/emailgateway/mailserver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// A moment at which a gateway is held. It gives the gateway's variables; reached waits until it is
// there, and release lets others pass once it is dead.
type moment func(w *world) (env []string, reached func(id string), release func())

// gated holds it at a commit; see gate.
func gated(when, table, condition string) moment {
	return func(w *world) ([]string, func(string), func()) {
		gate := w.gate(when, table, condition)
		return nil, func(string) { gate.reached(1) }, gate.open
	}
}

// stalled holds it while it speaks to the mail server.
func stalled(at mailserver.Moment) moment {
	return func(w *world) ([]string, func(string), func()) {
		reached := make(chan struct{})
		w.mail.Do(func(v mailserver.Visit) mailserver.Action {
			if v.Moment != at || v.N > 0 {
				return mailserver.Action{}
			}
			close(reached)
			return mailserver.Action{Stall: true}
		})
		return nil, func(string) { <-reached }, func() {}
	}
}

// unacked lets no ack through to the broker.
func unacked(w *world) ([]string, func(string), func()) {
	valve, broker := servertest.Through(w.t, w.amqp)
	var once sync.Once
	w.mail.Do(func(v mailserver.Visit) mailserver.Action {
		if v.Moment == mailserver.Answer {
			once.Do(valve.HoldRequests)
		}
		return mailserver.Action{}
	})
	return []string{"EMAIL_AMQP_URL=" + broker}, func(id string) {
			w.wantStatus(id, "sent")
			w.wantDone(1)
		}, func() {
			valve.Cut()
			w.wantDepth(queue, 1)
		}
}

// Wherever a gateway dies, its successor sends the e-mail, or knows that it was sent,
// or says that nobody knows. It never sends what was sent.
func TestAGatewayIsKilled(t *testing.T) {
	for name, c := range map[string]struct {
		at     moment
		taken  int    // when it dies
		decide string // what an operator finds out, where there is a doubt
	}{
		"before 'started'":                     {gated("INSERT", "bridge_inbox_pending", "true"), 0, ""},
		"between 'started' and sending":        {gated("INSERT", "email_gateway", "true"), 0, ""},
		"at MAIL":                              {stalled(mailserver.Mail), 0, "retry"},
		"at RCPT":                              {stalled(mailserver.Rcpt), 0, "retry"},
		"at DATA":                              {stalled(mailserver.Data), 0, "retry"},
		"in the text":                          {stalled(mailserver.Text), 0, "retry"},
		"while the server answers to the text": {stalled(mailserver.Answer), 1, "sent"},
		"between sent and its status":          {gated("UPDATE", "email_gateway", "NEW.status = 'sent'"), 1, "sent"},
		"between its status and 'done'":        {gated("DELETE", "bridge_inbox_pending", "true"), 1, ""},
		"between 'done' and its ack":           {unacked, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			env, reached, release := c.at(w)
			p := w.start(append(env, "EMAIL_SMTP_TIMEOUT=20s", "EMAIL_SMTP_ANSWER=20s")...) // it must not give up there
			id := w.publish(1)[0]
			reached(id)
			p.Kill()
			release()
			if n := len(w.mail.Taken()); n != c.taken {
				t.Fatalf("taken %d times before", n)
			}
			w.overdue()
			p = w.start()
			if c.decide != "" {
				w.wantDoubtful("", id)
				if n := len(w.mail.Taken()); n != c.taken {
					t.Errorf("sent again")
				}
				w.decide(c.decide, id)
			}
			w.wantStatus(id, "sent")
			w.wantDone(1)
			w.wantDoubtful("")
			p.wantDuplicate(w, id)
			p.Stop()
			w.wantTaken(id)
			w.wantEmpty(queue)
			w.wantEmpty(queue + ".dead")
		})
	}
}

// overdue lets the time pass in which what was started may be heard of.
func (w *world) overdue() {
	w.t.Helper()
	_, err := w.db.Exec(`UPDATE bridge_inbox_pending SET due_ms = 0`)
	w.must(err)
}

// The successor has met the redelivery of what was being sent, and dies too before the
// status says that it is doubtful.
func TestAnEmailInDoubtIsNotSentBeforeItsStatusSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mail.Do(mailserver.First(mailserver.Answer, 1, mailserver.Action{Stall: true}))
	p := w.start()
	id := w.publish(1)[0]
	w.mail.WaitTaken(t, 1, patience)
	p.Kill()
	w.overdue()
	gate := w.gate("UPDATE", "email_gateway", "NEW.status = 'doubtful'")
	p = w.start("EMAIL_SMTP_TIMEOUT=20s")
	gate.reached(1)
	p.Kill()
	gate.open()
	p = w.start()
	w.wantStatus(id, "doubtful")
	w.wantDoubtful("", id)
	w.decide("sent", id)
	p.Stop()
	w.wantTaken(id)
	w.wantEmpty(queue)
}

func TestADatabaseThatGoesAwayBetweenSentAndDone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	valve, address := servertest.Through(t, w.url)
	w.mail.Do(func(v mailserver.Visit) mailserver.Action {
		if v.Moment == mailserver.Answer {
			valve.HoldRequests()
		}
		return mailserver.Action{}
	})
	p := w.start("EMAIL_DATABASE_URL="+address, "EMAIL_SMTP_TIMEOUT=20s")
	id := w.publish(1)[0]
	w.mail.WaitTaken(t, 1, patience)
	w.eventually("it is not ready", func() bool { code, _ := p.get("/readyz"); return code == 503 })
	valve.Cut()
	valve.Release()
	w.wantStatus(id, "sent")
	p.wantMetrics(`email_gateway_held 0`, `email_gateway_emails_total{outcome="sent"} 1`,
		`email_gateway_pending{state="started"} 0`, `email_gateway_pending{state="doubtful"} 0`)
	p.Stop()
	w.wantTaken(id)
	w.wantEmpty(queue)
}

// Two gateways on one queue, killed again and again, and a mail server that does all
// it can do at random: nothing is sent twice, and nothing is lost.
func TestNeverTwiceWhateverHappens(t *testing.T) {
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
	ids := w.publish(emails)
	env := []string{"EMAIL_SMTP_TIMEOUT=200ms", "EMAIL_SMTP_ANSWER=200ms", "EMAIL_ATTEMPTS=50", "EMAIL_HOLD=5s"}
	steady := func() *process {
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
	for i := range 6 {
		w.mail.WaitTaken(t, (i+1)*emails/10, patience)
		if i%2 == 0 {
			first.Kill()
			first = steady()
		} else {
			second.Kill()
			second = steady()
		}
	}
	var open int
	w.eventually("all have come to an end", func() bool {
		w.must(w.db.QueryRow(`SELECT count(*) FROM email_gateway WHERE status NOT IN ('sent', 'doubtful')`).Scan(&open))
		var known int
		w.must(w.db.QueryRow(`SELECT count(*) FROM email_gateway`).Scan(&known))
		return open == 0 && known == emails
	}, func() string { return fmt.Sprint(open, " are open") })
	for _, p := range []*process{first, second} {
		if code := p.Stop(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
	w.wantEmpty(queue)
	w.wantEmpty(queue + ".dead")
	taken := make(map[string]int)
	for _, e := range w.mail.Taken() {
		taken[strings.TrimSuffix(strings.TrimPrefix(e.Get("Message-Id"), "<"), "@example.org>")]++
	}
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
