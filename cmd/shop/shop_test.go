package main

import (
	"path/filepath"
	"testing"

	"github.com/twoqueue/twoqueue/cmd/internal/commandtest"
)

// What the help says of connections, to who counts them, is a limit.
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
