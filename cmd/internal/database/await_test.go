package database

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// scripted is a PostgreSQL on a listener that has nothing but an error for each client,
// one after the other; "" is the end of the connection.
func scripted(t *testing.T, listener net.Listener, codes ...string) {
	t.Helper()
	t.Cleanup(func() { listener.Close() })
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
			client.Close()
		}
	}()
}

func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

func TestAServerThatStartsIsWaitedForAndAWrongPasswordIsNot(t *testing.T) {
	first := listen(t, "127.0.0.1:0")
	address := first.Addr().String()
	first.Close() // nobody listens yet
	var missing []error
	_, err := Await(t.Context(), "postgres://user:s3cret@"+address+"/db?sslmode=disable", func(err error) {
		if missing = append(missing, err); len(missing) == 1 {
			const starting, crowded, wrongPassword = "57P03", "53300", "28P01"
			scripted(t, listen(t, address), starting, "", crowded, wrongPassword)
		}
	})
	if !errors.Is(err, ErrCredentials) {
		t.Errorf("it ends with %v", err)
	}
	if len(missing) == 0 || !strings.Contains(missing[0].Error(), "connection refused") || strings.Contains(missing[0].Error(), "s3cret") {
		t.Errorf("it was told %v", missing)
	}
}

func TestAnUnknownDatabaseIsNotWaitedFor(t *testing.T) {
	listener := listen(t, "127.0.0.1:0")
	scripted(t, listener, "3D000")
	_, err := Await(t.Context(), "postgres://user@"+listener.Addr().String()+"/db?sslmode=disable", func(err error) { t.Errorf("it waits for %v", err) })
	if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "3D000") {
		t.Errorf("it ends with %v", err)
	}
}

func TestTheWaitForAServerEnds(t *testing.T) {
	away := func() (*Database, error) { return nil, io.EOF }
	if _, err := await(t.Context(), 10*time.Millisecond, func(error) {}, away); !errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "waited for 10ms") {
		t.Errorf("it ends with %v", err)
	}
}
