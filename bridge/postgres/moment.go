package postgres

import (
	"database/sql"
	"time"
)

// A moment is a time that a statement returns in microseconds since 1970. A driver may read a
// timestamptz as text, in the login's DateStyle.
type moment struct{ sql.NullTime }

// Scan implements sql.Scanner.
func (m *moment) Scan(value any) error {
	var microseconds sql.NullInt64
	if err := microseconds.Scan(value); err != nil {
		return err
	}
	m.NullTime = sql.NullTime{} // not 1970 if the time is unknown
	if microseconds.Valid {
		m.NullTime = sql.NullTime{Time: time.UnixMicro(microseconds.Int64).UTC(), Valid: true}
	}
	return nil
}
