package emailgateway_test

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/tests/emailgateway/mailserver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// refused holds a gateway that cannot start to one line that names the variable and
// the mend. No output of any process may have a password in it: see run.
func refused(t *testing.T, p *process, code int, variable, mend string) {
	t.Helper()
	if got := p.Await(); got != code {
		t.Errorf("exit code %d, not %d", got, code)
	}
	lines := strings.Split(strings.TrimSpace(p.Stderr.String()), "\n")
	last := lines[len(lines)-1]
	if !strings.HasPrefix(last, "email-gateway: "+variable+": ") || !strings.Contains(last, mend) {
		t.Errorf("standard error is not a line with %s and %q:\n%s", variable, mend, p.Stderr.String())
	}
	t.Log(last)
}

func TestServersThatDoNotLetItStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	broker, err := url.Parse(w.amqp)
	w.must(err)
	broker.User = url.UserPassword("guest", "s3cret")
	refused(t, w.run("EMAIL_AMQP_URL="+broker.String()), 1, "EMAIL_AMQP_URL", "correct user, password or virtual host")
	refused(t, w.run("EMAIL_AMQP_URL=amqp://u:s3cret@127.0.0.1:1/"), 1, "EMAIL_AMQP_URL", "see that the broker runs")
	refused(t, w.run("EMAIL_AMQP_URL="+servertest.User(t, w.amqp, "", "", ""), "EMAIL_QUEUE=other"), 1, "EMAIL_AMQP_URL", "see that the login may")
	refused(t, w.run("EMAIL_DATABASE_URL=postgres://u:s3cret@127.0.0.1:1/db"), 1, "EMAIL_DATABASE_URL", "see that the database is there")
	refused(t, w.run("EMAIL_DATABASE_URL="+servertest.PostgresDB(t)), 1, "EMAIL_DATABASE_URL", "create the tables with email-gateway migrate")
	refused(t, w.run("EMAIL_SMTP_PORT=1"), 1, "EMAIL_SMTP_HOST", "see that the mail server runs")
	refused(t, w.run("EMAIL_SMTP_TLS=starttls", "EMAIL_SMTP_USER=u", "EMAIL_SMTP_PASSWORD=s3cret"), 1, "EMAIL_SMTP_HOST", "does not support STARTTLS")
	refused(t, w.run("EMAIL_HTTP_ADDR="+w.mail.Address()), 1, "EMAIL_HTTP_ADDR", "name another address")
	_, err = w.db.Exec(`DROP TABLE email_gateway`) // as a migrate leaves it that was not finished
	w.must(err)
	refused(t, w.run(), 1, "EMAIL_DATABASE_URL", "create the tables with email-gateway migrate")
	refused(t, w.run("doubtful", "list"), 1, "EMAIL_DATABASE_URL", "create the tables with email-gateway migrate")
}

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
	env := []string{"EMAIL_SMTP_TLS=starttls", "EMAIL_SMTP_CA_FILE=" + file("ca.pem", string(authority)), "EMAIL_SMTP_USER=u"}
	wrong := append(env, "EMAIL_SMTP_PASSWORD_FILE="+file("wrong", "s3cret2\n"))
	refused(t, w.run(wrong...), 1, "EMAIL_SMTP_USER", "correct it, or EMAIL_SMTP_PASSWORD")

	p := w.start(append(env, "EMAIL_SMTP_PASSWORD_FILE="+file("password", "s3cret\n"),
		"EMAIL_DATABASE_URL=", "EMAIL_DATABASE_URL_FILE="+file("database", w.url+"\n"),
		"EMAIL_AMQP_URL=", "EMAIL_AMQP_URL_FILE="+file("broker", w.amqp))...)
	ids := w.publish(2)
	w.mail.WaitTaken(t, 2, patience)
	p.Stop()
	w.wantTaken(ids...)
}

func TestACutConnectionToTheBrokerStartsANewSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
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

func TestItMakesItsQueues(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start("EMAIL_QUEUE=other")
	p.Stop()
	for _, name := range []string{"other", "other.dead"} {
		w.wantEmpty(name)
	}
	// A second one takes them as they are.
	w.start("EMAIL_QUEUE=other").Stop()
}
