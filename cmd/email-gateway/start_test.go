package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/commandtest"
	"github.com/twoqueue/twoqueue/cmd/internal/endpoints"
	"github.com/twoqueue/twoqueue/tests/emailgateway/mailserver"
)

// The gateway contacts each server only if the servers in the lines above let it start.
func TestAServerThatPreventsTheStartIsNamedWithAFix(t *testing.T) {
	minimal(t)
	folder := t.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(folder, name)
		must(t, os.WriteFile(path, content, 0o600))
		return path
	}
	config, authority := mailserver.Certificate(t)
	plain, strict := mailserver.Start(t, mailserver.Options{}), mailserver.Start(t, mailserver.Options{TLS: config, User: "u", Password: "s3cret2"})
	on := func(s *mailserver.Server, security string) string {
		return "EMAIL_SMTP_HOST=" + s.Host + " EMAIL_SMTP_PORT=" + s.Port + " EMAIL_SMTP_TLS=" + security
	}
	tables, half := "sqlite:"+filepath.Join(folder, "tables.db"), "sqlite:"+filepath.Join(folder, "half.db")
	for _, address := range []string{tables, half} {
		t.Setenv("EMAIL_DATABASE_URL", address)
		if code, _, stderr := outcome(t, "migrate"); code != exitDone {
			t.Fatal(stderr)
		}
	}
	statuses, _ := statusesIn(t, half)
	_, err := statuses.db.ExecContext(t.Context(), `DROP TABLE email_gateway`) // as an unfinished migrate leaves it
	must(t, err)
	const create = "create the tables with email-gateway migrate"
	for _, c := range []struct{ name, args, env, variable, fix string }{
		{"no database", "", "EMAIL_DATABASE_URL=postgres://u:s3cret@127.0.0.1:1/db", "EMAIL_DATABASE_URL", "check that the database exists"},
		{"no tables", "", "EMAIL_DATABASE_URL=sqlite:" + file("empty.db", nil), "EMAIL_DATABASE_URL", create},
		{"not all tables", "", "EMAIL_DATABASE_URL=" + half, "EMAIL_DATABASE_URL", create},
		{"not all tables for a subcommand", "doubtful list", "EMAIL_DATABASE_URL=" + half, "EMAIL_DATABASE_URL", create},
		{"no mail server", "", "EMAIL_SMTP_HOST=127.0.0.1 EMAIL_SMTP_PORT=1", "EMAIL_SMTP_HOST", "check that the mail server runs"},
		{"a mail server without TLS", "", on(plain, "starttls"), "EMAIL_SMTP_HOST", "does not support STARTTLS"},
		{"a wrong password", "", on(strict, "starttls") + " EMAIL_SMTP_CA_FILE=" + file("ca.pem", authority) + " EMAIL_SMTP_USER=u EMAIL_SMTP_PASSWORD=s3cret",
			"EMAIL_SMTP_USER", "correct EMAIL_SMTP_USER or EMAIL_SMTP_PASSWORD"},
		{"no broker", "", on(plain, "none"), "EMAIL_AMQP_URL", "check that the broker runs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			commandtest.Set(t, append([]string{"EMAIL_DATABASE_URL=" + tables, "EMAIL_LOG_LEVEL=error"}, strings.Fields(c.env)...)...)
			line := failureLine(t, exitFailed, strings.Fields(c.args)...)
			if !strings.HasPrefix(line, c.variable+": ") || !strings.Contains(line, c.fix) {
				t.Errorf("it says %q, want %s and %q", line, c.variable, c.fix)
			}
		})
	}
}

// These errors occur only once the broker has answered.
func TestAnErrorThatEndsTheGatewayIsExplained(t *testing.T) {
	for _, c := range []struct {
		err           error
		variable, fix string
	}{
		{bridge.ErrCredentials, "EMAIL_AMQP_URL", "correct user, password or virtual host"},
		{&amqp.Error{Code: amqp.AccessRefused}, "EMAIL_AMQP_URL", "let the login configure"},
		{bridge.ErrLaterSchema, "EMAIL_DATABASE_URL", "run the release that made the tables"},
		{endpoints.ErrAddress, "EMAIL_HTTP_ADDR", "name another address"},
		{errors.New("anything else"), "EMAIL_DATABASE_URL", "anything else"},
	} {
		if text := explain(fmt.Errorf("begin: %w", c.err)).Error(); !strings.HasPrefix(text, c.variable+": begin: ") || !strings.Contains(text, c.fix) {
			t.Errorf("%v is explained by %q, want %s and %q", c.err, text, c.variable, c.fix)
		}
	}
}

// The number of connections in the documents is the pool's limit.
func TestTheConnectionsAreNoMoreThanTheDocumentsSay(t *testing.T) {
	minimal(t)
	commandtest.Set(t, "EMAIL_DATABASE_URL=sqlite:"+filepath.Join(t.TempDir(), "gateway.db"), "EMAIL_SMTP_SESSIONS=7")
	if code, _, stderr := outcome(t, "migrate"); code != exitDone {
		t.Fatal(stderr)
	}
	c, err := load(true)
	must(t, err)
	db, err := openDatabase(t.Context(), c)
	must(t, err)
	defer db.Close()
	if most, want := db.Stats().MaxOpenConnections, 7+6; most != want {
		t.Errorf("the pool allows %d connections, must allow EMAIL_SMTP_SESSIONS and six more: %d", most, want)
	}
}
