package sender

import (
	"errors"
	"fmt"
	"testing"
)

type sqlState string

func (s sqlState) Error() string    { return "SQLSTATE " + string(s) }
func (s sqlState) SQLState() string { return string(s) }

func TestOnlyTheDatabasesOwnRollbackIsKnown(t *testing.T) {
	for err, want := range map[error]bool{
		sqlState("23503"):             true, // foreign key
		sqlState("40001"):             true, // serialization failure
		sqlState("40P01"):             true, // deadlock
		sqlState("40003"):             false,
		sqlState("08006"):             false, // connection failure
		sqlState("57P01"):             false, // the server shuts down
		sqlState(""):                  false,
		errors.New("connection lost"): false,
	} {
		if got := refused(fmt.Errorf("commit: %w", err)); got != want {
			t.Errorf("%v: %t", err, got)
		}
	}
}
