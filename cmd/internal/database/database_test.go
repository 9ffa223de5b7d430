package database_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
)

func TestBadURLs(t *testing.T) {
	for _, c := range []struct {
		url  string
		want error
	}{
		{"", database.ErrURL},
		{"s3cret", database.ErrURL},
		{"oracle://user:s3cret@host/db", database.ErrURL},
		{"postgres:", database.ErrURL},
		{"postgres:///db", database.ErrURL},
		// Unencoded special characters in the password.
		{"postgres://user:s3cret/x@host/db", database.ErrURL},
		{"postgres://user:1/s3cret@host/db", database.ErrURL},
		{"postgres://user:s3cret#x@host/db", database.ErrURL},
		{"postgres://user:s3cret?x@host/db", database.ErrURL},
		{"postgres://user:s3cret%zz@host/db", database.ErrURL},
		{"postgres://user:s3cret@host/db?sslmode=perhaps", database.ErrURL},
		{"postgres://user:s3cret@127.0.0.1:1/db", database.ErrUnreachable},
		{"postgres://user:1?s3cret@host/db", database.ErrURL},
		{"postgres://user:1#s3cret@host/db", database.ErrURL},
		{"postgres://user:s3cret@host/db?sslmode=verify-full&sslrootcert=/nowhere/ca.pem", database.ErrURL},
		{"postgres://user:1@s3cret@host/db", database.ErrURL},
		{"mysql:", database.ErrURL},
		{"mysql://user:1/s3cret@host/db", database.ErrURL},
		{"mysql://user:1?s3cret@host/db", database.ErrURL},
		{"mysql://user:1#s3cret@host/db", database.ErrURL},
		{"mysql://user:s3cret@host/db?ssl-ca=/nowhere/ca.pem", database.ErrURL},
		{"mysql://user:s3cret@host/db?ssl-ca=/dev/null", database.ErrURL},
		{"mysql://user:s3cret@host/db?ssl-cert=/nowhere/cert.pem", database.ErrURL},
		{"mysql://user:s3cret@host/db?ssl-cert=/nowhere/cert.pem&ssl-key=/nowhere/key.pem", database.ErrURL},
		{"mysql://user:s3cret@host/db?ssl-ca=/nowhere/ca.pem&tls=skip-verify", database.ErrURL},
		{"mysql://user:s3cret/x@host/db", database.ErrURL},
		{"mysql://user:s3cret#x@host/db", database.ErrURL},
		{"mysql://user:s3cret@host/db?tls=perhaps", database.ErrURL},
		{"mysql://user:s3cret@127.0.0.1:1/db", database.ErrUnreachable},
		{"sqlserver:", database.ErrURL},
		{"sqlserver://user:s3cret/x@host", database.ErrURL},
		{"sqlserver://user:1/s3cret@host", database.ErrURL},
		{"sqlserver://user:1?s3cret@host", database.ErrURL},
		{"sqlserver://user:1#s3cret@host", database.ErrURL},
		{"sqlserver://user:s3cret@host?encrypt=perhaps", database.ErrURL},
		{"sqlserver://user:s3cret@host?applicationintent=readonly", database.ErrURL},
		{"sqlserver://user:s3cret@127.0.0.1:1?database=db", database.ErrUnreachable},
		{"azuresql://user:s3cret@127.0.0.1:1?database=db", database.ErrUnreachable},
		{"azuresql://127.0.0.1:1?database=db&fedauth=perhaps", database.ErrURL},
		{"sqlite:", database.ErrURL},
		{"sqlite://", database.ErrURL},
		{"sqlite:/nowhere/s3cret.db", database.ErrUnreachable},
		{"sqlite:/nowhere/s3cret.db?_pragma=journal_mode(wal)", database.ErrUnreachable},
	} {
		db, err := database.Open(t.Context(), c.url)
		if err == nil {
			db.Close()
			t.Errorf("%s: no error", c.url)
			continue
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.url, err)
		}
		if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the error gives the password away: %v", err)
		}
	}
}

func TestOpenMakesNoFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "missing.db")
	if _, err := database.Open(t.Context(), "sqlite:"+path); !errors.Is(err, database.ErrUnreachable) {
		t.Errorf("open: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the file is there")
	}
}

func TestOpenLeavesTheJournalModeAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "other.db")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := database.Open(t.Context(), "sqlite:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Ledger(t.Context()); !errors.Is(err, bridge.ErrNoSchema) {
		t.Errorf("open ledger: %v", err)
	}
	var mode string
	if err := db.Get(&mode, "PRAGMA journal_mode"); err != nil || mode != "delete" {
		t.Errorf("journal mode %q, %v", mode, err)
	}
}

func TestPathsAreTakenAsTheyAre(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"plain.db", "a b.db", "50%41.db", "a#b.db", "ümlaut.db"} {
		for _, form := range []string{"sqlite:", "sqlite://"} {
			path := filepath.Join(dir, name)
			db, err := database.Create(t.Context(), form+path)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if err := db.MigrateLedger(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if err := db.MigrateInbox(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := db.Ledger(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := db.Inbox(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			db.Close()
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s is not where it was wanted: %v", name, err)
			}
		}
	}
}
