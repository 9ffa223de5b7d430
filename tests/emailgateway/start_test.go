package emailgateway_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/twoqueue/twoqueue/tests/emailgateway/mailserver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestALoginOverAnEncryptedConnectionWithThePasswordInAFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	config, authority := mailserver.Certificate(t)
	w.mail = mailserver.Start(t, mailserver.Options{TLS: config, User: "u", Password: "s3cret"})
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		w.must(os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	p := w.start("EMAIL_SMTP_TLS=starttls", "EMAIL_SMTP_CA_FILE="+file("ca.pem", string(authority)),
		"EMAIL_SMTP_USER=u", "EMAIL_SMTP_PASSWORD_FILE="+file("password", "s3cret\n"),
		"EMAIL_DATABASE_URL=", "EMAIL_DATABASE_URL_FILE="+file("database", w.url+"\n"),
		"EMAIL_AMQP_URL=", "EMAIL_AMQP_URL_FILE="+file("broker", w.amqp))
	ids := w.publish(2)
	w.mail.WaitTaken(t, 2, patience)
	p.Stop()
	w.wantTaken(ids...)
}

func TestACutConnectionToTheBrokerStartsANewSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.ch.QueueDeclare(queue, true, false, false, false, nil) // the gateway accepts an existing queue as it is
	w.must(err)
	valve, broker := servertest.Through(t, w.amqp)
	p := w.start("EMAIL_AMQP_URL=" + broker)
	ids := w.publish(1)
	w.wantStatus(ids[0], "sent")
	valve.Cut()
	p.Hear("consumer session ended")
	ids = append(ids, w.publish(3)...)
	w.mail.WaitTaken(t, 4, patience)
	for _, id := range ids {
		w.wantStatus(id, "sent")
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	w.wantTaken(ids...)
	w.wantEmpty(queue)
}
