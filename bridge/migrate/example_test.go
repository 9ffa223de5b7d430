package migrate_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	_ "modernc.org/sqlite" // the driver

	"github.com/twoqueue/twoqueue/bridge/migrate"
)

// Make the ledger's tables. Another call does nothing.
func ExampleLedger() {
	dir, err := os.MkdirTemp("", "shop")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")+"?_pragma=journal_mode(wal)&_pragma=busy_timeout(5000)")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()

	ctx := context.Background()
	for range 2 {
		if err := migrate.Ledger(ctx, db, migrate.SQLite); err != nil {
			log.Fatal(err)
		}
		there, wanted, err := migrate.Version(ctx, db, migrate.SQLite, migrate.LedgerPart)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("current:", there == wanted)
	}
	// Output:
	// current: true
	// current: true
}
