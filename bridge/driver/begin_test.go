package driver_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"

	_ "modernc.org/sqlite" // driver
)

func TestWithoutAConnectionABeginIsRetryable(t *testing.T) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx       context.Context
		err       error
		times     int
		retryable bool
	}{
		"lost":       {t.Context(), fmt.Errorf("read: %w", io.EOF), 2, true},
		"ended":      {ended, io.EOF, 1, false},
		"unreached":  {t.Context(), fmt.Errorf("connect: %w", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}), 1, true},
		"silent":     {t.Context(), &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, 1, false},
		"refused":    {t.Context(), errors.New("login failed"), 1, false},
		"timed out":  {t.Context(), context.DeadlineExceeded, 1, false},
		"no trouble": {t.Context(), nil, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			times := 0
			err := driver.Begin(c.ctx, db, func() error { times++; return c.err })
			if times != c.times || !errors.Is(err, c.err) || bridge.Retryable(err) != c.retryable || errors.Is(err, bridge.ErrNotBegun) != c.retryable {
				t.Errorf("%d times, %v", times, err)
			}
		})
	}
}
