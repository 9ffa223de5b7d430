package tables

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
)

// Names returns the schema, which may be "", the table and the column of own, or
// an error if these cannot be names.
func Names(own bridge.OwnTable) (schema, table, column string, err error) {
	table = own.Table
	if before, after, found := strings.Cut(table, "."); found {
		if err := checkName("schema", before); err != nil {
			return "", "", "", err
		}
		schema, table = before, after
	}
	if err := checkName("table", table); err != nil {
		return "", "", "", err
	}
	return schema, table, own.Column, checkName("column", own.Column)
}

func checkName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("the %s has no name", what)
	case what != "column" && strings.Contains(name, "."):
		return fmt.Errorf("%s name %q contains a dot", what, name)
	case strings.Contains(name, "\x00") || !utf8.ValidString(name):
		return fmt.Errorf("%s name %q contains a zero byte, or is not UTF-8", what, name)
	}
	return nil
}

// Quote returns name as a quoted identifier, in which nothing but a doubled mark
// means anything. mark is the database's: a double quote, a backtick, or ].
func Quote(name, mark string) string {
	opening := mark
	if mark == "]" {
		opening = "["
	}
	return opening + strings.ReplaceAll(name, mark, mark+mark) + mark
}

// OwnIdentity is the identity of a ledger on an own table in the database whose
// tables have this identity; table and column are quoted, the table with its schema.
// It is a UUIDv5, so that all who open the same table get the same one.
func OwnIdentity(database uuid.UUID, table, column string) uuid.UUID {
	return uuid.NewSHA1(database, []byte(table+"."+column))
}

// ExpectRows runs query, which returns one row of two numbers: whether the
// identity is in the transaction's database, and how many of the n IDs have a row.
// Errors of the database come back as they are.
func ExpectRows(ctx context.Context, tx bridge.Tx, identity uuid.UUID, n int, query string, args ...any) error {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	var own, found int
	// To the end: if rows are closed before it, go-mssqldb may send an attention, which
	// would reach the caller's transaction.
	for rows.Next() {
		if err := rows.Scan(&own, &found); err != nil {
			return err
		}
	}
	switch {
	case rows.Err() != nil:
		return rows.Err()
	case own == 0:
		return OtherLedger(identity)
	case found != n:
		return fmt.Errorf("%w: %d of %d have one: insert the row before the message is sent", bridge.ErrNoRow, found, n)
	}
	return nil
}
