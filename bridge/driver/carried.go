package driver

import (
	"time"

	"github.com/google/uuid"
)

// An Entry is one row that Record inserts.
type Entry struct {
	ID uuid.UUID
	// Message is the encoded message that the row carries: any bytes, 0 included, but not empty.
	// Nil: the row carries none. Every database takes 16 MiB, except a MariaDB with its default
	// max_allowed_packet, which takes somewhat less than 12 MiB (package mysql).
	Message []byte
	// Unpublished: the sender publishes no copy to the staging queue, so the row's stage time is
	// the time of the record. Otherwise it is PublishedGrace later. An entry without a message has
	// no stage time.
	Unpublished bool
	// NotBefore, if it is not zero, delays the message: its stage time is NotBefore, or the time of
	// the record if that is later. No copy may be published, so Unpublished need not be set. A
	// ledger rounds NotBefore up to the millisecond.
	//
	// The column recorded_at of a delayed row gets the stage time too (on SQLite rounded up to the
	// second). So one comparison of two columns shows for every row whether a copy can exist
	// (DueRow.Unpublished, Cancel), without a further column on all rows, and Claim and Touch count
	// the row's age from the time when it was first due. Nothing else depends on the recorded_at of
	// a carried row: sweeps leave carried rows alone, and a message staged by a verifier is no
	// evidence for rule 6 of package bridge.
	NotBefore time.Time
}

// Plain returns entries without messages.
func Plain(ids ...uuid.UUID) []Entry {
	entries := make([]Entry, len(ids))
	for i, id := range ids {
		entries[i].ID = id
	}
	return entries
}

// PublishedGrace is the time from the record of a carried message to its stage time, if the sender
// publishes it. (Design: a sender publishes within milliseconds of its Record.)
const PublishedGrace = time.Second

// StageAgainAfter and StageAgainWithin are the least and the greatest distance from the database's
// present time to a stage time set by Claim or Touch.
const (
	StageAgainAfter  = 10 * time.Second
	StageAgainWithin = 10 * time.Minute
)

// A DueRow is a carried row whose stage time has come.
type DueRow struct {
	ID uuid.UUID
	// RecordedAt and StageAt are times of the database's clock. RecordedAt of a delayed row is the
	// time when it was first due (Entry.NotBefore).
	RecordedAt, StageAt time.Time
	// Bytes is the length of the message.
	Bytes int64
}

// Unpublished reports that no copy of the message was ever published: not by the sender, and the
// row was never claimed.
func (r DueRow) Unpublished() bool { return !r.StageAt.After(r.RecordedAt) }

// Carried is a message with the ID of the row that carries it.
type Carried struct {
	ID      uuid.UUID
	Message []byte
}
