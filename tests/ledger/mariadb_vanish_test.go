package ledger_test

import (
	"bytes"
	"context"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	ledgers "github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// A client whose host vanishes does not close its connections. The server keeps its open
// transaction and its locks for wait_timeout, eight hours by default. So a settle, a forget, a
// claim and a touch must leave no lock.
func TestAVanishedClientLeavesNoLockInMariaDB(t *testing.T) {
	t.Parallel()
	config, db := mariaDB(t)
	sender, err := mysql.Open(t.Context(), db)
	must(t, err)
	for what, c := range map[string]struct {
		last string // the last text that reaches the server
		do   func(ctx context.Context, ledger *mysql.Ledger, id uuid.UUID)
	}{
		"settle": {"LOCK IN SHARE MODE", func(ctx context.Context, ledger *mysql.Ledger, id uuid.UUID) {
			_, _, _ = ledger.Settle(ctx, id, time.Second)
		}},
		"forget": {"DELETE l FROM", func(ctx context.Context, ledger *mysql.Ledger, id uuid.UUID) {
			_, _ = ledger.Forget(ctx, []uuid.UUID{id})
		}},
		"claim": {"l.claimed_by = ", func(ctx context.Context, ledger *mysql.Ledger, id uuid.UUID) {
			claimDue(ctx, t, ledger, id)
		}},
		"claimed": {"WHERE l.claimed_by = ", func(ctx context.Context, ledger *mysql.Ledger, id uuid.UUID) {
			claimDue(ctx, t, ledger, id)
		}},
		"touch": {"UPDATE (", func(ctx context.Context, ledger *mysql.Ledger, id uuid.UUID) {
			_ = ledger.Touch(ctx, []uuid.UUID{id})
		}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			id := newID()
			tx := begin(t, db)
			var message []byte
			if strings.HasPrefix(what, "claim") || what == "touch" {
				message = []byte("x")
			}
			must(t, sender.Record(t.Context(), bridge.SQL(tx), []ledgers.Entry{{ID: id, Message: message, Unpublished: true}}))
			must(t, tx.Commit())

			var host vanishing
			driver.RegisterDialContext("vanishing-"+what, host.dial)
			vanished := config.Clone()
			vanished.Net = "vanishing-" + what
			theirs := connectMariaDB(t, vanished)
			ledger, err := mysql.Open(t.Context(), theirs)
			must(t, err)
			host.last.Store(&c.last)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				c.do(ctx, ledger, id)
			}()
			servertest.Eventually(t, "the host has vanished", host.gone.Load, func() string { return "" })

			free := func() bool {
				left, err := sender.Forget(t.Context(), []uuid.UUID{id})
				must(t, err)
				return len(left) == 0
			}
			servertest.Eventually(t, "the row is free", free, func() string { return "" })
			cancel()
			<-ended
		})
	}
}

// claimDue claims the row of the ID as a verifier does.
func claimDue(ctx context.Context, t *testing.T, ledger *mysql.Ledger, id uuid.UUID) {
	due, _, err := ledger.Due(ctx, ledgers.DueRow{}, 1000)
	if err != nil {
		t.Error(err)
	}
	_, _ = ledger.Claim(ctx, slices.DeleteFunc(due, func(r ledgers.DueRow) bool { return r.ID != id }))
}

// vanishing is a host that vanishes after it has sent a certain text. From then on its
// connections transfer nothing, and only the client's side of them can end.
type vanishing struct {
	last atomic.Pointer[string]
	gone atomic.Bool
}

func (h *vanishing) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	return &vanishingConn{Conn: conn, host: h}, err
}

type vanishingConn struct {
	net.Conn
	host *vanishing
}

func (c *vanishingConn) Write(p []byte) (int, error) {
	if c.host.gone.Load() {
		return len(p), nil
	}
	n, err := c.Conn.Write(p)
	if last := c.host.last.Load(); last != nil && bytes.Contains(p, []byte(*last)) {
		c.host.gone.Store(true)
	}
	return n, err
}

// Close sends nothing either: it only ends the client's reading.
func (c *vanishingConn) Close() error {
	if c.host.gone.Load() {
		return c.SetReadDeadline(time.Now())
	}
	return c.Conn.Close()
}
