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
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/twoqueue/twoqueue/cmd/internal/endpoints"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

func get(t *testing.T, address, path string) (code int, text string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(content)
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
	deadline := time.Now().Add(2 * time.Minute)
	for {
		code, text := get(t, server.Address(), "/readyz")
		if code == 503 && text == "database: away\nsession: none\n" {
			break
		}
		if code != 200 || time.Now().After(deadline) {
			t.Fatalf("not ready: %d %q", code, text)
		}
	}
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
	select {
	case <-asked:
	case <-time.After(2 * time.Minute):
		t.Fatal("not in time: the request is asked")
	}
	server.Close()
	if _, err := net.Dial("tcp", server.Address()); err == nil {
		t.Error("somebody still listens")
	}
}
