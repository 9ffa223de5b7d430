package database

import (
	"errors"
	"strings"
	"testing"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/twoqueue/twoqueue/tests/tds"
)

func standIn(t *testing.T) *tds.Server {
	t.Helper()
	server, err := tds.Start(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server
}

func TestAMissingSQLServerDatabaseIsNoWrongPassword(t *testing.T) {
	server := standIn(t)
	_, err := Open(t.Context(), server.URL("missing"))
	if !errors.Is(err, ErrNoDatabase) || errors.Is(err, ErrCredentials) {
		t.Errorf("open a missing database: %v", err)
	}
	_, err = Open(t.Context(), strings.Replace(server.URL("master"), "sa:", "sb:", 1))
	if !errors.Is(err, ErrCredentials) || errors.Is(err, ErrNoDatabase) {
		t.Errorf("open with a wrong login: %v", err)
	}
}

func TestARecoveringSQLServerDatabaseIsAwaited(t *testing.T) {
	server := standIn(t)
	server.SetOffline("master", true)
	waited := false
	db, err := Await(t.Context(), server.URL("master"), func(error) {
		waited = true
		server.SetOffline("master", false)
	})
	if err != nil || !waited {
		t.Fatalf("await: %v, waited: %t", err, waited)
	}
	_ = db.Close()
}

func TestSQLServerErrorsThatPassAreAwaited(t *testing.T) {
	for _, number := range []int32{233, 976, 978, 983, 4060, 10928, 10929, 17187, 18401, 40197, 40501, 40613, 49918, 49919, 49920} {
		tries := 0
		refused := func() (*Database, error) {
			if tries++; tries > 1 {
				return new(Database), nil
			}
			return nil, classifySQLServer(mssql.Error{Number: 18456, All: []mssql.Error{{Number: number}, {Number: 18456}}})
		}
		if _, err := await(t.Context(), time.Minute, func(error) {}, refused); err != nil {
			t.Errorf("%d: %v", number, err)
		}
	}
}
