package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/cmd/internal/endpoints"
	"github.com/twoqueue/twoqueue/verifier"
	"github.com/twoqueue/twoqueue/verifier/ops"
)

// The number of connections in the documents is the pool's limit.
func TestTheConnectionsAreNoMoreThanTheDocumentsSay(t *testing.T) {
	minimal(t)
	url := "sqlite:" + filepath.Join(t.TempDir(), "ledger.db")
	db, err := database.Create(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.MigrateLedger(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := load(false)
	if err != nil {
		t.Fatal(err)
	}
	c.Database.URL = url // the broker is away
	w, err := newWorker(c, c.Log.Logger(t.Output()))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.verify(t.Context(), t.Context(), nil); !errors.Is(err, bridge.ErrUnavailable) {
		t.Fatalf("it ends with %v", err)
	}
	defer w.db.Close()
	if most, want := w.db.Stats().MaxOpenConnections, new(verifier.Options).Connections()+ops.Connections; most != want {
		t.Errorf("the pool allows %d connections, must allow %d", most, want)
	}
}

func TestATakenAddressIsNamedByItsVariable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := &worker{log: slog.New(slog.NewTextHandler(&log, nil))}
		defer w.serve(t.Context(), "endpoints", "BRIDGE_HTTP_ADDR", ":1", func(context.Context, string) (*endpoints.Server, error) {
			return nil, endpoints.ErrAddress
		})()
		synctest.Wait()
		if want := `job=endpoints error="BRIDGE_HTTP_ADDR: address not usable"`; !strings.Contains(log.String(), want) {
			t.Errorf("the log says %s, not %s", log.String(), want)
		}
	})
}

// The profiles answer only to the hosts of the status page.
func TestTheProfilesAnswerToThisMachineAndToNamedHosts(t *testing.T) {
	minimal(t)
	t.Setenv("BRIDGE_STATUS_HOSTS", "verifier.example, 10.0.0.2, 2001:0db8:0::00a1, ::ffff:10.0.0.3")
	c, err := load(false)
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{config: c}
	profiles, err := endpoints.ListenProfiles(t.Context(), "127.0.0.1:0", w.private, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer profiles.Close()
	for host, want := range map[string]int{"verifier.example": 200, "example.org": 403} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+profiles.Address()+"/debug/pprof/cmdline", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Host, request.Close = host, true
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("profiles, %q: %d", host, response.StatusCode)
		}
	}
}
