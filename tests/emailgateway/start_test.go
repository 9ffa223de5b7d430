package emailgateway_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/twoqueue/twoqueue/tests/emailgateway/mailserver"
)

func TestALoginOverAnEncryptedConnectionWithThePasswordInAFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.ch.QueueDeclare(queue, true, false, false, false, nil) // the gateway accepts an existing queue as it is
	w.must(err)
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
