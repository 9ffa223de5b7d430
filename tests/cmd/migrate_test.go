package cmd_test

import (
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// A stack starts everything at once: what makes the tables waits for the database, and tells
// so, but not for one that refuses the login.
func TestMigrationsWaitForADatabaseThatStarts(t *testing.T) {
	for _, c := range []struct {
		name, variable string
		args           []string
		code           int
	}{
		{"verifier", "BRIDGE_DATABASE_URL", []string{"-migrate"}, 4},
		{"bridgectl", "BRIDGE_DATABASE_URL", []string{"migrate", "up"}, 1},
		{"email-gateway", "EMAIL_DATABASE_URL", []string{"migrate"}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			go func() {
				for _, answer := range []pgproto3.ErrorResponse{
					{Severity: "FATAL", Code: "57P03", Message: "the database system is starting up"},
					{Severity: "FATAL", Code: "28P01", Message: "password authentication failed"},
				} {
					client, err := listener.Accept()
					if err != nil {
						return // the test is over
					}
					server := pgproto3.NewBackend(client, client)
					if _, err := server.ReceiveStartupMessage(); err == nil {
						server.Send(&answer)
						_ = server.Flush()
					}
					client.Close()
				}
			}()
			p := start(t, c.name, append(c.args, c.variable+"=postgres://user:s3cret@"+listener.Addr().String()+"/db?sslmode=disable")...)
			code, text := p.Await(), p.Stderr.String()
			waiting, last, _ := strings.Cut(text, "\n")
			if !strings.HasPrefix(waiting, c.name+": waiting for the database: "+c.variable+": ") || !strings.Contains(waiting, "starting up") {
				t.Errorf("it does not say what it waits for: %q", text)
			}
			if code != c.code || !strings.Contains(last, "refuses the login") || strings.Count(last, "\n") != 1 {
				t.Errorf("exit code %d, must be %d; it ends with %q", code, c.code, last)
			}
			if strings.Contains(text, "s3cret") {
				t.Errorf("it gives the password away: %q", text)
			}
		})
	}
}
