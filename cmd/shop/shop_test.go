package main

import (
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/cmd/internal/commandtest"
	"github.com/twoqueue/twoqueue/sender/sendertest"
)

// The number of connections in the help is the pool's limit.
func TestTheConnectionsAreNoMoreThanTheHelpSays(t *testing.T) {
	url := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	commandtest.Environment(t, prefix, "SHOP_DATABASE_URL="+url, "SHOP_AMQP_URL=amqp://127.0.0.1:1/", "SHOP_OPEN=5")
	if code, _, stderr := commandtest.Run(t, run, "-migrate"); code != 0 { // makes the file
		t.Fatal(stderr)
	}
	c, err := load(false)
	if err != nil {
		t.Fatal(err)
	}
	db, err := openDatabase(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if most := db.Stats().MaxOpenConnections; most != 5 {
		t.Errorf("the pool allows %d connections, must allow SHOP_OPEN", most)
	}
}

func TestTheEndpointsHaveTheSendersMetrics(t *testing.T) {
	url := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	commandtest.Environment(t, prefix, "SHOP_DATABASE_URL="+url, "SHOP_AMQP_URL=amqp://127.0.0.1:1/", "SHOP_HTTP_ADDR=127.0.0.1:0")
	if code, _, stderr := commandtest.Run(t, run, "-migrate"); code != 0 {
		t.Fatal(stderr)
	}
	c, err := load(false)
	if err != nil {
		t.Fatal(err)
	}
	db, err := openDatabase(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	s := &shop{config: c, log: slog.New(slog.DiscardHandler), db: db, sender: sendertest.New(t, nil).Sender}
	server, err := s.answer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for path, want := range map[string]string{"/metrics": "\ntwoqueue_sender_recorded_total 0\n", "/readyz": "ok"} {
		answer, err := http.Get("http://" + server.Address() + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		if answer.Body.Close(); err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s: %s, %v: %s", path, answer.Status, err, body)
		}
	}
}
