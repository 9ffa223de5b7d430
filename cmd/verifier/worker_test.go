package main

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/verifier"
)

// What the documents say of connections, to who counts them, is a limit.
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
	w := &worker{config: c, log: c.Log.Logger(t.Output())}
	if err := w.verify(t.Context(), nil); !errors.Is(err, bridge.ErrUnavailable) {
		t.Fatalf("it ends with %v", err)
	}
	defer w.db.Close()
	if most, want := w.db.Stats().MaxOpenConnections, new(verifier.Options).Connections()+ownConnections; most != want {
		t.Errorf("the pool allows %d connections, must allow %d", most, want)
	}
}
