package commandtest

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// Listen listens at an address of this machine until the test ends. Accept fails after
// servertest.Patience.
func Listen(t *testing.T, address string) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	if err := listener.(*net.TCPListener).SetDeadline(time.Now().Add(servertest.Patience)); err != nil {
		t.Fatal(err)
	}
	return listener
}

// Script plays a PostgreSQL server that answers its clients, one after the other, with an error of
// the next code. For the code "" it only closes the connection.
func Script(listener net.Listener, codes ...string) {
	go func() {
		for _, code := range codes {
			client, err := listener.Accept()
			if err != nil {
				return // the test is over
			}
			if code != "" {
				server := pgproto3.NewBackend(client, client)
				if _, err := server.ReceiveStartupMessage(); err == nil {
					server.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: code, Message: "scripted"})
					_ = server.Flush()
				}
			}
			_ = client.Close()
		}
	}()
}

// Migrates checks a command that creates tables in a stack that starts everything at once. The
// command must wait for the database of variable, and say so. A database that refuses the login must
// end it with the code refused. An interrupted command must not succeed.
func Migrates(t *testing.T, run Command, command, variable string, refused int, args ...string) {
	t.Helper()
	url := func(listener net.Listener) string {
		return "postgres://user:s3cret@" + listener.Addr().String() + "/db?sslmode=disable"
	}
	t.Run("waits", func(t *testing.T) {
		const starting, wrongPassword = "57P03", "28P01"
		listener := Listen(t, "127.0.0.1:0")
		Script(listener, starting, wrongPassword)
		t.Setenv(variable, url(listener))
		code, stdout, stderr := Run(t, run, args...)
		waiting, last, _ := strings.Cut(stderr, "\n")
		if !strings.HasPrefix(waiting, command+": waiting for the database: "+variable+": ") || !strings.Contains(waiting, starting) {
			t.Errorf("it does not name the server that it waits for: %q", stderr)
		}
		if code != refused || !strings.Contains(last, "refuses the login") || strings.Count(last, "\n") != 1 {
			t.Errorf("exit code %d, must be %d; it ends with %q", code, refused, last)
		}
		if strings.Contains(stdout+stderr, "s3cret") {
			t.Errorf("it gives the password away: %q%q", stdout, stderr)
		}
	})
	t.Run("is interrupted", func(t *testing.T) {
		const failed = 1
		silent := Listen(t, "127.0.0.1:0")
		t.Setenv(variable, url(silent))
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		var stderr strings.Builder
		ended := make(chan int, 1)
		go func() { ended <- run(ctx, args, io.Discard, &stderr) }()
		client, err := silent.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		interrupt()
		if code := servertest.Next(t, "it ends", ended); code != failed || !strings.HasPrefix(stderr.String(), command+": interrupted") {
			t.Errorf("exit code %d, %q", code, &stderr)
		}
	})
}
