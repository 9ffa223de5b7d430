package database

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/twoqueue/twoqueue/bridge"
)

// ErrOwnTable: the table named by an OwnTable cannot be a ledger; the text says why.
var ErrOwnTable = errors.New("own table not usable")

// ownTableError makes an error match ErrOwnTable. It does not add ErrOwnTable's text, which would
// repeat the error's own.
type ownTableError struct{ error }

func (e *ownTableError) Unwrap() error        { return e.error }
func (e *ownTableError) Is(target error) bool { return target == ErrOwnTable }

// An OwnTable is a variable that names a bridge.OwnTable, as TABLE.COLUMN or SCHEMA.TABLE.COLUMN. An
// empty one chooses the ledger's own tables.
type OwnTable string

// Decode reads the variable.
func (o *OwnTable) Decode(text string) error {
	*o = OwnTable(text)
	if own := o.own(); own.Table == "" || own.Column == "" {
		return fmt.Errorf("%q is not TABLE.COLUMN or SCHEMA.TABLE.COLUMN; write it so, or unset it", text)
	}
	return nil
}

func (o OwnTable) own() bridge.OwnTable {
	last := max(0, strings.LastIndex(string(o), "."))
	return bridge.OwnTable{Table: string(o[:last]), Column: strings.TrimPrefix(string(o[last:]), ".")}
}

// LedgerOn opens the ledger on the application's own table, or calls Ledger if own is empty. canary
// is bridge.OwnTable's Canary. The error wraps ErrOwnTable if the table is at fault.
func (d *Database) LedgerOn(ctx context.Context, own OwnTable, canary string) (*Ledger, error) {
	if own == "" {
		return d.Ledger(ctx)
	}
	table := own.own()
	table.Canary = canary
	ledger, err := d.kind.in(d.schema).ownTable(ctx, d.DB.DB, table)
	if err != nil && !errors.Is(err, bridge.ErrNoSchema) {
		return nil, &ownTableError{err}
	}
	return ledger, err
}
