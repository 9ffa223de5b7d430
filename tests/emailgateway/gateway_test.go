package emailgateway_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/tests/emailgateway/mailserver"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestAnInvalidEmailIsDeadLetteredAndOthersGoOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start("EMAIL_MAX_BYTES=2048", "EMAIL_MAX_RECIPIENTS=2")
	for _, c := range []struct{ id, body, code, words string }{
		{newID(t), `{`, "failed", "not JSON"},
		{newID(t), strings.Replace(body, "Thank you.", strings.Repeat("x", 2048), 1), "failed", "more than the limit of 2048"},
		{newID(t), strings.Replace(body, `"ann@example.org"`, `"a@x.org","b@x.org","c@x.org"`, 1), "failed", "more than the limit of 2"},
		{"not-a-uuid", body, "failed", "not a UUID"},
		{"", body, "failed", "message ID is empty"},
		{"00000000-0000-7000-8000-000000000001", strings.Replace(body, "Thank", "Old: thank", 1), "", ""}, // no credible time: treated as new
		{"0160aa00-0000-7000-8000-000000000001", body, "too-old", "too old to judge"},
	} {
		w.publishAs(c.id, c.body)
		if c.code != "" {
			w.wantDead(dead{c.id, c.code, c.words})
		}
	}
	w.wantStatus("0160aa00-0000-7000-8000-000000000001", "refused")
	ids := w.publish(1)
	w.mail.WaitTaken(t, 2, patience)
	w.wantMetrics(p, `email_gateway_emails_total{outcome="sent"} 2`, `email_gateway_emails_total{outcome="refused"} 5`,
		`email_gateway_emails_total{outcome="failed"} 1`, `email_gateway_emails_total{outcome="duplicate"} 0`)
	p.Stop()
	w.wantTaken(ids[0], "00000000-0000-7000-8000-000000000001")
	w.wantEmpty(queue)
	w.wantEmpty(queue + ".dead")
}

// An AMQP client can read more headers than it can write. Messages that cannot be published to
// the dead queue unchanged fill the gateway's prefetch. It must go on and lose none of them.
func TestMessagesThatCannotBeDeadLetteredAsTheyAreHoldNoPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start("EMAIL_PREFETCH=2")
	table := amqp.Table{}
	for i := range 8192 { // as many headers as a client reads
		table[fmt.Sprint("x", i)] = nil
	}
	for name, headers := range map[string]amqp.Table{
		"a long list":          {"x": make([]any, 8192)},
		"many headers":         table,
		"a made-up record":     {"x-bridge-dead-record": "1"},
		"a made-up old record": {"x-bridge-dead-record": []any{nil}, "CC": []any{queue}}, // a copy would come back
	} {
		id := newID(t)
		w.must(w.ch.Publish("", queue, true, false, amqp.Publishing{MessageId: id, DeliveryMode: amqp.Persistent, ContentType: "x/y",
			Headers: headers, Body: []byte("no e-mail")}))
		w.wantDepth(queue+".dead", 1)
		letter, _, err := w.ch.Get(queue+".dead", true)
		w.must(err)
		opened, err := wire.OpenDead(letter)
		if err != nil || letter.Headers["x-bridge-dead-record"] != "1" {
			t.Fatalf("%s: the dead letter is no record: %v, %v", name, letter.Headers, err)
		}
		if opened.MessageId != id || string(opened.Body) != "no e-mail" || opened.ContentType != "x/y" || opened.Headers["x-bridge-dead-reason"] != "failed" {
			t.Errorf("%s: the message has changed: %s %q %s", name, opened.MessageId, opened.Body, opened.ContentType)
		}
	}
	ids := w.publish(1)
	w.wantStatus(ids[0], "sent")
	p.Stop()
	w.wantTaken(ids...)
	w.wantEmpty(queue)
	w.wantEmpty(queue + ".dead")
}

func TestAnEmailOutsideOfTheAllowedAddressesGoesToTheDeadQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start("EMAIL_FROM_ALLOW=shop@example.org, *@shop.example", "EMAIL_TO_ALLOW=*@Example.org")
	eve, ann := newID(t), newID(t)
	w.publishAs(eve, strings.Replace(body, "shop@example.org", "ceo@example.org", 1))
	w.wantDead(dead{eve, "failed", "address not allowed: /from"})
	w.publishAs(ann, strings.Replace(body, `"ann@example.org"`, `"ann@example.org","eve@example.org.evil.example"`, 1))
	w.wantDead(dead{ann, "failed", "address not allowed: /to/1"})
	ids := w.publish(1)
	w.wantStatus(ids[0], "sent")
	w.wantStatus(eve, "refused")

	// bridgectl sends such an e-mail back, like any receiver's message.
	w.publishAs(eve, strings.Replace(body, "shop@example.org", "ceo@example.org", 1))
	w.wantDepth(queue+".dead", 1)
	p.Stop()
	if r := program.Run(t, "bridgectl", "BRIDGE_AMQP_URL="+w.amqp, "dead", "replay", "--queue="+queue, eve); r.Code != 0 {
		t.Fatalf("bridgectl does not replay it: %s%s", r.Stdout, r.Stderr)
	}
	p = w.start()
	w.wantStatus(eve, "sent")
	p.Stop()
	w.mail.WaitTaken(t, 2, patience)
}

// listed is one entry of doubtful list -o json.
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

// wantDoubtful waits until exactly these e-mails are listed.
func (w *world) wantDoubtful(words string, ids ...string) {
	w.t.Helper()
	slices.Sort(ids)
	if w.db != nil && len(ids) > 0 { // to run the command once and not again and again
		w.eventually("the inbox has them", func() bool {
			var n int
			w.must(w.db.QueryRow(`SELECT count(*) FROM bridge_inbox_pending WHERE message IS NOT NULL`).Scan(&n))
			return n == len(ids)
		})
	}
	var found []listed
	w.eventually("the doubtful ones are listed", func() bool {
		found = w.list()
		queued := slices.ContainsFunc(found, func(l listed) bool { return len(l.To) == 0 }) // not redelivered yet
		return len(found) == len(ids) && !queued
	}, func() string { return fmt.Sprint(found) })
	for i, l := range found {
		if l.ID != ids[i] || l.State != "doubtful" || !slices.Equal(l.To, []string{"ann@example.org"}) || !strings.Contains(l.Error, words) ||
			time.Since(l.Since).Abs() > time.Hour {
			w.t.Errorf("the list has %+v", l)
		}
	}
}

// decide runs doubtful sent or doubtful retry.
func (w *world) decide(what, id string) {
	w.t.Helper()
	if r := w.call("doubtful", what, id); r.Code != 0 {
		w.t.Errorf("doubtful %s: exit code %d: %s", what, r.Code, r.Stderr)
	}
}

func TestAMailServerThatIsAwayCountsAgainstNoEmail(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start("EMAIL_HOLD=10s", "EMAIL_SMTP_TIMEOUT=1s", "EMAIL_SMTP_ANSWER=1s") // for some e-mails the outage lasts longer
	first := w.publish(1)
	w.wantStatus(first[0], "sent")
	address := w.mail.Address()
	w.mail.Close()
	ids := w.publish(20)
	p.AwaitEndpoint("/readyz", 503, "mail server not available\n")
	p.Hear("e-mail handed back")
	back := mailserver.Start(t, mailserver.Options{Address: address})
	back.WaitTaken(t, 20, patience)
	w.mail = back
	for _, id := range ids {
		w.wantStatus(id, "sent")
	}
	p.AwaitEndpoint("/readyz", 200, "ok\n")
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

func TestAnEmailThatWaitsForAnotherAttemptHoldsUpNoOther(t *testing.T) {
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

func TestSIGTERMFinishesTheEmailInProgress(t *testing.T) {
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
	servertest.Next(t, "the mail server has an e-mail", reached)
	p.Signal(syscall.SIGTERM)
	p.Hear("msg=stopping")
	close(goOn)
	if code := p.Await(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	taken := len(w.mail.Taken())
	if taken == 0 || taken == len(ids) {
		t.Errorf("%d of %d were taken after the signal", taken, len(ids))
	}
	w.wantDepth(queue, len(ids)-taken) // the rest is handed back
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
