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

// Wherever a gateway dies, its successor sends the e-mail, or knows that it was sent,
// or says that nobody knows. It never sends what was sent.
func TestAGatewayKilledBetweenTwoCommits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		when, table, condition string
		takenBefore            int // when it dies
		doubtful               bool
	}{
		"before 'started'":              {"INSERT", "bridge_inbox_pending", "true", 0, false},
		"between 'started' and sending": {"INSERT", "email_gateway", "true", 0, false},
		"between sent and its status":   {"UPDATE", "email_gateway", "NEW.status = 'sent'", 1, true},
		"between its status and 'done'": {"DELETE", "bridge_inbox_pending", "true", 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			gate := w.gate(c.when, c.table, c.condition)
			p := w.start("EMAIL_SMTP_TIMEOUT=20s", "EMAIL_SMTP_ANSWER=20s") // it must not give up at the gate
			id := w.publish(1)[0]
			gate.reached(1)
			p.Kill()
			gate.open()
			if n := len(w.mail.Taken()); n != c.takenBefore {
				t.Fatalf("taken %d times before", n)
			}
			// What was started counts as overdue by the times of whoever started it.
			_, err := w.db.Exec(`UPDATE bridge_inbox_pending SET due_ms = 0`)
			w.must(err)
			p = w.start()
			if c.doubtful {
				w.wantDoubtful("", id)
				w.decide("sent", id)
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

// Between those commits there is the mail server.
func TestAGatewayKilledWhileItSpeaksToTheMailServer(t *testing.T) {
	t.Parallel()
	for _, at := range []mailserver.Moment{mailserver.Mail, mailserver.Rcpt, mailserver.Data, mailserver.Text, mailserver.Answer} {
		t.Run(string(at), func(t *testing.T) {
			w := newWorld(t)
			reached := make(chan struct{})
			w.mail.Do(func(v mailserver.Visit) mailserver.Action {
				if v.Moment != at || v.N > 0 {
					return mailserver.Action{}
				}
				close(reached)
				return mailserver.Action{Stall: true}
			})
			p := w.start()
			id := w.publish(1)[0]
			<-reached
			p.Kill()
			taken := len(w.mail.Taken())
			if taken > 0 != (at == mailserver.Answer) {
				t.Errorf("taken %d times", taken)
			}
			_, err := w.db.Exec(`UPDATE bridge_inbox_pending SET due_ms = 0`) // as above
			w.must(err)
			p = w.start()
			w.wantDoubtful("", id)
			p.wantMetrics(`email_gateway_emails_total{outcome="doubtful"} 1`)
			if len(w.mail.Taken()) != taken {
				t.Error("sent again")
			}
			if taken > 0 { // as the mail server's log tells
				w.decide("sent", id)
			} else {
				w.decide("retry", id)
			}
			w.wantStatus(id, "sent")
			p.Stop()
			w.wantTaken(id)
			w.wantEmpty(queue)
		})
	}
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
	_, err := w.db.Exec(`UPDATE bridge_inbox_pending SET due_ms = 0`)
	w.must(err)
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

func TestAGatewayKilledBetweenDoneAndItsAck(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	valve, broker := servertest.Through(t, w.amqp)
	var once sync.Once
	w.mail.Do(func(v mailserver.Visit) mailserver.Action {
		if v.Moment == mailserver.Answer {
			once.Do(valve.HoldRequests) // no ack comes through
		}
		return mailserver.Action{}
	})
	p := w.start("EMAIL_AMQP_URL=" + broker)
	id := w.publish(1)[0]
	w.wantStatus(id, "sent")
	w.wantDone(1)
	p.Kill()
	valve.Cut()
	w.wantDepth(queue, 1)
	p = w.start()
	p.wantMetrics(`email_gateway_emails_total{outcome="duplicate"} 1`, `email_gateway_emails_total{outcome="sent"} 0`)
	p.Stop()
	w.wantTaken(id)
	w.wantEmpty(queue)
	w.wantDoubtful("")
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

// Of many copies that come at the same moment to two gateways one is sent.
func TestCopiesAtTheSameMomentAreOneEmail(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, second := w.start(), w.start()
	ids := w.publish(5)
	const copies = 10
	for range copies {
		for _, id := range ids {
			w.publishAs(id, body)
		}
	}
	w.eventually("all have come to an end", func() bool {
		return first.count("sent")+second.count("sent")+first.count("duplicate")+second.count("duplicate") == len(ids)*(1+copies)
	})
	w.stopEmpty(first, second)
	w.wantTaken(ids...)
	w.wantDoubtful("")
}

// Two gateways on one queue, killed again and again, and a mail server that does all
// it can do at random: nothing is sent twice, and nothing is lost.
func TestNeverTwiceWhateverHappens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const emails = 150
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
		for { // the mail server may refuse its very first session
			p := w.run(env...)
			w.eventually("it works, or has ended", func() bool {
				return p.HasEnded() || strings.Contains(p.Stderr.String(), "consumer session started")
			})
			if !p.HasEnded() {
				return p
			}
		}
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
	}, func() string { return fmt.Sprint(open, " are open: ", w.unfinished()) })
	w.stopEmpty(first, second)
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

// unfinished are the e-mails that have come to no end, with what is known of each.
func (w *world) unfinished() (all []string) {
	rows, err := w.db.Query(`SELECT message_id, e.status, e.attempts, e.error, coalesce(p.state, 'not pending'), coalesce(p.message IS NOT NULL, false)
FROM email_gateway e LEFT JOIN bridge_inbox_pending p ON p.message_key = e.message_id WHERE e.status NOT IN ('sent', 'doubtful')`)
	w.must(err)
	defer rows.Close()
	for rows.Next() {
		var id, status, text, state string
		var attempts int
		var stored bool
		w.must(rows.Scan(&id, &status, &attempts, &text, &state, &stored))
		all = append(all, fmt.Sprintf("%s is %s after %d attempts (%s), in the inbox %s, stored: %v", id, status, attempts, text, state, stored))
	}
	w.must(rows.Err())
	return all
}

// stopEmpty stops two gateways and holds them to having left nothing in the queues.
func (w *world) stopEmpty(gateways ...*process) {
	w.t.Helper()
	for _, p := range gateways {
		if code := p.Stop(); code != 0 {
			w.t.Errorf("exit code %d", code)
		}
	}
	w.wantEmpty(queue)
	w.wantEmpty(queue + ".dead")
}
