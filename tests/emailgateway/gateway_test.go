package emailgateway_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/tests/emailgateway/mailserver"
)

func TestAnEmailIsSentOnceAndItsCopiesAreNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := w.publish(3)
	for _, id := range ids {
		w.publishAs(id, body)
	}
	p := w.start()
	w.mail.WaitTaken(t, 3, patience)
	p.wantMetrics(`email_gateway_emails_total{outcome="sent"} 3`, `email_gateway_emails_total{outcome="duplicate"} 3`,
		`email_gateway_emails_total{outcome="doubtful"} 0`, `email_gateway_attempts_total{result="sent"} 3`,
		`email_gateway_pending{state="doubtful"} 0`, `email_gateway_held 0`, `email_gateway_send_seconds_count 3`)
	for path, want := range map[string]string{"/livez": "ok\n", "/readyz": "ok\n"} {
		if code, text := p.get(path); code != 200 || text != want {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	w.wantTaken(ids...)
	w.wantEmpty(queue)
	e := w.mail.Taken()[0]
	if e.From != "shop@example.org" || !slices.Equal(e.To, []string{"ann@example.org"}) || e.Get("Subject") != "Your order" || !strings.Contains(e.Text, "Thank you.") {
		t.Errorf("%+v", e)
	}
	for _, id := range ids {
		w.wantStatus(id, "sent")
	}
	var recipients, text string
	var attempts int
	w.must(w.db.QueryRow(`SELECT recipients, attempts, error FROM email_gateway WHERE message_id = $1`, ids[0]).Scan(&recipients, &attempts, &text))
	if recipients != "ann@example.org" || attempts != 1 || text != "" {
		t.Errorf("the status has %q, %d attempts, %q", recipients, attempts, text)
	}
}

func TestWhatIsNoEmailGoesToTheDeadQueueAndStopsNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start("EMAIL_MAX_BYTES=2048", "EMAIL_MAX_RECIPIENTS=2")
	for _, c := range []struct{ id, body, code, words string }{
		{newID(t), `{`, "malformed", "not JSON"},
		{newID(t), strings.Replace(body, "Your order", `x\r\nBcc: eve@example.org`, 1), "malformed", `/subject: breaks the schema's "pattern"`},
		{newID(t), strings.Replace(body, "Thank you.", strings.Repeat("x", 2048), 1), "malformed", "more than the limit of 2048"},
		{newID(t), strings.Replace(body, `"ann@example.org"`, `"a@x.org","b@x.org","c@x.org"`, 1), "malformed", "more than the limit of 2"},
		{newID(t), strings.Replace(body, "ann@example.org", "ann", 1), "malformed", "/to/0: not a mail address"},
		{"not-a-uuid", body, "malformed", "not a UUID"},
		{"", body, "failed", "message ID is empty"},
		{"00000000-0000-7000-8000-000000000001", strings.Replace(body, "Thank", "Old: thank", 1), "", ""}, // no credible time: as new
		{"0160aa00-0000-7000-8000-000000000001", body, "too-old", "too old to judge"},
	} {
		w.publishAs(c.id, c.body)
		if c.code != "" {
			w.wantDead(c.id, c.code, c.words)
		}
	}
	ids := w.publish(1)
	w.mail.WaitTaken(t, 2, patience)
	p.wantMetrics(`email_gateway_emails_total{outcome="sent"} 2`, `email_gateway_emails_total{outcome="refused"} 7`,
		`email_gateway_emails_total{outcome="failed"} 1`, `email_gateway_emails_total{outcome="duplicate"} 0`)
	p.Stop()
	w.wantTaken(ids[0], "00000000-0000-7000-8000-000000000001")
	w.wantEmpty(queue)
	w.wantEmpty(queue + ".dead")
}

// What is certainly not sent is sent later, or is in the dead queue for good.
func TestWhatTheMailServerRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		at     mailserver.Moment
		times  int
		action mailserver.Action
		code   string // in the dead queue; "" if it is sent after all
		words  string
	}{
		"4xx at MAIL twice":         {mailserver.Mail, 2, mailserver.Action{Reply: 451}, "", ""},
		"4xx at RCPT twice":         {mailserver.Rcpt, 2, mailserver.Action{Reply: 450}, "", ""},
		"4xx at DATA twice":         {mailserver.Data, 2, mailserver.Action{Reply: 451}, "", ""},
		"4xx after the dot, thrice": {mailserver.Answer, 3, mailserver.Action{Reply: 452}, "", ""},
		"drop at MAIL":              {mailserver.Mail, 1, mailserver.Action{Drop: true}, "", ""},
		"stall at RCPT":             {mailserver.Rcpt, 1, mailserver.Action{Stall: true}, "", ""},
		"drop at DATA":              {mailserver.Data, 1, mailserver.Action{Drop: true}, "", ""},
		"5xx at MAIL":               {mailserver.Mail, 1, mailserver.Action{Reply: 550}, "refused", "sender: refused for good: 550"},
		"5xx at RCPT":               {mailserver.Rcpt, 1, mailserver.Action{Reply: 550}, "refused", "recipient 1 of 1: refused for good: 550"},
		"5xx at DATA":               {mailserver.Data, 1, mailserver.Action{Reply: 554}, "refused", "before the text: refused for good: 554"},
		"5xx after the dot":         {mailserver.Answer, 1, mailserver.Action{Reply: 554}, "refused", "after the text: refused for good: 554"},
		"4xx for ever":              {mailserver.Rcpt, 1000, mailserver.Action{Reply: 450}, "failed", "given up after 4 attempts"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.mail.Do(mailserver.First(c.at, c.times, c.action))
			p := w.start()
			id := w.publish(1)[0]
			if c.code == "" {
				w.wantStatus(id, "sent")
				w.wantTaken(id)
			} else {
				w.wantDead(id, c.code, c.words)
				w.wantStatus(id, map[string]string{"refused": "refused", "failed": "failed"}[c.code])
				w.wantTaken()
				// Put back, it is new.
				w.mail.Do(nil)
				w.publishAs(id, body)
				w.wantStatus(id, "sent")
			}
			if code := p.Stop(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			w.wantTaken(id)
			w.wantEmpty(queue)
			w.wantEmpty(queue + ".dead")
			if out := w.list(); len(out) > 0 {
				t.Errorf("doubtful: %v", out)
			}
		})
	}
}

// A listed is one line of doubtful list -o json.
type listed struct {
	ID, State, Error string
	Attempts         int
	To               []string
	Since            time.Time
}

func (w *world) list() []listed {
	w.t.Helper()
	r := w.call("doubtful", "list", "-o", "json")
	if r.Code != 0 {
		w.t.Fatalf("doubtful list: exit code %d: %s", r.Code, r.Stderr)
	}
	var all []listed
	w.must(json.Unmarshal([]byte(r.Stdout), &all))
	return all
}

// wantDoubtful waits until these are listed and no others.
func (w *world) wantDoubtful(words string, ids ...string) {
	w.t.Helper()
	slices.Sort(ids)
	var found []listed
	w.eventually("the doubtful ones are listed", func() bool {
		found = w.list()
		queued := slices.ContainsFunc(found, func(l listed) bool { return len(l.To) == 0 }) // not redelivered yet
		return len(found) == len(ids) && !queued
	}, func() string { return fmt.Sprint(found) })
	for i, l := range found {
		if l.ID != ids[i] || l.State != "doubtful" || !slices.Equal(l.To, []string{"ann@example.org"}) || !strings.Contains(l.Error, words) ||
			time.Since(l.Since).Abs() > time.Hour {
			w.t.Errorf("listed is %+v", l)
		}
	}
}

// decide runs doubtful sent or retry.
func (w *world) decide(what, id string) {
	w.t.Helper()
	if r := w.call("doubtful", what, id); r.Code != 0 {
		w.t.Errorf("doubtful %s: exit code %d: %s", what, r.Code, r.Stderr)
	}
}

func TestWhatIsPerhapsSentIsNotSentAgainUntilSomebodySaysSo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		action mailserver.Action
		words  string
	}{
		"no answer":       {mailserver.Action{Stall: true}, "no answer in time"},
		"connection lost": {mailserver.Action{Drop: true}, "connection lost"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.mail.Do(mailserver.First(mailserver.Answer, 2, c.action))
			p := w.start("EMAIL_SMTP_SESSIONS=1")
			ids := w.publish(3)
			w.mail.WaitTaken(t, 3, patience)
			w.eventually("the third is known to be sent", func() bool { return len(w.doubtfulOf(ids)) == 2 })
			w.wantDoubtful(c.words, w.doubtfulOf(ids)...)
			doubtful := w.doubtfulOf(ids)
			p.wantMetrics(`email_gateway_emails_total{outcome="doubtful"} 2`, `email_gateway_emails_total{outcome="sent"} 1`,
				`email_gateway_pending{state="doubtful"} 2`)
			w.wantTaken(ids...)

			w.decide("sent", doubtful[0])
			w.wantStatus(doubtful[0], "sent")
			w.publishAs(doubtful[0], body) // a copy is a duplicate now
			p.wantMetrics(`email_gateway_emails_total{outcome="duplicate"} 1`, `email_gateway_pending{state="doubtful"} 1`)
			w.wantTaken(ids...)

			w.decide("retry", doubtful[1])
			w.mail.WaitTaken(t, 4, patience)
			w.wantStatus(doubtful[1], "sent")
			w.wantDoubtful("")
			for _, word := range []string{"sent", "retry"} {
				again := w.call("doubtful", word, doubtful[1])
				if again.Code != 1 || !strings.Contains(again.Stderr, "not pending; see email-gateway doubtful list") {
					t.Errorf("exit code %d, %s", again.Code, again.Stderr)
				}
			}
			p.Stop()
			// Only the one that was to be sent again was, under the same Message-ID.
			last := w.mail.Taken()[3]
			if last.Get("Message-Id") != "<"+doubtful[1]+"@example.org>" || len(w.mail.Taken()) != 4 {
				t.Errorf("taken %v", w.mail.Taken())
			}
			w.wantEmpty(queue)
		})
	}
}

// doubtfulOf returns those whose status says so.
func (w *world) doubtfulOf(ids []string) []string {
	w.t.Helper()
	var found []string
	for _, id := range ids {
		var status string
		w.must(w.db.QueryRow(`SELECT status FROM email_gateway WHERE message_id = $1`, id).Scan(&status))
		if status == "doubtful" || status == "sending" {
			found = append(found, id)
		}
	}
	slices.Sort(found)
	return found
}

func TestAMailServerThatIsAwayCountsAgainstNoEmail(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start("EMAIL_HOLD=10s", "EMAIL_SMTP_TIMEOUT=1s", "EMAIL_SMTP_ANSWER=1s") // less than the outage lasts for some of them
	first := w.publish(1)
	w.wantStatus(first[0], "sent")
	address := w.mail.Address()
	w.mail.Close()
	ids := w.publish(20)
	w.eventually("it is not ready", func() bool {
		code, text := p.get("/readyz")
		return code == 503 && text == "mail server not available\n"
	})
	p.Hear("e-mail handed back")
	back := mailserver.Start(t, mailserver.Options{Address: address})
	back.WaitTaken(t, 20, patience)
	w.mail = back
	for _, id := range ids {
		w.wantStatus(id, "sent")
	}
	w.eventually("it is ready", func() bool {
		code, _ := p.get("/readyz")
		return code == 200
	})
	p.Stop()
	w.wantTaken(ids...)
	w.wantEmpty(queue)
	w.wantEmpty(queue + ".dead")
	var attempts int
	w.must(w.db.QueryRow(`SELECT max(attempts) FROM email_gateway`).Scan(&attempts))
	if attempts != 1 {
		t.Errorf("%d attempts were counted", attempts)
	}
}

func TestAnEmailThatWaitsForAnotherAttemptHoldsUpNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slow := newID(t)
	w.mail.Do(func(v mailserver.Visit) mailserver.Action {
		if v.Recipient == "slow@example.org" {
			return mailserver.Action{Reply: 450}
		}
		return mailserver.Action{}
	})
	p := w.start("EMAIL_SMTP_SESSIONS=1", "EMAIL_PAUSE=1h", "EMAIL_LONGEST_PAUSE=1h")
	w.publishAs(slow, strings.Replace(body, "ann@", "slow@", 1))
	w.wantStatus(slow, "retrying")
	ids := w.publish(5)
	w.mail.WaitTaken(t, 5, patience)
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	w.wantTaken(ids...)
	w.wantDepth(queue, 1) // handed back
}

func TestSIGTERMFinishesWhatIsBeingSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	reached, goOn := make(chan struct{}), make(chan struct{})
	w.mail.Do(func(v mailserver.Visit) mailserver.Action {
		if v.Moment == mailserver.Text && v.N == 0 {
			close(reached)
			<-goOn
		}
		return mailserver.Action{}
	})
	p := w.start("EMAIL_SMTP_SESSIONS=1", "EMAIL_SMTP_ANSWER=30s")
	ids := w.publish(10)
	<-reached
	code := make(chan int)
	go func() { code <- p.Stop() }()
	p.Hear("msg=stopping")
	close(goOn)
	if code := <-code; code != 0 {
		t.Errorf("exit code %d", code)
	}
	taken := w.mail.Taken()
	w.wantDepth(queue, 10-len(taken)) // the rest is handed back
	p = w.start()
	w.mail.WaitTaken(t, 10, patience)
	p.Stop()
	w.wantTaken(ids...)
	w.wantEmpty(queue)
	w.wantDoubtful("")
}

func TestADrainThatIsNotOverInTimeSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mail.Do(mailserver.First(mailserver.Answer, 1, mailserver.Action{Stall: true}))
	p := w.start("EMAIL_SMTP_ANSWER=30s", "EMAIL_HOLD=2m", "EMAIL_DRAIN=100ms")
	id := w.publish(1)[0]
	w.mail.WaitTaken(t, 1, patience)
	if code := p.Stop(); code != 3 || !strings.Contains(p.Stderr.String(), "email-gateway: not drained in time") {
		t.Errorf("exit code %d", code)
	}
	w.wantDoubtful("not drained in time", id)
	w.wantTaken(id)
}
