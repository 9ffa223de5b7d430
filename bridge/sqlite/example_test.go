package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/google/uuid"
	_ "modernc.org/sqlite" // the driver

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
)

// A table of the application's own as the ledger: a message without a row there cannot be sent.
func ExampleOpenOwnTable() {
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
	if err := migrate.Ledger(ctx, db, migrate.SQLite); err != nil { // for the ledger's identity
		log.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE parcels (id TEXT PRIMARY KEY)`); err != nil {
		log.Fatal(err)
	}
	ledger, err := sqlite.OpenOwnTable(ctx, db, bridge.OwnTable{Table: "parcels", Column: "id"})
	if err != nil {
		log.Fatal(err)
	}

	for _, stored := range []bool{false, true} {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			log.Fatal(err)
		}
		parcel := uuid.Must(uuid.NewV7())
		if stored {
			if _, err := tx.ExecContext(ctx, `INSERT INTO parcels (id) VALUES (?)`, parcel.String()); err != nil {
				log.Fatal(err)
			}
		}
		err = ledger.Record(ctx, bridge.SQL(tx), driver.Plain(parcel)) // a Sender calls this
		fmt.Printf("stored %t: may be sent %t, has no row %t\n", stored, err == nil, errors.Is(err, bridge.ErrNoRow))
		if err := tx.Rollback(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// stored false: may be sent false, has no row true
	// stored true: may be sent true, has no row false
}
