package emailgateway_test

import (
	"fmt"
	"testing"

	"github.com/twoqueue/twoqueue/tests/emailgateway/mailserver"
)

// The inbox is done with an e-mail, and its status could not be written: the table was locked for
// longer than the gateway tries. The gateway or its successor must write it later; otherwise the
// e-mail would stay 'sending' for ever.
func TestAStatusThatCouldNotBeWrittenIsSettled(t *testing.T) {
	t.Parallel()
	for name, dies := range map[string]bool{"by the gateway": false, "by its successor": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			gate := w.gate("UPDATE", "email_gateway", "NEW.status = 'sent'")
			p := w.start("EMAIL_SMTP_TIMEOUT=500ms")
			id := w.publish(1)[0]
			p.Hear("status not written")
			w.wantDone(1)
			w.wantMetrics(p, `email_gateway_held 0`) // it is acked
			w.wantStatus(id, "sending")
			if dies {
				p.KillRunning()
				gate.open()
				p = w.start()
			} else {
				gate.lift() // it goes on trying
			}
			w.wantStatus(id, "sent")
			w.wantDoubtful("")
			w.publishAs(id, body) // a copy
			w.wantMetrics(p, `email_gateway_emails_total{outcome="duplicate"} 1`)
			p.Stop()
			w.wantTaken(id)
			w.wantEmpty(queue)
		})
	}
}

// An operator's decision has reached the inbox and not the status.
func TestADecisionThatWasCutShortIsSettled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mail.Do(mailserver.First(mailserver.Answer, 1, mailserver.Action{Drop: true}))
	p := w.start()
	id := w.publish(1)[0]
	w.wantStatus(id, "doubtful")
	w.wantDoubtful("connection lost", id)
	gate := w.gate("UPDATE", "email_gateway", "NEW.status = 'sent'")
	deciding := w.run("doubtful", "sent", id)
	w.wantDone(1)
	deciding.KillRunning()
	gate.open()
	w.wantStatus(id, "sent")
	p.Stop()
	w.wantTaken(id)
}

// wantDone waits until the inbox is done with this number of e-mails and has no others.
func (w *world) wantDone(want int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("the inbox is done with %d", want), func() bool {
		var claimed, pending int
		w.must(w.db.QueryRow(`SELECT (SELECT count(*) FROM bridge_inbox), (SELECT count(*) FROM bridge_inbox_pending)`).Scan(&claimed, &pending))
		return claimed == want && pending == 0
	})
}
