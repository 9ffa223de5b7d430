package main

import (
	"path/filepath"
	"testing"

	"github.com/twoqueue/twoqueue/cmd/internal/commandtest"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
)

// What the help says of connections, to who counts them, is a limit.
func TestTheConnectionsAreNoMoreThanTheHelpSays(t *testing.T) {
	url := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	commandtest.Environment(t, prefix, "SHOP_DATABASE_URL="+url, "SHOP_AMQP_URL=amqp://127.0.0.1:1/", "SHOP_OPEN=5")
	c, err := load()
	if err != nil {
		t.Fatal(err)
	}
	db, err := database.Create(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := migrate(t.Context(), c, db); err != nil {
		t.Fatal(err)
	}
	if most := db.Stats().MaxOpenConnections; most != 5 {
		t.Errorf("the pool allows %d connections, must allow SHOP_OPEN", most)
	}
}
