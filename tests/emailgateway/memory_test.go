package emailgateway_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/tests/emailgateway/mailserver"
)

// The mail server is down, and large e-mails fill the prefetch.
func TestTheMemoryIsBoundedByBytes(t *testing.T) {
	t.Parallel()
	const emails, size, most = 60, 4 << 20, 250 << 20
	w := newWorld(t)
	p := w.start("EMAIL_SMTP_SESSIONS=1", "EMAIL_MAX_HELD_BYTES=16777216", "EMAIL_MAX_BYTES=5000000", "EMAIL_SMTP_TIMEOUT=10s", "EMAIL_SMTP_ANSWER=10s")
	address := w.mail.Address()
	w.mail.Close()
	ids := make([]string, emails)
	large := strings.Replace(body, "Thank you.", strings.Repeat("All work and no play. ", size/22), 1)
	for i := range ids {
		ids[i] = newID(t)
		w.publishAs(ids[i], large)
	}
	w.wantDepth(queue, 0) // the gateway has all of them
	_, text := p.Endpoint("/metrics")
	_, value, found := strings.Cut(text, "\nprocess_resident_memory_bytes ")
	var memory float64
	if _, err := fmt.Sscan(value, &memory); err != nil || !found {
		t.Fatalf("no memory in the metrics: %v", err)
	}
	t.Logf("%.0f MiB for %d e-mails of %d MiB", memory/(1<<20), emails, size>>20)
	if memory > most {
		t.Errorf("the gateway has %.0f MiB, more than %d", memory/(1<<20), most>>20)
	}
	w.mail = mailserver.Start(t, mailserver.Options{Address: address})
	w.mail.WaitTaken(t, emails, patience)
	for _, id := range ids {
		w.wantStatus(id, "sent")
	}
	p.Stop()
	w.wantTaken(ids...)
	w.wantEmpty(queue)
	w.wantEmpty(queue + ".dead")
}
