package endpoints_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/twoqueue/twoqueue/cmd/internal/endpoints"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

func get(t *testing.T, address, path string) (code int, text string) {
	t.Helper()
	return program.Get(t, "http://"+address+path)
}

func TestProbesSayWhatIsMissing(t *testing.T) {
	var missing atomic.Pointer[error]
	var asked atomic.Int64
	probes := endpoints.Probes{
		Ready: func(context.Context) error {
			asked.Add(1)
			if err := missing.Load(); err != nil {
				return *err
			}
			return nil
		},
		Registry: prometheus.NewRegistry(),
	}
	server, err := endpoints.Listen(t.Context(), "127.0.0.1:0", probes.Handler(), quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for range 20 {
		if code, text := get(t, server.Address(), "/readyz"); code != 200 || text != "ok\n" {
			t.Fatalf("ready: %d %q", code, text)
		}
	}
	if n := asked.Load(); n >= 20 {
		t.Errorf("20 probes asked %d times", n)
	}
	if err := endpoints.Ask(t.Context(), server.Address(), "/readyz"); err != nil {
		t.Errorf("ask: %v", err)
	}
	wrong := errors.Join(errors.New("database: away"), errors.New("session: none"))
	missing.Store(&wrong)
	servertest.Eventually(t, "what is missing is told", func() bool {
		code, text := get(t, server.Address(), "/readyz")
		if code != 200 && (code != 503 || text != "database: away\nsession: none\n") {
			t.Fatalf("not ready: %d %q", code, text)
		}
		return code == 503
	})
	if err := endpoints.Ask(t.Context(), server.Address(), "/readyz"); err == nil || err.Error() != wrong.Error() {
		t.Errorf("ask: %v", err)
	}
	if code, text := get(t, server.Address(), "/livez"); code != 200 || text != "ok\n" {
		t.Errorf("live: %d %q", code, text)
	}
}

// A client that never ends its request does not keep the server from its end.
func TestCloseEndsEverything(t *testing.T) {
	asked := make(chan struct{})
	server, err := endpoints.Listen(t.Context(), "127.0.0.1:0", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	}), quiet)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", server.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	servertest.Next(t, "the request is asked", asked)
	if _, err := endpoints.Listen(t.Context(), server.Address(), http.NotFoundHandler(), quiet); !errors.Is(err, endpoints.ErrAddress) {
		t.Errorf("a second one at the address: %v", err)
	}
	server.Close()
	if _, err := net.Dial("tcp", server.Address()); err == nil {
		t.Error("somebody still listens")
	}
}
