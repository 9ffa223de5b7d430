package database

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/cmd/internal/commandtest"
)

func TestAServerThatStartsIsWaitedForAndAWrongPasswordIsNot(t *testing.T) {
	first := commandtest.Listen(t, "127.0.0.1:0")
	address := first.Addr().String()
	first.Close() // no server listens yet
	var missing []error
	_, err := Await(t.Context(), "postgres://user:s3cret@"+address+"/db?sslmode=disable", func(err error) {
		if missing = append(missing, err); len(missing) == 1 {
			const starting, crowded, wrongPassword = "57P03", "53300", "28P01"
			commandtest.Script(commandtest.Listen(t, address), starting, "", crowded, wrongPassword)
		}
	})
	if !errors.Is(err, ErrCredentials) {
		t.Errorf("it ends with %v", err)
	}
	if len(missing) == 0 || !strings.Contains(missing[0].Error(), "connection refused") || strings.Contains(missing[0].Error(), "s3cret") {
		t.Errorf("the reported errors are %v", missing)
	}
}

func TestAnUnknownDatabaseIsNotWaitedFor(t *testing.T) {
	listener := commandtest.Listen(t, "127.0.0.1:0")
	commandtest.Script(listener, "3D000")
	_, err := Await(t.Context(), "postgres://user@"+listener.Addr().String()+"/db?sslmode=disable", func(err error) { t.Errorf("it waits for %v", err) })
	if !errors.Is(err, ErrNoDatabase) || !strings.Contains(err.Error(), "3D000") {
		t.Errorf("it ends with %v", err)
	}
}

func TestTheWaitForAServerEnds(t *testing.T) {
	away := func() (*Database, error) { return nil, io.EOF }
	if _, err := await(t.Context(), 10*time.Millisecond, func(error) {}, away); !errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "waited for 10ms") {
		t.Errorf("it ends with %v", err)
	}
}
