package emailgateway_test

import (
	"sync"
	"syscall"
	"testing"

	"github.com/twoqueue/twoqueue/tests/emailgateway/mailserver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// moment is a moment at which a gateway is held. It returns the gateway's variables. reached
// waits until the gateway is there. release lets other gateways pass once this one is dead.
type moment func(w *world) (env []string, reached func(id string), release func())

// gated holds the gateway at a commit; see gate.
func gated(when, table, condition string) moment {
	return func(w *world) ([]string, func(string), func()) {
		gate := w.gate(when, table, condition)
		return nil, func(string) { gate.reached(1) }, gate.open
	}
}

// stalled holds the gateway in its conversation with the mail server.
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
		return nil, func(string) { servertest.Next(w.t, "the mail server is at "+string(at), reached) }, func() {}
	}
}

// unacked holds back the gateway's acks.
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

// Wherever a gateway dies, its successor sends the e-mail, or recognizes it as sent, or reports
// it as doubtful. It never sends an e-mail a second time.
func TestAGatewayIsKilled(t *testing.T) {
	for name, c := range map[string]struct {
		at     moment
		taken  int    // when the gateway dies
		decide string // the operator's decision about a doubtful e-mail
	}{
		"before 'started'":                     {gated("INSERT", "bridge_inbox_pending", "true"), 0, ""},
		"between 'started' and sending":        {gated("INSERT", "email_gateway", "true"), 0, ""},
		"at the beginning of the conversation": {stalled(mailserver.Mail), 0, "retry"},
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
			p := w.start(append(env, "EMAIL_SMTP_TIMEOUT=20s", "EMAIL_SMTP_ANSWER=20s")...) // it must not time out at the held moment
			id := w.publish(1)[0]
			reached(id)
			p.KillRunning()
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
			w.wantDuplicate(p, id)
			p.Stop()
			w.wantTaken(id)
			w.wantEmpty(queue)
			w.wantEmpty(queue + ".dead")
		})
	}
}

// overdue lets the due time of all pending e-mails pass.
func (w *world) overdue() {
	w.t.Helper()
	_, err := w.db.Exec(`UPDATE bridge_inbox_pending SET due_ms = 0`)
	w.must(err)
}

// The successor receives the interrupted e-mail again, and dies before the status is doubtful.
func TestAnEmailInDoubtIsNotSentBeforeItsStatusSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mail.Do(mailserver.First(mailserver.Answer, 1, mailserver.Action{Stall: true}))
	p := w.start()
	id := w.publish(1)[0]
	w.mail.WaitTaken(t, 1, patience)
	p.KillRunning()
	w.overdue()
	gate := w.gate("UPDATE", "email_gateway", "NEW.status = 'doubtful'")
	p = w.start("EMAIL_SMTP_TIMEOUT=20s")
	gate.reached(1)
	p.KillRunning()
	gate.open()
	p = w.start()
	w.wantStatus(id, "doubtful")
	w.wantDoubtful("", id)
	w.decide("sent", id)
	p.Stop()
	w.wantTaken(id)
	w.wantEmpty(queue)
}

// A gateway is frozen before it has recorded that it sends. It goes on after another gateway has
// considered it dead.
func TestAGatewayThatOnlySeemedDeadSendsNothingTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gate := w.gate("INSERT", "email_gateway", "true")
	valve, broker := servertest.Through(t, w.amqp)
	env := []string{"EMAIL_SMTP_TIMEOUT=20s", "EMAIL_SMTP_ANSWER=20s"}
	first := w.start(append(env, "EMAIL_AMQP_URL="+broker)...)
	id := w.publish(1)[0]
	gate.reached(1)
	first.Signal(syscall.SIGSTOP) // its statement has reached the database
	valve.Cut()
	w.overdue()
	second := w.start(env...)
	gate.reached(2)
	first.Signal(syscall.SIGCONT)
	gate.lift() // waits for the first gateway's transaction
	w.wantStatus(id, "sent")
	w.wantDone(1)
	w.wantDoubtful("")
	first.Stop()
	second.Stop()
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
	p.AwaitEndpoint("/readyz", 503, "database not reachable\n")
	valve.Cut()
	valve.Release()
	w.wantStatus(id, "sent")
	w.wantMetrics(p, `email_gateway_held 0`, `email_gateway_emails_total{outcome="sent"} 1`,
		`twoqueue_receiver_pending{consumer="email-gateway",state="started"} 0`, `twoqueue_receiver_pending{consumer="email-gateway",state="doubtful"} 0`)
	p.Stop()
	w.wantTaken(id)
	w.wantEmpty(queue)
}
