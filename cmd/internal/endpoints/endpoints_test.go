package endpoints_test

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"

	"go.uber.org/goleak"

	"github.com/twoqueue/twoqueue/cmd/internal/endpoints"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

// Ask returns the text of an answer that is not 200.
func TestAskReturnsTheTextOfAFailedProbe(t *testing.T) {
	server, err := endpoints.Listen(t.Context(), "127.0.0.1:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/ready" {
			http.Error(w, "database: away\nsession: none", http.StatusServiceUnavailable)
		}
	}), quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if err := endpoints.Ask(t.Context(), server.Address(), "/ready"); err != nil {
		t.Errorf("ask: %v", err)
	}
	if err := endpoints.Ask(t.Context(), server.Address(), "/readyz"); err == nil || err.Error() != "database: away\nsession: none" {
		t.Errorf("ask: %v", err)
	}
}

// A client that never ends its request does not block Close.
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
	servertest.Next(t, "the request arrives", asked)
	if _, err := endpoints.Listen(t.Context(), server.Address(), http.NotFoundHandler(), quiet); !errors.Is(err, endpoints.ErrAddress) {
		t.Errorf("a second one at the address: %v", err)
	}
	server.Close()
	if _, err := net.Dial("tcp", server.Address()); err == nil {
		t.Error("the address is still listened on")
	}
}
