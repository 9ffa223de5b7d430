package portable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// Names returns the schema, which may be "", the table and the column of own, or an error if these
// cannot be names.
func Names(own bridge.OwnTable) (schema, table, column string, err error) {
	if own.Canary != "" && !strings.Contains(own.Canary, "$id") {
		return "", "", "", errors.New("the canary has no $id, the placeholder of the ID")
	}
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

// Quote returns name as a quoted identifier, in which only a doubled mark has a meaning. mark is
// the database's: a double quote, a backtick, or ].
func Quote(name, mark string) string {
	opening := mark
	if mark == "]" {
		opening = "["
	}
	return opening + strings.ReplaceAll(name, mark, mark+mark) + mark
}

// ownIdentity returns the identity of a ledger on an own table in the database whose tables have
// this identity; table and column are quoted, the table with its schema. It is a UUIDv5, so that
// all programs that open the same table get the same one.
func ownIdentity(database uuid.UUID, table, column string) uuid.UUID {
	return uuid.NewSHA1(database, []byte(table+"."+column))
}

// expectRows runs query, which returns one row of two numbers: whether the identity is in the
// transaction's database, and how many of the n IDs have a row. It returns the database's errors
// unchanged.
func expectRows(ctx context.Context, tx bridge.Tx, identity uuid.UUID, n int, query string, args ...any) error {
	var own, found int
	_, err := queryRow(ctx, tx, query, args, &own, &found)
	switch {
	case err != nil:
		return err
	case own == 0:
		return OtherLedger(identity)
	case found != n:
		return fmt.Errorf("%w: %d of %d messages have one: insert the row before you send the message", bridge.ErrNoRow, found, n)
	}
	return nil
}

// An OwnLedger is the portable part of the ledgers on own tables: a ledger that reads a table of
// the application's in the same database, and does not change it.
type OwnLedger struct {
	*Ledger  // reads the own table
	identity uuid.UUID
	table    string        // as written in a statement
	proof    driver.Ledger // the same statements on bridge_ledger
	verbs    OwnVerbs
}

// OwnVerbs are the parts of a ledger on an own table that each database implements.
type OwnVerbs struct {
	// Rows is a query for expectRows.
	Rows func(ids []uuid.UUID) (query string, args []any)
	// Most is how many IDs Rows takes; 0 if it takes any number.
	Most int
	// Check checks the table again.
	Check func(ctx context.Context) error
	// Canary is OwnTable.Canary.
	Canary string
}

// NewOwnLedger returns the ledger on an own table. reads is a ledger that reads the table with
// these quoted names, proof the ledger on bridge_ledger that waits by the same means.
func NewOwnLedger(reads *Ledger, table, column string, proof driver.Ledger, verbs OwnVerbs) OwnLedger {
	return OwnLedger{reads, ownIdentity(reads.identity, table, column), table, proof, verbs}
}

// Identity returns an identity of the table's own (see bridge.OwnTable).
func (o OwnLedger) Identity() uuid.UUID { return o.identity }

// Record checks that tx has a row for each of the entries, and changes nothing.
func (o OwnLedger) Record(ctx context.Context, tx bridge.Tx, entries []driver.Entry) error {
	ids, carried := splitCarried(entries)
	if len(carried) > 0 {
		return Unsupported("carry messages", "an own table")
	}
	for chunk := range slices.Chunk(ids, cmp.Or(o.verbs.Most, max(1, len(ids)))) {
		query, args := o.verbs.Rows(chunk)
		if err := expectRows(ctx, tx, o.Ledger.identity, len(chunk), query, args...); err != nil {
			return fmt.Errorf("record %d IDs in %s: %w", len(ids), o.table, o.Ledger.verbs.Classify(err, LookingUp))
		}
	}
	return nil
}

// Check checks the own table as well.
func (o OwnLedger) Check(ctx context.Context) error {
	if err := o.Ledger.Check(ctx); err != nil {
		return err
	}
	return o.Ledger.wrap("check own table", o.verbs.Check(ctx))
}

// Features denies the verbs for carried messages, for the sweep, and Recent. Record and Forget are
// not denied; they change no row.
func (OwnLedger) Features() driver.Features { return driver.Features{KeepsRows: true} }

// ProofLedger returns the ledger on bridge_ledger. If there is a Canary, the ProofLedger of that
// ledger writes it.
func (o OwnLedger) ProofLedger() driver.Ledger {
	if o.verbs.Canary == "" {
		return o.proof
	}
	return provenBeside{o.proof, canaryLedger{o}}
}

type provenBeside struct {
	driver.Ledger
	beside driver.Ledger
}

func (p provenBeside) ProofLedger() driver.Ledger { return p.beside }

// A canaryLedger inserts the rows that it records.
type canaryLedger struct{ OwnLedger }

// Record inserts a row for each of the entries, and reads it in the same transaction: a row hidden
// from this login would look rolled back.
func (c canaryLedger) Record(ctx context.Context, tx bridge.Tx, entries []driver.Entry) error {
	for _, e := range entries {
		if _, err := tx.Exec(ctx, strings.ReplaceAll(c.verbs.Canary, "$id", "'"+e.ID.String()+"'")); err != nil {
			return fmt.Errorf("insert a canary into %s: %w", c.table, err)
		}
	}
	err := c.OwnLedger.Record(ctx, tx, entries)
	if errors.Is(err, bridge.ErrNoRow) {
		return fmt.Errorf("%w: this login does not see its own new row in %s, as under row-level security: hidden rows look rolled back", bridge.ErrProof, c.table)
	}
	return err
}

// Forget does nothing: the rows are the application's.
func (OwnLedger) Forget(context.Context, []uuid.UUID) ([]uuid.UUID, error) { return nil, nil }

// Cancel is denied.
func (OwnLedger) Cancel(context.Context, bridge.Tx, uuid.UUID) (bool, error) {
	return false, Unsupported("cancel", "an own table")
}

// Due is denied.
func (OwnLedger) Due(context.Context, driver.DueRow, int) ([]driver.DueRow, time.Time, error) {
	return nil, time.Time{}, Unsupported("list due rows", "an own table")
}

// Claim is denied.
func (OwnLedger) Claim(context.Context, []driver.DueRow) ([]driver.Carried, error) {
	return nil, Unsupported("claim due rows", "an own table")
}

// Touch is denied.
func (OwnLedger) Touch(context.Context, []uuid.UUID) error {
	return Unsupported("touch carried rows", "an own table")
}

// Recent is denied.
func (OwnLedger) Recent(context.Context, []uuid.UUID, time.Duration) ([]uuid.UUID, driver.Instance, error) {
	return nil, "", Unsupported("look up recent IDs", "an own table")
}

// Orphans is denied.
func (OwnLedger) Orphans(context.Context, time.Duration, int) ([]driver.Orphan, error) {
	return nil, Unsupported("list orphans", "an own table")
}

// Sweep is denied.
func (OwnLedger) Sweep(context.Context, time.Duration, int) ([]driver.Orphan, error) {
	return nil, Unsupported("sweep", "an own table")
}

// SweptBefore is denied.
func (OwnLedger) SweptBefore(context.Context) (time.Time, error) {
	return time.Time{}, Unsupported("read the watermark", "an own table")
}
